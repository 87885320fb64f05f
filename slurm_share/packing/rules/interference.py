"""Predict how tasks on one GPU slow each other down: a capacity model, with measured corrections.

A task alone takes a part of each resource (SMs, memory bandwidth, PCIe). If the total demand on a resource is U,
time on it stretches by soft(U) = (1 + U^p)^(1/p), relative to the stretch of the task alone. Only the part of its time
that a task spends on the GPU is stretched. With p = 2.5 the model gives the slowdowns of Pan 2021, Table 4 (2 to 7
equal tasks on a V100), to 0.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..speed_records import Belief, SharingMethod

EXPONENT = 2.5
"""p of the capacity model."""
BUSY_FACTOR = 1.3
"""The stretched part of a task's time over the part that it spends on the GPU alone. It is above 1 because not all host
work overlaps with the GPU. Rounded from the pairs that Lucid (Hu 2023) published."""


def soft(demand: float, exponent: float = EXPONENT) -> float:
    """Return the stretch of a resource at a total demand (1: all of it)."""
    return float((1.0 + demand**exponent) ** (1.0 / exponent))


def slowdowns(
    tasks: Sequence[Belief],
    sharing: SharingMethod = "mps",
    pairs: Mapping[tuple[int, int], float] = {},
    *,
    exponent: float = EXPONENT,
) -> list[float]:
    """Return the slowdown of each task on one GPU: time for a unit of work over the time alone, at least 1.

    `pairs`: (position of a task, position of a neighbour) -> measured correction; missing ones are 1. For several
    neighbours, corrections and pressures are multiplied.
    """
    if len(tasks) < 2:
        return [1.0] * len(tasks)
    found = []
    if sharing == "time-slicing":
        turns = max(1.0, sum(task.busy_ratio for task in tasks))
        stretches = [turns] * len(tasks)
    else:
        resources = ("sm_ratio", "dram_ratio", "pcie_ratio")
        together = {name: soft(sum(getattr(task, name) for task in tasks), exponent) for name in resources}
        stretches = [max(together[name] / soft(getattr(task, name), exponent) for name in resources) for task in tasks]
    for position, (task, stretch) in enumerate(zip(tasks, stretches, strict=True)):
        busy = min(1.0, BUSY_FACTOR * task.busy_ratio)
        slowdown = (1.0 - busy + busy * stretch) * task.factor
        for other, neighbour in enumerate(tasks):
            if other != position:
                slowdown *= neighbour.pressure * pairs.get((position, other), 1.0)
        found.append(max(1.0, slowdown))
    return found


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
