"""Smallest program of a peer: import NumPy, meet all ranks, write the time. SPMD_START names the peer and a folder."""

import os
import time

import numpy  # noqa: F401

peer, folder = os.environ["SPMD_START"].split(":", 1)
if peer == "ours":
    from slurm_share.spmd import COMM_WORLD as comm

    comm.barrier()
    rank = comm.rank
elif peer == "mpi4py":
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()
    rank = MPI.COMM_WORLD.Get_rank()
else:
    rank = os.getpid()
with open(f"{folder}/ready.{rank}", "w") as file:
    file.write(f"{os.getpid()} {time.monotonic()}")
