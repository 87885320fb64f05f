"""A parameter server: rank 0 has the parameters, answers in the order of arrival, and looks before it receives."""

import time

import numpy as np
from mpi4py import MPI

PULL, PUSH, STOP = 1, 2, 3
ROUNDS, LENGTH = 8, 50

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
status = MPI.Status()

if rank == 0:
    parameters = np.zeros(LENGTH)
    pushes = stopped = pulls = 0
    while stopped < size - 1:
        if not comm.Iprobe(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status):
            time.sleep(0.0005)
            continue
        source, tag = status.Get_source(), status.Get_tag()
        if tag == PULL:
            comm.recv(source=source, tag=PULL)
            comm.Send([parameters, MPI.DOUBLE], dest=source, tag=PULL)
            pulls += 1
        elif tag == PUSH:
            gradient = np.empty(status.Get_count(MPI.DOUBLE))
            comm.Recv([gradient, MPI.DOUBLE], source=source, tag=PUSH)
            parameters += gradient
            pushes += 1
        else:
            comm.recv(source=source, tag=STOP)
            stopped += 1
    print(f"{pushes} pushes, {pulls} pulls, parameters {parameters.min():.6f} to {parameters.max():.6f}")
else:
    here = np.empty(LENGTH)
    for turn in range(ROUNDS):
        comm.send(None, dest=0, tag=PULL)
        comm.Recv(here, source=0, tag=PULL)
        assert here.min() == here.max()
        comm.Send(np.full(LENGTH, 0.25 * rank + turn), dest=0, tag=PUSH)
    comm.send("bye", dest=0, tag=STOP)
comm.Barrier()

# messages of unknown length, taken out before they are received
if rank == 0:
    lengths, words = [], []
    for _ in range(size - 1):
        message = MPI.COMM_WORLD.Mprobe(MPI.ANY_SOURCE, PUSH, status)
        room = np.empty(status.Get_count(MPI.INT), dtype="i")
        message.Recv([room, MPI.INT])
        lengths.append(len(room))
        assert (room == status.source).all()
    for source in range(1, size):
        message = comm.mprobe(source, STOP)
        words.append(message.recv())
    assert comm.Improbe() is None or size > 1
    print("lengths:", sorted(lengths), "objects:", words)
else:
    comm.Send(np.full(rank * 3, rank, dtype="i"), dest=0, tag=PUSH)
    comm.ssend({"from": rank}, dest=0, tag=STOP)
