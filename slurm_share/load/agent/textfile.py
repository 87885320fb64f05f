"""The metrics as a file for the textfile collector of Prometheus's node_exporter."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from ...core import files, log

WRITE_S = 15.0
"""Seconds between two writes: a usual interval of scrapes."""
STALE_S = 60.0
"""Age of the last sample from which the file is removed: node_exporter would show it as new for ever."""
MODE = 0o640
"""The load of all users is for node_exporter's group, which the folder gives to its files (setgid)."""


class Textfile:
    """The file that `agent_textfile` names. A file that cannot be written is logged once, and tried again."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = Path(path)
        self._clock = clock
        self._next = float("-inf")
        self._said = ""
        # node_exporter reads all files that end in .prom, so the new one has another end until it is whole
        self._new = self._path.with_name(f".{self._path.name}.new")
        if self._path.suffix != ".prom":
            self._say(f"node_exporter reads only files that end in .prom; rename agent_textfile = {path}")

    def update(self, age_s: float, page: Callable[[], bytes | None]) -> None:
        """Write the page if it is time, or remove the file if the last sample is `age_s` old and stale."""
        if age_s > STALE_S:
            self._next = float("-inf")
            self.remove()
            return
        if self._clock() < self._next:
            return
        data = page()
        if data is None:
            return
        self._next = self._clock() + WRITE_S
        try:
            files.write(self._path, data, mode=MODE, new=self._new, finish=_open_to_group)
            self._said = ""
        except OSError as error:
            self._say(
                f"cannot write {self._path}: {error.strerror}; give the agent a folder of its own, and "
                "name it in ReadWritePaths= of the agent's unit"
            )

    def remove(self) -> None:
        """Remove the file, so that node_exporter does not show old figures."""
        try:
            self._path.unlink(missing_ok=True)
            self._new.unlink(missing_ok=True)
        except OSError as error:
            self._say(f"cannot remove {self._path}, which has old figures: {error.strerror}")

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            log.line("", "agent", text)


def _open_to_group(fd: int) -> None:
    """Give the file its mode whatever the umask is: the unit's is 0077."""
    os.fchmod(fd, MODE)
