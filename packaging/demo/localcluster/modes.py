"""File modes: what we make must be readable to the cluster's users, whatever umask or clone the caller has."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

UMASK = 0o022
_guard = threading.Lock()
_nested = 0
_callers = UMASK
"""The umask to go back to. A process has one: the first thread to enter saves it, the last to leave restores it."""


@contextlib.contextmanager
def usual_umask() -> Iterator[None]:
    """Work under umask 022, and leave the caller's as it was."""
    global _nested, _callers
    with _guard:
        if _nested == 0:
            _callers = os.umask(UMASK)
        _nested += 1
    try:
        yield
    finally:
        with _guard:
            _nested -= 1
            if _nested == 0:
                os.umask(_callers)


def installable(path: Path) -> int:
    """The mode a source file gets where it is installed: a clone made under umask 077 gives 0600 and 0700."""
    return 0o755 if path.stat().st_mode & 0o100 else 0o644
