"""Tell the tasks of a job apart by their processes, and add up what each of them uses."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ...snapshot import GpuLoad, OnGpu, ProcessLoad
from .. import thresholds
from ..sums import add_up, whole

Task = tuple[ProcessLoad, ...]
"""The processes of one task."""


def by_task(processes: Sequence[ProcessLoad], running: int) -> tuple[Task, ...]:
    """Return the processes of each of the `running` tasks. If their records do not tell so many tasks apart, because
    the environments cannot be read, each process counts as a task."""
    if running == 1 and processes:
        return (tuple(processes),)
    if len(processes) > running:
        for key in (_by_run, _by_slot, _by_step):
            found: dict[object, list[ProcessLoad]] = {}
            for one in processes:
                found.setdefault((one.job, key(one)), []).append(one)
            if len(found) == running and not any(key(one) is None for one in processes):
                return tuple(tuple(task) for task in found.values())
    return tuple((one,) for one in processes)


def _by_run(process: ProcessLoad) -> object:
    return None if process.progress is None else process.progress.task


def _by_slot(process: ProcessLoad) -> object:
    return process.slot


def _by_step(process: ProcessLoad) -> object:
    return None if process.task is None else (process.step, process.task)


def on_gpus(task: Task) -> tuple[OnGpu, ...]:
    """Return the use of each GPU by all processes of a task together."""
    found: dict[str, OnGpu] = {}
    for on in (on for one in task for on in one.gpus):
        before = found.get(on.uuid)
        found[on.uuid] = (
            on
            if before is None
            else replace(
                on,
                memory_mib=whole(add_up([before.memory_mib, on.memory_mib])),
                peak_mib=(_most_of(before) or 0) + (_most_of(on) or 0) or None,
            )
        )
    return tuple(found.values())


def _most_of(on: OnGpu) -> int | None:
    """Return the most memory that was seen, in MiB."""
    return max((mib for mib in (on.peak_mib, on.memory_mib) if mib is not None), default=None)


def peak(task: Task) -> int:
    """Return the most GPU memory that was seen of a task, in MiB."""
    return sum(_most_of(on) or 0 for one in task for on in one.gpus)


def number(task: Task) -> int | None:
    """Return the number of a task in its run; None: not known."""
    return next((one.progress.task for one in task if one.progress is not None), None)


def in_advance(tasks: Sequence[Task], peak_mib: int | None) -> tuple[str, ...] | None:
    """Return the libraries of the largest task that take memory at their start. `peak_mib`: the most GPU memory of any
    task of the job, in MiB. None: not known."""
    largest = max(tasks, key=peak, default=())
    # The peak may be of a task that has ended.
    if not largest or not peak_mib or peak(largest) < 0.9 * peak_mib:
        return None
    found = dict.fromkeys(library for one in largest for library in one.in_advance or ())
    return tuple(found) if found or all(one.in_advance is not None for one in largest) else None


def median(tasks: Sequence[Task]) -> int | None:
    """Return the median of the peaks of the tasks that run."""
    memory = [on.memory_mib for task in tasks for one in task for on in one.gpus]
    if len(tasks) < thresholds.UNLIKE_TASKS or None in memory:
        return None
    sizes = sorted(map(peak, tasks))
    return sizes[(len(sizes) - 1) // 2]


def tasks_on(gpu: GpuLoad, tasks: Sequence[Task]) -> int:
    """Return the number of tasks that hold much of their memory on the GPU, or whose memory is not known."""
    count = 0
    for task in tasks:
        uses = on_gpus(task)
        most = max((on.memory_mib or 0 for on in uses), default=0)
        count += any(on.uuid == gpu.uuid and 2 * (on.memory_mib or 0) >= most for on in uses)
    return count


def works_on(gpus: Sequence[OnGpu]) -> int:
    """Return on how many GPUs a task holds much memory. A context that PyTorch leaves on GPU 0 does not count."""
    most = max((on.memory_mib or 0 for on in gpus), default=0)
    return max(1, sum(2 * (on.memory_mib or 0) >= most for on in gpus)) if most else 1
