"""Write what a table shows to a file: CSV or JSON with the shown columns of the rows that match the filter, or the
screen as SVG."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slurm_share.core import files
from slurm_share.core.errors import UsageError, shown
from slurm_share.core.terminal import safe
from slurm_share.load import Column

from .widgets.grid import Grid

FORMATS = (".csv", ".json", ".svg")
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Begins of texts that spreadsheets take for a formula; such a text gets an apostrophe before it."""
MODE = 0o666
"""Mode of a new file, before the umask."""
Cell = str | float | int | None


def cell(column: Column[Any], row: Any, now: float) -> Cell:
    """Return a cell: its value where that is a number, in the unit of the heading, a time as Slurm writes it
    (2026-11-29T14:05:00), else its text. `now`: Unix time of the rows. `?`: not known."""
    value = column.value(row)
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        if column.is_moment:
            return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(round(now + value)))
        return round(value, 3) if isinstance(value, float) else value
    return safe(column.text(row))


def heading(column: Column[Any]) -> str:
    """Return a heading with its unit: MEMORY (GB)."""
    name = column.heading or column.id
    return f"{name} ({column.unit})" if column.unit and not column.is_moment else name


def neutral(value: Cell) -> Cell:
    """Return a cell for CSV that no spreadsheet runs as a formula. A lone sign, as - for none, is none."""
    if isinstance(value, str) and len(value) > 1 and value.startswith(FORMULA):
        return f"'{value}"
    return value


def columns_of(grid: Grid[Any]) -> list[Column[Any]]:
    """Return the chosen columns of a table in their order, those without room too."""
    by_id = {column.id: column for column in grid.columns}
    return [by_id[id] for id in grid.chosen]


def as_csv(columns: Sequence[Column[Any]], rows: Sequence[Any], now: float) -> str:
    """Return the rows as CSV, headings first."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([neutral(heading(column)) for column in columns])
    writer.writerows([neutral(cell(column, row, now)) for column in columns] for row in rows)
    return file.getvalue()


def as_json(columns: Sequence[Column[Any]], rows: Sequence[Any], about: dict[str, Any]) -> str:
    """Return `about` (`taken`: Unix time of the rows), then the rows as objects by id of the column, with the units
    beside them. None: not known."""

    def known(value: Cell) -> Cell:
        return None if value == "?" else value

    found = {
        **about,
        "units": {column.id: column.unit for column in columns if column.unit and not column.is_moment},
        "rows": [{column.id: known(cell(column, row, about["taken"])) for column in columns} for row in rows],
    }
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def file_of(text: str) -> Path:
    """Return the file that a text names. Raises UsageError for an ending that is no format."""
    text = text.strip()
    if not text or "\0" in text:
        raise UsageError(f"write the name of a file that ends with {', '.join(FORMATS)}")
    try:
        found = Path(text).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{shown(text, 60)}: there is no such user") from error
    if found.suffix.casefold() not in FORMATS:
        raise UsageError(f"{shown(text, 60)}: the ending says the format; write {', '.join(FORMATS)}")
    return found


def default_name(view: str, now: float, suffix: str = ".csv") -> str:
    """Return the name that is offered for a view: jobs-20261129-1405.csv."""
    return f"{view}-{time.strftime('%Y%m%d-%H%M', time.localtime(now))}{suffix}"


def write(file: Path, data: str, *, over: bool = False) -> None:
    """Write a file. `over`: the user allows that an existing one is replaced. Raises FileExistsError without that, and
    UsageError where it cannot be written."""
    try:
        if not over:
            _write_new(file, data)
            return
        target = file.resolve()
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            raise UsageError(f"{shown(str(file), 80)} is no ordinary file and is left as it is")
        files.write(target, data.encode(), mode=MODE)
    except FileExistsError:
        if over:
            raise UsageError(f"{shown(str(file), 80)} cannot be replaced; choose another name") from None
        raise
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        raise UsageError(f"{shown(str(file), 80)} cannot be written: {_reason(error)}") from error


def _write_new(file: Path, data: str) -> None:
    """Write a file that does not exist; remove it again if it cannot be written whole."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(data.encode())
            opened.flush()
            os.fsync(opened.fileno())
    except OSError:
        file.unlink(missing_ok=True)
        raise


def _reason(error: BaseException) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
