"""Recordings: surveys in a file, one JSON line each, appended, compressed if the name ends in .gz."""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from ..core import text_files
from ..core.append_file import AppendFile
from ..core.errors import StateError
from . import snapshot
from .snapshot import Survey

LINE_MOST = 1 << 28
"""Most bytes of one line, 256 MiB: a survey of 10,000 nodes with eight GPUs each has some 60 MB."""
_MEMBER = b"\x1f\x8b\x08\0\0\0\0\0"
"""First bytes of each gzip member that we write: no flags, no time (RFC 1952, 2.3). JSON does not contain them, and
compressed data by chance once in 2^64 bytes."""
_BLOCK = 1 << 16
LOCK_S = 60.0
"""Most seconds to wait for another writer of the recording, which may write to a slow disk."""


class RecordingPlace(Struct, frozen=True):
    """The place of a survey in a recording."""

    taken: float
    """Unix time of the survey."""
    offset: int
    """Start of its line in bytes; in a compressed file, within its part."""
    part: int = 0
    """Start of the part in bytes: a gzip member, and foreign data after it."""


class _Head(Struct):
    """The fields that tell a survey's line from any other, decoded without the records of its nodes."""

    taken: float
    schema: int
    user: str
    source: str
    nodes: msgspec.Raw


_heads = msgspec.json.Decoder(_Head)


class Recording:
    """A recording opened for reading. It counts lines without a survey: torn, foreign, or of a newer version. Raises
    StateError for a file that is missing, is not a regular file or cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.skipped = 0
        """Lines without a survey."""
        self._is_packed = path.suffix == ".gz"
        try:
            if not stat.S_ISREG(path.stat().st_mode):  # a pipe would block, a device might never end
                raise StateError(str(path), "is not a regular file, and so no recording")
            self._raw: BinaryIO = path.open("rb")
            self._part, self._text = 0, self._opened(0)
        except OSError as error:
            raise StateError(str(path), f"cannot be read: {error.strerror or error}") from error

    def places(self) -> list[RecordingPlace]:
        """Return the places of all surveys in file order, and count again the lines without a survey."""
        self.skipped, found = 0, []
        for part, offset, line in self._lines():
            try:
                head = _heads.decode(line)
            except text_files.NOT_JSON:
                self.skipped += 1
                continue
            if head.schema > snapshot.SCHEMA:
                self.skipped += 1
            else:
                found.append(RecordingPlace(head.taken, offset, part))
        return found

    def at(self, place: RecordingPlace) -> Survey:
        """Return the survey at a place. Raises StateError if the line has none or the file has changed."""
        try:
            if place.part != self._part:
                self._part, self._text = place.part, self._opened(place.part)
            self._text.seek(place.offset)
            line = self._text.readline(LINE_MOST)
        except (OSError, EOFError, zlib.error) as error:
            raise StateError(str(self.path), f"cannot be read any more: {error}") from error
        return snapshot.parse_survey(line, str(self.path))

    def has_lost(self, place: RecordingPlace) -> bool:
        """Return whether the file has been shortened so that it ends before this place."""
        return (place.part if self._is_packed else place.offset) >= self._raw.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Close the recording's file."""
        self._raw.close()

    def _opened(self, part: int) -> BinaryIO | gzip.GzipFile:
        """Return the text of a part of the file; of an uncompressed file, all of it."""
        if not self._is_packed:
            return self._raw
        return gzip.GzipFile(fileobj=_FilePart(self._raw, part, self._next_part(part + 1)))

    def _next_part(self, start: int) -> int:
        """Return the offset of the first member of ours from `start` on; without one, the end of the file."""
        self._raw.seek(start)
        before = b""
        while block := self._raw.read(_BLOCK):
            found = (before + block).find(_MEMBER)
            if found >= 0:
                return start - len(before) + found
            start += len(block)
            before = (before + block)[1 - len(_MEMBER) :]
        return start

    def _lines(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield (part, offset, line) of each line that is not blank. A damaged part counts as a line without a survey;
        the parts after it are read."""
        part = 0
        while True:
            try:
                text, offset = self._opened(part), 0
                text.seek(0)
                while line := text.readline(LINE_MOST):
                    if line.strip():
                        yield part, offset, line
                    offset += len(line)
            except (EOFError, zlib.error, gzip.BadGzipFile):
                self.skipped += 1
            except OSError as error:
                raise StateError(str(self.path), f"cannot be read: {error.strerror or error}") from error
            start, part = part, self._next_part(part + 1) if self._is_packed else 0
            if part <= start or part >= self._raw.seek(0, os.SEEK_END):
                return


class _FilePart:
    """The bytes of a file from `start` to before `end`, with the methods of a file that gzip uses."""

    def __init__(self, file: BinaryIO, start: int, end: int) -> None:
        self._file, self._start, self._end, self._at = file, start, end, start

    def read(self, size: int = -1, /) -> bytes:
        """Read at most `size` bytes; all that is left for a negative size."""
        left = self._end - self._at
        self._file.seek(self._at)
        data = self._file.read(left if size < 0 else min(size, left))
        self._at += len(data)
        return data

    def seek(self, offset: int, /) -> int:
        """Set the position, counted from the start of the part."""
        self._at = self._start + offset
        return offset


class RecordingWriter:
    """A recording opened for appending. Raises StateError for a file that cannot be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._packs = path.suffix == ".gz"
        try:
            # A reader skips what a killed writer has left of a gzip member; a newline would change that by nothing.
            self._file = AppendFile(path, mode=0o600, lock_s=LOCK_S, torn="keep" if self._packs else "end")
        except OSError as error:
            raise StateError(str(path), f"cannot be written: {error.strerror or error}") from error

    def write(self, survey: Survey) -> None:
        """Append a survey. On failure (disk full), remove the part that was written and raise StateError."""
        line = snapshot.render(survey) + b"\n"
        try:
            # Gzip members one after another are one file (RFC 1952, 2.2), so each survey is one.
            self._file.append(gzip.compress(line, mtime=0) if self._packs else line)
        except OSError as error:
            raise StateError(str(self.path), f"cannot be written: {error.strerror or error}") from error

    def close(self) -> None:
        """Close the recording's file."""
        self._file.close()


class Recorder:
    """A recorder that stops at the first failure and keeps the reason. It raises StateError only when it is made."""

    def __init__(self, file: Path | None) -> None:
        """`file`: None records nothing."""
        self._writer = None if file is None else RecordingWriter(file)
        self.failure = ""
        """Why recording stopped; empty: it did not."""

    def keep(self, survey: Survey) -> None:
        """Append a survey, unless recording has stopped."""
        if self._writer is None:
            return
        try:
            self._writer.write(survey)
        except StateError as error:
            self.failure = f"{error}; nothing more is recorded"
            self.close()

    def close(self) -> None:
        """Close the file, if one is open."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
