"""Sample sort: every rank sends every other one the numbers of its range, in parts of any length."""

from itertools import pairwise

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
numbers = np.sort(np.random.default_rng(rank).integers(0, 1_000_000, 300 + 10 * rank))

samples = np.empty(size * size, dtype=numbers.dtype)
comm.Allgather(numbers[np.linspace(0, len(numbers) - 1, size).astype(int)], samples)
splitters = np.sort(samples)[size::size][: size - 1]
borders = np.concatenate([[0], np.searchsorted(numbers, splitters), [len(numbers)]])

sendcounts = np.diff(borders).astype("i")
recvcounts = np.empty_like(sendcounts)
comm.Alltoall(sendcounts, recvcounts)
sdispls = borders[:-1]
rdispls = np.concatenate([[0], np.cumsum(recvcounts)[:-1]])
received = np.empty(int(recvcounts.sum()), dtype=numbers.dtype)
comm.Alltoallv(
    [numbers, (sendcounts, sdispls), MPI.INT64_T],
    [received, (recvcounts, rdispls), MPI.INT64_T],
)
received.sort()

# the same with objects
pieces = comm.alltoall([numbers[a:b] for a, b in pairwise(borders)])
assert (np.sort(np.concatenate(pieces)) == received).all()

lengths = comm.gather(len(received), root=0)
everything = np.empty(sum(lengths), dtype=numbers.dtype) if rank == 0 else None
comm.Gatherv(received, [everything, lengths] if rank == 0 else None, root=0)
if rank == 0:
    print("sorted:", bool((np.diff(everything) >= 0).all()), "numbers:", len(everything))
    print("ends:", everything[:4].tolist(), everything[-4:].tolist())
