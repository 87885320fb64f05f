"""The language of filters: `alice`, `gpu<50`, `user=alice & gpu>80%`, `!(name~test | gpu=?)`.

    word            rows with this in any text, in upper or lower case; "two words" with the blank
    column=value    the value as it is shown, or one of several between commas; * matches anything
    column!=value   another value
    column<value    also <= > >=; figures with % K M G T s m h d, names in natural order
    column~text     contains the text; with * or ?, matches a shell pattern as a whole
    column!~text    does not
    column=?        unknown; column=- none
    & | ! ( )       and, or, not; terms without an operator between them are joined by `and`

A column is named by its heading, its id or an alias; visible headings take precedence. An unknown value matches only
`column=?`, neither `gpu<50` nor `!gpu<50`. `query_terms` evaluates the terms.

The language is our own: no table widget has one, Python has no unknown values, SQL has no units, and neither compares a
figure as it is shown. A parser library (lark, pyparsing) would replace about 100 lines here, and its errors name tokens
where ours name the column and give an example. Filtering 10,000 rows takes 4 ms of CPU time for a word, 11 ms for two
terms and 21 ms for three (tests/bench/tui_grids.py), so the table follows every key.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurm_share.load import Column

from .query_terms import EXAMPLES, YES, Cells, Predicate, QueryError, comparison, joined, not_of, text_term

LONGEST = 500
"""Most characters of a filter."""
DEEPEST = 30
"""Most nested parentheses and `!`."""

_OPERATOR = re.compile(r"\s*(<=|>=|!=|!~|==|=|<|>|~)\s*")
_TERM = re.compile(r'"([^"]*)"|([^\s&|()<>=~!"]+)')
_VALUE = re.compile(r'"([^"]*)"|([^\s&|()"]+)')


@dataclass(frozen=True)
class Query:
    """A parsed filter. Two filters with the same text are equal."""

    text: str
    _asked: Predicate = field(compare=False)
    columns: frozenset[str] = field(default=frozenset(), compare=False)
    """Ids of the columns that it reads."""

    def fitting(self, cells: Cells, count: int) -> list[int]:
        """Return the numbers of the rows that match."""
        return [number for number, fits in enumerate(self._asked(cells, count)) if fits == YES]


def parse(text: str, columns: Sequence[Column[Any]], shown: Collection[str] = ()) -> Query | None:
    """Return the filter in a text; None: the text is empty. `shown`: ids of the visible columns, whose names take
    precedence. Raises QueryError."""
    text = text.strip()
    if not text:
        return None
    if len(text) > LONGEST:
        raise QueryError(f"the filter has {len(text)} characters, more than {LONGEST}")
    reader = _QueryParser(text, columns, shown)
    return Query(text, reader.whole(), frozenset(reader.used))


def completed_name(text: str, columns: Sequence[Column[Any]]) -> str:
    """Return the name of a column that the end of the text begins; empty: there is none."""
    begun = re.split(r"[\s&|(!]", text)[-1].casefold()
    names = [name for column in columns for name in (column.name, column.id, *column.alias)]
    return next((name for name in names if begun and name.casefold().startswith(begun)), "")


def columns_by_name(columns: Sequence[Column[Any]], shown: Collection[str] = ()) -> dict[str, Column[Any]]:
    """Return the columns by all of their names, casefolded."""
    found: dict[str, Column[Any]] = {}
    for is_shown in (False, True):
        some = [column for column in columns if (column.id in shown) == is_shown]
        found |= {alias.casefold(): column for column in some for alias in column.alias}
        found |= {column.id.casefold(): column for column in some}
        found |= {column.heading.casefold(): column for column in some if column.heading}
    return found


class _QueryParser:
    """A recursive descent parser."""

    def __init__(self, text: str, columns: Sequence[Column[Any]], shown: Collection[str]) -> None:
        self._text, self._at, self._depth = text, 0, 0
        self._columns = columns
        self._names = columns_by_name(columns, shown)
        self.used: set[str] = set()
        """Ids of the columns that are read."""

    def whole(self) -> Predicate:
        asked = self._any()
        if self._next():
            raise QueryError("there is one ) too many" if self._next() == ")" else f"not a filter: {self._rest()}")
        return asked

    def _any(self) -> Predicate:
        parts = [self._all()]
        while self._take("|"):
            parts.append(self._all())
        return joined(max, parts)

    def _all(self) -> Predicate:
        parts = [self._one()]
        while (ahead := self._next()) and ahead not in "|)":
            self._take("&")
            parts.append(self._one())
        return joined(min, parts)

    def _one(self) -> Predicate:
        self._depth += 1
        if self._depth > DEEPEST:
            raise QueryError(f"more than {DEEPEST} nested parentheses and !")
        try:
            if self._take("!"):
                return not_of(self._one())
            if self._take("("):
                inner = self._any()
                if not self._take(")"):
                    raise QueryError("a ) is missing")
                return inner
            return self._term()
        finally:
            self._depth -= 1

    def _term(self) -> Predicate:
        found = _TERM.match(self._text, self._at)
        if found is None:
            rest = self._rest()
            if rest.startswith('"'):
                raise QueryError('a closing " is missing')
            missing = f"a word or a column is missing before {rest}" if rest else "something is missing at the end"
            raise QueryError(missing)
        self._at = found.end()
        sign = None if found[1] is not None else _OPERATOR.match(self._text, self._at)
        if sign is None:
            asked, searched = text_term(found[1] if found[1] is not None else found[2], self._columns)
            self.used |= searched
            return asked
        name = found[2]
        column = self._column(name)
        self.used.add(column.id)
        self._at = sign.end()
        value = _VALUE.match(self._text, self._at)
        if value is None:
            raise QueryError(self._what(name + sign[1], column, sign[1]))
        self._at = value.end()
        wanted = value[1] if value[1] is not None else value[2]
        twin = next((one for one in self._columns if one.id == column.twin), None)
        return comparison(column, name, sign[1], wanted, twin, is_quoted=value[1] is not None)

    def _what(self, begun: str, column: Column[Any], sign: str) -> str:
        """Return why the value is missing."""
        ahead = self._next()
        if ahead == '"':
            return 'a closing " is missing'
        if ahead and ahead in "()&|":
            return f'{begun} what? A value with {ahead} in it is written in "quotes": {begun}"a{ahead}b"'
        return f"{begun} what? For example {begun}{_example(column, sign)}"

    def _column(self, name: str) -> Column[Any]:
        low = name.casefold()
        if low in self._names:
            return self._names[low]
        near = difflib.get_close_matches(low, self._names, n=1)
        hint = f": did you mean {near[0]}? There" if near else "; there"
        raise QueryError(f"there is no column {name}{hint} are {', '.join(column.name for column in self._columns)}")

    def _next(self) -> str:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1
        return self._text[self._at : self._at + 1]

    def _take(self, sign: str) -> bool:
        if self._next() != sign:
            return False
        self._at += 1
        return True

    def _rest(self) -> str:
        self._next()
        return self._text[self._at : self._at + 20]


def _example(column: Column[Any], sign: str) -> str:
    return "train" if "~" in sign else EXAMPLES[column.unit] if sign[0] in "<>" else "?"
