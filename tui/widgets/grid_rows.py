"""The rows of a table: keys, values, order, and which of them match a filter, computed once for each survey."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from types import NoneType
from typing import Any, Generic, cast

from slurm_share.core.text import natural
from slurm_share.load import Column, Row, Value

from ..query import Query


class RowSet(Generic[Row]):
    """Rows as given. Values are cached: sorting and filtering share those of a column."""

    def __init__(self, rows: Sequence[Row], columns: Sequence[Column[Row]], key: Callable[[Row], str]) -> None:
        self.rows = rows
        self._columns = columns
        self._key = key
        self._values: dict[str, list[Value]] = {}
        self._folded: dict[str, list[str]] = {}

    def key(self, number: int) -> str:
        """Return the key of a row, by its number."""
        return self._key(self.rows[number])

    def number(self, key: str, hint: int = -1) -> int | None:
        """Return the number of the row with this key; None: there is none. `hint`: its number in the survey before,
        which is usually right and saves building an index."""
        if 0 <= hint < len(self.rows) and self._key(self.rows[hint]) == key:
            return hint
        return self._numbers.get(key)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        of = self._key
        keys = [of(row) for row in self.rows]
        return dict(zip(reversed(keys), range(len(keys) - 1, -1, -1), strict=True))

    def values(self, column: Column[Row]) -> list[Value]:
        found = self._values.get(column.id)
        if found is None:
            value = column.value
            found = self._values[column.id] = [value(row) for row in self.rows]
        return found

    def texts(self, column: Column[Row]) -> list[str]:
        found = self._folded.get(column.id)
        if found is None:
            text = column.text
            found = self._folded[column.id] = [text(row).casefold() for row in self.rows]
        return found

    def text(self, column: Column[Row], number: int) -> str:
        found = self._folded.get(column.id)
        return column.text(self.rows[number]).casefold() if found is None else found[number]

    def order(self, query: Query | None, column: Column[Row] | None, down: bool) -> Sequence[int]:
        """Return the numbers of the matching rows, sorted; without a column in their original order."""
        numbers: Sequence[int] = range(len(self.rows)) if query is None else query.fitting(self, len(self.rows))
        return numbers if column is None else sort(numbers, self.values(column), down)


def sort(numbers: Sequence[int], values: Sequence[Value], down: bool) -> list[int]:
    """Return the numbers sorted by their values: figures before names, names in natural order, unknown values last in
    either direction. The sort is stable."""
    asked = cast(Sequence[Any], values)
    known = [number for number in numbers if (value := asked[number]) is not None and value == value]
    unknown = []
    if len(known) < len(numbers):  # NaN is unknown too
        unknown = [number for number in numbers if (value := asked[number]) is None or value != value]
    kinds = set(map(type, values))
    if str not in kinds:
        known.sort(key=asked.__getitem__, reverse=down)
        return known + unknown
    names = known
    figures: list[int] = []
    if kinds - {str, NoneType}:
        names = [number for number in known if isinstance(asked[number], str)]
        figures = [number for number in known if not isinstance(asked[number], str)]
        figures.sort(key=asked.__getitem__, reverse=down)
    names.sort(key=lambda number: natural(asked[number]), reverse=down)
    return [*names, *figures, *unknown] if down else [*figures, *names, *unknown]
