"""Undo a placement that slows tasks down: pauses, and moves to another GPU."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping

from ...packing import Attempt, Board, Move, Pause, Resume
from . import task_process
from .hangs import GRACE_S, Hangs
from .pauses import Pauses

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
