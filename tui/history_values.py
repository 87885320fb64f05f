"""The five figures of a node, GPU, user or job that go from a survey into the history. Pure: values in, values out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from slurm_share.load import GpuLoad, JobLoad, NodeRow, Snapshot, UserLoad, percent

from .wire import Point, Subject

Values = tuple[float | None, float | None, float | None, float | None, float | None]
"""The figures of a Point, in the order of its fields."""
NOTHING: Values = (None, None, None, None, None)


def node_values(row: NodeRow) -> Values:
    """Return the figures of a node: load and memory of all users, and of the GPUs that the viewer may see. None while
    it is silent: Slurm's CPU load, which the table then shows, may be two minutes old."""
    one, snapshot = row.figures, row.node.snapshot
    cpu = gpu = sm = None
    if snapshot is not None:
        cpu = percent(one.load, one.cpus)
        if snapshot.gpu_sums is None:
            gpus = snapshot.whole_gpus
            gpu, sm = _mean(each.load_percent_5min for each in gpus), _mean(map(_sm, gpus))
        elif snapshot.gpu_sums.count and snapshot.gpu_sums.gpu_load is not None:
            gpu = 100 * snapshot.gpu_sums.gpu_load / snapshot.gpu_sums.count
            sm = gpu if snapshot.gpu_sums.gpu_load_by == "sm" else None
    return (
        cpu,
        gpu,
        sm,
        percent(one.memory_used_mib, one.memory_mib),
        percent(one.gpu_memory_used_mib, one.gpu_memory_mib),
    )


def gpu_values(gpu: GpuLoad) -> Values:
    """Return the figures of a GPU or MIG instance."""
    return None, gpu.load_percent_5min, _sm(gpu), None, percent(gpu.memory_used_mib, gpu.memory_total_mib)


def user_values(rows: Iterable[NodeRow]) -> dict[str, Values]:
    """Return the figures of each user, relative to the user's nodes and the GPUs that the user's jobs hold there."""
    found: dict[str, list[tuple[Snapshot, UserLoad, set[str]]]] = defaultdict(list)
    for row in rows:
        if row.node.snapshot is not None:
            held: dict[str, set[str]] = defaultdict(set)
            for one in row.node.held_gpus or ():
                held[one.user].add(one.uuid)
            for user in row.node.snapshot.users:
                found[user.user].append((row.node.snapshot, user, held[user.user] | set(user.gpus)))
    return {name: _user_values(places) for name, places in found.items()}


def job_values(rows: Iterable[NodeRow]) -> dict[int, Values]:
    """Return the figures of each job, relative to its nodes and the GPUs that it holds there."""
    found: dict[int, list[tuple[Snapshot, JobLoad, set[str]]]] = defaultdict(list)
    idle: dict[int, list[GpuLoad]] = defaultdict(list)
    for row in rows:
        snapshot = row.node.snapshot
        if snapshot is None:
            continue
        held: dict[int, set[str]] = defaultdict(set)
        for one in row.node.held_gpus or ():
            held[one.job].add(one.uuid)
        for load in snapshot.jobs:
            found[load.job].append((snapshot, load, held.pop(load.job, set()) | set(load.gpus)))
        for job, uuids in held.items():  # jobs that hold GPUs here and run nothing
            idle[job] += [gpu for gpu in snapshot.gpus if gpu.uuid in uuids]
    return {job: _job_values(places, idle.get(job, ())) for job, places in found.items()}


def subject_values(rows: Sequence[NodeRow], subject: Subject) -> Values | None:
    """Return the figures of one subject; None: it is not in the survey."""
    if subject.job:
        return job_values(rows).get(subject.job)
    if subject.user:
        return user_values(rows).get(subject.user)
    row = next((row for row in rows if row.name == subject.node), None)
    if row is None or not subject.gpu:
        return None if row is None else node_values(row)
    gpus = () if row.node.snapshot is None else row.node.snapshot.gpus
    return next((gpu_values(gpu) for gpu in gpus if gpu.uuid == subject.gpu), None)


def point_of(rows: Sequence[NodeRow], subject: Subject, taken: float) -> Point:
    """Return the point of one subject in a survey; all figures are None if the subject is not in it."""
    return Point(taken, *(subject_values(rows, subject) or NOTHING))


def all_values(rows: Sequence[NodeRow], *, gpus: bool) -> Iterator[tuple[Subject, Values]]:
    """Yield every subject of a survey with its figures. `gpus`: GPUs and jobs too."""
    for row in rows:
        yield Subject(node=row.name), node_values(row)
        if gpus and row.node.snapshot is not None:
            for gpu in row.node.snapshot.gpus:
                yield Subject(node=row.name, gpu=gpu.uuid), gpu_values(gpu)
    for name, values in user_values(rows).items():
        yield Subject(user=name), values
    if gpus:
        for job, values in job_values(rows).items():
            yield Subject(job=job), values


def _user_values(places: Sequence[tuple[Snapshot, UserLoad, set[str]]]) -> Values:
    on_gpus = [(gpu, user) for one, user, held in places for gpu in one.whole_gpus if gpu.uuid in held]
    has_gpus = any(snapshot.gpus for snapshot, _, _ in places)
    load = _sum(user.gpu_load for _, user, _ in places)
    return (
        percent(_sum(user.cpu_cores for _, user, _ in places), sum(snapshot.cpus for snapshot, _, _ in places)),
        percent(load, len(on_gpus)) if on_gpus else 0.0 if has_gpus and load == 0 else None,
        _mean(
            mine.sm_percent_windows.m5
            for gpu, user in on_gpus
            for mine in gpu.users
            if mine.uid == user.uid and mine.sm_percent_windows is not None
        ),
        percent(_sum(user.memory_mib for _, user, _ in places), _sum(one.memory_total_mib for one, _, _ in places)),
        percent(_sum(user.gpu_memory_mib for _, user, _ in places), _sum(gpu.memory_total_mib for gpu, _ in on_gpus)),
    )


def _job_values(places: Sequence[tuple[Snapshot, JobLoad, set[str]]], others: Sequence[GpuLoad]) -> Values:
    gpus = [gpu for snapshot, _, uuids in places for gpu in snapshot.whole_gpus if gpu.uuid in uuids] + [*others]
    return (
        percent(_sum(load.cpu_cores for _, load, _ in places), sum(snapshot.cpus for snapshot, _, _ in places)),
        percent(_sum(load.gpu_load for _, load, _ in places), len(gpus)),
        _mean(map(_sm, gpus)),
        percent(_sum(load.memory_mib for _, load, _ in places), _sum(one.memory_total_mib for one, _, _ in places)),
        percent(_sum(load.gpu_memory_mib for _, load, _ in places), _sum(gpu.memory_total_mib for gpu in gpus)),
    )


def _sm(gpu: GpuLoad) -> float | None:
    """Return the present SM activity, else its mean over a minute: next to the load of five minutes it shows changes
    early."""
    windows = gpu.sm_percent_windows
    return gpu.activity.sm_percent if gpu.activity.sm_percent is not None or windows is None else windows.m1


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
