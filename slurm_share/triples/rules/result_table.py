"""The table of a run's results: a row for each task; choose, sort, group and compare rows."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ...core.errors import UsageError, shown
from ...core.text import ascii_json, did_you_mean
from ..records import Run
from . import task_tables

Value = str | int | float | None
"""None: not known, or the task has none."""
FIXED = ("outcome", "seconds", "why", "peak_gpu_mib", "rate_per_s", "node", "gpu", "peak_host_mib", "progress", "code",
         "signal", "energy_j", "tries")  # fmt: skip
"""The columns of every run, after the task, its parameters and its results."""
TASK = "task"
RUNNING = "running"
NOT_BEGUN = "not begun"
_CONDITION = re.compile(r"([A-Za-z_][A-Za-z0-9_./-]*)(!=|<=|>=|=|<|>)(.*)", re.DOTALL | re.ASCII)


class Row(Struct, frozen=True, kw_only=True):
    """A task of a run."""

    task: int
    params: Mapping[str, str]
    results: Mapping[str, str]
    fixed: Mapping[str, Value]
    """Column of `FIXED` -> its value."""


class ResultTable(Struct, frozen=True, kw_only=True):
    """Rows with named columns."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    params: int = 0
    """Number of columns with parameters, after the first one."""
    results: int = 0
    """Number of columns with results, after those."""

    def place(self, column: str) -> int:
        """Return the position of a column. Raises UsageError, which names the columns, for an unknown one."""
        try:
            return self.columns.index(column)
        except ValueError:
            hint = did_you_mean(column, self.columns, f"the columns are {', '.join(self.columns)}")
            yet = "" if self.results or self.columns[0] != TASK else ", and no task has printed a result yet"
            raise UsageError(f"there is no column {shown(column, 60) or repr('')}{yet}{hint}") from None


def table(rows: Sequence[Row]) -> ResultTable:
    """Return the table of all tasks. A parameter or result with the name of another column gets `param.` or `result.`
    before its name."""
    params = list(dict.fromkeys(name for row in rows for name in row.params))
    results = list(dict.fromkeys(name for row in rows for name in row.results))
    taken = {TASK, *FIXED}
    columns = [TASK]
    for names, prefix in ((params, "param."), (results, "result.")):
        shown_as = [f"{prefix}{name}" if name in taken else name for name in names]
        taken.update(shown_as)
        columns += shown_as
    return ResultTable(
        columns=(*columns, *FIXED),
        rows=tuple(
            (
                row.task,
                *map(row.params.get, params),
                *map(row.results.get, results),
                *map(row.fixed.get, FIXED),
            )
            for row in rows
        ),
        params=len(params),
        results=len(results),
    )


def number_of(value: Value) -> float | None:
    """Return a value as a number; None: it is none, or not a number."""
    if isinstance(value, (int, float)):
        return float(value)
    try:
        found = float(value) if value and "_" not in value else math.nan
    except ValueError:
        return None
    return None if math.isnan(found) else found


# ---- Choose rows ----


def where(found: ResultTable, conditions: Iterable[str]) -> ResultTable:
    """Return the rows for which all conditions hold, such as `outcome=done` or `loss<0.5`. Raises UsageError."""
    rows = found.rows
    for condition in conditions:
        match = _CONDITION.fullmatch(condition)
        if match is None:
            raise UsageError(
                f"--where {shown(condition, 60) or repr('')} is no condition such as outcome=done, lr!=1e-3 or loss<0.5"
            )
        place, sign, wanted = found.place(match[1]), match[2], match[3]
        limit = number_of(wanted)
        if sign not in ("=", "!=") and limit is None:
            raise UsageError(f"--where {shown(condition, 60)}: {shown(wanted, 40) or 'empty text'} is no number")
        rows = tuple(row for row in rows if _holds(row[place], sign, wanted, limit))
    return replace(found, rows=rows)


def _holds(value: Value, sign: str, wanted: str, limit: float | None) -> bool:
    number = number_of(value)
    if sign in ("=", "!="):
        text = "" if value is None else str(value)
        is_equal = text == wanted or (number is not None and limit is not None and number == limit)
        return is_equal == (sign == "=")
    if number is None or limit is None:
        return False
    return {"<": number < limit, "<=": number <= limit, ">": number > limit, ">=": number >= limit}[sign]


