"""Appends to a node's `results.jsonl`, the one record of what has been done."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

from . import run_folder
from .records import Ended

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK


class Results:
    """One launcher's results.

    They are written as they come, those that come together in one write: what is written outlives the launcher, and
    with `settle` the machine. The file is locked: two launchers of one run on one node would run its tasks twice.

    A full disk is not the end: lines are kept and tried again, and `lost` says what never found room.
    """

    def __init__(self, folder: Path) -> None:
        """Raises OSError where the file cannot be opened, BlockingIOError where another launcher has it."""
        self.file = folder / run_folder.RESULTS
        self._fd = os.open(self.file, _FLAGS, 0o644)
        try:
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            self._lock()
        except OSError:
            os.close(self._fd)
            raise
        self._kept = b"\n" if _ends_in_half_a_line(self.file) else b""
        self._unsettled = False
        self.trouble: OSError | None = None
        """Why something could not be written when it came."""

    def _lock(self) -> None:
        """flock, for this node alone: on NFS without a lock server, where it fails or counts on one machine only, that
        is enough. It is held as long as any process has the open file, guard or loop."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            return

    def write(self, *ended: Ended) -> None:
        """Append one or several, in one write."""
        self._put(self._kept + b"".join(map(run_folder.render_ended, ended)))

    def _put(self, data: bytes) -> None:
        try:
            written = os.write(self._fd, data)
        except OSError as error:
            self.trouble, written = error, 0
        self._kept = data[written:]
        self._unsettled = True

    def settle(self) -> None:
        """Try again what found no room, and have the kernel bring all to the disk."""
        if self._kept and self._kept != b"\n":
            self._put(self._kept)
        if self._unsettled:
            try:
                os.fsync(self._fd)
                self._unsettled = False
            except OSError as error:
                self.trouble = error

    @property
    def lost(self) -> bytes:
        """What could not be written until now."""
        return self._kept.lstrip(b"\n")

    def close(self) -> None:
        """The last try."""
        self.settle()
        os.close(self._fd)


def _ends_in_half_a_line(file: Path) -> bool:
    """Whether a crash or a full disk has left half a line at the end."""
    size = file.stat().st_size
    if size == 0:
        return False
    with open(file, "rb") as opened:
        opened.seek(size - 1)
        return opened.read(1) != b"\n"
