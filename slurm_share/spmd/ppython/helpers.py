"""Helper functions of pPython that need no other rank."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

VERSION = "0.10.4"
"""Release of pPython whose names this package offers."""


def pyMPI_Sleep(sleepTime: float = 0.01) -> None:
    """Sleep for `sleepTime` seconds."""
    time.sleep(sleepTime)


def pyMPI_Delete_all() -> None:
    """Do nothing: there are no message files, and the logs of ranks are kept."""


def pyMPI_Host_rank(comm: dict[str, Any]) -> int:
    """Return the rank of the leading process."""
    return int(comm["host_rank"])


def pyMPI_Host_name(comm: dict[str, Any]) -> str:
    """Return the node of the leading process."""
    return str(comm["host_name"])


def pyMPI_Comm_dir(old_comm: dict[str, Any], dir: str) -> dict[str, Any]:
    """Return the dictionary with another folder for messages, which is not used."""
    folders = old_comm["machine_db"]["dir"]
    folders.update(dict.fromkeys(folders, dir))
    return old_comm


def pPython_ver(default_display: Any = None) -> str:
    """Return the release of pPython whose names this package offers; print it if `default_display` is true."""
    if default_display:
        import sys

        sys.stdout.write(f"pPython version: {VERSION} (names; the messages are slurm-share's)\n")
    return VERSION


def pyMPI_Ver() -> str:
    """Return the release of pPython whose names this package offers."""
    return pPython_ver()


def pPython_init() -> None:
    """Do nothing: the run exists before the program starts."""


def pPython_finalize() -> None:
    """Do nothing: messages are delivered when the process ends."""


def partition_1d(n: int, m: int) -> tuple[dict[int, dict[str, int]], NDArray[np.float64]]:
    """Divide `n` elements among `m` ranks: return each rank's first and last index, and the counts."""
    size, larger = divmod(int(n), int(m))
    sizes = np.array([size + (rank < larger) for rank in range(m)], dtype=float)
    starts = [rank * size + min(rank, larger) for rank in range(m + 1)]
    return {rank: {"beg": starts[rank], "end": starts[rank + 1] - 1} for rank in range(m)}, sizes


def tup2ary(x: Iterable[Iterable[int]]) -> NDArray[Any]:
    """Return the elements of ranges as one array."""
    return np.array([item for one in x for item in one])


def lcm(a: int, b: int) -> int:
    """Return the least common multiple."""
    return math.lcm(int(a), int(b))


def combine_pairs(combine: Callable[[Any, Any], Any], parts: Sequence[Any]) -> Any:
    """Return all parts combined as pPython does: neighbours in pairs, then their results, until one is left."""
    while len(parts) > 1:
        pairs = [combine(*parts[at : at + 2]) for at in range(0, len(parts) - 1, 2)]
        parts = [*pairs, parts[-1]] if len(parts) % 2 else pairs
    return parts[0]


def factorint(n: int, multiple: bool = False) -> Any:
    """Return the prime factors of a positive integer, {prime: exponent}, or with `multiple` a list of them."""
    factors: list[int] = []
    rest, divisor = int(n), 2
    while divisor * divisor <= rest:
        while rest % divisor == 0:
            factors.append(divisor)
            rest //= divisor
        divisor += 1
    if rest > 1:
        factors.append(rest)
    return factors if multiple else {prime: factors.count(prime) for prime in factors}
