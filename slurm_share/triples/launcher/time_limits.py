"""Tell tasks to end that run longer than their time (--task-time). The decisions are in rules/time_limit.py."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from ...core.text import fold
from ...packing import Attempt, TaskSpec
from ..records import Run
from ..rules import deal, task_options, time_limit
from . import task_process


def has_limits(run: Run, specs: Sequence[TaskSpec]) -> bool:
    """Return whether a task of a run has a time limit."""
    if run.resumed_time:
        return limit_s(run, specs, 0) is not None
    return any(spec.timeout_s is not None for spec in specs or (deal.base_spec(run),))


def limit_s(run: Run, specs: Sequence[TaskSpec], task: int) -> float | None:
    """Return the time limit of a task in seconds; None: there is none."""
    if run.resumed_time:
        return task_options.parse_time(run.resumed_time, "--task-time")
    return deal.spec_of(run, specs, task).timeout_s


class TimeLimits:
    """The run times of a node's tasks. Only the thread of the loop calls it, about once a second."""

    def __init__(
        self, run: Run, specs: Sequence[TaskSpec], save: Callable[[Attempt], None], say: Callable[[str], None]
    ):
        """`save`: sends the signal of --checkpoint-signal to a task."""
        self._run = run
        self._specs = specs
        self._save = save
        self._say = say
        self._times: dict[tuple[int, float], time_limit.TaskTime] = {}
        """Pid of a running task, and its start, because pids come again -> its time."""

    def check(self, running: Mapping[int, Attempt], now_s: float, paused: Collection[int]) -> None:
        """Tell the tasks that are over their time what is due. `paused`: the tasks that the launcher has stopped."""
        for ended in self._times.keys() - {(pid, task.clock) for pid, task in running.items()}:
            del self._times[ended]
        told: dict[time_limit.Step, list[int]] = {}
        for pid, task in running.items():
            time = self._times.get((pid, task.clock))
            if time is None:
                limit = limit_s(self._run, self._specs, task.task)
                if limit is None:
                    continue
                time = self._times[pid, task.clock] = time_limit.TaskTime(limit, task.clock)
            time_limit.look(time, now_s, is_paused=task.task in paused)
            step = time_limit.next_step(time, can_save=self._run.checkpoint_signal is not None)
            if step is None:
                continue
            told.setdefault(step, []).append(task.task)
            task.over_time_s = time.limit_s
            if step == "save":
                self._save(task)
            elif step == "end":
                task_process.tell_to_end(pid)
            else:
                task_process.kill(pid)
        for step, tasks in told.items():
            self._say(_said(step, tasks))

    def text(self, task: Attempt) -> str:
        """Return the limit of a task that is over it, as text; empty: it is not."""
        return "" if task.over_time_s is None else task_options.time_text(task.over_time_s)


def _said(step: time_limit.Step, tasks: Sequence[int]) -> str:
    what = {
        "save": "over the time limit, told to save their state and end",
        "end": "over the time limit, told to end",
        "kill": "over the time limit and did not end, killed",
    }[step]
    return f"{what}: {fold(sorted(tasks))}"
