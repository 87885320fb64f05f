"""Parse a table of tasks, FILE.csv or FILE.tsv: a line with the names of the columns, then one line for each task.

A column is a parameter of the tasks (`sweeps`), except those with the name of a key of FILE.jsonl (`run`, `gpu_mem`,
`gpus`, ...), which are the same options of a task. An empty cell: the task does not have this parameter or option.
Blanks around a cell do not belong to it. A cell has no line end, so that a task is a line of the file.
"""

from __future__ import annotations

import csv
from collections.abc import Container, Iterator, Sequence

from msgspec import Struct

from ...core.errors import UsageError, shown
from ...core.text import counted
from . import sweeps

ENDINGS = {".csv": ",", ".tsv": "\t"}
"""Ending of a file's name -> what separates its cells."""


class Row(Struct, frozen=True):
    """A task of the table."""

    number: int
    """Number of its line in the file, from 1."""
    options: dict[str, str]
    """Key of a task's option -> its text."""
    params: dict[str, str]


def separator_of(file: str) -> str | None:
    """Return what separates the cells of a file, by its name; None: it is no table."""
    return next((separator for ending, separator in ENDINGS.items() if file.lower().endswith(ending)), None)


def rows(lines: Sequence[bytes], source: str, separator: str, keys: Container[str]) -> Iterator[Row]:
    """Yield the tasks of a table. keys: the columns that are options. Raises UsageError, with the line's number."""
    names = _header(_cells(lines[0], f"{source}: line 1", separator), source, separator)
    if len(lines) == 1:
        raise UsageError(f"{source}: the file has only the names of its columns; write a task on each line below them")
    for number, line in enumerate(lines[1:], 2):
        where = f"{source}: line {number}"
        cells = _cells(line, where, separator)
        if len(cells) != len(names):
            said = (
                f"{where} has {counted(len(cells), 'cell')}, but the first line names {counted(len(names), 'column')}"
            )
            raise UsageError(f"{said}; a cell with a comma is in double quotes" if separator == "," else said)
        found = {name: cell for name, cell in zip(names, cells, strict=True) if cell}
        if not found:
            raise UsageError(f"{where} has only empty cells; remove it")
        for name, cell in found.items():
            sweeps.check_value(cell, f"{where}, column {name}")
        options = {name: cell for name, cell in found.items() if name in keys}
        yield Row(number, options, {name: cell for name, cell in found.items() if name not in keys})


def names_of(line: bytes, source: str, separator: str) -> list[str]:
    """Return the names of a table's columns, from its first line. Raises UsageError."""
    return _header(_cells(line, f"{source}: line 1", separator), source, separator)


def _cells(line: bytes, where: str, separator: str) -> list[str]:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{where} is not UTF-8, byte {error.start + 1}; save the file as UTF-8") from error
    if '"' not in text:
        return [cell.strip() for cell in text.split(separator)]
    try:
        found = next(csv.reader([text], delimiter=separator, skipinitialspace=True, strict=True))
    except csv.Error as error:
        raise UsageError(
            f'{where}: its quotes are wrong ({error}); a cell with a quote is in double quotes, with "" for each quote '
            "inside, and has no line end"
        ) from error
    return [cell.strip() for cell in found]


def _header(names: list[str], source: str, separator: str) -> list[str]:
    """Return the names of the columns. Raises UsageError for a line that does not name columns."""
    where = f"{source}: line 1"
    for place, name in enumerate(names, 1):
        if not name:
            raise UsageError(f"{where}: column {place} has no name; write one, or remove the column")
        if separator == "," and ";" in name:
            raise UsageError(f"{where} has semicolons; save the file with commas between the cells, or as a .tsv")
        if name[0] in "0123456789-+.":
            raise UsageError(
                f"{where} must name the columns, and {shown(name, 40)} is no name; write a first line such as "
                f"{separator.join(['lr', 'seed'][: len(names)]) if separator == ',' else 'lr<TAB>seed'}"
            )
        sweeps.check_name(name, where)
    sweeps.check_names(names, where)
    return names


def render(names: Sequence[str], found: Sequence[Sequence[str]], separator: str = ",") -> str:
    """Return a table as text, cells quoted where they must be."""
    return "".join(separator.join(quoted(cell) for cell in row) + "\n" for row in (names, *found))


def quoted(cell: str) -> str:
    """Return a cell of a CSV file, in quotes if it has a comma, a quote, a blank at an end or a line end (RFC 4180)."""
    if cell.strip() == cell and not any(one in cell for one in ',"\r\n'):
        return cell
    return '"' + cell.replace('"', '""') + '"'
