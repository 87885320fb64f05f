"""Read tables of measured figures as people publish them: any order of columns, many names of one column, many units.

A table is a CSV file with a header; commas, semicolons or tabs stand between its fields. What was understood is kept in
sentences, so that a wrong guess is seen.
"""

from __future__ import annotations

import codecs
import csv
import math
import re
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from ..core import text_files
from ..core.errors import quoted, shown
from ..packing.history_records import MIB_MOST
from . import recorded
from .log_text import TraceError, read_rows

FILE_MOST_BYTES = 64 << 20
COLUMNS_MOST = 1000
EMPTY = ("", "-", "na", "n/a", "nan", "none", "null", "?")
"""Values of a cell without a figure, in lower case."""
_UNITS: tuple[tuple[str, float], ...] = (
    ("gib", 1024.0), ("mib", 1.0), ("kib", 1 / 1024.0), ("gb", 1024.0), ("mb", 1.0), ("kb", 1 / 1024.0),
    ("bytes", 1 / 1024.0**2), ("g", 1024.0), ("m", 1.0),
)  # fmt: skip
"""Unit of memory -> MiB. MB and GB count as MiB and GiB: tables call nvidia-smi's figures so."""
_FIGURE = re.compile(r"([-+]?[0-9][0-9_]*(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|[-+]?\.[0-9]+)\s*([A-Za-z%/ ]*)", re.ASCII)


class CsvTable(Struct):
    """A table with its header."""

    file: Path
    header: tuple[str, ...]
    rows: list[tuple[int, tuple[str, ...]]]
    """(line in the file, its fields), as many fields as the header has."""
    has_decimal_commas: bool
    understood: list[str] = []
    """Sentences: which column is what."""

    def find(self, what: str, *patterns: str, without: Sequence[int] = (), not_: str = "") -> int | None:
        """Return the first column whose plain name matches a pattern, the first pattern first; None: there is none.

        `not_`: a pattern of names that are no such column.
        """
        plain = [plain_name(name) for name in self.header]
        for pattern in patterns:
            for index, name in enumerate(plain):
                if index in without or (not_ and re.search(not_, name)):
                    continue
                if re.search(pattern, name):
                    self.understood.append(f"{what}: column {quoted(self.header[index], 60)}")
                    return index
        return None

    def need(self, what: str, index: int | None, names: str) -> int:
        """Return the column. Raises TraceError if it is None. `names`: how it may be called."""
        if index is None:
            raise TraceError(
                self.file, 1, f"no column is {what}; it may be called {names}. It has: {_list(self.header)}"
            )
        return index

    def figure(self, line: int, row: Sequence[str], index: int, least: float = 0.0) -> float | None:
        """Return the number in a field; None: it has none. Raises TraceError."""
        text = row[index].strip()
        if text.lower() in EMPTY:
            return None
        found = self._match(text)
        value = float(found[1].replace("_", "")) if found else math.nan
        if not (math.isfinite(value) and value >= least):
            raise self.wrong(line, index, f"{quoted(text, 60)} is not a number of at least {least:g}")
        return value / 100.0 if found is not None and found[2] == "%" else value

    def mib(self, line: int, row: Sequence[str], index: int) -> int | None:
        """Return a size in MiB by the unit in the field or the column's name, else MiB; None: it has none.

        Raises TraceError.
        """
        value = self.figure(line, row, index)
        if value is None:
            return None
        found = self._match(row[index])
        unit = (found[2] if found else "") or _unit_of(self.header[index])
        factor = next((factor for name, factor in _UNITS if unit.lower() == name), None)
        if factor is None:
            raise self.wrong(line, index, f"{quoted(row[index], 60)} has no unit of memory; write GiB or MiB")
        size = round(value * factor)
        if not 1 <= size <= MIB_MOST:
            raise self.wrong(line, index, f"{quoted(row[index], 60)} is {size} MiB, and no GPU has that")
        return size

    def _match(self, text: str) -> re.Match[str] | None:
        return _FIGURE.fullmatch(text.strip().replace(",", "." if self.has_decimal_commas else ""))

    def wrong(self, line: int, index: int, why: str) -> TraceError:
        return TraceError(self.file, line, f"column {quoted(self.header[index], 60)}: {why}")


def read(file: Path) -> CsvTable:
    """Return the table in a file. Raises TraceError."""
    data = recorded.read_bytes(file, FILE_MOST_BYTES).removeprefix(text_files.BOM)
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        data = data.decode("utf-16", errors="replace").encode()
    if b"\0" in data[:4096]:
        raise TraceError(file, None, "this is not a text file; write the table as CSV")
    # A comment becomes an empty line, so that lines keep their numbers.
    lines = ["" if line.startswith("#") else line for line in data.decode("utf-8", errors="replace").splitlines()]
    first = next((line for line in lines if line.strip()), "")
    between = max(",;\t", key=first.count)
    if not first.count(between):
        raise TraceError(file, 1, "the first line has to name columns, with commas between; it has one field")
    reader = csv.reader(lines, delimiter=between, skipinitialspace=True)
    rows = [(line, row) for line, row in read_rows(file, reader) if any(field.strip() for field in row)]
    if not rows:
        raise TraceError(file, 1, "the first line has to name columns, and all its fields are empty")
    header = tuple(name.strip() for name in rows[0][1])
    if len(header) > COLUMNS_MOST:
        raise TraceError(file, 1, f"it has {len(header)} columns; at most {COLUMNS_MOST} are read")
    if all(_FIGURE.fullmatch(name) for name in header if name):
        raise TraceError(file, rows[0][0], "the first line has numbers only; it has to name the columns")
    found: list[tuple[int, tuple[str, ...]]] = []
    for line, row in rows[1:]:
        if len(row) != len(header):
            raise TraceError(file, line, f"it has {len(row)} fields, and the first line has {len(header)}")
        found.append((line, tuple(field.strip() for field in row)))
    if not found:
        raise TraceError(file, None, "it has no row below the names of the columns")
    return CsvTable(file, header, found, has_decimal_commas=between == ";")


def plain_name(name: str) -> str:
    """Return a column's name in lower case with one space for all that is no letter or digit: "max memory used mb"."""
    spaced = re.sub(r"([a-z])([A-Z])", r"\1 \2", name)
    return re.sub(r"[^a-z0-9]+", " ", spaced.lower()).strip()


def _unit_of(name: str) -> str:
    """Return the unit of memory in a column's name: "peak (GiB)", "memory_gb"; MiB if it has none."""
    words = re.split(r"[^A-Za-z]+", name)
    units = {unit for unit, _ in _UNITS if len(unit) > 1}
    return next((word for word in reversed(words) if word.lower() in units), "MiB")


def _list(names: Sequence[str]) -> str:
    some = ", ".join(shown(name, 40) or "(empty)" for name in names[:30])
    return f"{some} and {len(names) - 30} more" if len(names) > 30 else some
