"""Fair turns of a run (`--slot`): which tasks save their state and go to the end of the queue, and what that costs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from msgspec import UNSET, Struct

from ...core.errors import UsageError
from ...core.text import counted, span_text
from ..records import Ended
from . import task_options
from .checkpoint import Checkpoint

OPTION = "--slot"
GRACE_S = 60.0
"""Seconds that a task has to save its state and end at the end of its turn; after that it keeps its place."""
WAITED_S = 10.0
"""In a packed run a task has waited this long, or for a slot if that is shorter, before another one's turn ends for it:
a decision may wait some seconds for the memory of the task before it."""


def parse(text: str) -> float:
    """Return the length of a turn in seconds. Raises UsageError."""
    found = task_options.parse_time(text, OPTION)
    if found is None:
        raise UsageError(f"{OPTION} is a time such as 10m or 1h; leave it out for a run without turns")
    return found


def check(slot_s: float | None, saved_on: Checkpoint | None) -> None:
    """Raise UsageError for turns of tasks that cannot save their state."""
    if slot_s is not None and saved_on is None:
        raise UsageError(
            f"{OPTION} needs --checkpoint-signal, on which tasks save their state and end with exit code 75: write "
            "--checkpoint-signal=USR1, or remove it"
        )


class RunningTask(Struct, frozen=True):
    """A running task at one moment."""

    task: int
    seconds: float
    """How long it has run since its last start, without pauses."""
    is_told: bool = False
    """It has been told to save its state and has not ended."""
    is_exempt: bool = False
    """It keeps its place: it has not ended, or not saved its state, when it was told before, or it moves or ends for
    another reason."""


def choose(running: Collection[RunningTask], waiting: int, slot_s: float) -> list[int]:
    """Return the tasks whose turn is over, the longest-running first.

    Only tasks that had their slot give way, and no more than tasks wait that fit nowhere (`waiting`); those that have
    been told before count.
    """
    wanted = waiting - sum(one.is_told for one in running)
    found = [one for one in running if one.seconds >= slot_s and not (one.is_told or one.is_exempt)]
    found.sort(key=lambda one: (-one.seconds, one.task))
    return [one.task for one in found[: max(wanted, 0)]]


class TurnSums(Struct, frozen=True, kw_only=True):
    """Sums over the turns of a run: their number and cost, and each task's part of the time on GPUs."""

    turns: int
    """How often a task gave way."""
    saving_s: float
    """Time from the signal to the end of the attempt, added up."""
    waiting_s: float
    """Time from the end of the attempt to the next start, added up over those that started again."""
    task_s: tuple[float, ...]
    """Task -> the time that its attempts have run, added up."""


class TurnTally:
    """Adds up the turns of a run."""

    def __init__(self, tasks: int) -> None:
        self._task_s = [0.0] * tasks
        self._ends: list[tuple[int, float]] = []
        """(task, Unix time of the end) of each attempt that gave way."""
        self._starts: dict[int, list[float]] = {}
        self._saving_s = 0.0

    def passed_on(self, attempts: Iterable[tuple[int, Ended]]) -> Iterator[tuple[int, Ended]]:
        """Yield attempts with their places unchanged, and add each of them."""
        for place, ended in attempts:
            self._task_s[ended.task] += ended.seconds
            self._starts.setdefault(ended.task, []).append(ended.started)
            if ended.turn_over is not UNSET:
                end = ended.started + ended.seconds
                self._ends.append((ended.task, end))
                self._saving_s += max(end - ended.turn_over, 0.0)
            yield place, ended

    def sums(self) -> TurnSums:
        waiting_s = 0.0
        for task, end in self._ends:
            after = [start for start in self._starts[task] if start >= end - 0.01]
            waiting_s += max(min(after) - end, 0.0) if after else 0.0
        return TurnSums(
            turns=len(self._ends),
            saving_s=round(self._saving_s, 3),
            waiting_s=round(waiting_s, 3),
            task_s=tuple(round(one, 3) for one in self._task_s),
        )


SHARES_SHOWN = 12
"""Most tasks whose share of the time is named one by one."""


def sentences(sums: TurnSums) -> list[str]:
    """Return sentences on the turns of a run."""
    if not sums.turns:
        return [f"turns ({OPTION}): no task had to give way"]
    said = [
        f"turns ({OPTION}): tasks gave way {counted(sums.turns, 'time')}; saving took {span_text(sums.saving_s)}, and "
        f"waiting for the next turn {span_text(sums.waiting_s)}, added up"
    ]
    total_s = sum(sums.task_s)
    if total_s > 0:
        said.append(f"share of the running time by task: {_shares(sums.task_s, total_s)}")
    return said


def _shares(task_s: Sequence[float], total_s: float) -> str:
    percents = [100 * one / total_s for one in task_s]
    if len(percents) <= SHARES_SHOWN:
        return ", ".join(f"{task}: {percent:.1f} %" for task, percent in enumerate(percents))
    return f"{min(percents):.2f} to {max(percents):.2f} % (summary.json has each)"
