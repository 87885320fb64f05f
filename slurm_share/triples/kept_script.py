"""The script of a run, kept at submission: it may be edited while a job waits, runs, or is resumed later.

While the file at its own path is unchanged, tasks run it there, so that `$0` and imports of neighbouring modules are
as always. When it has changed or is gone, they run the copy in the run's folder. Programs (files with a NUL byte) and
large files are not kept: a copy of a program may not find its libraries.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from ..core.errors import StateError
from . import run_folder
from .records import Run

MOST_BYTES = 1 << 20
"""A larger file is data with a head, such as a self-extracting archive."""
_State = tuple[int, int, int, int]


def path_in(folder: Path, run: Run) -> Path:
    """Return the path of the kept script, which has the name of the original."""
    return folder / run_folder.KEPT / Path(run.command[0]).name


def read(run: Run) -> tuple[Run, bytes | None]:
    """Return the run with the hash of its script, and the script; without a hash and None: it is not kept."""
    data = _read(run.command[0]) if run.command else None
    if data is None or b"\0" in data:
        return replace(run, script_hash=""), None
    return replace(run, script_hash=_hash(data)), data


def has_changed(run: Run) -> bool:
    """Return whether a script that is kept is no longer the file at its own path."""
    return bool(run.script_hash) and not _is_original(run)


def _is_original(run: Run) -> bool:
    data = _read(run.command[0])
    return data is not None and _hash(data) == run.script_hash and os.access(run.command[0], os.X_OK)


def _read(path: str | Path) -> bytes | None:
    """Return a file's contents; None: it is large, not a regular file, or cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            found = os.fstat(fd)
            return file.read() if stat.S_ISREG(found.st_mode) and found.st_size <= MOST_BYTES else None
    except OSError:
        return None


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class ScriptChoice:
    """Chooses the file to execute at each start of a task: the script at its own path, or the kept one."""

    def __init__(self, run: Run, folder: Path, say: Callable[[str], None]) -> None:
        """Raises StateError if the kept script is not as it was written."""
        self._run = run
        self._original = run.command[0] if run.command else ""
        self.kept = path_in(folder, run) if run.script_hash else None
        """The kept script; None: there is none."""
        self._say = say
        self._state: _State | None = None
        self.is_kept = False
        """True: the kept script runs."""
        data = None if self.kept is None else _read(self.kept)
        if self.kept is not None and (data is None or _hash(data) != run.script_hash):
            again = f"llsub --resume {shlex.quote(str(folder))} --script=current"
            raise StateError(str(self.kept), f"it is not the script as it was submitted; {again} runs the present one")
        first = b"" if data is None else data.partition(b"\n")[0]
        self.is_python = first.startswith(b"#!") and b"python" in first
        """True: it imports modules from its own folder."""

    @property
    def folder(self) -> str:
        """Return the folder of the original."""
        return os.path.dirname(self._original)  # noqa: PTH120

    def executed(self, argv: Sequence[str]) -> Sequence[str]:
        """Return a task's command with the file to execute; `argv` itself: the script runs at its own path."""
        if self.kept is None or (program := self.program()) == argv[0]:
            return argv
        return (program, *argv[1:])

    def program(self) -> str:
        """Return the file to execute; "": there is none but that of the task's own line."""
        if self.kept is None:
            return self._original
        try:
            found = os.stat(self._original)  # noqa: PTH116  # at each start; a Path costs more than the call
            state = (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
        except OSError:
            state = (-1, -1, -1, -1)
        if state != self._state:
            self._state = state
            was_kept, self.is_kept = self.is_kept, not _is_original(self._run)
            if self.is_kept and not was_kept:
                self._say(
                    f"{self._original} is not as it was at submission; tasks run the script as submitted, {self.kept} "
                    "(to run the present one: llsub --resume with --script=current, after the end of this run)"
                )
        return str(self.kept) if self.is_kept else self._original
