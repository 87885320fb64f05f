"""Predict how tasks on one GPU slow each other down, with a capacity model that is not trained.

A task alone takes a part of each resource (SMs, memory bandwidth, PCIe). If the total demand on a resource is U,
time on it stretches by soft(U) = (1 + U^p)^(1/p), relative to the stretch of the task alone. Only the part of its time
that a task spends on the GPU is stretched. With p = 2.5 the model gives the slowdowns of Pan 2021, Table 4 (2 to 7
equal tasks on a V100), to 0.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ..speed_records import Load, SharingMethod

EXPONENT = 2.5
"""p of the capacity model."""
BUSY_FACTOR = 1.3
"""The stretched part of a task's time over the part that it spends on the GPU alone. It is above 1 because not all host
work overlaps with the GPU. Rounded from the pairs that Lucid (Hu 2023) published."""
UNMEASURED = Load(sm_ratio=0.6)
"""Stands for a load that was not measured where results are compared with each other, and nowhere else. Assumed."""


@lru_cache(maxsize=8192)
def soft(demand: float, exponent: float = EXPONENT) -> float:
    """Return the stretch of a resource at a total demand (1: all of it)."""
    return float((1.0 + demand**exponent) ** (1.0 / exponent))


def slowdowns(tasks: Sequence[Load], sharing: SharingMethod = "mps") -> list[float]:
    """Return the slowdown of each task on one GPU: time for a unit of work over the time alone, at least 1."""
    if len(tasks) < 2:
        return [1.0] * len(tasks)
    if sharing == "time-slicing":
        turns = max(1.0, sum(task.busy_ratio for task in tasks))
        return [_stretched(task, turns) for task in tasks]
    sm, dram = (soft(round(sum(demands), 2)) for demands in zip(*map(_demands, tasks), strict=True))
    found = []
    for task in tasks:
        own_sm, own_dram = map(soft, _demands(task))
        found.append(_stretched(task, max(sm / own_sm, dram / own_dram)))
    return found


def _demands(task: Load) -> tuple[float, float]:
    return task.sm_ratio, task.dram_ratio


def _stretched(task: Load, stretch: float) -> float:
    busy = min(1.0, BUSY_FACTOR * task.busy_ratio)
    return max(1.0, 1.0 - busy + busy * stretch)


def stp(slowdowns: Sequence[float]) -> float:
    """Return the aggregate speed (STP): 1 equals one task at a time. Source: Eyerman and Eeckhout 2008."""
    return sum(1.0 / one for one in slowdowns)


def antt(slowdowns: Sequence[float]) -> float:
    """Return the mean slowdown (ANTT): 1 is the speed alone. Source: Eyerman and Eeckhout 2008."""
    return sum(slowdowns) / len(slowdowns) if slowdowns else 1.0


def delta(alone_s: Sequence[float], slowdowns: Sequence[float]) -> float:
    """Return the sum of the times alone over the longest time together; above 1, co-location pays.

    All tasks start together and do their work once. Source: Tabrizian 2020, equation 4.1.
    """
    longest = max(time * slow for time, slow in zip(alone_s, slowdowns, strict=True))
    return sum(alone_s) / longest


def speeds_text(speeds: Sequence[float]) -> str:
    """Return predicted speeds as text: "both keep ~0.84, together 1.7 of one"."""
    least, most = min(speeds), max(speeds)
    if len(speeds) == 2 and most - least <= 0.05:
        kept = f"both keep ~{sum(speeds) / 2:.2f}"
    elif round(least, 1) == round(most, 1):
        kept = f"{'both' if len(speeds) == 2 else 'they'} keep ~{sum(speeds) / len(speeds):.1f}"
    else:
        kept = f"they keep {least:.1f} to {most:.1f}"
    return f"{kept}, together {sum(speeds):.1f} of one"
