"""Collective calls with parts of other lengths, gaps between elements, and operations on pairs and of the program."""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
root = size - 1
results = []


def note(name, values):
    results.append((name, np.asarray(values).tolist()))


counts = [2 * (other % 3) + 1 for other in range(size)]
starts = [sum(counts[other + 1 :]) + size - 1 - other for other in range(size)]
total = sum(counts) + size
mine = np.arange(counts[rank], dtype="d") + 10 * rank

whole = np.full(total, -1.0)
comm.Gatherv(mine, [whole, counts, starts, MPI.DOUBLE] if rank == root else None, root=root)
note("Gatherv", whole)
whole[:] = -1
comm.Allgatherv([mine, counts[rank]], [whole, (counts, starts), MPI.DOUBLE])
note("Allgatherv", whole)
own = np.full(total, -1.0)
own[starts[rank] : starts[rank] + counts[rank]] = mine
comm.Allgatherv(MPI.IN_PLACE, [own, (counts, starts)])
note("Allgatherv in place", own)
part = np.zeros(counts[rank])
comm.Scatterv([whole + 0.5, (counts, starts)] if rank == root else None, part, root)
note("Scatterv", part)
even = np.zeros(7 // size + (rank < 7 % size))
comm.Scatterv(np.arange(7.0) if rank == root else None, even, root)
note("Scatterv without counts", even)

sends = [(rank + other) % 3 for other in range(size)]
target = np.full(sum(sends) + 1, -1.0)
source = np.concatenate([np.full(count, 10.0 * rank + other) for other, count in enumerate(sends)])
comm.Alltoallv([source, sends], [target, sends, MPI.DOUBLE])
note("Alltoallv", target)
target[:] = -1
places = [8 * sum(sends[:other]) for other in range(size)]
comm.Alltoallw([source, sends, places, [MPI.DOUBLE] * size], [target, (sends, places), [MPI.DOUBLE] * size])
note("Alltoallw", target)

table = np.arange(float(size * size)).reshape(size, size) + 100 * rank
column = MPI.DOUBLE.Create_vector(size, 1, size).Create_resized(0, 8).Commit()
got = np.zeros((size, size))
comm.Alltoall([table, 1, column], got)
note("Alltoall of columns", got)
area = np.arange(20.0).reshape(4, 5) + 100 * rank
block = MPI.DOUBLE.Create_subarray([4, 5], [2, 3], [1, 1]).Commit()
comm.Bcast([area, 1, block], root)
note("Bcast of a block", area)
uneven = MPI.INT.Create_indexed([2, 1], [1, 5]).Commit()
numbers = np.arange(7, dtype="i") + 100 * rank
comm.Sendrecv([numbers, 1, uneven], (rank + 1) % size, 0, [flat := np.zeros(3, "i"), MPI.INT], (rank - 1) % size, 0)
note("Sendrecv of indexed elements", flat)
block.Free()

pairs = np.zeros(3, dtype=[("value", "f8"), ("index", "i4"), ("rest", "i4")])
pairs["value"] = [rank % 2, 1, -rank]
pairs["index"] = [rank, size - rank, rank]
found = np.zeros_like(pairs)
for op in (MPI.MAXLOC, MPI.MINLOC):
    comm.Allreduce([pairs, 3, MPI.DOUBLE_INT], [found, 3, MPI.DOUBLE_INT], op)
    note("pairs", [found["value"], found["index"]])
    results.append(("pair", comm.allreduce((rank % 2, rank), op)))
for name in ("SUM", "PROD", "MIN", "MAX", "LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR"):
    values = np.array([rank, rank + 1, 3 - rank], "i")
    comm.Allreduce(values, sums := np.zeros(3, "i"), getattr(MPI, name))
    note(name, sums)
    results.append((name, comm.allreduce(rank + 1, getattr(MPI, name))))


def product(left, right, _kind):
    a, b = (np.frombuffer(one, "d").reshape(-1, 2, 2) for one in (left, right))
    b[:] = a @ b


op = MPI.Op.Create(product, commute=False)
matrix = np.array([[1.0, rank], [rank % 2, 2.0]])
comm.Reduce(matrix, power := np.zeros((2, 2)), op, root)
note("product", power)
comm.Scan(matrix, power, op)
note("products", power)
op.Free()

values = np.arange(3.0) + rank
comm.Scan(MPI.IN_PLACE, values)
note("Scan", values)
before = np.full(3, -1.0)
comm.Exscan(np.arange(3.0) + rank, before, MPI.MAX)
note("Exscan", before)
results.append(("exscan", comm.exscan(rank + 1), comm.scan(str(rank))))
comm.Reduce_scatter_block(np.arange(2.0 * size), pieces := np.zeros(2))
note("Reduce_scatter_block", pieces)
comm.Reduce_scatter(np.arange(float(sum(counts))) * rank, part, counts)
note("Reduce_scatter", part)
comm.Reduce_scatter(np.arange(float(sum(counts))) * rank, part, op=MPI.MAX)
note("Reduce_scatter without counts", part)
left = np.arange(3.0)
MPI.SUM.Reduce_local(np.ones(3), left)
note("Reduce_local", left)
note("sizes", [[kind.Get_size(), *kind.Get_extent()] for kind in (MPI.DOUBLE_INT, column, uneven)])

gathered = comm.gather(results)
if rank == 0:
    for other, lines in enumerate(gathered):
        for line in lines:
            print(other, *line)
