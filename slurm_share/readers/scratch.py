"""What a user has in a folder that is everybody's, such as /dev/shm and /tmp."""

from __future__ import annotations

import os
from pathlib import Path

from ..process import Deadline


def read_owned(folder: Path, uid: int, deadline: Deadline) -> tuple[str, ...]:
    """Names of the user's entries in `folder` itself, sorted, as many as are found in time; what lies deeper goes with
    them."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if _owner(entry) == uid:
                    found.append(entry.name)
                if deadline.left() <= 0:
                    break
    except OSError:
        pass
    return tuple(sorted(found))


def _owner(entry: os.DirEntry[str]) -> int | None:
    try:
        return entry.stat(follow_symlinks=False).st_uid
    except OSError:
        return None
