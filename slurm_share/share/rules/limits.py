"""Compute a task's caps on GPU memory and multiprocessors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...core import names
from ...core.records import ShareRequest, SmChoice
from ...core.settings import Settings, parse_sm
from ...node.records import Gpu


def tasks_per_gpu(processes: int, gpus: int) -> int:
    """Return the most processes on one GPU if they are divided evenly: the N of --share-gpu=N."""
    return math.ceil(processes / gpus)


def usable_mib(gpu: Gpu, settings: Settings) -> int | None:
    """Return the MiB that the tasks of a GPU have together: all but the reserve and the context of its MPS server.

    None if the driver does not report the GPU's size, or the site's settings reserve all of it. A reported 0 is not a
    size.
    """
    if not gpu.memory_total_mib:
        return None
    reserve = gpu.memory_total_mib * settings.memory_reserve_percent / 100
    left = math.floor(gpu.memory_total_mib - reserve - settings.mps_server_memory_mib)
    return left if left > 0 else None


def memory_cap_mib(gpu: Gpu, share: ShareRequest, settings: Settings) -> int | None:
    """Return the memory cap of one task in MiB: the user's, else an even part of the usable memory.

    None if the task has the GPU to itself, nothing is known to be left for it (`usable_mib`), or the GPU uses the
    node's memory, which other programs use as well.
    """
    if share.mem_mib is not None:
        return share.mem_mib
    usable = usable_mib(gpu, settings)
    if share.per_gpu == 1 or usable is None or gpu.is_host_memory:
        return None
    return usable // share.per_gpu or None


def why_guaranteed_is_too_much(gpus: Sequence[Gpu], share: ShareRequest, settings: Settings) -> str | None:
    """Return why the guaranteed memory of all tasks of a GPU does not fit, and what does; None: it fits, or is not
    known."""
    least_mib, per_gpu = share.mem_least_mib, share.per_gpu
    if least_mib is None:
        return None
    for gpu in gpus:
        usable = usable_mib(gpu, settings)
        if usable is None or least_mib * per_gpu <= usable:
            continue
        ways = []
        if usable // per_gpu >= names.MEM_MIN_MIB:
            ways.append(f"mem={usable // per_gpu}M:{share.mem_mib}M")
        if usable >= least_mib:
            ways.append(f"--{names.OPTION}={usable // least_mib}")
        return (
            f"{per_gpu} x {least_mib} MiB guaranteed is more than the {usable} MiB that tasks can have on GPU "
            f"{gpu.index}; ask for {' or '.join(ways) or 'less'}"
        )
    return None


def memory_ratio(gpu: Gpu, cap_mib: int | None) -> str | None:
    """Return the cap as a fraction of the whole GPU, for JAX, rounded down; None without a cap."""
    if cap_mib is None or not gpu.memory_total_mib:
        return None
    thousandths = math.floor(1000 * min(cap_mib / gpu.memory_total_mib, 1.0))
    return f"{max(thousandths, 1) / 1000:.3f}"


def sm_percent(share: ShareRequest, settings: Settings) -> float | None:
    """Return the percentage of a GPU's multiprocessors that one task may use; None: no cap.

    The user's value can only lower the site's default. A static partition counts as an even part: no task has more.
    """
    site = _percent(parse_sm(settings.sm), share.per_gpu)
    asked = site if share.sm is None else _percent(share.sm, share.per_gpu)
    caps = [percent for percent in (site, asked) if percent is not None]
    return min(caps) if caps else None


def _percent(choice: SmChoice, per_gpu: int) -> float | None:
    if choice == "free":
        return None
    # MPS keeps one decimal (it prints %.1f). Round down, so that N tasks have no more than the GPU.
    return math.floor(1000 / per_gpu) / 10 if choice in ("even", "static") else float(choice)
