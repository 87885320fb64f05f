"""Carry out what undoes a choice of neighbours: bans, pauses, and moves to another GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...packing import Ban, Move, Packer, Pause, Resume
from .hangs import Hangs
from .moves import Moves
from .pauses import Pauses
from .running import Running


class PackUndo:
    """Paused and moving tasks of one launcher."""

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
        """Return the numbers of the paused tasks."""
        return frozenset(self._pauses.tasks)

    def carry_out(self, action: Ban | Pause | Resume | Move, running: Mapping[int, Running], now: float) -> None:
        """Carry out one action of a decision, and say it. `running`: the running tasks, by pid."""
        self._tell(action.why)
        if isinstance(action, Ban):
            return
        task = next((one for one in running.values() if one.turn.task == action.task), None)
        if isinstance(action, Resume):
            self._pauses.resume(action.task)
            self._hangs.forget(action.task)
        elif task is None:
            self._packer.resumed(action.task, now)  # it has just ended, or is just being started
        elif isinstance(action, Move):
            self._moves.begin(task)
        elif not self._pauses.pause(task):
            self._packer.resumed(action.task, now)

    def resume_all(self, now: float) -> None:
        """Let all paused tasks go on; none is paused from now on."""
        for number in list(self._pauses.tasks):
            self._packer.resumed(number, now)
        self._pauses.resume_all()
        self._packer.pause_no_more()

    def check(self, now: float) -> None:
        """Keep what is paused as it is; let it go on for good where nobody would do so if this launcher was killed."""
        if self._packer.board.settings.undo == "pause" and not self._pauses.is_possible:
            self.resume_all(now)
            self._tell(
                f"no further task is paused on {self._node_name}: the process that would let it go on without this "
                "launcher is gone"
            )
        self._pauses.look()
        self._moves.look()

    def ended(self, task: int) -> None:
        """Forget a task that has ended; what is left of it goes on."""
        self._moves.forget(task)
        self._pauses.resume(task)
