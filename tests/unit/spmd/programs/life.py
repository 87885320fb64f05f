"""Conway's game of life on a torus: eight neighbours in a periodic Cartesian grid of ranks."""

import numpy as np
from mpi4py import MPI

N, STEPS = 24, 20

comm = MPI.COMM_WORLD
dims = MPI.Compute_dims(comm.Get_size(), 2)
cart = comm.Create_cart(dims, periods=(True, True), reorder=True)
me = cart.Get_rank()
y, x = cart.Get_coords(me)
h, w = N // dims[0], N // dims[1]

world = np.zeros((N, N), dtype=np.uint8)
world[1:4, 1:4] = [[0, 1, 0], [0, 0, 1], [1, 1, 1]]
world[12:15, 20:23] = [[0, 1, 1], [1, 1, 0], [0, 1, 0]]
cells = np.zeros((h + 2, w + 2), dtype=np.uint8)
cells[1:-1, 1:-1] = world[y * h : (y + 1) * h, x * w : (x + 1) * w]

SENT = {-1: slice(1, 2), 0: slice(1, -1), 1: slice(-2, -1)}
KEPT = {-1: slice(0, 1), 0: slice(1, -1), 1: slice(-1, None)}
AROUND = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if (dy, dx) != (0, 0)]


def exchange() -> None:
    """Copy the edges of all eight neighbours."""
    received, requests = {}, []
    for tag, (dy, dx) in enumerate(AROUND):
        part = np.empty_like(cells[KEPT[dy], KEPT[dx]])
        received[dy, dx] = part
        requests.append(
            cart.Irecv([part, MPI.UNSIGNED_CHAR], cart.Get_cart_rank([y + dy, x + dx]), len(AROUND) - 1 - tag)
        )
    for tag, (dy, dx) in enumerate(AROUND):
        edge = np.ascontiguousarray(cells[SENT[dy], SENT[dx]])
        requests.append(cart.Isend([edge, MPI.UNSIGNED_CHAR], dest=cart.Get_cart_rank([y + dy, x + dx]), tag=tag))
    MPI.Request.Waitall(requests)
    for (dy, dx), part in received.items():
        cells[KEPT[dy], KEPT[dx]] = part


alive = []
for _ in range(STEPS):
    exchange()
    around = sum(cells[1 + dy : h + 1 + dy, 1 + dx : w + 1 + dx] for dy, dx in AROUND)
    inner = cells[1:-1, 1:-1]
    cells[1:-1, 1:-1] = (around == 3) | ((inner == 1) & (around == 2))
    alive.append(cart.allreduce(int(cells[1:-1, 1:-1].sum()), op=MPI.SUM))

blocks = np.empty((cart.size, h, w), dtype=np.uint8) if me == 0 else None
cart.Gather(np.ascontiguousarray(cells[1:-1, 1:-1]), blocks, root=0)
if me == 0:
    for number, block in enumerate(blocks):
        i, j = cart.Get_coords(number)
        world[i * h : (i + 1) * h, j * w : (j + 1) * w] = block
    print("alive:", alive)
    print("\n".join("".join(".#"[cell] for cell in line) for line in world))
