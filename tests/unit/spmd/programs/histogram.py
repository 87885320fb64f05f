"""A histogram and other figures of one list of numbers, some of them by operations of one's own."""

import numpy as np
from mpi4py import MPI

COUNT, BINS = 2000, 16

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
numbers = np.random.default_rng(8).normal(10, 3, COUNT)[rank::size].copy()

counts, edges = np.histogram(numbers, bins=BINS, range=(0, 20))
counts = counts.astype(np.int64)
total = np.zeros(BINS, dtype=np.int64)
comm.Reduce([counts, MPI.INT64_T], [total, MPI.INT64_T] if rank == 0 else None, op=MPI.SUM, root=0)


def joined(a: dict[str, float], b: dict[str, float]) -> dict[str, float]:
    """Return count, mean and sum of squared deviations of two parts together."""
    n = a["n"] + b["n"]
    delta = b["mean"] - a["mean"]
    return {
        "n": n, "mean": a["mean"] + delta * b["n"] / n, "m2": a["m2"] + b["m2"] + delta**2 * a["n"] * b["n"] / n
    }  # fmt: skip


part = {"n": len(numbers), "mean": float(numbers.mean()), "m2": float(((numbers - numbers.mean()) ** 2).sum())}
figures = comm.reduce(part, op=joined, root=0)


def largest(inbuf, inoutbuf, datatype):
    """Keep the number whose absolute value is larger."""
    a, b = np.frombuffer(inbuf, dtype="d"), np.frombuffer(inoutbuf, dtype="d")
    b[:] = np.where(abs(a) > abs(b), a, b)


op = MPI.Op.Create(largest, commute=True)
ends = np.array([numbers.min() - 10, numbers.max() - 10])
extreme = np.empty(2)
comm.Allreduce([ends, MPI.DOUBLE], [extreme, MPI.DOUBLE], op=op)
op.Free()

# the smallest number and the place where it is
pair = np.zeros(1, dtype=np.dtype([("value", "d"), ("rank", "i")], align=True))
pair["value"], pair["rank"] = numbers.min(), rank
found = np.zeros_like(pair)
comm.Allreduce([pair, MPI.DOUBLE_INT], [found, MPI.DOUBLE_INT], op=MPI.MINLOC)
where = int(found["rank"][0])
assert 0 <= where < size

# each rank gets its share of the bins
mine = np.empty(BINS, dtype=np.int64)
comm.Reduce_scatter_block(np.tile(counts, size), mine, op=MPI.SUM)
assert mine.sum() == COUNT - comm.allreduce(int(((numbers < 0) | (numbers > 20)).sum()))
flags = comm.allreduce(1 << rank, op=MPI.BOR)
if rank == 0:
    assert (mine == total).all()
    assert flags == (1 << size) - 1
    print("bins:", total.tolist())
    print(f"{figures['n']} numbers, mean {figures['mean']:.9f}, variance {figures['m2'] / figures['n']:.9f}")
    print(f"extremes {extreme[0]:.6f} {extreme[1]:.6f}, smallest {found['value'][0]:.6f}")
    print("the smallest is on rank", where)
