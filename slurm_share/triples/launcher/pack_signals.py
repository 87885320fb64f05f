"""Act on running tasks of a packed run: pause them, move them to another GPU, and end those that hang.

A task hangs that has no output, no CPU time, and no work on its GPU.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from ...node import descendants
from ...packing import Attempt, Board, Move, Pause, Resume
from . import task_process
from .pauses import Pauses

CHECK_S = 30.0
"""Most seconds between two checks, each of which reads all processes of the node."""
GRACE_S = 25.0
"""Seconds from SIGTERM to SIGKILL, as at the end of a job."""


class _LastActivity(Struct, eq=False):
    """The state of a task at the last check."""

    size: int
    cpu_s: float
    since: float
    is_logged: bool = False
    told_to_end: float | None = None


class Hangs:
    """Watches the tasks of a launcher for signs of work."""

    def __init__(self, patience_s: float, *, is_killing: bool, say: Callable[[str], None]) -> None:
        """`patience_s`: how long a task may show no work. `is_killing`: end such tasks, do not only log them."""
        self._patience_s = patience_s
        self._signs = f"no output, no CPU time and no work on its GPU for {patience_s:g} s"
        self._is_killing = is_killing
        self._say = say
        self._seen: dict[int, _LastActivity] = {}
        self._next = 0.0

    def check(self, running: Sequence[Attempt], is_busy: Callable[[Attempt], bool]) -> None:
        """Check all running tasks if a check is due; log tasks that hang, and end them with `is_killing`."""
        now = time.monotonic()
        for task in running:
            seen = self._seen.get(task.task)
            if seen is not None and seen.told_to_end is not None and now - seen.told_to_end > GRACE_S:
                task_process.signal_group(task.pid, signal.SIGKILL)
        if now < self._next:
            return
        self._next = now + min(CHECK_S, self._patience_s / 4)
        tasks = [task for task in running if task.pid]
        cpu = descendants.read_session_cpu() if tasks else {}
        for task in tasks:
            size, cpu_s = _size(task.log), cpu.get(task.pid, 0.0)
            seen = self._seen.get(task.task)
            if seen is None or (size, cpu_s) != (seen.size, seen.cpu_s) or is_busy(task):
                self._seen[task.task] = _LastActivity(size, cpu_s, now)
            elif now - seen.since >= self._patience_s and not seen.is_logged:
                seen.is_logged = True
                self._act(task, seen, now)

    def _act(self, task: Attempt, seen: _LastActivity, now: float) -> None:
        if not self._is_killing:
            self._say(f"task {task.task} may hang: {self._signs}; --hang=kill would end it")
            return
        seen.told_to_end = now
        self._say(f"task {task.task} hangs: {self._signs}; it is told to end (--hang=kill)")
        task_process.tell_to_end(task.pid)

    def why_ended(self, task: int) -> str:
        """Return why a task was told to end; empty: it was not."""
        seen = self._seen.get(task)
        return "" if seen is None or seen.told_to_end is None else f"{self._signs}; ended by --hang=kill"

    def drop(self, task: int) -> None:
        """Drop the state of a task that has ended or was paused."""
        self._seen.pop(task, None)


def _size(log: str) -> int:
    try:
        return os.stat(log).st_size  # noqa: PTH116
    except OSError:
        return -1


SAVE_S = 60.0
"""Seconds that a task has to save its state and end, before SIGTERM."""


class PackUndo:
    """The paused and moving tasks of one launcher."""

    def __init__(
        self,
        board: Board,
        pauses: Pauses,
        hangs: Hangs,
        checkpoint_signal: int | None,
        node_name: str,
        tell: Callable[[str], None],
    ) -> None:
        """`checkpoint_signal`: the signal on which tasks save their state and end; None: moved tasks get SIGTERM.

        `tell` gets sentences for the job's log.
        """
        self._board = board
        self._pauses = pauses
        self._hangs = hangs
        self._signal = checkpoint_signal
        self._node_name = node_name
        self._tell = tell
        self._moving: dict[int, tuple[Attempt, float, signal.Signals]] = {}
        """Task number -> the task, when it gets its next signal (monotonic clock, seconds), and that signal."""

    @property
    def paused(self) -> frozenset[int]:
        return frozenset(self._pauses.tasks)

    def carry_out(self, action: Pause | Resume | Move, running: Mapping[int, Attempt], now: float) -> None:
        """Carry out and log one action of a decision. `running`: the running tasks, by pid."""
        self._tell(action.why)
        task = next((one for one in running.values() if one.task == action.task), None)
        if isinstance(action, Resume):
            self._pauses.resume(action.task)
            self._hangs.drop(action.task)
        elif task is None:
            self._board.resumed(action.task, now)  # the task has just ended, or is being started
        elif isinstance(action, Move):
            self._begin_move(task)
        elif not self._pauses.pause(task):
            self._board.resumed(action.task, now)

    def _begin_move(self, task: Attempt) -> None:
        """Signal a task to save its state and end, so that it starts again on another GPU."""
        task.is_moving = True
        due = time.monotonic()
        if self._signal is not None:
            task_process.signal_group(task.pid, self._signal)
            due += SAVE_S
        self._moving[task.task] = (task, due, signal.SIGTERM)
        self._signal_moving()

    def _signal_moving(self) -> None:
        """Send the signals that are due to moving tasks."""
        now = time.monotonic()
        for number, (task, due, signo) in list(self._moving.items()):
            if now < due:
                continue
            if signo is signal.SIGTERM:
                task_process.tell_to_end(task.pid)
                self._moving[number] = (task, now + GRACE_S, signal.SIGKILL)
            else:
                task_process.kill(task.pid)

    def resume_all(self, now: float) -> None:
        """Continue all paused tasks, and pause none from now on."""
        for number in list(self._pauses.tasks):
            self._board.resumed(number, now)
        self._pauses.resume_all()
        self._board.pause_no_more()

    def check(self, now: float) -> None:
        """Keep paused tasks stopped; continue them for good if the watchdog has ended. Send signals to moving tasks."""
        if self._board.settings.undo == "pause" and not self._pauses.is_possible:
            self.resume_all(now)
            self._tell(
                f"no further task is paused on {self._node_name}: the watchdog, which would end paused tasks if this "
                "launcher were killed, has ended"
            )
        self._pauses.check()
        self._signal_moving()

    def ended(self, task: int) -> None:
        """Drop a task that has ended, and continue processes that it left behind."""
        self._moving.pop(task, None)
        self._pauses.resume(task)