def ordered(found: ResultTable, column: str, *, is_reverse: bool = False) -> ResultTable:
    """Return the rows sorted by a column: numbers, then other text, then rows without a value. Raises UsageError."""
    place = found.place(column)
    known = [row for row in found.rows if row[place] not in (None, "")]
    numbers = [(number, row) for row in known if (number := number_of(row[place])) is not None]
    others = [row for row in known if number_of(row[place]) is None]
    numbers.sort(key=lambda one: one[0], reverse=is_reverse)
    others.sort(key=lambda row: str(row[place]), reverse=is_reverse)
    without = [row for row in found.rows if row[place] in (None, "")]
    return replace(found, rows=(*(row for _, row in numbers), *others, *without))


def best(found: ResultTable, column: str, *, is_most: bool) -> ResultTable:
    """Return the row with the least, or largest, number in a column, of the tasks that are done.

    Several rows, if they have the same number; none, if no task has one. Raises UsageError for an unknown column.
    """
    place = found.place(column)
    done = found.columns.index("outcome") if "outcome" in found.columns else None
    known = [
        (number, row)
        for row in found.rows
        if (done is None or row[done] == "done") and (number := number_of(row[place])) is not None
    ]
    if not known:
        return replace(found, rows=())
    wanted = (max if is_most else min)(number for number, _ in known)
    return replace(found, rows=tuple(row for number, row in known if number == wanted))


def only(found: ResultTable, columns: Sequence[str]) -> ResultTable:
    """Return the table with these columns. Raises UsageError for an unknown one."""
    places = [found.place(column) for column in columns]
    rows = tuple(tuple(row[place] for place in places) for row in found.rows)
    return ResultTable(columns=tuple(columns), rows=rows)


# ---- Groups ----


def grouped(found: ResultTable, by: Sequence[str]) -> ResultTable:
    """Return a row for each combination of values in the columns `by`, with the means over its done tasks.

    Means are taken of results that are numbers and of `seconds`; `NAME_sd` is the standard deviation of the sample.
    Raises UsageError for an unknown column.
    """
    keys = [found.place(column) for column in by]
    outcome = found.columns.index("outcome")
    first = 1 + found.params
    values = [*range(first, first + found.results), found.columns.index("seconds")]
    groups: dict[tuple[Value, ...], list[tuple[Value, ...]]] = {}
    for row in found.rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    values = [
        value
        for value in values
        if value not in keys and any(number_of(row[value]) is not None for row in found.rows if row[outcome] == "done")
    ]
    rows: list[tuple[Value, ...]] = []
    for key, members in groups.items():
        done = [row for row in members if row[outcome] == "done"]
        cells: list[Value] = []
        for value in values:
            numbers = [number for row in done if (number := number_of(row[value])) is not None]
            cells += [_rounded(statistics.fmean(numbers)) if numbers else None]
            cells += [_deviation(numbers)]
        rows.append((*key, len(members), len(done), *cells))
    names = [name for value in values for name in (found.columns[value], f"{found.columns[value]}_sd")]
    return ResultTable(columns=(*by, "tasks", "done", *names), rows=tuple(rows), params=0, results=0)


def _deviation(numbers: Sequence[float]) -> float | None:
    if len(numbers) < 2 or not all(map(math.isfinite, numbers)):
        return None
    return _rounded(statistics.stdev(numbers), 3)


def _rounded(number: float, digits: int = 6) -> float:
    """Return a number with so many digits; six are more than a mean of measurements has."""
    return float(f"{number:.{digits}g}")


# ---- Text for programs ----


def csv(found: ResultTable) -> str:
    """Return the table as CSV (RFC 4180, UTF-8, LF), with the names of the columns first; empty: no value."""
    return task_tables.render(found.columns, [[cell(value) for value in row] for row in found.rows])


def as_json(folder: str, run: Run, found: ResultTable) -> bytes:
    """Return the table as JSON. Results that are numbers are numbers; parameters are text, as they were passed."""
    first = 1 + found.params
    results = range(first, first + found.results)
    rows = [
        {
            name: _as_number(value) if place in results else value
            for place, (name, value) in enumerate(zip(found.columns, row, strict=True))
        }
        for row in found.rows
    ]
    made = {
        "version": 1,
        "run": folder,
        "name": run.name,
        "parameters": found.columns[1:first],
        "results": found.columns[first : results.stop],
        "rows": rows,
    }
    return ascii_json(msgspec.json.format(msgspec.json.encode(made), indent=1)) + b"\n"


def _as_number(value: Value) -> Value:
    number = number_of(value)
    if number is None or not math.isfinite(number):
        return value
    return int(number) if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,15}", value, re.ASCII) else number


def cell(value: Value) -> str:
    """Return a value as text; None: empty."""
    return "" if value is None else str(value)
