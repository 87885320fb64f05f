"""The folder `rendezvous` of a run of ranks on several nodes: its key, and where the nodes find each other.

`slurm_share.spmd.key_folder` says what is in it. The key is made at the submission, minutes before a node reads it (a
network file system may show a new file late), and goes at the end of the run with the launcher of node 0. A requeue
makes a new one in a folder of its own, `rendezvous.1`, because a start that was cut off has left its folder behind.
Only who has the key, and means the same start of the job, is let into the run: ranks of the start before, on a node
that was cut off, are refused.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from ..core.errors import UsageError
from ..spmd import key_folder

FOLDER = "rendezvous"


def folder_of(folder: Path, job: str = "") -> Path:
    """Return the folder of a run's rendezvous. `job`: as in records.Ended, "4711.1" after the first requeue."""
    restart = job.partition(".")[2]
    return folder / (f"{FOLDER}.{restart}" if restart else FOLDER)


def make(folder: Path) -> None:
    """Make the folder and the key at a run's submission. Raises UsageError, with nothing left of them."""
    try:
        key_folder.make_folder(str(folder_of(folder)))
    except OSError as error:
        if not isinstance(error, FileExistsError):
            remove(folder_of(folder))
        raise UsageError(
            f"cannot make the key of the run in {folder_of(folder)} ({error.strerror}); nothing was submitted"
        ) from error


def make_anew(place: Path) -> None:
    """Make the folder and the key of a start after a requeue, and remove those of the starts before. Raises OSError."""
    for old in place.parent.glob(f"{FOLDER}*"):
        if old != place:
            remove(old)
    if not place.exists():
        key_folder.make_folder(str(place))


def remove(place: Path) -> None:
    """Remove the folder and what is in it. What cannot be removed stays."""
    with contextlib.suppress(OSError):
        for file in place.iterdir():
            with contextlib.suppress(OSError):
                file.unlink()
        place.rmdir()
