"""Merge what several sources measured of the same job, node and start: the first source that knows a figure has it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from msgspec.structs import fields, replace

from ...usage import GpuUse, JobUse, TaskUse, UseSeries

_IDENTITY = {"version", "job", "restarts", "uid", "node", "uuid", "by", "unknown", "gpus", "tasks", "others", "began",
             "ended"}  # fmt: skip
"""Fields that no source measures, or that are merged in a way of their own."""
Use = TypeVar("Use", JobUse, GpuUse)


def merged(sources: Iterable[Sequence[JobUse]]) -> tuple[JobUse, ...]:
    """Return one record for each job, start and node, from the records of all sources, the best source first."""
    found: dict[tuple[int, int, str], JobUse] = {}
    for uses in sources:
        for use in uses:
            key = (use.job, use.restarts or 0, use.node)
            found[key] = use if key not in found else _joined(found[key], use)
    return tuple(found[key] for key in sorted(found))


def _joined(first: JobUse, second: JobUse) -> JobUse:
    """Return the first record with what only the second one knows.

    A source that was killed knows the job's beginning only: it comes after one that saw the end. Else the tasks' energy
    is more than the job's, and its GPU-seconds are too few.
    """
    if first.ended is None and second.ended is not None:
        first, second = second, first
    gpus = {one.uuid: one for one in first.gpus}
    measures_energy = first if any(one.energy is not None for one in first.gpus) else second
    if not any(one.energy is not None for one in measures_energy.gpus):
        measures_energy = first
    for one in second.gpus:
        gpus[one.uuid] = one if one.uuid not in gpus else _filled(gpus[one.uuid], _of_one_time(gpus[one.uuid], one))
    moments = [one.began for one in (first, second) if one.began is not None]
    ends = [one.ended for one in (first, second) if one.ended is not None]
    whole = replace(
        _filled(first, second),
        # The launcher sees its tasks only; the job begins before, and ends after them.
        began=min(moments, default=None),
        ended=max(ends, default=None),
        gpus=tuple(gpus.values()),
        tasks=_tasks(first.tasks, second.tasks),
        # Charged and nobody's energy add up only if one source measured both.
        others=measures_energy.others,
    )
    return whole if whole.restarts is not None else replace(whole, restarts=second.restarts)


def _of_one_time(first: GpuUse, second: GpuUse) -> GpuUse:
    """Return the second record without what would not fit the first one's: parts and their whole are of one source."""
    if first.energy is not None:
        second = replace(second, energy=None, device_j=None)
    if first.measured_s is not None:
        second = replace(second, idle_s=None, idle_longest_s=None)
    return second


def _filled(first: Use, second: Use) -> Use:
    """Return the first record; fields that it does not know have the second's value and source."""
    taken, by, unknown = {}, dict(first.by), dict(first.unknown)
    for field in fields(type(first)):
        name = field.name
        if name in _IDENTITY or getattr(second, name) in (None, ""):
            continue
        if getattr(first, name) in (None, ""):
            taken[name] = getattr(second, name)
            unknown.pop(name, None)
            if name in second.by:
                by[name] = second.by[name]
    for name, why in second.unknown.items():
        if getattr(first, name, None) is None and name not in taken:
            unknown.setdefault(name, why)
    if isinstance(first, GpuUse):
        taken["simulated"] = first.simulated or getattr(second, "simulated", False)
    return replace(first, **taken, by=by, unknown=unknown)


def _tasks(first: Sequence[TaskUse], second: Sequence[TaskUse]) -> tuple[TaskUse, ...]:
    """Return the tasks of the source that knows more of them: two sources may tell tasks apart in other ways."""
    return tuple(first if len(first) >= len(second) else second)


def merged_series(sources: Iterable[Sequence[UseSeries]]) -> tuple[UseSeries, ...]:
    """Return one series for each job, start and node: that of the source that watched it for longest."""
    found: dict[tuple[int, int, str], UseSeries] = {}
    for several in sources:
        for one in several:
            key = (one.job, one.restarts or 0, one.node)
            if key not in found or _span(one) > 1.5 * _span(found[key]):
                found[key] = one
    return tuple(found[key] for key in sorted(found))


def _span(series: UseSeries) -> float:
    return series.at[-1] - series.at[0] + series.every_s if series.at else 0.0
