"""What `slurm-share install` has done to a site's files, so that it can be taken back; bytes in, record out.

The journal lies beside slurm.conf and is written before anything else. It says what every file held and holds, so that
whoever finds it after a power cut can tell how far the work had come:

applying    some files may be new, others old: all go back to `before`
applied     done; `--undo` begins here
undoing     some files may be back, others not: all go on to `after`
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal

import msgspec
from msgspec import Struct

from ..core.errors import StateError, shown
from ..slurm.conf_text import Edit

NAME = "slurm-share.install.json"
_COPY = ".slurm-share-"
_FORMAT = 2
BY_HAND = (
    f"put back the copies beside it (slurm.conf{_COPY}1 and the like, 1 is the oldest) or take the lines of "
    "slurm-share out by hand, then remove it"
)
"""The way out where the journal is of no use."""


class Change(Struct, frozen=True):
    """One file, before and after."""

    file: str
    before: bytes | None
    """None: it is not there before."""
    after: bytes | None
    """None: it is not to be there afterwards."""
    copies: tuple[str, ...] = ()
    """What is kept for people: the file as every apply found it, the oldest first."""
    edits: tuple[Edit, ...] = ()
    """Every line of ours in it, of earlier applies too, in the order in which they were put there."""
    first: bytes | None = None
    """What it held before the first of them; None: it was not there."""
    mode: int = 0o644
    """Mode of a file that is new."""


class Journal(Struct, frozen=True):
    """One piece of work on a site's files."""

    state: Literal["applying", "applied", "undoing"]
    date: str
    """UTC, as backups have it in their names."""
    changes: tuple[Change, ...]
    earlier: Journal | None = None
    """The journal that this one takes the place of, for when an apply is taken back half-way."""
    version: int = _FORMAT


def merged(earlier: Journal | None, changes: tuple[Change, ...]) -> tuple[Change, ...]:
    """The changes of a further apply, with what the journal already says of the same files; a file that only the
    journal has stays in it, as it is."""
    old = {change.file: change for change in earlier.changes} if earlier is not None else {}
    new = {change.file: change for change in changes}
    whole = [
        msgspec.structs.replace(
            change,
            # A line that somebody took out, and that is put there again, is one line; a comment is above each apply's.
            edits=(*(one for one in old[name].edits if not one.word or one not in change.edits), *change.edits)
            if name in old
            else change.edits,
            first=old[name].first if name in old else change.before,
            copies=(*(old[name].copies if name in old else ()), *change.copies),
        )
        for name, change in new.items()
    ]
    return (*whole, *(change for name, change in old.items() if name not in new))


def encode(journal: Journal) -> bytes:
    """Return the journal as it is written."""
    return msgspec.json.encode(journal) + b"\n"


def decode(data: bytes, file: str) -> Journal:
    """Parse a journal. Raises StateError for anything that `encode` did not write."""
    try:
        journal = msgspec.json.decode(data, type=Journal)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StateError(
            file,
            f"is no journal of slurm-share install ({error}); {BY_HAND}",
        ) from error
    if journal.version != _FORMAT:
        raise StateError(
            file, f"was written by another slurm-share (format {journal.version}): use that one; or {BY_HAND}"
        )
    return journal


def copy_of(file: str, number: int) -> str:
    """Return the path of the copy that an apply makes of a file."""
    return f"{file}{_COPY}{number}"


def foreign(journal: Journal, known: Collection[str]) -> str | None:
    """A sentence where a journal names a file that is not among the `known`, which are those that install may write,
    or a copy that is none: it is believed when it says what root shall write and remove. None: all are known."""
    for change in journal.changes:
        for name in (change.file, *(edit.file for edit in change.edits)):
            if name not in known:
                return (
                    f"names {shown(name)}, which is none of Slurm's files here: it is not believed. Where slurm.conf "
                    f"included that file then, include it again and write this again; else {BY_HAND}"
                )
        for copy in change.copies:
            if not re.fullmatch(re.escape(change.file + _COPY) + r"[0-9]{1,6}", copy):
                return f"names {shown(copy)} as a copy of {change.file}: it is not believed; {BY_HAND}"
    return foreign(journal.earlier, known) if journal.earlier is not None else None
