"""Assign tasks to processes: before the run (block, cyclic), or in chunks during the run (dynamic)."""

from __future__ import annotations

from ..records import Run

CHUNKS_LEFT = 4
"""A chunk is 1/4 of each process's even part of the remaining tasks. So the last chunks are single tasks, and processes
end at about the same time."""
CHUNK_MAX = 1000
"""Most tasks of a chunk: as many may wait for a resumed run after a crash of one launcher."""
PACKED_CHUNK_MAX = 8
"""Most tasks of a chunk in a packed run. A node full of large tasks must not hold many small ones for which another
node has room."""


def tasks_of(run: Run, rank: int) -> range:
    """Return the tasks of one process, for the distributions `block` and `cyclic`.

    block: consecutive tasks; the first processes have one more if the division leaves a rest (16 over 3: 6, 5, 5). With
    `per_process`, exactly that many each, and the last process has the rest. Raises ValueError for `dynamic`.
    """
    if run.distribution == "dynamic":
        raise ValueError("the tasks of a queue belong to no process")
    if run.distribution == "cyclic":
        return range(rank, run.tasks, run.processes)
    if run.per_process is not None:
        first, last = rank * run.per_process, (rank + 1) * run.per_process
        return range(min(first, run.tasks), run.tasks if rank == run.processes - 1 else min(last, run.tasks))
    each, extra = divmod(run.tasks, run.processes)
    first = rank * each + min(rank, extra)
    return range(first, first + each + (rank < extra))


def rank_of(run: Run, task: int, worker: int) -> int:
    """Return LLSUB_RANK of a task that process number `worker` runs.

    With at most one task per process it is the number of the task. A retry may run in any free slot, and a program that
    names its output after its rank must find the same rank there. With more tasks than processes it is the number of
    the process, and LLSUB_TASK identifies the task.
    """
    return task if run.tasks <= run.processes else worker


def chunks_of(run: Run) -> tuple[range, ...]:
    """Return the chunks of a run with dynamic distribution."""
    return chunks(run.tasks, run.processes, CHUNK_MAX if run.pack is None else PACKED_CHUNK_MAX)


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
