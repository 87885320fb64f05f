"""The course of a job over its whole life, made from the agents' records. Pure: values in, values out."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from slurm_share.usage import JobUse, UseSeries

from .wire import Point

Key = tuple[str, int | None]
"""(node, restarts)."""


def points_of(usage: Iterable[JobUse], series: Sequence[UseSeries]) -> tuple[Point, ...]:
    """Return a job's figures over time, over all its nodes and starts, oldest first; empty: there is no series.

    CPU time is relative to the CPUs that it has, host memory to its limit, GPU load and GPU memory to its GPUs. A point
    stands for the longest interval of all series. None: not known of any node, or there is no limit.
    """
    known = [one for one in series if one.at]
    if not known:
        return ()
    uses = {(one.node, one.restarts): one for one in usage}
    begin, step = min(one.at[0] for one in known), max(1.0, *(one.every_s for one in known))
    found: dict[int, list[list[float]]] = defaultdict(list)
    for one in known:
        use = uses.get((one.node, one.restarts))
        for number, figures in _binned(one, use, begin, step).items():
            found[number].append(figures)
    return tuple(
        Point(begin + number * step, cpu, gpu, None, memory, gpu_memory)
        for number, places in sorted(found.items())
        for cpu, gpu, memory, gpu_memory in [_together(places)]
    )


def _binned(one: UseSeries, use: JobUse | None, begin: float, step: float) -> dict[int, list[float]]:
    """Return, for each interval, used and total of CPUs, GPUs, host memory and GPU memory in a list; NaN: unknown."""
    cpus = math.nan if use is None or use.cpus is None else float(use.cpus)
    limit = math.nan if use is None or use.memory_limit_mib is None else float(use.memory_limit_mib)
    totals = {} if use is None else {gpu.uuid: gpu.memory_total_mib for gpu in use.gpus}
    gpu_total = sum(float(total) if (total := totals.get(gpu.uuid)) else math.nan for gpu in one.gpus)
    samples: dict[int, list[list[float]]] = defaultdict(list)
    for at, taken in enumerate(one.at):
        loads = [_at(gpu.load_percent, at) for gpu in one.gpus]
        held = [_at(gpu.memory_mib, at) for gpu in one.gpus]
        figures = [_at(one.cpu_cores, at), cpus, sum(loads) / 100, float(len(loads)), _at(one.memory_mib, at), limit]
        samples[round((taken - begin) / step)].append([*figures, sum(held), gpu_total])
    return {number: [_mean(column) for column in zip(*some, strict=True)] for number, some in samples.items()}


def _together(places: Sequence[Sequence[float]]) -> tuple[float | None, float | None, float | None, float | None]:
    """Return the percentages of all nodes together: sums of those on which both figures are known."""
    found: list[float | None] = []
    for at in range(0, 8, 2):
        known = [(place[at], place[at + 1]) for place in places if place[at] == place[at] and place[at + 1] > 0]
        total = sum(whole for _, whole in known)
        found.append(100 * sum(used for used, _ in known) / total if total else None)
    cpu, gpu, memory, gpu_memory = found
    return cpu, gpu, memory, gpu_memory


def _at(values: Sequence[float | int | None], at: int) -> float:
    value = values[at] if at < len(values) else None
    return math.nan if value is None else float(value)


def _mean(values: Iterable[float]) -> float:
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else math.nan
