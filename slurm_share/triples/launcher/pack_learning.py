"""What a packed run knows of sizes and speed when it begins, what it learns, and where that is kept.

It reads the user's history and the site's, writes to the user's, and exchanges sizes with the other nodes of the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ...packing import (
    Estimator,
    History,
    NodeSizes,
    OutsideSizes,
    Packer,
    PackRequest,
    PairRun,
    ShareRun,
    SpeedHistory,
    Speeds,
    SpeedWriter,
    TaskKey,
    TaskRun,
    TunedRun,
    Writer,
    append_groups,
    name_software,
    read_history,
    read_site,
    read_speed_history,
)
from .node import Node


class PackLearning:
    """The histories of one launcher. The strategy calls all of it from its one thread."""

    def __init__(
        self,
        request: PackRequest,
        node: Node,
        common: Mapping[bytes, bytes],
        unix_s: float,
        tell: Callable[[str], None],
    ) -> None:
        """Read what is known. `common`: the variables of all tasks. `tell` gets sentences for the job's log."""
        self._request = request
        self._node = node
        self._unix_s = unix_s
        self._tell = tell
        is_asked = request.estimate != "none"
        self._history = read_history(now=unix_s) if is_asked else History()
        self.speeds = read_speed_history(now=unix_s) if is_asked else SpeedHistory()
        self._site, site_notes = read_site(node.estimate_history) if is_asked else ((), ())
        for note in (*self._history.notes, *self.speeds.notes, *site_notes):
            tell(note)
        variables = {os.fsdecode(name): os.fsdecode(value) for name, value in common.items()}
        self.software = name_software(variables)
        self._writer = Writer()
        self._speed_writer = SpeedWriter()
        self.runs: list[TaskRun] = []
        """Finished attempts that are not written yet."""
        self.pairs: list[PairRun] = []
        """Measured pairs that are not written yet."""
        self._is_group_loss_told = False
        self._sizes = NodeSizes(node.folder, is_alone=node.count == 1)
        self._outside = None
        if request.estimate in ("static", "learned", "probe"):
            self._outside = OutsideSizes(request.estimate, variables)

    def make_estimator(self) -> Estimator:
        """Return an estimator that knows the histories."""
        return Estimator(self._history.runs, now=self._unix_s, software=self.software, site=self._site)

    def make_speeds(self) -> Speeds:
        """Return what the histories say of speed."""
        return Speeds(self._history.runs, self.speeds.pairs, now=self._unix_s)

    def tell_size(self, key: TaskKey, gpu_model: str, peak_mib: int, age_s: float) -> None:
        """Tell the other nodes of the run how much memory a task takes."""
        if self._node.count > 1 and (problem := self._sizes.append(key, gpu_model, peak_mib, age_s)) is not None:
            self._tell(problem)

    @property
    def asks_outside(self) -> bool:
        """Return whether descriptions of models, or dry runs, are used."""
        return self._outside is not None

    def ask_outside(self, argv: Sequence[str], cwd: Path, key: TaskKey, packer: Packer) -> None:
        """Look for the size of an unknown command in a description, or by a dry run, if the user wants that."""
        if self._outside is not None:
            self._outside.ask(argv, cwd, key)
            self.take_outside(packer)  # a description is read at once: the first decision is to know it

    def take_outside(self, packer: Packer) -> None:
        """Give the packer the sizes that descriptions and dry runs have given since the last call."""
        if self._outside is not None:
            for figure in self._outside.take():
                packer.offered(figure.key, figure.source, figure.mib)
            for note in self._outside.take_notes():
                self._tell(note)

    def keep_trials(self, *records: TunedRun | ShareRun) -> None:
        """Write what trials have found to the user's history, unless the user does not want that."""
        if records and self._request.learns:
            self._write_speed(*records)

    def update(self, packer: Packer, now: float) -> None:
        """Write what has ended to the user's history, and read what other nodes have told."""
        if self.runs:
            problem = self._writer.append(*self.runs)
            self.runs.clear()
            if problem is not None:
                self._tell(problem)
        if self.pairs:
            self._write_speed(*self.pairs)
            self.pairs.clear()
        self.write_groups(packer)
        if self._sizes.is_due(now):
            for size in self._sizes.read_others(now):
                packer.heard(size.key, size.gpu_model, size.peak_mib, size.age_s)
        self.take_outside(packer)
        for note in packer.estimator.take_notes():
            self._tell(note)

    def write_groups(self, packer: Packer) -> None:
        """Write to the run's folder which tasks have run together since the last call."""
        why = append_groups(self._node.folder, packer.groups.take_new())
        if why and not self._is_group_loss_told:
            self._is_group_loss_told = True
            self._tell(f"groups of tasks are not kept for slurm-share pack explain: {why}")

    def _write_speed(self, *records: PairRun | TunedRun | ShareRun) -> None:
        problem = self._speed_writer.append(*records)
        if problem is not None:
            self._tell(problem)
