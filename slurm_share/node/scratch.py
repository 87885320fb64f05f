"""Remove a user's files from a folder that all users share, such as /dev/shm and /tmp: first move them aside, then
delete.

The ledger names the folder for moved files before it exists. So it is never searched for in a folder where users can
make any number of similar names.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterable, Iterator

from msgspec import Struct

from ..core import mounts
from ..core.errors import CommandError
from ..core.process import Deadline, run
from ..core.scan import Scan

MOST_OWNED = 100_000
"""Most entries of one user that are moved at once: about as many as a hook has time for."""
ASIDE = ".slurm-share-leftovers-"
"""Beginning of the name of root's folder for moved entries; random letters follow."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_SAID = 5
"""Most sentences about entries that stay; a user may have a million of them."""


class UserEntries(Struct, frozen=True):
    """A user's entries in a folder."""

    names: tuple[str, ...]
    is_whole: bool
    """False: there may be more, because time or the limit ran out."""


def read_owned(folder: str, uid: int, deadline: Deadline) -> UserEntries:
    """Return the user's direct entries in `folder`, sorted, as many as are found in time. Deeper ones go with them."""
    found: list[str] = []
    scan = Scan(folder, deadline)
    try:
        for entry in scan:
            if _owner(entry) == uid:
                if len(found) >= MOST_OWNED:
                    return UserEntries(tuple(sorted(found)), is_whole=False)
                found.append(entry.name)
    except OSError:
        pass
    return UserEntries(tuple(sorted(found)), is_whole=scan.is_whole)


def _owner(entry: os.DirEntry[str]) -> int | None:
    try:
        return entry.stat(follow_symlinks=False).st_uid
    except OSError:
        return None


# --- Removal --------------------------------------------------------------------------------------------------------


class MovedEntries(Struct):
    """Result of moving entries aside."""

    count: int = 0
    problems: list[str] = []
    """Sentences about entries that stay: a mount point, a full disk."""
    is_whole: bool = True
    """False: there was no time for all of it."""


def new_aside(folder: str) -> str:
    """Return an unused path of a folder in `folder`, for the ledger and `set_aside`."""
    return f"{folder}/{ASIDE}{os.urandom(16).hex()}"


def set_aside(folder: str, names: Iterable[str], uid: int, aside: str, deadline: Deadline) -> MovedEntries:
    """Move the user's entries into `aside`, each in one step, for `remove`. Follows no link and moves no other user's
    entry."""
    taken = MovedEntries()
    problems = taken.problems
    full: list[str] = []
    mounted = _mounts_in(folder)
    is_made = False
    # A folder that comes while the file system is full waits until a file has made room.
    for number, (name, is_last) in enumerate(_twice(names, full)):
        if deadline.left() <= 0:
            problems.append(f"the rest in {folder} stays for now: there is too much to set aside at once")
            taken.is_whole = False
            break
        entry = f"{folder}/{name}"
        try:
            if os.lstat(entry).st_uid != uid:
                continue
            if name in mounted:
                problems.append(f"{entry} stays: a file system is mounted there")
                continue
            if not is_made:
                _make(aside, entry)
                is_made = True
            os.rename(entry, f"{aside}/{number}")  # noqa: PTH104
            taken.count += 1
        except FileNotFoundError:
            if os.path.lexists(entry):
                problems.append(f"{entry} stays: somebody removed {aside}")
            else:
                taken.count += 1  # the user's own program removed it, or it was to make room
        except OSError as error:
            if error.errno in _FULL and not is_last:
                full.append(name)
            else:
                problems.append(f"{entry} stays: {error.strerror}")
    if len(problems) > _SAID:
        problems[_SAID:] = [f"and {len(problems) - _SAID} more in {folder}"]
    return taken


def _mounts_in(folder: str) -> frozenset[str]:
    """Return the entries of `folder` at or below which something is mounted: rm(1) does not stop at a bind mount of the
    same file system."""
    inside = (point[len(folder) + 1 :] for point, _ in mounts.read_points(folder))
    return frozenset(path.partition("/")[0] for path in inside if path)


def _twice(names: Iterable[str], again: list[str]) -> Iterator[tuple[str, bool]]:
    """Yield the names, then those that are in `again` by then; with each, whether it is the last attempt."""
    yield from ((name, False) for name in names)
    yield from ((name, True) for name in tuple(again))


def remove(asides: Collection[str], deadline: Deadline) -> str | None:
    """Remove what was moved aside; return a sentence if time or disk space ran out (the next hook goes on), else None.

    Runs rm(1) as a separate process: it can be stopped in time, follows no link and leaves other file systems alone.
    """
    found = [aside for aside in asides if _is_ours(aside)]
    if not found:
        return None
    try:
        run(["/bin/rm", "-rf", "--one-file-system", "--", *found], timeout_s=max(deadline.left(), 0.1))
    except CommandError as error:
        return str(error)
    return None


def _make(aside: str, entry: str) -> None:
    """Make the folder, which must not exist: one made by a user is never trusted. If the file system is full, delete
    `entry`, if it is a file, to make space."""
    try:
        os.mkdir(aside, 0o700)  # noqa: PTH102
    except OSError as error:
        if error.errno not in _FULL or stat.S_ISDIR(os.lstat(entry).st_mode):
            raise
        os.unlink(entry)  # noqa: PTH108
        os.mkdir(aside, 0o700)  # noqa: PTH102


def _is_ours(aside: str) -> bool:
    """Return whether the folder exists and is root's: its name was in the ledger before any user could know it."""
    try:
        found = os.lstat(aside)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
