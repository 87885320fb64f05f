"""Undo a placement that slows tasks down: bans, pauses, and moves to another GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...packing import Ban, Move, Packer, Pause, Resume
from .hangs import Hangs
from .moves import Moves
from .pauses import Pauses
from .running import Running


class PackUndo:
    """The paused and moving tasks of one launcher."""

    def __init__(
        self,
        packer: Packer,
        pauses: Pauses,
        hangs: Hangs,
        checkpoint_signal: int | None,
        node_name: str,
        tell: Callable[[str], None],
    ) -> None:
        """`checkpoint_signal` None: no task can be moved. `tell` gets sentences for the job's log."""
        self._packer = packer
        self._pauses = pauses
        self._hangs = hangs
        self._moves = Moves(checkpoint_signal)
        self._node_name = node_name
        self._tell = tell

    @property
    def paused(self) -> frozenset[int]:
        """Return the task numbers of the paused tasks."""
        return frozenset(self._pauses.tasks)

    def carry_out(self, action: Ban | Pause | Resume | Move, running: Mapping[int, Running], now: float) -> None:
        """Carry out and log one action of a decision. `running`: the running tasks, by pid."""
        self._tell(action.why)
        if isinstance(action, Ban):
            return
        task = next((one for one in running.values() if one.turn.task == action.task), None)
        if isinstance(action, Resume):
            self._pauses.resume(action.task)
            self._hangs.drop(action.task)
        elif task is None:
            self._packer.resumed(action.task, now)  # the task has just ended, or is being started
        elif isinstance(action, Move):
            self._moves.begin(task)
        elif not self._pauses.pause(task):
            self._packer.resumed(action.task, now)

    def resume_all(self, now: float) -> None:
        """Continue all paused tasks, and pause none from now on."""
        for number in list(self._pauses.tasks):
            self._packer.resumed(number, now)
        self._pauses.resume_all()
        self._packer.pause_no_more()

    def check(self, now: float) -> None:
        """Keep paused tasks stopped; continue them for good if the watchdog has ended. Send signals to moving tasks."""
        if self._packer.board.settings.undo == "pause" and not self._pauses.is_possible:
            self.resume_all(now)
            self._tell(
                f"no further task is paused on {self._node_name}: the watchdog, which would end paused tasks if this "
                "launcher were killed, has ended"
            )
        self._pauses.check()
        self._moves.check()

    def ended(self, task: int) -> None:
        """Drop a task that has ended, and continue processes that it left behind."""
        self._moves.drop(task)
        self._pauses.resume(task)
