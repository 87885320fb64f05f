"""What a user has in a folder that is everybody's, such as /dev/shm and /tmp."""

from __future__ import annotations

import os

from ..core.scan import Scan

TYPE_CHECKING = False  # as mypy knows it; hooks load this module
if TYPE_CHECKING:
    from ..core.process import Deadline

MOST_OWNED = 100_000
"""Of one user at once: about what can be set aside in the time that a hook has for it."""


class Owned:
    """A user's entries in a folder."""

    def __init__(self, names: tuple[str, ...], *, is_whole: bool) -> None:
        self.names = names
        self.is_whole = is_whole
        """False: there may be more; there was no time to look, or there are too many."""


def read_owned(folder: str, uid: int, deadline: Deadline) -> Owned:
    """Return the user's entries in `folder` itself, sorted, as many as are found in time; what lies deeper goes with
    them."""
    found: list[str] = []
    scan = Scan(folder, deadline)
    try:
        for entry in scan:
            if _owner(entry) == uid:
                if len(found) >= MOST_OWNED:
                    return Owned(tuple(sorted(found)), is_whole=False)
                found.append(entry.name)
    except OSError:
        pass
    return Owned(tuple(sorted(found)), is_whole=scan.is_whole)


def _owner(entry: os.DirEntry[str]) -> int | None:
    try:
        return entry.stat(follow_symlinks=False).st_uid
    except OSError:
        return None
