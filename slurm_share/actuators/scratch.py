"""Removes a user's entries from a folder that is everybody's: set aside in one moment, taken apart afterwards."""

from __future__ import annotations

import errno
import os
import re
import stat
import tempfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from ..errors import CommandError
from ..process import Deadline, identify, is_same, run
from ..records import ProcessIdentity

ASIDE = ".slurm-share-leftovers-"
"""Beginning of the name of a folder, root's own, in which things wait to be removed; whose it is, pid and start time of
the hook, and some letters that nobody could guess follow."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_SAID = 5
"""Sentences about what stays; a user may have made a million of them."""
_MAKER = re.compile(re.escape(ASIDE) + r"([0-9]{1,10})\.([0-9]{1,20})\.")


def set_aside(folder: Path, names: Iterable[str], uid: int, deadline: Deadline) -> tuple[int, tuple[str, ...]]:
    """Move the entries of that user out of the way, each in one step, for `remove`. How many went, and sentences about
    those that did not: a mount point, a full disk, no time. No link is followed, and nobody else's entry is touched."""
    problems: list[str] = []
    full: list[str] = []
    taken = 0
    mounts = _mounts_in(folder)
    aside: Path | None = None
    # A folder that comes while the file system is full waits until a file has made room.
    for number, (name, is_last) in enumerate(_twice(names, full)):
        if deadline.left() <= 0:
            problems.append(f"the rest in {folder} stays: there are too many to remove at once")
            break
        entry = folder / name
        try:
            if entry.lstat().st_uid != uid:
                continue
            if name in mounts:
                problems.append(f"{entry} stays: a file system is mounted there")
                continue
            if aside is None or not aside.exists():
                aside = _new_folder(folder, entry)
            entry.rename(aside / str(number))
            taken += 1
        except FileNotFoundError:
            taken += 1  # the user's own program removed it, or it was to make room
        except OSError as error:
            if error.errno in _FULL and not is_last:
                full.append(name)
            else:
                problems.append(f"{entry} stays: {error.strerror}")
    if len(problems) > _SAID:
        problems[_SAID:] = [f"and {len(problems) - _SAID} more in {folder}"]
    return taken, tuple(problems)


def _mounts_in(folder: Path) -> frozenset[str]:
    """The entries of `folder` at or below which something is mounted: rm(1) sees no border where that is a part of the
    same file system."""
    found = set()
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            place = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), line.split(" ", 5)[4])
            if place.startswith(f"{folder}/"):
                found.add(place[len(f"{folder}/") :].partition("/")[0])
    return frozenset(found)


def _twice(names: Iterable[str], again: list[str]) -> Iterator[tuple[str, bool]]:
    """The names, then those that meanwhile stand in `again`; of each whether it comes for the last time."""
    yield from ((name, False) for name in names)
    yield from ((name, True) for name in tuple(again))


def remove(folders: Collection[Path], deadline: Deadline) -> str | None:
    """Remove what was set aside, here or by a hook that was killed since; a sentence where time or disk was too short,
    and the next hook goes on.

    rm(1), in a process of its own: it can be stopped in time, follows no link and leaves other file systems alone.
    """
    found = [str(aside) for folder in folders for aside in folder.glob(f"{ASIDE}*") if _is_ours_to_remove(aside)]
    if not found:
        return None
    try:
        run(["/bin/rm", "-rf", "--one-file-system", "--", *found], timeout_s=max(deadline.left(), 0.1))
    except CommandError as error:
        return str(error)
    return None


def _new_folder(folder: Path, entry: Path) -> Path:
    """Made anew under a name that was not there (mkdtemp): one that a user has put there is never trusted. Where the
    file system is full, `entry` makes room for it, if it is a file."""
    me = identify(os.getpid())
    start = 0 if me is None else me.start_ticks
    prefix = f"{ASIDE}{os.getpid()}.{start}."
    try:
        return Path(tempfile.mkdtemp(prefix=prefix, dir=folder))
    except OSError as error:
        if error.errno not in _FULL or stat.S_ISDIR(entry.lstat().st_mode):
            raise
        entry.unlink()
        return Path(tempfile.mkdtemp(prefix=prefix, dir=folder))


def _is_ours_to_remove(aside: Path) -> bool:
    """Our own, or of a hook that is no more; a user's folder with such a name is none of ours."""
    made = _MAKER.match(aside.name)
    try:
        found = aside.lstat()
    except OSError:
        return False
    if made is None or found.st_uid != os.geteuid() or aside.is_symlink():
        return False
    return int(made[1]) == os.getpid() or not is_same(ProcessIdentity(int(made[1]), int(made[2]), found.st_uid))
