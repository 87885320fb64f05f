"""Read the text of a cluster log in pieces: such files have gigabytes, and may be compressed by gzip."""

from __future__ import annotations

import codecs
import csv
import gzip
import json
import os
import re
import stat
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ..core.errors import UsageError, shown

if TYPE_CHECKING:
    from _csv import Reader

LINE_MOST_BYTES = 64 << 10
LINES_MOST = 20_000_000
"""Alibaba's table of instances, the longest, has 7.5 million."""
ENTRY_MOST_CHARS = 4 << 20
TEXT_MOST_BYTES = 2 << 30
"""Most bytes of JSON, uncompressed."""
_PIECE_BYTES = 256 << 10
_BETWEEN = re.compile(r"[\s,\[\]\ufeff]+")
_GZIP = b"\x1f\x8b"
_TAR_AT = 257


class TraceError(UsageError):
    """Raised for a trace that cannot be used, with file, line and reason."""

    def __init__(self, file: Path, line: int | None, why: str) -> None:
        self.file, self.line, self.why = file, line, why
        super().__init__(file, line, why)

    def __str__(self) -> str:
        where = shown(str(self.file), 400) if self.line is None else f"{shown(str(self.file), 400)}, line {self.line}"
        return f"{where}: {self.why}"


def _open_at_once(file: str, flags: int) -> int:
    """Open a file without blocking on a fifo; an `opener` for `open`."""
    return os.open(file, flags | os.O_NONBLOCK)


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, uncompressed if gzip has compressed it. Raises TraceError, also for errors while reading."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise TraceError(path, None, "it is not a file")
            is_packed = file.read(len(_GZIP)) == _GZIP
            file.seek(0)
            data: IO[bytes] = gzip.GzipFile(fileobj=file) if is_packed else file  # type: ignore[assignment]
            if data.read(_TAR_AT + 5)[_TAR_AT:] == b"ustar":
                raise TraceError(path, None, "it is an archive of files; unpack it first, with tar -xf")
            data.seek(0)
            yield data
    except (OSError, EOFError, zlib.error) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TraceError(path, None, f"it cannot be read ({why})") from error


def _lines(path: Path) -> Iterator[str]:
    with opened(path) as data:
        for number in range(1, LINES_MOST + 1):
            line = data.readline(LINE_MOST_BYTES + 1)
            if not line:
                return
            if len(line) > LINE_MOST_BYTES:
                raise TraceError(path, number, f"the line is longer than {LINE_MOST_BYTES >> 10} KiB")
            yield line.decode("utf-8-sig" if number == 1 else "utf-8", errors="replace")
        raise TraceError(path, LINES_MOST, f"it has more than {LINES_MOST} lines")


def csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the non-empty rows of a CSV file with their line numbers. Raises TraceError."""
    for number, row in read_rows(path, csv.reader(_lines(path))):
        if row:
            yield number, [field.strip() for field in row]


def read_rows(path: Path, reader: Reader) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV reader of the file `path` with their line numbers. Raises TraceError."""
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise TraceError(path, reader.line_num, f"this is not a row of a CSV file ({error})") from error
        yield reader.line_num, row


def named_rows(path: Path, needed: Sequence[str], publisher: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows after the header as column -> value, with their line numbers. Raises TraceError.

    needed: the columns that the header has to name.
    """
    rows = csv_rows(path)
    number, header = next(rows, (1, []))
    missing = [name for name in needed if name not in header]
    if missing:
        raise TraceError(
            path, number, f"it has no column {', '.join(missing)}; a table of {publisher} has {', '.join(needed)}"
        )
    for line, row in rows:
        if len(row) != len(header):
            raise TraceError(path, line, f"it has {len(row)} fields, and the first line has {len(header)}")
        yield line, dict(zip(header, row, strict=True))


def json_entries(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a JSON array, or of consecutive objects, each with its first line number.

    Only one object is in memory at a time. Raises TraceError.
    """
    decoder = json.JSONDecoder()
    with opened(path) as data:
        source = _pieces(path, data)
        text, line, at, is_end = "", 1, 0, False
        while True:
            between = _BETWEEN.match(text, at)
            if between is not None:
                line += text.count("\n", at, between.end())
                at = between.end()
            if at == len(text):
                if is_end:
                    return
                text, at, is_end = _more(source, "", 0)
                continue
            try:
                found, end = decoder.raw_decode(text, at)
            except RecursionError as error:
                raise TraceError(path, line, "its entry is nested too deeply") from error
            except ValueError as error:
                if is_end or len(text) - at > ENTRY_MOST_CHARS:
                    raise TraceError(path, line, f"the entry that begins here is not JSON ({error})") from error
                text, at, is_end = _more(source, text, at)
                continue
            if not isinstance(found, dict):
                raise TraceError(path, line, f"{shown(repr(found)[:60])} is not an object")
            yield line, found
            line += text.count("\n", at, end)
            at = end


def _more(source: Iterator[str], text: str, at: int) -> tuple[str, int, bool]:
    piece = next(source, None)
    return text[at:] + (piece or ""), 0, piece is None


def _pieces(path: Path, data: IO[bytes]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for _ in range(TEXT_MOST_BYTES // _PIECE_BYTES):
        piece = data.read(_PIECE_BYTES)
        if not piece:
            return
        yield decoder.decode(piece)
    raise TraceError(path, None, f"it has more than {TEXT_MOST_BYTES >> 30} GiB")
