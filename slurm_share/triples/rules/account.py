"""Count how a run's tasks ended, from their attempts."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from heapq import merge

from msgspec import Struct

from ...core import names
from ..records import Ended, Outcome

OUTCOME_TEXTS: Mapping[Outcome, str] = {
    "done": "done",
    "failed": "failed",
    "signal": "ended by a signal",
    "gpu memory": "out of GPU memory",
    "host memory": "out of host memory",
    "time limit": "over the time limit",
    "disturbed": "ended by a neighbour or a failed GPU",
    "not started": "not started",
    "given up": "given up",
    "saved": "saved, not finished",
    "unfinished": "unfinished",
}
"""The text of each outcome in tables and sentences."""
_NUMBERS: Mapping[Outcome, int] = {outcome: number for number, outcome in enumerate(OUTCOME_TEXTS, 1)}
_DONE, _SAVED, _UNFINISHED = _NUMBERS["done"], _NUMBERS["saved"], _NUMBERS["unfinished"]
_NEVER_BEGAN = 0
_NEVER = 1e11
"""Unix time, seconds, later than any real one."""


class JobAccount(Struct, frozen=True):
    """The attempts of one job of a run, or of one start of it after a requeue."""

    began: float
    """Unix time at which its first task began, seconds."""
    ended: float
    """Unix time at which its last task ended."""
    attempts: Mapping[Outcome, int]


class Account(Struct, frozen=True, kw_only=True):
    """The counts of a run: summary.json without the attempts themselves."""

    version: int = 1
    name: str
    tasks: int
    done: int
    began: int
    """Number of tasks with an attempt."""
    failed: Sequence[int]
    saved: Sequence[int]
    """Tasks that have saved their state and are not finished."""
    unfinished: Sequence[int]
    """Tasks that were ended before they were done, and tasks that never began."""
    tried_again: Sequence[int]
    moved: Sequence[int]
    """Tasks that were done on another GPU than the GPU of their first attempt."""
    by_outcome: Mapping[Outcome, Sequence[int]]
    """The failed tasks by the outcome of their last attempt."""
    seconds: float | None
    """From the start of the first task to the end of the last one, added up over `starts`; None: no task began."""
    starts: int = 0
    """Number of jobs, and their requeues, that began a task. The time between them belongs to no task."""
    jobs: Mapping[str, JobAccount] = {}
    """`Ended.job` -> what it did, in the order of their starts."""
    places: Sequence[int]
    """For each task the place (triples/result_files.py) of the attempt that counts; -1: the task never began."""
    tries: Sequence[int]

    @property
    def exit_code(self) -> int:
        """Return the run's exit code: 0 all tasks are done, 75 some have saved their state and none failed, else 1."""
        if self.done == self.tasks:
            return names.EXIT_OK
        return names.EXIT_SAVED if self.saved and not self.failed else 1

    def shown(self, most: int) -> list[int]:
        """Return the places of at most `most` tasks for a table: all that began, or else the first not done."""
        if self.began <= most:
            return [place for place in self.places if place >= 0]
        found = []
        for task in merge(self.failed, self.saved, self.unfinished):
            if self.places[task] >= 0:
                found.append(self.places[task])
                if len(found) == most:
                    break
        return found


