"""Read and write the file with one mode for all nodes of a site (`mode_file`)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from ..core import files, process

PATIENCE_S = 1.0
"""How long to wait for the file system: a file server that does not answer must not delay a job."""
WRITE_S = 20.0
NO_FILE = "not a regular file"
_MOST_BYTES = 256


class ModeFile(msgspec.Struct, frozen=True):
    """The contents of the mode file, or why it cannot be read."""

    text: str | None
    """None: there is no such file, or it could not be read."""
    changed_s: float = 0.0
    """The Unix time of the file's last change."""
    problem: str | None = None
    """Why it could not be read, such as NO_FILE."""


def read(path: str, seconds: float = PATIENCE_S) -> ModeFile:
    """Read the mode file in a child process, in at most `seconds`. Never raises. Call it before starting threads."""
    try:
        answer = process.in_time(lambda: msgspec.json.encode(read_here(path)), seconds)
    except OSError as error:
        return ModeFile(None, problem=str(error))
    if answer is None:
        return ModeFile(None, problem=f"no answer within {seconds:g} s")
    return msgspec.json.decode(answer, type=ModeFile)


def read_here(path: str) -> ModeFile:
    """Read the mode file in this process, however long the file system takes."""
    try:
        # O_NONBLOCK: opening a FIFO in its place must not block
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    except FileNotFoundError:
        return ModeFile(None)
    except OSError as error:
        return ModeFile(None, problem=error.strerror)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            return ModeFile(None, problem=NO_FILE)
        return ModeFile(os.read(file, _MOST_BYTES).decode("utf-8", "replace"), found.st_mtime)
    except OSError as error:
        return ModeFile(None, problem=error.strerror)
    finally:
        os.close(file)


def write(path: str, value: str) -> str | None:
    """Write a mode into the file in at most WRITE_S seconds; return why that failed, or None. Never raises."""
    answer = process.in_time(lambda: _write_here(path, value), WRITE_S)
    return "no answer" if answer is None else answer.decode("utf-8", "replace") or None


def _write_here(path: str, value: str) -> bytes:
    """Replace the file, since a hook can read at any time. A symbolic link is kept. Return what went wrong; empty:
    nothing."""
    file = Path(os.path.realpath(path))
    try:
        files.write(file, f"{value}\n".encode(), finish=lambda fd: os.fchmod(fd, 0o644), flush=True)
    except OSError as error:
        return (error.strerror or "error").encode()
    return b""
