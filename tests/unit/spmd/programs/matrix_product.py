"""Matrix product by SUMMA: a grid of ranks, whose rows and columns are communicators of their own."""

import math

import numpy as np
from mpi4py import MPI

N = 24

comm = MPI.COMM_WORLD
p, q = MPI.Compute_dims(comm.size, [0, 0])
grid = comm.Create_cart((p, q))
i, j = grid.coords
along_row = grid.Sub([False, True])
along_column = grid.Sub([True, False])
assert (along_row.size, along_row.rank) == (q, j)
assert (along_column.size, along_column.rank) == (p, i)

generator = np.random.default_rng(12)
A, B = generator.random((N, N)), generator.random((N, N))
nr, nc = N // p, N // q
a = A[i * nr : (i + 1) * nr, j * nc : (j + 1) * nc].copy()
b = B[i * nr : (i + 1) * nr, j * nc : (j + 1) * nc].copy()
c = np.zeros((nr, nc))

width = N // math.lcm(p, q)
for k in range(0, N, width):
    left, top = np.empty((nr, width)), np.empty((width, nc))
    if k // nc == j:
        left[:] = a[:, k % nc : k % nc + width]
    if k // nr == i:
        top[:] = b[k % nr : k % nr + width, :]
    along_row.Bcast([left, MPI.DOUBLE], root=k // nc)
    along_column.Bcast([top, MPI.DOUBLE], root=k // nr)
    c += left @ top

# the same rows and columns by Split
by_row = comm.Split(color=i, key=j)
by_column = comm.Split(color=j, key=-i)
assert by_row.allgather(grid.rank) == along_row.allgather(grid.rank)
assert by_column.allgather(grid.rank) == along_column.allgather(grid.rank)[::-1]

trace = comm.allreduce(float(sum(c[x, y] for x in range(nr) for y in range(nc) if i * nr + x == j * nc + y)))
row_of_blocks = along_row.gather(c, root=0)
if j == 0:
    rows = along_column.gather(np.hstack(row_of_blocks), root=0)
    if i == 0:
        C = np.vstack(rows)
        print(f"right: {np.allclose(C, A @ B)}, trace {trace:.9f}, corner {C[-1, -1]:.9f}")
for made in (by_row, by_column, along_row, along_column, grid):
    made.Free()
