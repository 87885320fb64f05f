"""How much of a GPU's memory one of its tasks may take."""

from __future__ import annotations

import math

from ..records import Gpu, ShareRequest
from ..settings import Settings


def memory_cap_mib(gpu: Gpu, share: ShareRequest, settings: Settings) -> int | None:
    """The cap of one task in MiB: what the user asked, else an even part of the GPU less the reserve.

    None where one task has the GPU to itself, or where the driver does not say how large the GPU is.
    """
    if share.mem_mib is not None:
        return share.mem_mib
    if share.per_gpu == 1 or gpu.memory_total_mib is None:
        return None
    usable = gpu.memory_total_mib * (1 - settings.memory_reserve_percent / 100)
    return math.floor(usable / share.per_gpu)


def memory_fraction(gpu: Gpu, cap_mib: int | None) -> str | None:
    """The cap as the fraction of the whole GPU that JAX is told, rounded down; None without a cap."""
    if cap_mib is None or not gpu.memory_total_mib:
        return None
    thousandths = math.floor(1000 * min(cap_mib / gpu.memory_total_mib, 1.0))
    return f"{max(thousandths, 1) / 1000:.3f}"
