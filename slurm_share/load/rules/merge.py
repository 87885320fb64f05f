"""Merge several snapshots of one node, taken at nearly the same time by samplers that see different GPUs.

Under ConstrainDevices a step's sampler sees only the GPUs of its own job. Figures of the node, of a job's cgroup or of
a process itself are in each of the snapshots and count once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from ...core.metric import measured
from ..snapshot import GpuLoad, JobLoad, ProcessLoad, Snapshot, UserLoad
from . import own_figures, sums

_Adding = Sequence[tuple[Snapshot, frozenset[str]]]
"""Snapshots, each with the GPUs that only it sees."""


def merge(snapshots: Sequence[Snapshot]) -> Snapshot:
    """Return the newest snapshot with what only the others see. All are of one node; there is at least one."""
    newest, *others = sorted(snapshots, key=lambda snapshot: -snapshot.taken)
    if not others:
        return newest
    gpus: dict[str, GpuLoad] = {}
    fresh: list[tuple[Snapshot, frozenset[str]]] = []
    for snapshot in (newest, *others):
        new = frozenset(gpu.uuid for gpu in snapshot.gpus) - gpus.keys()
        gpus.update((gpu.uuid, gpu) for gpu in snapshot.gpus if gpu.uuid in new)
        fresh.append((snapshot, new))
    adding = [(snapshot, new) for snapshot, new in fresh[1:] if new]
    if not adding:
        return own_figures.joined(newest, others)
    merged = replace(
        newest,
        driver=next((snapshot.driver for snapshot in (newest, *others) if snapshot.driver), None),
        gpus=_renumbered(gpus.values()),
        processes=_processes(newest, adding),
        jobs=_jobs(newest, adding),
        users=_users(newest, adding),
        hidden_gpus=max(0, newest.hidden_gpus - sum(len(new) for _, new in adding)),
        problems=tuple(dict.fromkeys(one for snapshot in (newest, *others) for one in snapshot.problems)),
    )
    return own_figures.joined(merged, others)


def _renumbered(gpus: Iterable[GpuLoad]) -> tuple[GpuLoad, ...]:
    """Return the GPUs in their order on the node. In a step the driver counts from 0, so an index may occur twice; then
    the number of the device file replaces it."""
    found = list(gpus)
    whole = [gpu for gpu in found if gpu.mig_of is None]
    if len({gpu.index for gpu in whole}) < len(whole) and all(gpu.minor is not None for gpu in found):
        found = [replace(gpu, index=gpu.minor) for gpu in found]
    return tuple(sorted(found, key=lambda gpu: (gpu.index, gpu.mig_of is not None, gpu.uuid)))


def _processes(newest: Snapshot, adding: _Adding) -> tuple[ProcessLoad, ...]:
    found = {(one.pid, one.start_ticks): one for one in newest.processes}
    for snapshot, new in adding:
        for one in snapshot.processes:
            more = tuple(on for on in one.gpus if on.uuid in new)
            if more:
                key = (one.pid, one.start_ticks)
                known = found.get(key)
                found[key] = replace(one, gpus=more) if known is None else replace(known, gpus=known.gpus + more)
    return tuple(found.values())


def _jobs(newest: Snapshot, adding: _Adding) -> tuple[JobLoad, ...]:
    found = {one.job: one for one in newest.jobs}
    for snapshot, new in adding:
        for one in snapshot.jobs:
            known = found.get(one.job)
            if known is None:
                found[one.job] = one
            elif one.gpus and set(one.gpus) <= new:
                unknown = {**one.unknown, **known.unknown}
                found[one.job] = replace(known, **_together(known, one), unknown=unknown)
    return tuple(sorted(found.values(), key=lambda one: one.job))


def _users(newest: Snapshot, adding: _Adding) -> tuple[UserLoad, ...]:
    found = {one.uid: one for one in newest.users}
    for snapshot, new in adding:
        for one in snapshot.users:
            known = found.get(one.uid)
            if known is None:
                found[one.uid] = one
            elif one.gpus and set(one.gpus) <= new:
                seen = {process.pid for process in newest.processes if process.uid == one.uid}
                more = {process.pid for process in snapshot.processes if process.uid == one.uid} - seen
                jobs, count = tuple(sorted({*known.jobs, *one.jobs})), known.processes + len(more)
                found[one.uid] = replace(known, **_together(known, one), jobs=jobs, processes=count)
    return tuple(sorted(found.values(), key=lambda one: one.uid))


_Part = TypeVar("_Part", JobLoad, UserLoad)


def _together(known: _Part, more: _Part) -> dict[str, Any]:
    """Return the figures that depend on the visible GPUs, of both samples together, as `Metric.together` says."""
    found: dict[str, Any] = {"gpus": known.gpus + more.gpus}
    for one in measured(type(known)):
        ours, theirs = getattr(known, one.name), getattr(more, one.name)
        if one.metric.together == "sum":
            found[one.name] = _sum(ours, theirs, known.gpus)
        elif one.metric.together == "most":
            found[one.name] = sums.most(ours, theirs)
        elif one.metric.together == "first":
            found[one.name] = sums.first_known((ours, theirs))
    return found


def _sum(known: float | None, more: float | None, had: Sequence[str]) -> float | None:
    """Return the sum; None if a part is not known. `had`: the GPUs of the first part, which counts only if it has
    any."""
    if known is None or more is None:
        return None if had else more
    return known + more
