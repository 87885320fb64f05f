"""The strategy of runs whose ranks send messages to each other: all start at once, and one that fails ends the others.

The node's rendezvous process is told of every end. It decides when the run has to end, for all nodes alike; ranks that
are still there END_GRACE_S later are told to end by the signal by which a scheduler would do so.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from ...core.process import Deadline
from ...spmd.names import END_GRACE_S, LOST_S
from .. import rank_python, run_folder
from ..records import Outcome, Wait
from ..rules import together
from ..rules.outcomes import Ending
from . import task_process
from .even_caps import EvenCaps
from .rendezvous import Rendezvous, clause
from .running import Running

CLOSE_S = 2.0
"""For the rendezvous process to end when it is told to."""
LEAVE_S = 10.0
"""For it to end by itself when the ranks of its node have ended, on other nodes than node 0."""
LAST_S = 3 * LOST_S
"""How long node 0 waits for the others when its own ranks have ended and the run has to end: until a lost node is
known, and longer than ranks get until SIGKILL."""


class Together(EvenCaps):
    """Start the ranks of a node, and end them together."""

    def __init__(self, *of_even_caps: Any, rendezvous: Rendezvous, folder: Path) -> None:
        """`of_even_caps`: as for EvenCaps. `folder` is the run's."""
        super().__init__(*of_even_caps)
        self.rendezvous = rendezvous
        self._folder = folder
        self._write_exit_code(0)
        self._begun: set[int] = set()
        """Ranks that have started, or were tried."""
        self._how: dict[int, tuple[int | None, int | None]] = {}
        """Rank -> code and signal of its end, until it is told."""
        self._first: str | None = None
        """What ended the run, as a sentence; None: nothing has yet."""
        self._grace: Deadline | None = None
        self._last: Deadline | None = None
        self._is_loss_told = False
        self._shown: list[Wait] | None = None

    # ---- Starts ----

    def _is_in_service(self, worker: int) -> bool:
        is_in_service = super()._is_in_service(worker)
        if not is_in_service:
            rank = self.node.workers[worker].rank
            self.rendezvous.tell_ended(rank, 1, None, "could not be started: its MPS daemon is gone")
        return is_in_service

    def environment(self, task: Running) -> task_process.Environment | None:
        """See Strategy."""
        self._begun.add(task.rank)
        return super().environment(task)

    # ---- Ends ----

    def judge(self, task: Running, ending: Ending) -> tuple[Outcome, str]:
        """See Strategy. What a rank does after the end of another one is no failure of its own."""
        outcome, why = super().judge(task, ending)
        self._how[task.rank] = ending.code, ending.signal
        python = together.python_of(self.what)
        if python is not None and outcome == "failed" and together.is_module_missing(ending.log_tail):
            return outcome, together.missing_text(python, rank_python.INSTALL)
        self._look()
        reason = self.rendezvous.ending
        if outcome != "done" and reason is not None and task.rank not in reason.ranks and not self.what.keep_going:
            return "unfinished", f"{why}; {together.short_reason(reason.why)}"
        return outcome, why

    def finished(self, task: Running, outcome: Outcome) -> bool:
        """See Strategy: no rank runs again."""
        default = (None, None) if outcome == "not started" else (0, None)
        code, number = self._how.pop(task.rank, default)
        self._tell(task.rank, code, number, clause(code, number, outcome))
        return super().finished(task, outcome)

    def _tell(self, rank: int, code: int | None, number: int | None, why: str) -> None:
        if (code, number) == (None, None):
            code = 1  # to the others it is an end like any other
        self.rendezvous.tell_ended(rank, code, number, why)
        self._look()
        if not self.rendezvous.lives and (code, number) != (0, None):
            self._begin_to_end(f"rank {rank} on {self.node.name} {why}")

    # ---- The end of the run ----

    def tick(self) -> None:
        """See Strategy."""
        super().tick()
        if self.feeder.closed:
            for worker in self.node.workers:
                if worker.rank not in self._begun and not self.rendezvous.was_told(worker.rank):
                    self.rendezvous.tell_ended(worker.rank, 1, None, "was not started")
        self._look()
        self._show_waits()
        if self._grace is not None and self._grace.left() == 0:
            self._grace = None
            if self.running or self.starting:
                os.kill(os.getpid(), signal.SIGTERM)  # the loop waits for it, and knows how to end what runs

    def _look(self) -> None:
        """Take in what the rendezvous process says."""
        self.rendezvous.read()
        if self.rendezvous.ending is not None:
            self._begin_to_end(self.rendezvous.ending.why, self.rendezvous.ending.code)
        if not self.rendezvous.lives and not self._is_loss_told and not self._are_all_told():
            self._is_loss_told = True
            why = f" ({line})" if (line := self.rendezvous.last_line) else ""
            self.say(
                f"the rendezvous process on {self.node.name} has ended{why}; its ranks go on, and are not told of "
                "each other's ends"
            )

    def _begin_to_end(self, sentence: str, code: int = 1) -> None:
        if self._first is not None:
            return
        self._first = sentence
        self._write_exit_code(code & 255 or 1)  # a process's exit code has eight bits
        if self.node.index == 0 or not self.rendezvous.lives:
            self.say(sentence)
        if not self.what.keep_going:
            self._grace = Deadline.after(END_GRACE_S)

    def _write_exit_code(self, code: int) -> None:
        if self.node.index == 0:
            with contextlib.suppress(OSError):  # a disk that takes nothing: the run's exit code is 1
                run_folder.write_exit_code(self._folder, code)

    def _are_all_told(self) -> bool:
        return all(self.rendezvous.was_told(worker.rank) for worker in self.node.workers)

    @property
    def waiting(self) -> int:
        """See Strategy: when no rank runs any more, the loop stays as long as the rendezvous process is there, on node
        0 for the other nodes."""
        if self.running or self.starting:
            return 0
        self.rendezvous.read()
        if not self.rendezvous.lives or (self.feeder.closed and not self._begun):
            return 0
        if self._last is None and self._are_all_told():
            if self.node.index > 0 or self.node.count == 1:
                self._last = Deadline.after(LEAVE_S)
            elif self._first is not None:
                self._last = Deadline.after(LAST_S)
        return int(self._last is None or self._last.left() > 0)

    @property
    def waiting_for_memory(self) -> int:
        """See Strategy: no rank waits for room."""
        return 0

    def sentences(self) -> list[str]:
        """See Strategy. The end of the run: the rendezvous process ends, and nobody waits any more."""
        self.rendezvous.close(CLOSE_S)
        self.rendezvous.waits.clear()
        self._show_waits()
        return super().sentences()

    # ---- For llsub --watch ----

    def _show_waits(self) -> None:
        waits = sorted(self.rendezvous.waits.values(), key=lambda one: one.rank)
        if waits != self._shown and (waits or self._shown):
            self._shown = waits
            with contextlib.suppress(OSError):  # a disk that takes nothing: the file is only for display
                run_folder.write_waits(self.node.folder, waits)
