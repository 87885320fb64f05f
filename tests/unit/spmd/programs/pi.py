"""The number pi by the midpoint rule: the program of every introduction."""

import math

import numpy
from mpi4py import MPI

comm = MPI.COMM_WORLD
size = comm.Get_size()
rank = comm.Get_rank()


def part(n: int) -> float:
    h = 1.0 / n
    s = 0.0
    for i in range(rank + 1, n + 1, size):
        x = h * (i - 0.5)
        s += 4.0 / (1.0 + x * x)
    return s * h


for wish in (10, 100, 20_000):
    n = comm.bcast(wish if rank == 0 else None, root=0)
    total = comm.reduce(part(n), op=MPI.SUM, root=0)
    if rank == 0:
        print(f"{n:6d} steps: pi is about {total:.9f}, error {abs(total - math.pi):.9f}")

n = numpy.array(wish if rank == 0 else 0, dtype="i")
comm.Bcast([n, MPI.INT], root=0)
mine, total = numpy.array(part(int(n)), dtype="d"), numpy.array(0.0, dtype="d")
comm.Reduce([mine, MPI.DOUBLE], [total, MPI.DOUBLE], op=MPI.SUM, root=0)
if rank == 0:
    print(f"with arrays:  {float(total):.9f}")
begin = MPI.Wtime()
comm.Barrier()
assert 0 <= MPI.Wtime() - begin < 60
assert MPI.Wtick() < 1
