"""The folder `rendezvous` of a run of ranks on several nodes: its key, and the addresses of the nodes.

`slurm_share.spmd.key_folder` defines its contents. The key is made at submission, well before a node reads it, because
a network file system may show a new file late. The launcher of node 0 removes it at the end of the run. A requeue makes
a new key in a new folder, `rendezvous.1`, because an interrupted start leaves its folder behind. A rank may join only
with the key of the present start, so ranks of an earlier start, on a node that lost contact, are refused.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from ..core.errors import UsageError
from ..core.records import JobStart
from ..spmd import key_folder

FOLDER = "rendezvous"


def folder_of(folder: Path, job: str = "") -> Path:
    """Return the rendezvous folder of a run. `job`: as in records.Ended, "4711.1" after the first requeue."""
    restarts = JobStart.parse(job).restarts
    return folder / (f"{FOLDER}.{restarts}" if restarts else FOLDER)


def make(folder: Path) -> None:
    """Make the folder and the key at submission. Raises UsageError, after removing them, if that fails."""
    try:
        key_folder.make_folder(str(folder_of(folder)))
    except OSError as error:
        if not isinstance(error, FileExistsError):
            remove(folder_of(folder))
        raise UsageError(
            f"cannot make the key of the run in {folder_of(folder)} ({error.strerror}); nothing was submitted"
        ) from error


def make_anew(place: Path) -> None:
    """Make the folder and the key after a requeue, and remove those of earlier starts. Raises OSError."""
    for old in place.parent.glob(f"{FOLDER}*"):
        if old != place:
            remove(old)
    if not place.exists():
        key_folder.make_folder(str(place))


def remove(place: Path) -> None:
    """Remove the folder and its files, as far as possible."""
    with contextlib.suppress(OSError):
        for file in place.iterdir():
            with contextlib.suppress(OSError):
                file.unlink()
        place.rmdir()
