"""Assign tasks to processes: before the run (block, cyclic), or in chunks during the run (dynamic)."""

from __future__ import annotations

from ..records import Run

CHUNKS_LEFT = 4
"""A chunk is 1/4 of an even part of what is left: the last ones are single tasks, so that processes end together."""
CHUNK_MAX = 1000
"""Tasks that a crash of one launcher may hold back at most, and that a resumed run finds again."""
PACKED_CHUNK_MAX = 8
"""The same for a packed run, in which a node claims no more than it can start soon: a node full of large tasks must not
hold small ones that another node has room for."""


def tasks_of(run: Run, rank: int) -> range:
    """Return the tasks of one process, for the distributions `block` and `cyclic`.

    block: neighbouring tasks; the lowest-numbered processes have one more where it does not come out even (16 over 3:
    6, 5, 5). With `per_process`, exactly so many each, and the last process has the rest.

    Raises ValueError for `dynamic`, whose tasks are nobody's before they are taken.
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
    """Return LLSUB_RANK of a task that the process with number `worker` runs.

    Up to one task a process, the rank is the task's number, on whichever slot an attempt runs: a retry takes any free
    slot, and a program that names its output after its rank must find the same rank there. With more tasks than
    processes the rank is the process's, and LLSUB_TASK tells the tasks apart.
    """
    return task if run.tasks <= run.processes else worker


def chunks_of(run: Run) -> tuple[range, ...]:
    """Return the table of chunks of a run with dynamic distribution."""
    return chunks(run.tasks, run.processes, CHUNK_MAX if run.pack is None else PACKED_CHUNK_MAX)


def chunks(tasks: int, processes: int, most: int = CHUNK_MAX) -> tuple[range, ...]:
    """Return every task once, in chunks that become smaller: guided self-scheduling (Polychronopoulos and Kuck, 1987).

    Of the same numbers every node makes the same table, so that a chunk's number says which tasks it has. most: the
    largest chunk.
    """
    found, first = [], 0
    while first < tasks:
        size = min(most, max(1, (tasks - first) // (CHUNKS_LEFT * processes)))
        found.append(range(first, first + size))
        first += size
    return tuple(found)
