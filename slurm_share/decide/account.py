"""What became of a run's tasks, counted from their attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from ..work import Ended, Outcome, best


class Account(Struct, frozen=True, kw_only=True):
    """A run as a whole: the file summary.json."""

    version: int = 1
    name: str
    tasks: int
    done: int
    failed: tuple[int, ...]
    """Tasks whose last attempt failed."""
    unfinished: tuple[int, ...]
    """Tasks that were ended before they were done, and tasks that never began."""
    tried_again: tuple[int, ...]
    """Tasks with more than one attempt."""
    moved: tuple[int, ...]
    """Those of them that were done on another GPU than the one of their first attempt."""
    seconds: float | None
    """From the first task's beginning to the last one's end."""
    results: tuple[Ended, ...]
    """The attempt that counts of every task that began, in the order of the tasks."""
    tries: Mapping[str, int]
    """Attempts of the tasks that had more than one, by the task's number."""


_NEVER = 1e11
"""Unix time, seconds: no clock of a machine that works says so."""


def account(name: str, tasks: int, attempts: Mapping[int, Sequence[Ended]]) -> Account:
    """Count. The attempts of a task, one of the run's, are in their order, at least one."""
    last = {task: best(tried) for task, tried in attempts.items()}
    failed = tuple(task for task in sorted(last) if last[task].outcome not in ("done", "unfinished"))
    lost = set(failed)
    done = {task for task, ended in last.items() if ended.outcome == "done"}
    again = tuple(task for task in sorted(last) if len(attempts[task]) > 1)
    timed = [ended for tried in attempts.values() for ended in tried if 0 <= ended.started < _NEVER]
    return Account(
        name=name,
        tasks=tasks,
        done=len(done),
        failed=failed,
        unfinished=tuple(task for task in range(tasks) if task not in done and task not in lost),
        tried_again=again,
        moved=tuple(task for task in again if task in done and _place(attempts[task][0]) != _place(last[task])),
        seconds=round(max(one.started + one.seconds for one in timed) - min(one.started for one in timed), 3)
        if timed
        else None,
        results=tuple(last[task] for task in sorted(last)),
        tries={str(task): len(attempts[task]) for task in again},
    )


def _place(ended: Ended) -> tuple[str, str | None]:
    return ended.node, ended.gpu_uuid


WORDS: Mapping[Outcome, str] = {
    "done": "done",
    "failed": "failed",
    "signal": "ended by a signal",
    "gpu memory": "out of GPU memory",
    "host memory": "out of host memory",
    "not started": "not started",
    "unfinished": "unfinished",
}
"""The outcomes for a person."""
