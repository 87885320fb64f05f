"""What a user has in a folder that is everybody's, such as /dev/shm and /tmp, and how it is removed from there: set
aside in one moment, taken apart afterwards.

Where things are set aside is named in the ledger before it is there. So nobody looks for it in a folder that users
write into, where they can make any number of names that look like it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterable, Iterator

from ..core.errors import CommandError
from ..core.process import Deadline, run
from ..core.scan import Scan

MOST_OWNED = 100_000
"""Entries of one user that are set aside at once: about what a hook has time for."""
ASIDE = ".slurm-share-leftovers-"
"""Beginning of the name of a folder, root's own, in which things wait to be removed; letters that nobody can guess
follow."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_SAID = 5
"""Sentences about what stays; a user may have made a million of them."""


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


# --- Removal --------------------------------------------------------------------------------------------------------


class Taken:
    """What came of setting aside."""

    def __init__(self) -> None:
        self.count = 0
        self.problems: list[str] = []
        """Sentences about what stays: a mount point, a full disk."""
        self.is_whole = True
        """False: there was no time for all of it."""


def new_aside(folder: str) -> str:
    """Return the path of a folder in `folder` that is not there yet, for the ledger and `set_aside`."""
    return f"{folder}/{ASIDE}{os.urandom(16).hex()}"


def set_aside(folder: str, names: Iterable[str], uid: int, aside: str, deadline: Deadline) -> Taken:
    """Move the entries of that user out of the way into `aside`, each in one step, for `remove`. No link is followed,
    and nobody else's entry is touched."""
    taken = Taken()
    problems = taken.problems
    full: list[str] = []
    mounts = _mounts_in(folder)
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
            if name in mounts:
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
    """Return the entries of `folder` at or below which something is mounted: rm(1) sees no border where that is a
    part of the same file system."""
    found = set()
    with open("/proc/self/mountinfo", "rb") as lines:
        for line in lines:
            place = os.fsdecode(_unescaped(line.split(b" ", 5)[4]))
            if place.startswith(f"{folder}/"):
                found.add(place[len(f"{folder}/") :].partition("/")[0])
    return frozenset(found)


def _unescaped(path: bytes) -> bytes:
    """Return a path of mountinfo, in which blanks, tabs, newlines and backslashes are written as three octal digits."""
    first, *rest = path.split(b"\\")
    return first + b"".join(bytes((int(part[:3], 8),)) + part[3:] for part in rest)


def _twice(names: Iterable[str], again: list[str]) -> Iterator[tuple[str, bool]]:
    """Yield the names, then those that are in `again` by then; with each, whether it comes for the last time."""
    yield from ((name, False) for name in names)
    yield from ((name, True) for name in tuple(again))


def remove(asides: Collection[str], deadline: Deadline) -> str | None:
    """Remove what was set aside; a sentence where time or disk was too short, and the next hook goes on.

    rm(1), in a process of its own: it can be stopped in time, follows no link and leaves other file systems alone.
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
    """Make the folder, which must not exist: one that a user has put there is never trusted. Where the file system
    is full, `entry` is deleted to make space, if it is a file."""
    try:
        os.mkdir(aside, 0o700)  # noqa: PTH102
    except OSError as error:
        if error.errno not in _FULL or stat.S_ISDIR(os.lstat(entry).st_mode):
            raise
        os.unlink(entry)  # noqa: PTH108
        os.mkdir(aside, 0o700)  # noqa: PTH102


def _is_ours(aside: str) -> bool:
    """Return whether it exists, is a folder, and is root's: its name was in the ledger before anybody could know it."""
    try:
        found = os.lstat(aside)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