class Tally:
    """Counts the attempts of a run in about 50 bytes per task, because a run may have a million tasks."""

    def __init__(self, name: str, tasks: int) -> None:
        self._name, self._tasks = name, tasks
        self._tries = array("I", [0]) * tasks
        # The attempt that counts: place, file, outcome, start and GPU.
        self._places = array("q", [-1]) * tasks
        self._files = array("I", [0]) * tasks
        self._outcomes = bytearray(tasks)
        self._started = array("d", [0.0]) * tasks
        self._gpus = array("I", [0]) * tasks
        # The first attempt of tasks with several attempts.
        self._first_files = array("I", [0]) * tasks
        self._first_started = array("d", [0.0]) * tasks
        self._first_gpus = array("I", [0]) * tasks
        self._gpu_numbers: dict[str, int] = {"": 0}
        """GPU UUID, or the node of a GPU without one -> a number; 0: the attempt had no GPU."""
        self._spans: dict[str, tuple[float, float]] = {}
        """`Ended.job` -> start of its first task and end of its last one, Unix time, seconds."""
        self._by_job: dict[str, list[int]] = {}
        """`Ended.job` -> number of its attempts, by the number of the outcome."""

    def add(self, file: int, attempts: Iterable[tuple[int, Ended]]) -> None:
        """Count all attempts of one file, each with its place, in the order of the file.

        Attempts in one file count in its order, even if the clock was set. Attempts in different files are ordered by
        their start. `file` is a unique number of the file.
        """
        # Local names, because this loop runs for each of a million attempts.
        tries, places, files, outcomes = self._tries, self._places, self._files, self._outcomes
        starts, gpus, gpu_numbers = self._started, self._gpus, self._gpu_numbers
        job, since, until = "", _NEVER, 0.0
        counts = [0] * (len(OUTCOME_TEXTS) + 1)
        for place, ended in attempts:
            task, started = ended.task, ended.started
            if ended.job != job:
                self._note_span(job, since, until)
                job, since, until = ended.job, _NEVER, 0.0
                counts = self._by_job.setdefault(job, [0] * (len(OUTCOME_TEXTS) + 1))
            if 0 <= started < _NEVER:
                if started < since:
                    since = started
                end = started + ended.seconds
                if end > until:
                    until = end
            where = ended.gpu_uuid or ("" if ended.gpu is None else ended.node)  # "": it had no GPU
            gpu = gpu_numbers.get(where)
            if gpu is None:
                gpu = gpu_numbers[where] = len(gpu_numbers)
            outcome = _NUMBERS[ended.outcome]
            counts[outcome] += 1
            count = tries[task]
            tries[task] = count + 1
            if count:
                self._note_first(task, count, file, started, gpu)
                if not self._counts(task, file, started, outcome):
                    continue
            places[task] = place
            files[task] = file
            outcomes[task] = outcome
            starts[task] = started
            gpus[task] = gpu
        self._note_span(job, since, until)

    def _note_span(self, job: str, since: float, until: float) -> None:
        """Widen the span of a job by attempts that began at `since` and ended until `until`."""
        if since < _NEVER:
            before = self._spans.get(job, (_NEVER, 0.0))
            self._spans[job] = min(before[0], since), max(before[1], until)

    def _note_first(self, task: int, count: int, file: int, started: float, gpu: int) -> None:
        """Update the first attempt of a task that had `count` attempts and gets one more."""
        if count == 1:
            self._first_files[task] = self._files[task]
            self._first_started[task] = self._started[task]
            self._first_gpus[task] = self._gpus[task]
        if file != self._first_files[task] and started < self._first_started[task]:
            self._first_files[task], self._first_started[task], self._first_gpus[task] = file, started, gpu

    def _counts(self, task: int, file: int, started: float, outcome: int) -> bool:
        """Return whether an attempt replaces the present one: the first that is done counts, else the last."""
        was_done = self._outcomes[task] == _DONE
        if was_done or outcome == _DONE:
            if was_done and outcome == _DONE:
                return file != self._files[task] and started < self._started[task]
            return not was_done
        return file == self._files[task] or started >= self._started[task]

    def _is_moved(self, task: int) -> bool:
        """Return whether the attempt that counts and the first one had two different GPUs."""
        first, last = self._first_gpus[task], self._gpus[task]
        return first != last and 0 not in (first, last)

    def _job(self, job: str) -> JobAccount:
        (began, ended), counts = self._spans[job], self._by_job[job]
        attempts = {outcome: counts[number] for outcome, number in _NUMBERS.items() if counts[number]}
        return JobAccount(round(began, 3), round(ended, 3), attempts)

    def account(self) -> Account:
        outcomes, tries = self._outcomes, self._tries
        failed = array(
            "I", (task for task, one in enumerate(outcomes) if one not in (_NEVER_BEGAN, _DONE, _SAVED, _UNFINISHED))
        )
        again = array("I", (task for task, count in enumerate(tries) if count > 1))
        by_outcome = {
            outcome: array("I", (task for task in failed if outcomes[task] == number))
            for outcome, number in _NUMBERS.items()
        }
        return Account(
            name=self._name,
            tasks=self._tasks,
            done=outcomes.count(_DONE),
            began=self._tasks - outcomes.count(_NEVER_BEGAN),
            failed=failed,
            saved=array("I", (task for task, one in enumerate(outcomes) if one == _SAVED)),
            unfinished=array("I", (task for task, one in enumerate(outcomes) if one in (_NEVER_BEGAN, _UNFINISHED))),
            tried_again=again,
            moved=array("I", (task for task in again if outcomes[task] == _DONE and self._is_moved(task))),
            by_outcome={outcome: tasks for outcome, tasks in by_outcome.items() if tasks},
            seconds=round(sum(until - since for since, until in self._spans.values()), 3) if self._spans else None,
            starts=len(self._spans),
            jobs={job: self._job(job) for job in sorted(self._spans, key=self._spans.__getitem__)},
            places=self._places,
            tries=tries,
        )
