"""A token goes around a ring by persistent requests, which are made once and started in each turn."""

import numpy as np
from mpi4py import MPI

TURNS = 25

comm = MPI.COMM_WORLD.Dup()
rank, size = comm.Get_rank(), comm.Get_size()
right, left = (rank + 1) % size, (rank - 1) % size

out, into = np.zeros(4, dtype="i"), np.zeros(4, dtype="i")
send = comm.Send_init([out, MPI.INT], dest=right, tag=3)
recv = comm.Recv_init([into, MPI.INT], source=left, tag=3)
for turn in range(TURNS):
    recv.Start()
    if rank == 0:
        out[:] = [turn, out[1] + 1, 0, 0]
        send.Start()
        send.Wait()
        recv.Wait()
        out[1] = into[1]
    else:
        status = MPI.Status()
        recv.Wait(status)
        assert (status.source, status.tag) == (left, 3)
        out[:] = into + np.array([0, 1, rank, 0], dtype="i")
        send.Start()
        send.Wait()

passed = comm.gather(int(out[1]), root=0)

# both at once, in a shift
requests = [send, recv]
here = [rank]
for _ in range(size):
    out[:] = here[-1]
    MPI.Prequest.Startall(requests)
    MPI.Request.Waitall(requests)
    here.append(int(into[0]))
for request in requests:
    request.Free()
comm.Free()

shifted = MPI.COMM_WORLD.gather(here, root=0)
if MPI.COMM_WORLD.rank == 0:
    print(f"after {TURNS} turns: {passed}")
    for line in shifted:
        print(*line)
