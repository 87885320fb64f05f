"""Temperature of a plate with hot edges: Jacobi's method on a Cartesian grid of ranks with halos."""

import numpy as np
from mpi4py import MPI

N, STEPS = 48, 60

comm = MPI.COMM_WORLD
dims = MPI.Compute_dims(comm.Get_size(), 2)
cart = comm.Create_cart(dims, periods=[False, False], reorder=False)
row, col = cart.Get_coords(cart.Get_rank())
rows, cols = N // dims[0], N // dims[1]
north, south = cart.Shift(0, 1)
west, east = cart.Shift(1, 1)

u = np.zeros((rows + 2, cols + 2))
if north == MPI.PROC_NULL:
    u[0, :] = 100.0
if west == MPI.PROC_NULL:
    u[:, 0] = 50.0

left, right = np.empty(rows), np.empty(rows)
steps, change = 0, 1.0
while change > 1e-3 and steps < STEPS:
    steps += 1
    # rows lie in memory as they are sent, columns are copied
    cart.Sendrecv(u[1, 1:-1].copy(), dest=north, sendtag=11, recvbuf=u[-1, 1:-1], source=south, recvtag=11)
    cart.Sendrecv(u[-2, 1:-1].copy(), dest=south, sendtag=12, recvbuf=u[0, 1:-1], source=north, recvtag=12)
    cart.Sendrecv([u[1:-1, 1].copy(), MPI.DOUBLE], west, 13, [right, MPI.DOUBLE], east, 13)
    cart.Sendrecv([u[1:-1, -2].copy(), MPI.DOUBLE], east, 14, [left, MPI.DOUBLE], west, 14)
    if east != MPI.PROC_NULL:
        u[1:-1, -1] = right
    if west != MPI.PROC_NULL:
        u[1:-1, 0] = left
    new = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])
    change = cart.allreduce(float(abs(new - u[1:-1, 1:-1]).max()), op=MPI.MAX)
    u[1:-1, 1:-1] = new

blocks = cart.gather(((row, col), u[1:-1, 1:-1].copy()), root=0)
if cart.Get_rank() == 0:
    plate = np.empty((N, N))
    for (i, j), block in blocks:
        plate[i * rows : (i + 1) * rows, j * cols : (j + 1) * cols] = block
    print(f"after {steps} steps: change {change:.6f}, mean {plate.mean():.9f}, middle {plate[N // 2, N // 2]:.9f}")
cart.Free()
