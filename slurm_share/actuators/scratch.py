"""Removes a user's entries from a folder that is everybody's: set aside in one moment, taken apart afterwards."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path

from ..errors import CommandError
from ..process import Deadline, run

ASIDE = ".slurm-share-leftovers-"
"""Beginning of the name of a folder, root's own, in which things wait to be removed."""


def set_aside(folder: Path, names: Iterable[str], uid: int) -> tuple[str, ...]:
    """Move the entries of that user out of the way, each in one step, for `remove`; answers with a sentence for each
    that would not go (a mount point). No link is followed, and nobody else's entry is touched."""
    aside = folder / f"{ASIDE}{os.getpid()}"
    aside.mkdir(mode=0o700, exist_ok=True)
    problems = []
    for number, name in enumerate(names):
        entry = folder / name
        try:
            if entry.lstat().st_uid == uid:
                entry.rename(aside / str(number))
        except FileNotFoundError:
            pass
        except OSError as error:
            problems.append(f"{entry} stays: {error.strerror}")
    return tuple(problems)


def remove(folders: Collection[Path], deadline: Deadline) -> str | None:
    """Remove what was set aside, here or by a hook that was killed since; a sentence where time or disk was too short,
    and the next hook goes on.

    rm(1), in a process of its own: it can be stopped in time, follows no link and leaves other file systems alone.
    """
    found = [str(aside) for folder in folders for aside in folder.glob(f"{ASIDE}*") if aside.is_dir()]
    if not found:
        return None
    try:
        run(["/bin/rm", "-rf", "--one-file-system", "--", *found], timeout_s=max(deadline.left(), 0.1))
    except CommandError as error:
        return str(error)
    return None
