"""What a user has in a folder that is everybody's, such as /dev/shm and /tmp."""

from __future__ import annotations

import os
from pathlib import Path


def read_owned(folder: Path, uid: int) -> tuple[str, ...]:
    """Names of the user's entries in `folder` itself, sorted; what lies deeper goes with them."""
    try:
        with os.scandir(folder) as entries:
            return tuple(sorted(entry.name for entry in entries if _owner(entry) == uid))
    except OSError:
        return ()


def _owner(entry: os.DirEntry[str]) -> int | None:
    try:
        return entry.stat(follow_symlinks=False).st_uid
    except OSError:
        return None
