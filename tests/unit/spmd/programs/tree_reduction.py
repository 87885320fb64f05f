"""A reduction by hand along a binary tree, compared with the calls that do it, in parts of the ranks."""

import numpy as np
from mpi4py import MPI


def tree_sum(comm, value):
    """Return the sum on rank 0, None elsewhere."""
    rank, size, step = comm.Get_rank(), comm.Get_size(), 1
    while step < size:
        if rank % (2 * step) == 0:
            if rank + step < size:
                value = value + comm.recv(source=rank + step, tag=step)
        else:
            comm.send(value, dest=rank - step, tag=step)
            return None
        step *= 2
    return value


world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
value = (rank + 1) ** 2
by_hand = tree_sum(world, value)
assert by_hand == world.reduce(value, root=0)

# the same among even and among odd ranks, whose messages do not meet those of the others
half = world.Split(color=rank % 2, key=rank)
in_half = tree_sum(half, value)
halves = world.gather(in_half, root=0)

# the first ranks, by a group
group = world.Get_group()
some = group.Incl(list(range(0, size, 2))) if size > 1 else group.Incl([0])
assert group.Get_size() == size
translated = MPI.Group.Translate_ranks(some, list(range(some.Get_size())), group)
chosen = world.Create_group(some) if rank in list(translated) else MPI.COMM_NULL
picked = None if chosen == MPI.COMM_NULL else chosen.allgather(rank)
if chosen != MPI.COMM_NULL:
    chosen.Free()

# sums of the ranks before
vector = np.arange(5, dtype=np.int32) + rank
until, before = np.empty_like(vector), np.zeros_like(vector)
world.Scan(vector, until, op=MPI.SUM)
world.Exscan([vector, MPI.INT], [before, MPI.INT], op=MPI.SUM)
assert rank == 0 or (until == before + vector).all()

# each rank gets the sum of one part
counts = [one + 1 for one in range(size)]
everything = np.arange(sum(counts), dtype="d") * (rank + 1)
part = np.empty(counts[rank])
world.Reduce_scatter(everything, part, recvcounts=counts, op=MPI.SUM)
parts = world.gather(part.tolist(), root=0)
copy = world.Dup()
assert copy.allreduce(rank, op=MPI.MAX) == size - 1
assert MPI.Comm.Compare(world, copy) == MPI.CONGRUENT
assert MPI.Comm.Compare(world, world) == MPI.IDENT
copy.Free()
half.Free()
last = np.empty_like(until)
if rank == size - 1:
    last[:] = until
world.Bcast(last, root=size - 1)
if rank == 0:
    print("tree:", by_hand, "halves:", [part for part in halves if part is not None])
    print("chosen:", picked, "scan:", last.tolist())
    print("parts:", parts)
