"""The ranks of a node that send messages to each other: all start at once, and a rank that fails ends the others.

The launcher reports every end to the node's rendezvous process, which decides for all nodes when the run has to end.
Ranks that still run END_GRACE_S later get SIGTERM, as from a scheduler.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

from ...core.process import Deadline
from ...packing import Attempt, EndFacts, RankWait
from ...spmd.names import END_GRACE_S, GOOD_CODES, LOST_S
from .. import rank_python
from ..records import Outcome
from ..rules import together
from .rendezvous import RendezvousClient, clause
from .strategy import LauncherState

CLOSE_S = 2.0
"""Seconds for the rendezvous process to end when it is told to."""
LEAVE_S = 10.0
"""Seconds for the rendezvous process of another node than node 0 to end by itself after its ranks."""
LAST_S = 3 * LOST_S
"""Seconds that node 0 waits for other nodes when its ranks have ended and the run has to end: long enough to detect a
lost node, and longer than ranks get until SIGKILL."""


class RankGroup:
    """The ranks of a node: it reports their starts and ends to the rendezvous process, and learns when the run ends."""

    def __init__(self, shared: LauncherState, rendezvous: RendezvousClient) -> None:
        self.run, self.node, self.feeder, self.say = shared.run, shared.node, shared.feeder, shared.say
        self.running, self.starting = shared.running, shared.starting
        self.rendezvous = rendezvous
        self.exit_code = 0
        """The exit code of a run that has to end; 0: the run goes on, or another node knows it."""
        self._begun: set[int] = set()
        """Ranks of which a start was requested, and not put back."""
        self._first: str | None = None
        """The reason for the end of the run, as a sentence; None: the run goes on."""
        self._grace: Deadline | None = None
        """When remaining ranks get SIGTERM; None: not due."""
        self._last: Deadline | None = None
        """When the loop stops waiting for the rendezvous process; None: not set."""
        self._is_loss_logged = False

    # ---- Starts ----

    def begun(self, rank: int) -> None:
        """Record that the start of a rank was requested."""
        self._begun.add(rank)

    def put_back(self, rank: int) -> None:
        """Record that a rank could not start for a passing reason. It may start later, or never (`not_started`)."""
        self._begun.discard(rank)

    def not_started(self, workers: Iterable[int], why: str) -> None:
        """Report the ranks of these workers that have not begun and will not. `why`: "was not started"."""
        for worker in workers:
            rank = self.node.workers[worker].rank
            if rank not in self._begun and not self.rendezvous.was_told(rank):
                self.rendezvous.tell_ended(rank, 1, None, why)

    # ---- Ends ----

    def outcome(self, task: Attempt, facts: EndFacts, outcome: Outcome, why: str) -> tuple[Outcome, str]:
        """Return the outcome; a rank that fails after the end of another one is unfinished, not failed."""
        python = together.python_of(self.run)
        if python is not None and outcome == "failed" and together.is_module_missing(facts.log_tail):
            return outcome, together.missing_text(python, rank_python.INSTALL)
        self._read_rendezvous()
        reason = self.rendezvous.ending
        if (
            outcome not in ("done", "saved")
            and reason is not None
            and task.rank not in reason.ranks
            and not self.run.keep_going
        ):
            return "unfinished", f"{why}; {together.short_reason(reason.why)}"
        return outcome, why

    def ended(self, rank: int, outcome: Outcome, code: int | None, number: int | None) -> None:
        """Report the end of a rank: its exit code or signal, neither if it was not started."""
        self._tell(rank, code, number, clause(code, number, outcome))

    def _tell(self, rank: int, code: int | None, number: int | None, why: str) -> None:
        if (code, number) == (None, None):
            code = 1  # for other ranks, like any other failure
        self.rendezvous.tell_ended(rank, code, number, why)
        self._read_rendezvous()
        if not self.rendezvous.is_alive and not (number is None and code in GOOD_CODES):
            self._begin_to_end(f"rank {rank} on {self.node.name} {why}")

    # ---- The end of the run ----

    @property
    def is_ending(self) -> bool:
        """Return whether ranks are to end because one has failed, so that no collective save succeeds any more."""
        return self._first is not None and not self.run.keep_going

    def tick(self) -> None:
        """Do what is due about once a second."""
        if self.feeder.closed:
            self.not_started(range(len(self.node.workers)), "was not started")
        self._read_rendezvous()
        if self._grace is not None and self._grace.left() == 0:
            self._grace = None
            if self.running or self.starting:
                os.kill(os.getpid(), signal.SIGTERM)  # to ourselves: the loop then ends all tasks

    def _read_rendezvous(self) -> None:
        """Process the messages of the rendezvous process, and log once if it has ended too early."""
        self.rendezvous.read()
        if self.rendezvous.ending is not None:
            self._begin_to_end(self.rendezvous.ending.why, self.rendezvous.ending.code)
        if not self.rendezvous.is_alive and not self._is_loss_logged and not self._are_all_told():
            self._is_loss_logged = True
            why = f" ({line})" if (line := self.rendezvous.last_line) else ""
            self.say(
                f"the rendezvous process on {self.node.name} has ended{why}; its ranks go on, but do not learn when "
                "other ranks end"
            )

    def _begin_to_end(self, sentence: str, code: int = 1) -> None:
        if self._first is not None:
            return
        self._first = sentence
        if self.node.index == 0:
            self.exit_code = code & 255 or 1  # a process's exit code has eight bits
        if self.node.index == 0 or not self.rendezvous.is_alive:
            self.say(sentence)
        if not self.run.keep_going:
            self._grace = Deadline.after(END_GRACE_S)

    def _are_all_told(self) -> bool:
        return all(self.rendezvous.was_told(worker.rank) for worker in self.node.workers)

    def is_awaited(self) -> bool:
        """Return whether the loop has to wait for the rendezvous process, which on node 0 serves the other nodes."""
        if self.running or self.starting:
            return False
        self.rendezvous.read()
        if not self.rendezvous.is_alive or (self.feeder.closed and not self._begun):
            return False
        if self._last is None and self._are_all_told():
            if self.node.index > 0 or self.node.count == 1:
                self._last = Deadline.after(LEAVE_S)
            elif self._first is not None:
                self._last = Deadline.after(LAST_S)
        return self._last is None or self._last.left() > 0

    def waits(self) -> tuple[RankWait, ...]:
        """Return for what the ranks wait."""
        return self.rendezvous.sorted_waits()

    def close(self) -> None:
        """End the rendezvous process."""
        self.rendezvous.close(CLOSE_S)
