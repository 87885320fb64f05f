"""k-means: points in unequal parts by Scatterv, sums in place by Allreduce, labels back by Gatherv."""

import numpy as np
from mpi4py import MPI

POINTS, K, STEPS = 1003, 4, 12

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()

counts = np.array([POINTS // size + (one < POINTS % size) for one in range(size)])
displs = np.concatenate([[0], np.cumsum(counts)[:-1]])
points = None
if rank == 0:
    generator = np.random.default_rng(3)
    middles = np.array([[0.0, 0.0], [5.0, 5.0], [0.0, 5.0], [5.0, 0.0]])
    points = middles[generator.integers(0, K, POINTS)] + generator.normal(0, 0.7, (POINTS, 2))

mine = np.empty((counts[rank], 2))
comm.Scatterv([points, tuple(2 * counts), tuple(2 * displs), MPI.DOUBLE], [mine, MPI.DOUBLE], root=0)
centers = points[:K].copy() if rank == 0 else np.empty((K, 2))
comm.Bcast(centers, root=0)

for _ in range(STEPS):
    labels = ((mine[:, None, :] - centers[None, :, :]) ** 2).sum(axis=2).argmin(axis=1)
    sums = np.array([mine[labels == k].sum(axis=0) for k in range(K)])
    members = np.array([(labels == k).sum() for k in range(K)], dtype=np.int64)
    comm.Allreduce(MPI.IN_PLACE, sums, op=MPI.SUM)
    comm.Allreduce(MPI.IN_PLACE, [members, MPI.INT64_T], op=MPI.SUM)
    centers = sums / np.maximum(members, 1)[:, None]

labels = labels.astype("i")
all_labels = np.empty(POINTS, dtype="i") if rank == 0 else None
comm.Gatherv(sendbuf=labels, recvbuf=(all_labels, counts) if rank == 0 else None, root=0)
everywhere = np.empty(POINTS, dtype="i")
comm.Allgatherv([labels, MPI.INT], [everywhere, counts, displs, MPI.INT])
inertia = comm.allreduce(float(((mine - centers[labels]) ** 2).sum()))
if rank == 0:
    print("members:", np.bincount(all_labels, minlength=K).tolist(), bool((all_labels == everywhere).all()))
    print("centers:", np.round(centers, 6).tolist())
    print(f"inertia: {inertia:.6f}")
