"""A pipeline of stages: each rank works on items as they come, and sends ahead while it works."""

import numpy as np
from mpi4py import MPI

ITEMS = 40

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
before = rank - 1 if rank > 0 else MPI.PROC_NULL
after = rank + 1 if rank < size - 1 else MPI.PROC_NULL

# objects
sends, results = [], []
for number in range(ITEMS):
    item = {"number": number, "path": []}
    if rank > 0:
        item = comm.irecv(source=before, tag=number).wait()
    item["path"].append(rank)
    if after != MPI.PROC_NULL:
        sends.append(comm.isend(item, dest=after, tag=number))
    else:
        results.append(item)
MPI.Request.waitall(sends)

# arrays: all receives are posted first, and worked on in the order of arrival
blocks = np.empty((ITEMS, 100))
if rank == 0:
    blocks[:] = np.arange(ITEMS)[:, None]
receives = [comm.Irecv(blocks[number], source=before, tag=100 + number) for number in range(ITEMS)]
pending = []
for _ in range(ITEMS):
    number = MPI.Request.Waitany(receives)
    blocks[number] = blocks[number] * 1.5 + rank
    pending.append(comm.Isend(blocks[number], dest=after, tag=100 + number))
assert MPI.Request.Testall(receives)
MPI.Request.Waitall(pending)
assert MPI.Request.Waitany(receives) == MPI.UNDEFINED

# a test that polls
request = comm.irecv(source=size - 1, tag=1000) if rank == 0 else None
if rank == size - 1:
    comm.send(("done", len(results)), dest=0, tag=1000)
if rank == 0:
    done, message = request.test()
    while not done:
        done, message = request.test()
    print(message)
total = comm.bcast(blocks.sum() if rank == size - 1 else None, root=size - 1)
paths = comm.bcast([item["path"] for item in results] if rank == size - 1 else None, root=size - 1)
if rank == 0:
    print(f"sum {total:.3f}, paths {sorted(map(tuple, paths))[0]} of {len(paths)} items")
