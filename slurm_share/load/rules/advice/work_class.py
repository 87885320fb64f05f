"""Classify a job's nodes: what limits them, or how well they are used, such as CPU-bound or idle."""

from __future__ import annotations

from collections.abc import Sequence

from ....core.settings import Settings
from ...snapshot import Bound, WorkClass
from .. import thresholds
from .bounds import most_now
from .evidence import Evidence


def of(nodes: Sequence[Evidence], hard: Sequence[Bound], settings: Settings) -> WorkClass:
    """Return the first class that applies, the most harmful first; `unknown` if no load is known."""
    loads = [100 * node.load / node.gpus for node in nodes if node.load is not None and node.gpus]
    gpu = sum(loads) / len(loads) if loads else None
    cpus = [100 * node.cpu_load / node.cpus for node in nodes if node.cpu_load is not None]
    cpu = sum(cpus) / len(cpus) if cpus else None
    has_gpus = any(node.gpus for node in nodes)
    if _too_many(nodes, hard) or (cpu or 0.0) > thresholds.CPU_BAND[1]:
        return "over-subscribed"
    if any((node.dram_percent or 0.0) >= thresholds.DRAM_FULL for node in nodes):
        return "memory-bandwidth-bound"
    if (gpu or 0.0) >= thresholds.GPU_FULL:
        return "GPU-compute-bound"
    if _memory_is_full(nodes, hard, settings):
        return "memory-full"
    if (cpu or 0.0) >= (thresholds.CPU_FULL if has_gpus else thresholds.CPU_AIM):
        return "CPU-bound"
    judged = gpu if has_gpus else cpu
    if judged is None:
        return "unknown"
    if judged < thresholds.IDLE:
        return "idle"
    low = thresholds.GPU_BAND[0] if has_gpus else thresholds.CPU_BAND[0]
    return "under-used" if judged < low else "well-used"


def _too_many(nodes: Sequence[Evidence], hard: Sequence[Bound]) -> bool:
    now = most_now(nodes)
    return any(bound.nppn is not None and now > bound.nppn for bound in hard)


def _memory_is_full(nodes: Sequence[Evidence], hard: Sequence[Bound], settings: Settings) -> bool:
    """Return whether no further task fits on each GPU (or in host memory), or a GPU has no free memory."""
    now, gpus = most_now(nodes), min(node.gpus for node in nodes)
    bounds = {bound.resource: bound.nppn for bound in hard if bound.nppn is not None}
    more = now // gpus * gpus + gpus if gpus else now + 1
    no_room = bounds.get("GPU memory", more) < more or bounds.get("host memory", now + 1) <= now
    reserve = settings.memory_reserve_percent / 100
    rooms = [room for node in nodes for room in node.rooms]
    return no_room or any(room.used is not None and room.used >= room.total * (1 - reserve) for room in rooms)
