"""Surveys kept in a file: one JSON line each, appended, compressed where the name ends in .gz."""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import io
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from ..core.errors import StateError
from . import snapshot
from .snapshot import Survey

LINE_MOST = 1 << 28
"""Bytes of one line, 256 MiB: a survey of 10,000 nodes with eight GPUs each has some 60 MB."""
_MEMBER = b"\x1f\x8b\x08\0\0\0\0\0"
"""How every gzip member of ours begins: no flags, no time (RFC 1952, 2.3). JSON has no such bytes, and in compressed
data they come by chance once in 2^64."""
_BLOCK = 1 << 16


class Place(Struct, frozen=True):
    """Where a survey lies in a recording."""

    taken: float
    """Unix time of the survey."""
    offset: int
    """Where its line begins, in bytes; in a compressed file, within its part."""
    part: int = 0
    """Where that part begins: a gzip member, with what follows it and is none of ours."""


class _Head(Struct):
    """What tells a survey's line from any other, read without making records of all its nodes."""

    taken: float
    schema: int
    user: str
    source: str
    nodes: msgspec.Raw


_heads = msgspec.json.Decoder(_Head)


class Recording:
    """A recording opened for reading; lines that hold no survey (torn, foreign, of a newer version) are counted.

    Raises StateError for a file that is not there, is none or is not readable.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.skipped = 0
        """Lines without a survey."""
        self._is_packed = path.suffix == ".gz"
        try:
            if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for, a device read for ever
                raise StateError(str(path), "is no file, and so no recording")
            self._raw: BinaryIO = path.open("rb")
            self._part, self._text = 0, self._opened(0)
        except OSError as error:
            raise StateError(str(path), f"cannot be read: {error.strerror or error}") from error

    def places(self) -> list[Place]:
        """Return the places of all surveys in file order, and count again the lines that hold none."""
        self.skipped, found = 0, []
        for part, offset, line in self._lines():
            try:
                head = _heads.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self.skipped += 1
                continue
            if head.schema > snapshot.SCHEMA:
                self.skipped += 1
            else:
                found.append(Place(head.taken, offset, part))
        return found

    def at(self, place: Place) -> Survey:
        """Return the survey at a place. Raises StateError if the line holds none or the file has changed."""
        try:
            if place.part != self._part:
                self._part, self._text = place.part, self._opened(place.part)
            self._text.seek(place.offset)
            line = self._text.readline(LINE_MOST)
        except (OSError, EOFError, zlib.error) as error:
            raise StateError(str(self.path), f"cannot be read any more: {error}") from error
        return snapshot.parse_survey(line, str(self.path))

    def has_lost(self, place: Place) -> bool:
        """Return whether the file has become so short that this place is behind its end."""
        return (place.part if self._is_packed else place.offset) >= self._raw.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Close the file."""
        self._raw.close()

    def _opened(self, part: int) -> BinaryIO | gzip.GzipFile:
        """The text of a part of the file; of one that is not compressed, of all."""
        if not self._is_packed:
            return self._raw
        return gzip.GzipFile(fileobj=_Part(self._raw, part, self._next_part(part + 1)))

    def _next_part(self, start: int) -> int:
        """Where a member of ours begins, from there on; where there is none, the file's end."""
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
        """(part, offset, line) of all that is not blank. A part that breaks off counts as a line without a survey, and
        those after it are read all the same."""
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


class _Part:
    """Bytes of a file from `start` to before `end`, as much of a file as gzip asks for."""

    def __init__(self, file: BinaryIO, start: int, end: int) -> None:
        self._file, self._start, self._end, self._at = file, start, end, start

    def read(self, size: int = -1, /) -> bytes:
        """Read at most `size` bytes."""
        left = self._end - self._at
        self._file.seek(self._at)
        data = self._file.read(left if size < 0 else min(size, left))
        self._at += len(data)
        return data

    def seek(self, offset: int, /) -> int:
        """From the part's beginning."""
        self._at = self._start + offset
        return offset


class Writer:
    """Adds surveys to a recording, one writer at a time, so that two do not mix their lines and one that is killed
    leaves at most the last one torn.

    Raises StateError for a file that cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateError(str(path), f"cannot be written: {error.strerror or error}") from error
        self._packs = path.suffix == ".gz"

    def write(self, survey: Survey) -> None:
        """Append a survey. On failure (disk full) take back the part written and raise StateError."""
        line = snapshot.render(survey) + b"\n"
        data = _packed(line) if self._packs else line
        with self._alone():
            # After a line that broke off, the next one begins on its own. A gzip member always does.
            if not self._packs and self._is_torn():
                data = b"\n" + data
            try:
                size = os.fstat(self._fd).st_size
                written = os.write(self._fd, data)
                while written < len(data):
                    written += os.write(self._fd, data[written:])
            except OSError as error:
                with contextlib.suppress(OSError):  # a pipe, or a file system that refuses: the reader skips it
                    os.ftruncate(self._fd, size)
                raise StateError(str(self.path), f"cannot be written: {error.strerror or error}") from error

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock out other writers, as far as the file system supports it."""
        with contextlib.suppress(OSError):
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _is_torn(self) -> bool:
        try:
            end = os.lseek(self._fd, 0, os.SEEK_END)
            return end > 0 and os.pread(self._fd, 1, end - 1) != b"\n"
        except OSError:
            return False  # not a file that one can go back in


class Recorder:
    """Record surveys; if the file cannot be written any more, keep the reason and go on."""

    def __init__(self, file: Path | None) -> None:
        """Open the file. Raises StateError if it cannot be written."""
        self._writer = None if file is None else Writer(file)
        self.failure = ""
        """Why nothing is recorded any more."""

    @property
    def has_failed(self) -> bool:
        """Return whether a survey could not be written."""
        return bool(self.failure)

    def keep(self, survey: Survey) -> None:
        """Add a survey."""
        if self._writer is None:
            return
        try:
            self._writer.write(survey)
        except StateError as error:
            self.failure = f"{error}; nothing more is recorded"
            self.close()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _packed(line: bytes) -> bytes:
    """A gzip member of its own: members one after another are one file (RFC 1952, 2.2), so appending is safe."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as member:
        member.write(line)
    return buffer.getvalue()
