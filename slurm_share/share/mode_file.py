"""Reads the file in which a site says one mode for all its nodes (`mode_file`)."""

from __future__ import annotations

import os
import stat

from msgspec import Struct

from ..core import process

PATIENCE_S = 1.0
"""A file server that does not answer must not hold up a job."""
_MOST_BYTES = 256


class ModeFile(Struct, frozen=True):
    """What was found."""

    text: str | None
    """None: there is no such file, or it could not be read."""
    changed_s: float = 0.0
    """Unix time of its last change."""
    problem: str | None = None
    """Why it could not be read."""


def read(path: str, seconds: float = PATIENCE_S) -> ModeFile:
    """Return what the file says. Never raises, and takes no longer than `seconds`."""
    try:
        answer = process.in_time(lambda: _look(path), seconds)
    except OSError as error:
        return ModeFile(None, problem=str(error))
    if answer is None:
        return ModeFile(None, problem=f"no answer within {seconds:g} s")
    kind, changed, text = answer.decode("utf-8", "replace").split(" ", 2)
    if kind == "text":
        return ModeFile(text, float(changed))
    return ModeFile(None, problem=None if kind == "absent" else text)


def _look(path: str) -> bytes:
    try:
        # O_NONBLOCK: a FIFO in its place must not hold anybody up
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            return b"error 0 not a regular file"
        return f"text {found.st_mtime} ".encode() + os.read(file, _MOST_BYTES)
    except FileNotFoundError:
        return b"absent 0 "
    except OSError as error:
        return f"error 0 {error.strerror}".encode()
