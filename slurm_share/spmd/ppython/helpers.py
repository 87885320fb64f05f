"""pPython's small helpers that need no other rank."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

VERSION = "0.10.4"
"""The release of pPython whose names these are."""


def pyMPI_Sleep(sleepTime: float = 0.01) -> None:
    """Sleep for so many seconds."""
    time.sleep(sleepTime)


def pyMPI_Delete_all() -> None:
    """Do nothing: there are no message files. Logs of ranks stay."""


def pyMPI_Host_rank(comm: dict[str, Any]) -> int:
    """Return the rank of the leading process."""
    return int(comm["host_rank"])


def pyMPI_Host_name(comm: dict[str, Any]) -> str:
    """Return the node of the leading process."""
    return str(comm["host_name"])


def pyMPI_Comm_dir(old_comm: dict[str, Any], dir: str) -> dict[str, Any]:
    """Return the dictionary with another folder for messages; none is used."""
    folders = old_comm["machine_db"]["dir"]
    folders.update(dict.fromkeys(folders, dir))
    return old_comm


def pPython_ver(default_display: Any = None) -> str:
    """Return, and print if asked, the release of pPython whose names these are."""
    if default_display:
        import sys

        sys.stdout.write(f"pPython version: {VERSION} (names; the messages are slurm-share's)\n")
    return VERSION


def pyMPI_Ver() -> str:
    """Return the release of pPython whose names these are."""
    return pPython_ver()


def pPython_init() -> None:
    """Do nothing: the run is there when the program starts."""


def pPython_finalize() -> None:
    """Do nothing: messages are delivered when the process ends."""


def partition_1d(n: int, m: int) -> tuple[dict[int, dict[str, int]], NDArray[np.float64]]:
    """Return the first and last index of `n` elements that each of `m` ranks has, and how many; the first get more."""
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


def factorint(n: int, multiple: bool = False) -> Any:
    """Return the prime factors of a whole number above 0, {prime: exponent}, or with `multiple` a list of them."""
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
