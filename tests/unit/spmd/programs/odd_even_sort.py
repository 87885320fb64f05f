"""Odd-even transposition sort: neighbours exchange whole blocks; ranks at the ends have no neighbour."""

import numpy as np
from mpi4py import MPI

COUNT = 500

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size

everything = np.random.default_rng(5).integers(0, 100_000, COUNT * size).astype("i") if rank == 0 else None
local = np.empty(COUNT, dtype="i")
comm.Scatter(everything, local, root=0)
local.sort()
other = np.empty_like(local)

for phase in range(size + 1):
    partner = rank + 1 if (rank + phase) % 2 == 0 else rank - 1
    if not 0 <= partner < size:
        partner = MPI.PROC_NULL
    status = MPI.Status()
    comm.Sendrecv(
        [local, COUNT, MPI.INT], dest=partner, sendtag=phase, recvbuf=[other, COUNT, MPI.INT], source=partner,
        recvtag=phase, status=status,
    )  # fmt: skip
    if partner == MPI.PROC_NULL:
        assert status.Get_source() == MPI.PROC_NULL
        assert status.Get_count(MPI.INT) == 0
        continue
    both = np.sort(np.concatenate([local, other]))
    local = both[:COUNT].copy() if rank < partner else both[COUNT:].copy()

# each end is compared with the next rank's beginning
edge = comm.sendrecv(int(local[0]), dest=rank - 1 if rank else MPI.PROC_NULL,
                     source=rank + 1 if rank + 1 < size else MPI.PROC_NULL)  # fmt: skip
in_order = edge is None or int(local[-1]) <= edge
is_sorted = comm.allreduce(bool(in_order), op=MPI.LAND)
result = np.empty(COUNT * size, dtype="i") if rank == 0 else None
comm.Gather(sendbuf=local, recvbuf=result, root=0)
if rank == 0:
    print("sorted:", is_sorted, bool((result == np.sort(everything)).all()))
    print("first and last:", result[:3].tolist(), result[-3:].tolist())
