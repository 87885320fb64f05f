"""Sizes and speeds of commands: read the histories of user and site, add what a packed run measures.

Sizes are also exchanged with the other nodes of the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ... import packing
from .node import Node


class PackLearning:
    """The histories of one launcher. Only the thread of the loop calls it."""

    def __init__(
        self,
        request: packing.PackRequest,
        node: Node,
        events: packing.EventLog,
        common: Mapping[bytes, bytes],
        unix_s: float,
        tell: Callable[[str], None],
    ) -> None:
        """Read the histories. `common`: the variables of all tasks. `tell` gets sentences for the job's log."""
        self._request = request
        self._node = node
        self._unix_s = unix_s
        self._tell = tell
        is_asked = request.estimate != "none"
        self.history = packing.read_history(now=unix_s) if is_asked else packing.History()
        self._site, site_notes = packing.read_site(node.estimate_history) if is_asked else ((), ())
        for note in (*self.history.notes, *site_notes):
            tell(note)
        variables = {os.fsdecode(name): os.fsdecode(value) for name, value in common.items()}
        self.software = packing.name_software(variables)
        self._writer = packing.HistoryWriter()
        self.runs: list[packing.TaskRun] = []
        """Finished attempts to be written to the history."""
        self.pairs: list[packing.PairRun] = []
        """Measured pairs to be written to the history."""
        self._events = events
        self._sizes = packing.SizeReader(node.folder)
        self._outside = packing.outside_sizes(request.estimate, variables)

    def make_estimator(self) -> packing.Estimator:
        return packing.Estimator(self.history.runs, now=self._unix_s, software=self.software, site=self._site)

    def make_speeds(self) -> packing.Speeds:
        return packing.Speeds(self.history.runs, self.history.pairs, now=self._unix_s)

    def _tell_sizes(self, board: packing.Board, now: float) -> None:
        """Write the measured memory of tasks for the other nodes of the run, and for its next job."""
        for one in board.sized:
            if one.ask.key is not None and one.peak_mib:
                model, task = board.facts[one.gpus[0]].model, None if one.is_told else one.ask.task
                self._events.size(one.ask.key, model, one.peak_mib, now - one.started_s, task)
        board.sized.clear()

    def take_sizes(self, board: packing.Board, now: float) -> None:
        """Pass what other nodes, and at first earlier jobs of the run, have measured to the board."""
        for size in self._sizes.read(now):
            board.sized_elsewhere(size.key, size.gpu_model, size.peak_mib, size.age_s)

    def seen_mib(self, task: int) -> int:
        """Return the memory of attempts in earlier jobs that was above their bookings, in MiB; 0: none was seen."""
        return self._sizes.seen_mib.get(task, 0)

    def ask_outside(
        self, ask: packing.TaskAsk, make_argv: Callable[[], Sequence[str]], cwd: Path, board: packing.Board
    ) -> None:
        """Request the size of an unknown command from a description or a dry run, if --estimate asks for it."""
        if self._outside is not None and ask.key is not None and board.is_unknown(ask):
            self._outside.ask(make_argv(), cwd, ask.key)
            self.take_outside(board)  # a description is read at once: the first decision is to know it

    def take_outside(self, board: packing.Board) -> None:
        """Pass the new sizes from descriptions and dry runs to the board."""
        if self._outside is not None:
            for figure in self._outside.take():
                board.offered(figure.key, figure.source, figure.mib)
            for note in self._outside.take_notes():
                self._tell(note)

    def keep_trials(self, *records: packing.SearchRun) -> None:
        """Write results of trials to the user's history, unless the request disables learning."""
        if records and self._request.learns:
            self._write(*records)

    def update(self, board: packing.Board, now: float) -> None:
        """Write finished attempts to the user's history, and read the sizes from other nodes."""
        if self.runs or self.pairs:
            self._write(*self.runs, *self.pairs)
            self.runs.clear()
            self.pairs.clear()
        self._events.groups(board.learner.groups.take_new())
        self._tell_sizes(board, now)
        if self._node.count > 1:
            self.take_sizes(board, now)
        self.take_outside(board)
        for note in board.notes:
            self._tell(note)
        board.notes.clear()
        for note in board.estimator.take_notes() if board.estimator else ():
            self._tell(note)

    def _write(self, *records: packing.TaskRun | packing.PairRun | packing.SearchRun) -> None:
        if (problem := self._writer.append(*records)) is not None:
            self._tell(problem)

    @property
    def is_kept(self) -> bool:
        """Return whether everything that was measured is in the user's history."""
        return not self._writer.failed
