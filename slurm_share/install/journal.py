"""Journal of the changes that `slurm-share install` makes to a site's files, for undo and for recovery.

It lies beside slurm.conf and is written before any file is changed. It has the old and the new content of each file, so
that recovery after a power cut can tell which files are done. States:

- applying: some files may be new, others old; recovery restores `before` everywhere
- applied: complete; `--undo` starts here
- undoing: some files may be restored, others not; recovery writes `after` everywhere
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal

import msgspec
from msgspec import Struct

from ..core import text_files
from ..core.errors import StateError, quoted, shown
from ..slurm.conf_text import Edit

NAME = "slurm-share.install.json"
_COPY = ".slurm-share-"
_FORMAT = 2
BY_HAND = (
    f"put back the copies beside it (slurm.conf{_COPY}1 and the like, 1 is the oldest) or take the lines of "
    "slurm-share out by hand, then remove it"
)
"""The way out if the journal cannot be used."""


class FileChange(Struct, frozen=True):
    """Content of one file before and after."""

    file: str
    before: bytes | None
    """None: the file does not exist."""
    after: bytes | None
    """None: the file is removed."""
    copies: tuple[str, ...] = ()
    """Copies kept for the administrator: the file as each apply found it, oldest first."""
    edits: tuple[Edit, ...] = ()
    """All our edits of the file, those of earlier applies included, in the order they were made."""
    first: bytes | None = None
    """Content before the first apply; None: the file did not exist."""
    mode: int = 0o644
    """Mode of a new file."""


class InstallJournal(Struct, frozen=True):
    """One apply or undo of a site's files."""

    state: Literal["applying", "applied", "undoing"]
    date: str
    """UTC, in the format that the names of backups use."""
    changes: tuple[FileChange, ...]
    earlier: InstallJournal | None = None
    """The previous journal, restored if this apply is rolled back."""
    version: int = _FORMAT


def merged(earlier: InstallJournal | None, changes: tuple[FileChange, ...]) -> tuple[FileChange, ...]:
    """Merge the changes of another apply with those of the earlier journal; files that only the journal has are kept
    unchanged."""
    old = {change.file: change for change in earlier.changes} if earlier is not None else {}
    new = {change.file: change for change in changes}
    whole = [
        msgspec.structs.replace(
            change,
            # a line that was removed by hand and is added again counts once; each apply has its own comment
            edits=(*(one for one in old[name].edits if not one.word or one not in change.edits), *change.edits)
            if name in old
            else change.edits,
            first=old[name].first if name in old else change.before,
            copies=(*(old[name].copies if name in old else ()), *change.copies),
        )
        for name, change in new.items()
    ]
    return (*whole, *(change for name, change in old.items() if name not in new))


def encode(journal: InstallJournal) -> bytes:
    """Return the journal as bytes."""
    return msgspec.json.encode(journal) + b"\n"


def decode(data: bytes, file: str) -> InstallJournal:
    """Parse a journal. Raises StateError for anything that `encode` did not write."""
    try:
        journal = msgspec.json.decode(data, type=InstallJournal)
    except text_files.NOT_JSON as error:
        raise StateError(
            file, f"is not a journal of slurm-share install ({shown(str(error), 200)}); {BY_HAND}"
        ) from error
    if journal.version != _FORMAT:
        raise StateError(
            file,
            f"was written by another slurm-share (format {quoted(journal.version, 20)}): use that release; "
            f"or {BY_HAND}",
        )
    return journal


def copy_of(file: str, number: int) -> str:
    """Return the path of the copy that an apply makes of a file."""
    return f"{file}{_COPY}{number}"


def foreign(journal: InstallJournal, known: Collection[str]) -> str | None:
    """Return a sentence if a journal names a file not in `known`, or a copy with another name than `copy_of` gives;
    None: all are known. Without this check a forged journal could make root write any file."""
    for change in journal.changes:
        for name in (change.file, *(edit.file for edit in change.edits)):
            if name not in known:
                return (
                    f"names {shown(name)}, which is none of Slurm's files here: it is not believed. Where slurm.conf "
                    f"included that file then, include it again and run this again; else {BY_HAND}"
                )
        for copy in change.copies:
            if not re.fullmatch(re.escape(change.file + _COPY) + r"[0-9]{1,6}", copy):
                return f"names {shown(copy)} as a copy of {change.file}: it is not believed; {BY_HAND}"
    return foreign(journal.earlier, known) if journal.earlier is not None else None
