"""Compute how much of a GPU one of its tasks may take."""

from __future__ import annotations

import math

from ...core.records import ShareRequest, SmChoice
from ...core.settings import Settings, parse_sm
from ...node.records import Gpu


def tasks_per_gpu(processes: int, gpus: int) -> int:
    """Return how many of a node's processes the fullest of its GPUs has: the N of --share-gpu=N."""
    return math.ceil(processes / gpus)


def usable_mib(gpu: Gpu, settings: Settings) -> int | None:
    """Return what the tasks of a GPU have together, in MiB: all but the reserve and the context of its MPS server.

    None where the driver does not say how large the GPU is.
    """
    if gpu.memory_total_mib is None:
        return None
    reserve = gpu.memory_total_mib * settings.memory_reserve_percent / 100
    return max(math.floor(gpu.memory_total_mib - reserve - settings.mps_server_memory_mib), 1)


def memory_cap_mib(gpu: Gpu, share: ShareRequest, settings: Settings) -> int | None:
    """Return the cap of one task in MiB: what the user asked, else an even part of what is usable.

    None where one task has the GPU to itself, or where the driver does not say how large the GPU is.
    """
    if share.mem_mib is not None:
        return share.mem_mib
    usable = usable_mib(gpu, settings)
    if share.per_gpu == 1 or usable is None:
        return None
    return max(usable // share.per_gpu, 1)


def memory_ratio(gpu: Gpu, cap_mib: int | None) -> str | None:
    """Return the cap as the fraction of the whole GPU that JAX is told, rounded down; None without a cap."""
    if cap_mib is None or not gpu.memory_total_mib:
        return None
    thousandths = math.floor(1000 * min(cap_mib / gpu.memory_total_mib, 1.0))
    return f"{max(thousandths, 1) / 1000:.3f}"


def sm_percent(share: ShareRequest, settings: Settings) -> float | None:
    """Return the part of a GPU's multiprocessors that one task may use, in percent; None for no cap.

    What the user asks is held to what the site allows by default: a share can be made smaller, not larger.
    """
    site = _percent(parse_sm(settings.sm), share.per_gpu)
    asked = site if share.sm is None else _percent(share.sm, share.per_gpu)
    caps = [percent for percent in (site, asked) if percent is not None]
    return min(caps) if caps else None


def _percent(choice: SmChoice, per_gpu: int) -> float | None:
    if choice == "free":
        return None
    # MPS keeps one decimal (its answers are written %.1f); rounding down keeps N of them within the GPU.
    return math.floor(1000 / per_gpu) / 10 if choice == "even" else float(choice)
