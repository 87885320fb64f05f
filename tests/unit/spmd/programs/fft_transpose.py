"""Two-dimensional FFT: rows, a transpose by Alltoall, rows again."""

import numpy as np
from mpi4py import MPI

N = 48

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
count = N // size


def transpose(rows):
    """Return this rank's rows of the transposed matrix."""
    send = np.ascontiguousarray(rows.reshape(count, size, count).transpose(1, 2, 0))
    recv = np.empty_like(send)
    comm.Alltoall([send, MPI.C_DOUBLE_COMPLEX], [recv, MPI.C_DOUBLE_COMPLEX])
    return np.ascontiguousarray(recv.transpose(1, 0, 2)).reshape(count, N)


first = rank * count
x = np.arange(first, first + count)[:, None]
y = np.arange(N)[None, :]
signal = np.exp(2j * np.pi * (3 * x + 5 * y) / N) + 0.25 * np.cos(2 * np.pi * 7 * x / N)

spectrum = transpose(np.fft.fft(transpose(np.fft.fft(signal, axis=1)), axis=1))
back = transpose(np.fft.ifft(transpose(np.fft.ifft(spectrum, axis=1)), axis=1))
error = comm.allreduce(float(abs(back - signal).max()), op=MPI.MAX)
peaks = [(first + int(i), int(j), round(float(abs(spectrum[i, j])), 6)) for i, j in np.argwhere(abs(spectrum) > 1)]
found = comm.gather(peaks, root=0)
everything = np.empty((N, N), dtype=complex) if rank == 0 else None
comm.Gather(spectrum, everything, root=0)
energy = np.zeros(1)
comm.Allreduce(np.array([(abs(spectrum) ** 2).sum()]), energy, op=MPI.SUM)
if rank == 0:
    print("back:", error < 1e-12)
    print("peaks:", sorted(peak for part in found for peak in part))
    print(f"energy: {energy[0]:.3f} {(abs(everything) ** 2).sum():.3f}")
