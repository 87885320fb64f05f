"""Sizes from outside the history, where a run asks for them: a description of the model, and a dry run.

A dry run takes up to 20 s, so it is done in a thread, one at a time, and once for each command.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from . import model_file
from . import probe as probing
from .records import TaskKey

How = Literal["static", "learned", "probe"]

PROBES_MOST = 30
"""Commands of a node that are probed: ten minutes of one core at most."""
DESCRIBED_MOST = 10_000
"""Commands whose descriptions are looked for."""


class Figure(Struct, frozen=True):
    """A size, as `Estimator.offer` takes it."""

    key: TaskKey
    source: How
    mib: float


class OutsideSizes:
    """Asks for each command once. All methods are for one thread, the caller's."""

    def __init__(self, how: How, environment: Mapping[str, str]) -> None:
        """`how`: `static`; `learned`, which needs a description with layers and is `static` with another; or `probe`,
        which looks for a description first. `environment`: the tasks'."""
        self._how = how
        self._environment = dict(environment)
        self._asked: set[str] = set()
        self._figures: list[Figure] = []
        self._notes: list[str] = []
        self._probes = 0
        self._waiting: queue.SimpleQueue[tuple[TaskKey, Sequence[str], Path]] = queue.SimpleQueue()
        self._probed: queue.SimpleQueue[tuple[TaskKey, probing.Probed]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def ask(self, argv: Sequence[str], cwd: Path, key: TaskKey) -> None:
        """Ask for the size of a command of which nothing is known. It returns at once."""
        if not key.exact or key.exact in self._asked or len(self._asked) >= DESCRIBED_MOST:
            return
        self._asked.add(key.exact)
        described = model_file.read_description(argv, cwd, key, is_learned=self._how == "learned")
        if described.why:
            self._notes.append(f"a description of a model is not used: {described.why}")
        if described.point_mib is not None:
            self._figures.append(Figure(key, described.source, described.point_mib))
        elif self._how == "probe" and self._probes < PROBES_MOST:
            self._probes += 1
            self._waiting.put((key, tuple(argv), cwd))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="probe", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        """Probe what waits, for as long as the process lives. A probe that is under way then ends by itself."""
        while True:
            key, argv, cwd = self._waiting.get()
            self._probed.put((key, probing.probe(argv, cwd, self._environment)))

    def take(self) -> list[Figure]:
        """Return what has been found since the last call."""
        while True:
            try:
                key, probed = self._probed.get_nowait()
            except queue.Empty:
                break
            if probed.peak_mib is None:
                self._notes.append(f"a dry run gave no size: {probed.why}")
            else:
                self._figures.append(Figure(key, "probe", float(probed.peak_mib)))
        figures, self._figures = self._figures, []
        return figures

    def take_notes(self) -> list[str]:
        """Return sentences for the log since the last call, each once."""
        notes, self._notes = list(dict.fromkeys(self._notes)), []
        return notes
