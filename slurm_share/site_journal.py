"""What `slurm-share install` has done to a site's files, so that it can be taken back; bytes in, record out.

The journal lies beside slurm.conf and is written before anything else. It says what every file held and holds, so that
whoever finds it after a power cut can tell how far the work had come:

applying    some files may be new, others old: all go back to `before`
applied     done; `--undo` begins here
undoing     some files may be back, others not: all go on to `after`
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from .conf_text import Edit
from .errors import StateError

NAME = "slurm-share.install.json"


class Change(Struct, frozen=True):
    """One file, before and after."""

    file: str
    before: bytes | None
    """None: it is not there before."""
    after: bytes | None
    """None: it is not to be there afterwards."""
    backup: str | None = None
    """The copy of `before` that is for people; None where there is none."""
    edits: tuple[Edit, ...] = ()
    """Every line of ours in it, of earlier applies too, in the order in which they were put there."""
    first: bytes | None = None
    """What it held before the first of them; None: it was not there."""


class Journal(Struct, frozen=True):
    """One piece of work on a site's files."""

    state: Literal["applying", "applied", "undoing"]
    date: str
    """UTC, as backups have it in their names."""
    changes: tuple[Change, ...]
    earlier: Journal | None = None
    """The journal that this one takes the place of, for when an apply is taken back half-way."""
    version: int = 1


def merged(earlier: Journal | None, changes: tuple[Change, ...]) -> tuple[Change, ...]:
    """The changes of a further apply, with what the journal already says of the same files; a file that only the
    journal has stays in it, as it is."""
    old = {change.file: change for change in earlier.changes} if earlier is not None else {}
    new = {change.file: change for change in changes}
    whole = [
        msgspec.structs.replace(
            change,
            # A line that somebody took out, and that is put there again, is one line.
            edits=(*(one for one in old[name].edits if one not in change.edits), *change.edits)
            if name in old
            else change.edits,
            first=old[name].first if name in old else change.before,
            backup=old[name].backup if name in old else change.backup,
        )
        for name, change in new.items()
    ]
    return (*whole, *(change for name, change in old.items() if name not in new))


def encode(journal: Journal) -> bytes:
    """As it is written."""
    return msgspec.json.encode(journal) + b"\n"


def decode(data: bytes, file: str) -> Journal:
    """Raises StateError for anything that `encode` did not write."""
    try:
        journal = msgspec.json.decode(data, type=Journal)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StateError(
            file,
            f"is no journal of slurm-share install ({error}); the copies beside it are: restore "
            "them or take the lines out by hand, then remove it",
        ) from error
    if journal.version != 1:
        raise StateError(file, f"was written by a newer slurm-share (format {journal.version}); use that one")
    return journal
