"""Assign tasks to processes: before the run (block, cyclic), or in chunks during the run (dynamic). Build commands."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from ...core import text_files
from ...core.errors import shown
from ...packing import TaskAsk, TaskKey, TaskSpec
from ..records import Distribution, Run

CHUNKS_LEFT = 4
"""A chunk is 1/4 of each process's even part of the remaining tasks. So the last chunks are single tasks, and processes
end at about the same time."""
CHUNK_MAX = 1000
"""Most tasks of a chunk: as many may wait for a resumed run after a crash of one launcher."""
PACKED_CHUNK_MAX = 8
"""Most tasks of a chunk in a packed run. A node full of large tasks must not hold many small ones for which another
node has room."""


def tasks_of(run: Run, rank: int) -> range:
    """Return the tasks of one process. Raises ValueError for the distribution `dynamic`."""
    if run.distribution == "dynamic":
        raise ValueError("the tasks of a queue belong to no process")
    return part(run.first_tasks, run.processes, rank, run.distribution, run.per_process)


def part(items: int, parts: int, number: int, distribution: Distribution, each: int | None = None) -> range:
    """Return the items of one part: in turn for `cyclic`, else consecutive ones.

    With `each`, exactly that many, and the last part has the rest; else the first parts have one more if the division
    leaves a rest (16 over 3: 6, 5, 5).
    """
    if distribution == "cyclic":
        return range(number, items, parts)
    if each is not None:
        first, last = number * each, (number + 1) * each
        return range(min(first, items), items if number == parts - 1 else min(last, items))
    least, extra = divmod(items, parts)
    first = number * least + min(number, extra)
    return range(first, first + least + (number < extra))


def rank_of(run: Run, task: int, worker: int) -> int:
    """Return LLSUB_RANK of a task that process number `worker` runs.

    With at most one task per process it is the number of the task. A retry may run in any free slot, and a program that
    names its output after its rank must find the same rank there. With more tasks than processes it is the number of
    the process, and LLSUB_TASK identifies the task. So it is for tasks that were added to a run.
    """
    return task if task < run.first_tasks <= run.processes else worker


def noun(run: Run) -> str:
    """Return the word for a task: `rank` if each process has one task, and the tasks come from no list."""
    return "rank" if run.task_kind == "rank" and run.tasks == run.processes else "task"


REVERSED, RANDOM = "reversed", "random"
"""Values of --order besides `fifo`; `random:SEED` in run.json."""


def order_of(run: Run, specs: Sequence[TaskSpec], first: int, count: int) -> Sequence[int]:
    """Return `count` tasks of a list from `first` on in the order in which they begin: higher priorities first.

    Of equal priorities, as --order says. Every launcher computes the same order. `specs`: of each task, or empty.
    """
    tasks: Sequence[int] = range(first, first + count)
    if run.order == REVERSED:
        tasks = tasks[::-1]
    elif run.order:
        tasks = list(tasks)
        random.Random(f"{run.order} {first}").shuffle(tasks)
    if has_priorities(specs, first, count):
        tasks = sorted(tasks, key=lambda task: -specs[task].priority)
    return tasks


def has_priorities(specs: Sequence[TaskSpec], first: int, count: int) -> bool:
    """Return whether tasks of a list differ in priority, or differ from the 0 of those without."""
    return any(spec.priority for spec in specs[first : first + count])


def chunks_of(run: Run, specs: Sequence[TaskSpec] = ()) -> tuple[range, ...]:
    """Return the chunks of a run with dynamic distribution, without those of added tasks.

    A chunk is a range of places in `order_of`.
    """
    return added_chunks(run, 0, run.first_tasks, specs)


def added_chunks(run: Run, first: int, count: int, specs: Sequence[TaskSpec] = ()) -> tuple[range, ...]:
    """Return the chunks of tasks that were added together, which follow those before them in every distribution."""
    # Small chunks keep nodes from taking many tasks of a high priority while others begin with lower ones.
    # Nor should one node take many tasks that start there one after the other, because each needs most of its cores.
    own = specs[first : first + count]
    is_small = run.pack is not None or any(spec.priority or spec.cpus or spec.mem_mib for spec in own)
    found = chunks(count, run.processes, PACKED_CHUNK_MAX if is_small else CHUNK_MAX)
    return tuple(range(first + one.start, first + one.stop) for one in found)


def chunks(tasks: int, processes: int, most: int = CHUNK_MAX) -> tuple[range, ...]:
    """Return all tasks in chunks of decreasing size: guided self-scheduling (Polychronopoulos and Kuck, 1987).

    Every node computes the same table, so the number of a chunk identifies its tasks. most: the largest chunk.
    """
    found, first = [], 0
    while first < tasks:
        size = min(most, max(1, (tasks - first) // (CHUNKS_LEFT * processes)))
        found.append(range(first, first + size))
        first += size
    return tuple(found)


def spec_of(run: Run, specs: Sequence[TaskSpec], task: int) -> TaskSpec:
    """Return the options of a task. `specs`: of each task, empty if all have the same."""
    return specs[task] if specs else base_spec(run)


def base_spec(run: Run) -> TaskSpec:
    """Return the options of the tasks that have none of their own."""
    return run.spec if run.pack is None else run.pack.spec


HALF_PERCENT = 50.0
"""GPU memory that a task with half a GPU books if it names no size, in percent of what one task can have there."""


def ask_of(spec: TaskSpec, task: int, key: TaskKey | None, submitted_s: float = 0.0, *, workers: int = 1) -> TaskAsk:
    """Return the request of a task. `key`: of its command. `workers`: whose cores it takes."""
    percent = spec.gpu_mem_percent
    if spec.is_half and percent is None and spec.gpu_mem_mib is None:
        percent = HALF_PERCENT
    return TaskAsk(
        task=task,
        gpus=spec.gpus,
        gpu_mem_mib=spec.gpu_mem_mib,
        gpu_mem_percent=percent,
        is_half=spec.is_half,
        workers=workers,
        host_mib=spec.mem_mib,
        priority=spec.priority,
        name=spec.name,
        submitted_s=submitted_s,
        key=key,
        gpu_mem_least_mib=spec.gpu_mem_least_mib,
    )


SHELL = "/bin/sh"
"""The shell of a command in the histories of sizes and speeds; a launcher uses bash where there is one."""


def task_argv(run: Run, line: str, shell: str = SHELL) -> tuple[str, ...]:
    """Return program and arguments of a task. `line`: its line of the tasks file; empty: there is no file."""
    if run.task_kind == "command":
        return (shell, "-c", line)
    if run.task_kind == "input":
        return (*run.command, line)
    if run.task_kind == "arguments":
        return (*run.command, *arguments_in(line, least=run.kind == "llmapreduce"))
    return run.command


def arguments_in(line: str, *, least: int = 1) -> tuple[str, ...]:
    """Return the arguments, at least `least`, in a line of a tasks file of the kind `arguments`. Raises ValueError."""
    try:
        found = msgspec.json.decode(line, type=tuple[str, ...])
    except text_files.NOT_JSON:
        found = None
    if found is None or len(found) < least or any("\0" in one for one in found):
        raise ValueError(f"the run's file `tasks` is damaged: {shown(line) or repr(line)} is no list of arguments")
    return found


def argv_of(run: Run, lines: Sequence[str], task: int, shell: str = SHELL) -> tuple[str, ...]:
    """Return program and arguments of task number `task`. `lines`: the tasks file."""
    return task_argv(run, "" if run.task_kind == "rank" else lines[task], shell)
