"""Monte Carlo: sums on each node first, then between the first ranks of the nodes."""

import random

from mpi4py import MPI

SAMPLES = 4000

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
name = MPI.Get_processor_name()
begin = MPI.Wtime()

# every rank draws its own stretch of one list of seeds
share = SAMPLES // size + (rank < SAMPLES % size)
first = comm.exscan(share, op=MPI.SUM)
first = 0 if rank == 0 else first
assert comm.scan(share) == first + share

hits = 0
for number in range(first, first + share):
    draw = random.Random(number)
    hits += draw.random() ** 2 + draw.random() ** 2 < 1

node = comm.Split_type(MPI.COMM_TYPE_SHARED, key=rank)
on_node = node.reduce(hits, op=MPI.SUM, root=0)
leaders = comm.Split(0 if node.rank == 0 else MPI.UNDEFINED, rank)
total = None
if leaders != MPI.COMM_NULL:
    total = leaders.allreduce(on_node)
    leaders.Free()
else:
    assert node.rank > 0
total = node.bcast(total, root=0)
assert total == comm.allreduce(hits)

names = comm.gather(name, root=0)
best = comm.allreduce((hits / share, rank), op=MPI.MAXLOC)
least, where = comm.allreduce((hits / share, rank), op=MPI.MINLOC)
if rank == 0:
    assert len(names) == size
    assert all(names)
    print(f"{total} of {SAMPLES} samples: pi is about {4 * total / SAMPLES:.6f}")
    print(f"most hits {best[0]:.6f} on rank {best[1]}, fewest {least:.6f} on rank {where}")
assert MPI.Wtime() >= begin
node.Free()
