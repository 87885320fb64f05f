"""Checks of a program before it runs. Without pathlib, because each rank would pay for its import."""

from __future__ import annotations

import errno
import os

from .errors import UsageError


def check_program(path: str) -> None:
    """Raise UsageError if there is no such program, or it cannot be read."""
    if not os.path.exists(path):  # noqa: PTH110
        raise UsageError(f"there is no program {path}")
    if os.path.isdir(path) and not os.path.exists(os.path.join(path, "__main__.py")):  # noqa: PTH110,PTH112,PTH118
        raise UsageError(f"{path} is a folder without __main__.py; give a program")
    if not os.access(path, os.R_OK) and not is_executable(path):
        raise UsageError(f"the program {path} cannot be read: {os.strerror(errno.EACCES)}")


def is_executable(path: str) -> bool:
    """Return whether a file is a program of its own, and not one for this Python."""
    return not path.endswith(".py") and os.path.isfile(path) and os.access(path, os.X_OK)  # noqa: PTH113
