"""Describe a GPU for packing. Apart from `packed`, whose imports would delay the start of the launcher."""

from __future__ import annotations

from ...node.records import Gpu
from ...packing import GpuFacts


def gpu_facts(
    index: int, gpu: Gpu, usable_mib: int | None, clients_max: int, *, is_mps: bool, is_exclusive: bool = False
) -> GpuFacts:
    """Return what packing needs of a GPU. `is_exclusive`: it is in compute mode EXCLUSIVE_PROCESS."""
    total = gpu.memory_total_mib
    return GpuFacts(
        uuid=gpu.uuid,
        index=index,
        model=gpu.name,
        total_mib=total,
        reserve_mib=0 if total is None or usable_mib is None else total - usable_mib,
        is_mps=is_mps,
        is_simulated=gpu.simulated,
        is_single=not is_mps and is_exclusive,
        takes_only_mps=is_mps and is_exclusive,
        clients_max=clients_max,
    )
