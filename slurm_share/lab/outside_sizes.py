"""Get sizes from outside the history, if a run asks for them: from a description of the model, or a dry run.

A dry run takes up to 20 s, so one thread makes them one at a time, once for each command.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from ..packing.records import TaskKey
from . import model_file
from . import probe as probing

How = Literal["static", "probe"]

PROBES_MOST = 30
"""Most dry runs on a node: at most ten minutes of one core."""
DESCRIBED_MOST = 10_000
"""Most commands whose descriptions are searched."""


class Figure(Struct, frozen=True):
    """A size for `Estimator.offer`."""

    key: TaskKey
    source: How
    mib: float


class OutsideSizes:
    """The outside sizes of a run's commands, each asked for once. One thread calls all methods."""

    def __init__(self, how: str, environment: Mapping[str, str]) -> None:
        """Start without sizes. `how`: `static`, or `probe`, which searches a description first. `environment`: of the
        tasks."""
        self._how = how
        self._environment = dict(environment)
        self._asked: set[str] = set()
        self._figures: list[Figure] = []
        self._notes: list[str] = []
        self._probes = 0
        self._waiting: queue.SimpleQueue[tuple[TaskKey, Sequence[str], Path]] = queue.SimpleQueue()
        self._probed: queue.SimpleQueue[tuple[TaskKey, probing.ProbeResult]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def ask(self, argv: Sequence[str], cwd: Path, key: TaskKey) -> None:
        """Ask for the size of a command without a known size. Returns at once."""
        if not key.exact or key.exact in self._asked or len(self._asked) >= DESCRIBED_MOST:
            return
        self._asked.add(key.exact)
        described = model_file.read_description(argv, cwd, key)
        if described.why:
            self._notes.append(f"a description of a model is not used: {described.why}")
        if described.point_mib is not None:
            self._figures.append(Figure(key, "static", described.point_mib))
        elif self._how == "probe" and self._probes < PROBES_MOST:
            self._probes += 1
            self._waiting.put((key, tuple(argv), cwd))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="probe", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        """Make the waiting dry runs until the process ends. A dry run in progress then ends by its own limit."""
        while True:
            key, argv, cwd = self._waiting.get()
            self._probed.put((key, probing.probe(argv, cwd, self._environment)))

    def take(self) -> list[Figure]:
        """Return the sizes that were found since the last call."""
        while not self._probed.empty():  # no other thread takes from it
            key, probed = self._probed.get()
            if probed.peak_mib is None:
                self._notes.append(f"a dry run gave no size: {probed.why}")
            else:
                self._figures.append(Figure(key, "probe", float(probed.peak_mib)))
        figures, self._figures = self._figures, []
        return figures

    def take_notes(self) -> list[str]:
        """Return the sentences for the log since the last call, without duplicates."""
        notes, self._notes = list(dict.fromkeys(self._notes)), []
        return notes
