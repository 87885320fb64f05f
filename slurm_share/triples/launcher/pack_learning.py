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
        self._sizes = packing.SizeReader(node.folder) if node.count > 1 else None
        self._outside = packing.outside_sizes(request.estimate, variables)

    def make_estimator(self) -> packing.Estimator:
        return packing.Estimator(self.history.runs, now=self._unix_s, software=self.software, site=self._site)

    def make_speeds(self) -> packing.Speeds:
        return packing.Speeds(self.history.runs, self.history.pairs, now=self._unix_s)

    def tell_size(self, key: packing.TaskKey, gpu_model: str, peak_mib: int, age_s: float) -> None:
        """Publish the measured memory of a task to the other nodes of the run."""
        if self._sizes is not None:
            self._events.size(key, gpu_model, peak_mib, age_s)

    def ask_outside(
        self, ask: packing.TaskAsk, make_argv: Callable[[], Sequence[str]], cwd: Path, packer: packing.Packer
    ) -> None:
        """Request the size of an unknown command from a description or a dry run, if --estimate asks for it."""
        if self._outside is not None and ask.key is not None and packer.is_unknown(ask):
            self._outside.ask(make_argv(), cwd, ask.key)
            self.take_outside(packer)  # a description is read at once: the first decision is to know it

    def take_outside(self, packer: packing.Packer) -> None:
        """Pass the new sizes from descriptions and dry runs to the packer."""
        if self._outside is not None:
            for figure in self._outside.take():
                packer.offered(figure.key, figure.source, figure.mib)
            for note in self._outside.take_notes():
                self._tell(note)

    def keep_trials(self, *records: packing.TunedRun | packing.ShareRun) -> None:
        """Write results of trials to the user's history, unless the request disables learning."""
        if records and self._request.learns:
            self._write(*records)

    def update(self, packer: packing.Packer, now: float) -> None:
        """Write finished attempts to the user's history, and read the sizes from other nodes."""
        if self.runs or self.pairs:
            self._write(*self.runs, *self.pairs)
            self.runs.clear()
            self.pairs.clear()
        self._events.groups(packer.groups.take_new())
        if self._sizes is not None:
            for size in self._sizes.read(now):
                packer.sized_elsewhere(size.key, size.gpu_model, size.peak_mib, size.age_s)
        self.take_outside(packer)
        for note in packer.estimator.take_notes():
            self._tell(note)

    def _write(self, *records: packing.TaskRun | packing.PairRun | packing.TunedRun | packing.ShareRun) -> None:
        if (problem := self._writer.append(*records)) is not None:
            self._tell(problem)
