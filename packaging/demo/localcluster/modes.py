"""File modes: the cluster's users must be able to read what we make, whatever the umask of the caller or the clone."""

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
"""The umask to restore. The umask is one for the process: the first thread to enter saves it, the last to leave
restores it.
"""


@contextlib.contextmanager
def usual_umask() -> Iterator[None]:
    """Use umask 022, and restore the caller's at the end."""
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
    """Return the mode with which a source file is installed: a clone made under umask 077 has 0600 and 0700."""
    return 0o755 if path.stat().st_mode & 0o100 else 0o644
