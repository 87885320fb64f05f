"""The terms of a filter, evaluated for all rows at once: words, comparisons, and their combinations. Every term is
linear in the number of rows, since the table is filtered at every key."""

from __future__ import annotations

import fnmatch
import math
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from slurm_share.core.text import natural
from slurm_share.load import Column, Unit, Value

NO, UNKNOWN, YES = 0, 1, 2
"""Whether a row matches: `and` is the least of them, `or` the greatest, `not` the mirror."""

UNITS = {
    "%": 1.0, "k": 1 / 1024**2, "kb": 1 / 1024**2, "M": 1 / 1024, "mb": 1 / 1024, "g": 1.0, "gb": 1.0,
    "t": 1024.0, "tb": 1024.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0,
}  # fmt: skip
"""Factors to percent, GB and seconds, the units of `Column.value`. M alone is a megabyte, m alone a minute."""
_TIMES = frozenset({"s", "m", "min", "h", "d"})
EXAMPLES: dict[Unit, str] = {"": "50", "%": "50%", "GB": "40G", "s": "2h"}
_IS: dict[Unit, str] = {"": "a figure without a unit", "%": "a percentage", "GB": "in gigabytes", "s": "a time"}
_ARE: dict[Unit, str] = {"": "figures without a unit", "%": "percentages", "GB": "gigabytes", "s": "times"}
NEAR = 1.0
"""Values this close to a figure may be shown as it, in the column's unit: no column rounds further."""

_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.lt, ">": operator.gt, ">=": operator.gt,
}  # fmt: skip
"""The comparisons of values that are not shown as the same figure."""
_FIGURE = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+))\s*([A-Za-z%]*)")
_CLOCK = re.compile(r"(?:(\d{1,5})-(?=\d+:))?(\d{1,5}):(\d\d)(?::(\d\d))?")
"""A time as in squeue's column TIME and sbatch's --time: 3:04, 2:03:04, 1-02:03:04, 1-02:03."""
_SHOWN = re.compile(r"([-+]?\d+)(?:\.(\d+))?")
_SHOWN_UNIT = re.compile(r"([a-z%]+)\??$")


class QueryError(Exception):
    """An invalid filter; the message says why, and gives a valid one."""


class Cells(Protocol):
    """The rows to filter (widgets.grid_rows.RowSet)."""

    def values(self, column: Column[Any]) -> Sequence[Value]:
        """Return the column's value of each row."""

    def texts(self, column: Column[Any]) -> Sequence[str]:
        """Return the column's text of each row, casefolded."""

    def text(self, column: Column[Any], number: int) -> str:
        """Return the text of one row, casefolded."""


Predicate = Callable[[Cells, int], list[int]]
"""(rows, their number) -> NO, UNKNOWN or YES for each row."""


def joined(how: Callable[[int, int], int], parts: Sequence[Predicate]) -> Predicate:
    """Join terms. `how`: min for and, max for or."""

    def asked(cells: Cells, count: int) -> list[int]:
        found = parts[0](cells, count)
        for part in parts[1:]:
            found = list(map(how, found, part(cells, count)))
        return found

    return asked


def not_of(part: Predicate) -> Predicate:
    """Negate a term; unknown stays unknown."""
    return lambda cells, count: [YES - fits for fits in part(cells, count)]


def text_term(text: str, columns: Sequence[Column[Any]]) -> tuple[Predicate, set[str]]:
    """Match a text in any column of texts; return the predicate and the ids of these columns. Figures, bars and
    sparklines are matched only by the name of their column."""
    low = text.casefold()
    searched = [one for one in columns if not one.right and one.bar is None and one.spark is None]

    def asked(cells: Cells, count: int) -> list[int]:
        found = [False] * count
        for column in searched:
            found = [is_found or low in text for is_found, text in zip(found, cells.texts(column), strict=True)]
            if column.has_names:
                found = [is_found or low in name for is_found, name in zip(found, _names(column, cells), strict=True)]
        return [YES if is_found else NO for is_found in found]

    return asked, {column.id for column in searched}


def _names(column: Column[Any], cells: Cells) -> list[str]:
    return [value.casefold() if isinstance(value, str) else "" for value in cells.values(column)]


def comparison(
    column: Column[Any], name: str, sign: str, wanted: str, twin: Column[Any] | None, *, is_quoted: bool
) -> Predicate:
    """Return a comparison. `name`: the column's name in the filter; `twin`: `Column.twin`. Raises QueryError, at once
    or at evaluation, for a unit that the column does not have."""
    if wanted in ("?", "-") and not is_quoted and sign in ("=", "==", "!="):
        fits = _is_unknown(column) if wanted == "?" else _is_none(column)
    elif "~" in sign:
        fits = _contains(column, wanted)
    else:
        wrong = "" if is_quoted else _wrong_unit(column, name, sign, wanted, twin)
        if wrong and column.unit:
            raise QueryError(wrong)
        if sign in _COMPARED:
            return _ordered(column, name, sign, wanted, wrong)
        fits = _equal(column, wanted, wrong, is_quoted=is_quoted)
    return not_of(fits) if sign[0] == "!" else fits


def _wrong_unit(column: Column[Any], name: str, sign: str, wanted: str, twin: Column[Any] | None) -> str:
    """Return the error for a figure with a unit that the column does not have; empty: the unit is right."""
    unit = unit_of(wanted)
    if column.is_moment and sign in _COMPARED and _CLOCK.fullmatch(wanted):
        return f"{name} is compared with a time from now, and {wanted} is a time of day; for example {name}<2h"
    if not unit or unit == column.unit:
        return ""
    if twin is not None and twin.unit == unit:
        return f"{name} is {_IS[column.unit]}; the {_ARE[unit]} are in {twin.name}: {twin.name}{sign}{wanted}"
    return f"{name} is {_IS[column.unit]}, {wanted} is not; for example {name}{sign}{EXAMPLES[column.unit]}"


