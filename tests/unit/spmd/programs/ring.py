"""Values travel around a ring: plain, without waiting, and in place."""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
right, left = (rank + 1) % size, (rank - 1) % size

# an array, one step further in each turn
mine = np.full(1000, rank, dtype=np.float64)
total = np.zeros_like(mine)
other = np.empty_like(mine)
for _ in range(size):
    total += mine
    requests = [comm.Isend(mine, dest=right, tag=7), comm.Irecv(other, source=left, tag=7)]
    MPI.Request.Waitall(requests)
    mine, other = other.copy(), other

# the same array is sent and received
here = np.array([rank, rank * rank], dtype="i")
status = MPI.Status()
for _ in range(size - 1):
    comm.Sendrecv_replace([here, MPI.INT], dest=right, sendtag=1, source=left, recvtag=1, status=status)
if size > 1:
    assert status.Get_source() == left
    assert status.Get_count(MPI.INT) == 2

# objects
seen = [rank]
for _ in range(size - 1):
    seen.append(comm.sendrecv(seen[-1], dest=right, source=left))

# around once, adding
start = comm.isend({"sum": 0}, dest=right, tag=99) if rank == 0 else MPI.REQUEST_NULL
data = comm.recv(source=left, tag=99)
data["sum"] += rank
if rank != 0:
    comm.send(data, dest=right, tag=99)

start.wait()

lines = comm.gather((float(total.sum()), here.tolist(), seen), root=0)
if rank == 0:
    print("around:", data["sum"])
    for number, line in enumerate(lines):
        print(number, *line)
