"""Compute how many workers' parts of a node a task takes that asks for CPUs (--task-cpus) or host memory (--task-mem).

A worker is a process of the triple with its CPUs, and an even part of the job's memory on the node. A task that asks
for more CPUs than its worker has takes further workers that are free, and runs on the CPUs of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ...core.errors import UsageError
from ...core.text import counted
from ...packing import TaskSpec
from ..records import Run, Worker
from . import deal
from .task_files import Tasks


class NodeParts(Struct, frozen=True):
    """The workers, CPUs and host memory of a node that its launcher divides among tasks."""

    node: str
    workers: int
    cpus: int
    """All CPUs, as Slurm counts them."""
    cpus_of_worker: int
    """Least CPUs of a worker."""
    host_mib: int | None
    """Memory of the job on the node; None: not known."""

    def workers_for(self, spec: TaskSpec) -> int:
        """Return how many workers a task takes."""
        if spec.cpus is None or spec.cpus <= self.cpus_of_worker:
            return 1
        return min(-(-spec.cpus // self.cpus_of_worker), self.workers)

    def why_never(self, spec: TaskSpec) -> str:
        """Return why a task can never start here; empty: it can."""
        if spec.cpus is not None and spec.cpus > self.cpus:
            return f"it needs {counted(spec.cpus, 'CPU')}, and the job has {self.cpus} on {self.node}"
        if spec.mem_mib is not None and self.host_mib is not None and spec.mem_mib > self.host_mib:
            return f"it needs {spec.mem_mib} MiB of memory, and the job has {self.host_mib} MiB on {self.node}"
        return ""


def parts_of(node: str, workers: Sequence[Worker], host_mib: int | None, *, is_bound: bool) -> NodeParts:
    """Return the parts of a node. `is_bound`: each worker has CPUs of its own; else all have the same."""
    cpus = len({cpu for worker in workers for cpu in worker.place.cpus})
    count = max(len(workers), 1)
    each = min((len(worker.place.cpus) for worker in workers), default=1) if is_bound else cpus // count
    return NodeParts(node, count, cpus, max(each, 1), host_mib)


def asks_for_parts(spec: TaskSpec) -> bool:
    """Return whether a task asks for CPUs or host memory."""
    return spec.cpus is not None or spec.mem_mib is not None


# ---- At submission ----


def check(run: Run, tasks: Tasks, *, is_tried: bool) -> None:
    """Raise UsageError for CPUs or memory of single tasks in a run that cannot wait for them.

    `is_tried`: trials find the number of tasks or the sharing method.
    """
    place = next((place for place, spec in enumerate(tasks.specs) if asks_for_parts(spec)), None)
    if place is None and not asks_for_parts(deal.base_spec(run)):
        return
    where = "" if place is None or not tasks.numbers else f"{tasks.source}: line {tasks.numbers[place]}: "
    what = f"{where}CPUs and memory of single tasks (--task-cpus, --task-mem)"
    if is_tried:
        raise UsageError(
            f"{what} conflict with trials of equal tasks; remove them, or write the number of processes without "
            "--compare-sharing"
        )
    if run.distribution == "dynamic":
        return
    if tasks.lines or run.tasks != run.processes:
        raise UsageError(
            f"{what} need tasks that any free process may take, and --distribution={run.distribution} gives them to "
            "processes before the run; write --distribution=dynamic"
        )
    raise UsageError(
        f"{what} are for more tasks than processes, and here each process has one; write T of the triple for cores, or "
        "--ntasks M for more tasks"
    )


def check_room(run: Run, tasks: Tasks, cpus: int | None, mem_mib: int | None) -> None:
    """Raise UsageError for a task that asks for more than the largest node has. None: not known."""
    for place, spec in enumerate(tasks.specs or (deal.base_spec(run),)):
        # In a line the option may be a key of JSON or a column, so only what it asks for is named.
        where = f"{tasks.source}: line {tasks.numbers[place]} asks for " if tasks.numbers else ""
        if cpus is not None and spec.cpus is not None and spec.cpus > cpus:
            asked = f"{where}{spec.cpus} CPUs, which" if where else f"--task-cpus={spec.cpus}"
            are = "are" if where else "is"
            raise UsageError(f"{asked} {are} more than the {cpus} CPUs of a node; write at most {cpus}")
        if mem_mib is not None and spec.mem_mib is not None and spec.mem_mib > mem_mib:
            asked = f"{where}{spec.mem_mib}M of memory, which" if where else f"--task-mem={spec.mem_mib}M"
            raise UsageError(f"{asked} is more than the {mem_mib} MiB of a node; write at most {mem_mib}M")