def _is_unknown(column: Column[Any]) -> Predicate:
    return lambda cells, _: [
        YES if value is None and text != "-" else NO
        for value, text in zip(cells.values(column), cells.texts(column), strict=True)
    ]


def _is_none(column: Column[Any]) -> Predicate:
    return lambda cells, _: [YES if text == "-" else NO for text in cells.texts(column)]


def _like(pattern: str) -> Callable[[str], bool]:
    """Return whether a text, or one of its parts between commas, matches a shell pattern. fnmatch never backtracks over
    an earlier *, so this is linear in the text."""
    match = re.compile(fnmatch.translate(pattern)).match
    return lambda text: any(match(part.strip()) for part in (text, *text.split(",")))


def _contains(column: Column[Any], wanted: str) -> Predicate:
    low = wanted.casefold()
    fits = _like(low) if "*" in low or "?" in low else lambda text: low in text
    return lambda cells, _: [
        UNKNOWN if value is None else YES if fits(text) or (column.has_names and fits(str(value).casefold())) else NO
        for value, text in zip(cells.values(column), cells.texts(column), strict=True)
    ]


def _equal(column: Column[Any], wanted: str, wrong: str, *, is_quoted: bool) -> Predicate:
    low, figure = wanted.casefold(), figure_of(wanted)
    names = {low, f'"{low}"'} if is_quoted else {low}
    is_like = _like(low) if "*" in low else None

    def fits(value: Value, text: str) -> int:
        if value is None:
            return UNKNOWN
        if not isinstance(value, str):
            if wrong:
                raise QueryError(wrong)
            return YES if text in names or (figure is not None and _is_shown_as(column, value, figure, text)) else NO
        if text in names or value.casefold() == low or names.intersection(part.strip() for part in text.split(",")):
            return YES
        if column.has_names and (not names.isdisjoint(value.casefold().split(",")) or (is_like and is_like(value))):
            return YES
        # squeue puts the reason of a waiting job in parentheses, users do not.
        if text[:1] == "(" and text[-1:] == ")" and text[1:-1] in names:
            return YES
        return YES if is_like is not None and is_like(text) else NO

    return lambda cells, _: list(map(fits, cells.values(column), cells.texts(column)))


def _ordered(column: Column[Any], name: str, sign: str, wanted: str, wrong: str) -> Predicate:
    compare, figure, natural_name, has_equal = _COMPARED[sign], figure_of(wanted), natural(wanted), "=" in sign

    def asked(cells: Cells, _: int) -> list[int]:
        values = cells.values(column)
        if (figure is None or wrong) and any(isinstance(value, float | int) for value in values):
            example = f"{name}{sign}{EXAMPLES[column.unit]}"
            raise QueryError(wrong or f"{name} is a figure, {wanted} is not; for example {example}")

        def fits(number: int, value: Value) -> int:
            if value is None or value != value:
                return UNKNOWN
            if isinstance(value, str):
                key = natural(value)
                return YES if compare(key, natural_name) or (has_equal and key == natural_name) else NO
            if figure is None:
                return UNKNOWN
            is_near = abs(value - figure) <= NEAR
            if is_near and _is_shown_as(column, value, figure, cells.text(column, number)):
                return YES if has_equal else NO
            return YES if compare(value, figure) else NO

        return [fits(number, value) for number, value in enumerate(values)]

    return asked


def figure_of(text: str) -> float | None:
    """Return a figure in percent, GB or seconds; None: the text is none."""
    if clock := _CLOCK.fullmatch(text):
        days, first, second, third = (int(one or 0) for one in clock.groups())
        has_hours = clock[1] is not None or clock[4] is not None
        return days * 86400.0 + (first * 3600 + second * 60 + third if has_hours else first * 60 + second)
    found = _FIGURE.fullmatch(text)
    factor = None if found is None else UNITS.get(_unit(found[2])) if found[2] else 1.0
    figure = math.inf if found is None or factor is None else float(found[1]) * factor
    return figure if math.isfinite(figure) else None


def unit_of(text: str) -> Unit:
    """Return the unit of a figure; empty: it has none, or the text is not a figure."""
    if _CLOCK.fullmatch(text):
        return "s"
    found = _FIGURE.fullmatch(text)
    unit = "" if found is None else _unit(found[2])
    return "%" if unit == "%" else "s" if unit in _TIMES else "GB" if unit in UNITS else ""


def _unit(written: str) -> str:
    return written if written in UNITS else written.casefold()


def _is_shown_as(column: Column[Any], value: float, figure: float, text: str) -> bool:
    """Return whether the value is the figure, or is shown as it: 95.2 is shown as 95%. A text that is not a rounding of
    the value (2/3: two of three) does not count."""
    if value == figure:
        return True
    if column.unit == "s":
        return math.floor(value) == figure
    found = _SHOWN.match(text)
    if found is None:
        return False
    unit = _SHOWN_UNIT.search(text)
    factor = UNITS.get(unit[1], 1.0) if unit is not None and column.unit == "GB" else 1.0
    if column.unit == "%" and "%" not in text:
        factor = 100.0  # loads: 1.00 is 100 percent
    read = float(found[0]) * factor
    step = factor / 10 ** len(found[2] or "")
    return abs(value - read) < 0.95 * step and math.isclose(read, figure, rel_tol=1e-9, abs_tol=1e-9)
