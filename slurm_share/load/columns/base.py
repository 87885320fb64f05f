"""One column: how a quantity is read from a row, its unit, its text, and which outputs have it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from ...core.terminal import Cut
from ..text import UNKNOWN, Letter, Triple

Row = TypeVar("Row")
_Of = TypeVar("_Of", contravariant=True)
Value = float | int | str | None
"""None: not known. It comes last in either order, and only the filter `column=?` finds it."""
Raw = str | int | float | bool | None
"""A field of TSV or CSV; None: empty."""
Unit = Literal["", "%", "GB", "s"]
Output = Literal["table", "plain", "values", "dashboard"]
"""llload's tables, llload --plain, TSV and CSV, the dashboard with its filters, help and choice of columns."""
EVERYWHERE: frozenset[Output] = frozenset({"table", "plain", "values", "dashboard"})
TABLE: frozenset[Output] = frozenset({"table"})
DASHBOARD: frozenset[Output] = frozenset({"dashboard"})
ON_SCREEN = TABLE | DASHBOARD
VALUES: frozenset[Output] = frozenset({"values"})
NOT_PLAIN: frozenset[Output] = EVERYWHERE - {"plain"}
GOES_FIRST = 50
"""`goes` of a column that sets none."""
BARS_GO = 10
"""Columns with a higher `goes` are left out before bars are, and before a text is cut below `most`."""
REST = "*"
"""Stands in an order of ids for all columns that the order does not name."""


@dataclass(frozen=True, slots=True)
class Column(Generic[_Of]):
    """A column of a table. Its functions are pure and quick. They are called for visible rows only, except `value`,
    which is called for every row to sort and filter."""

    id: str
    """Name in filters, in sorting and in the user's configuration: gpu, mem, user ..."""
    heading: str
    doc: str
    """Meaning and unit, in one line, for the help and the choice of columns."""
    text: Callable[[_Of], str]
    """Returns the text of a cell: `?` if the value is not known, `-` if there is none."""
    value: Callable[[_Of], Value]
    """Returns the value for sorting and filtering, in the unit that a person would write: percent, GB, seconds."""
    has_names: bool = False
    """True: `value` is names joined by commas, with further ones than `text` has, which filters find as well: Slurm's
    number of an element of an array."""
    unit: Unit = ""
    """The unit of `value`; a filter with another unit is refused. Empty: a count, a load, a name."""
    needs: Literal["", "details"] = ""
    """details: not known if only a line per node was fetched (`Picture.details`)."""
    outputs: frozenset[Output] = EVERYWHERE
    """The outputs that have the column."""
    field: str = ""
    """Name in TSV and CSV, that of the record's field; empty: the id."""
    raw: Callable[[_Of], Raw] | None = None
    """Returns the value for TSV and CSV, not rounded, in the unit of the record. None: as `value`."""
    table: Callable[[_Of], str] | None = None
    """Returns the text for llload's tables. None: as `text`."""
    triple: Callable[[_Of], Triple] | None = None
    """Returns TOTAL, USED and FREE for a column that has all three in llload's tables."""
    plain: Callable[[_Of], str] | None = None
    """Returns the text for --plain. None: heading and text."""
    is_moment: bool = False
    """True: the text is a time of day, and `value` the seconds until then, negative for a time that is over."""
    twin: str = ""
    """Id of the column with the same quantity in another unit, for a filter that names that unit."""
    right: bool = False
    """True: aligned to the right, as numbers are."""
    least: int = 4
    """Least width in the dashboard, in columns of the terminal."""
    keeps: int = 0
    """Width to which the dashboard cuts no text while it can leave out another column; at most two fifths of a line."""
    most: int = 40
    """Width that the dashboard gives a text before it shows columns beyond BARS_GO; a longer text takes the width that
    is free. Also the largest width of a bar or a sparkline."""
    goes: int = 0
    """If the dashboard is too narrow, it leaves out the columns with the highest value first; 0: never."""
    short: Callable[[_Of], str] | None = None
    """Returns the text for which the dashboard's column makes room in a row whose other cells say nothing: there the
    whole text takes the place of the cells left of it. Empty: another row."""
    cut: Cut = "end"
    """Where a text is cut that is too long. Numbers (`right`) are never cut."""
    repeats: bool = False
    """True: left out first where all rows say the same, such as the user of one's own jobs. So is every column with a
    `goes` in which all rows say - or ?."""
    whole: Callable[[_Of], str] | None = None
    """Returns the begin of the text that the dashboard never cuts, such as a job's number; None: there is none."""
    letter: Callable[[_Of], Letter] | None = None
    """Returns the mark of the cell, which is shown by colour. `text` or another column says the same."""
    bar: Callable[[_Of], float | None] | None = None
    """Returns the length of a bar before the text, 0.0 to 1.0; above 1.0 it is full and marked. None: not known."""
    spark: Callable[[_Of], Sequence[float | None]] | None = None
    """Returns the percentages of a sparkline that the dashboard draws instead of text, newest last."""
    alias: tuple[str, ...] = ()
    """Further names for filters."""
    shown: bool = True
    """Whether the dashboard shows it by default."""
    takes_last: bool = False
    """True: it takes a letter to sort by after all others, so that they keep theirs."""
    unless_empty: bool = False
    """True: left out of tables and lines in which no row has a value (`value` is None, `text` empty)."""
    sorts_down: bool = False
    """Whether sorting by it starts with the largest."""

    @property
    def name(self) -> str:
        """Return its first name in filters: the heading, or the id if the heading is not a single word."""
        return self.id if " " in self.heading or not self.heading else self.heading.casefold()

    @property
    def field_name(self) -> str:
        """Return its name in TSV and CSV."""
        return self.field or self.id

    def table_of(self, row: _Of) -> str:
        """Return the text of a cell in llload's tables, for a column without `triple`."""
        return self.text(row) if self.table is None else self.table(row)

    def raw_of(self, row: _Of) -> Raw:
        """Return the value of a row in TSV and CSV."""
        return self.value(row) if self.raw is None else self.raw(row)

    def says(self, row: _Of) -> bool:
        """Return whether --plain and the dashboard's lines mention the column for a row."""
        return not self.unless_empty or self.value(row) is not None

    def plain_of(self, row: _Of, between: str = " ") -> str:
        """Return the text of a row in --plain, such as: memory 2.0GB of 32.0GB used. `between`: after the heading."""
        if self.plain is not None:
            return self.plain(row)
        text = self.text(row)
        return f"{self.heading.casefold()}{between}{'unknown' if text == UNKNOWN else text}"


def shown_in(output: Output, columns: Iterable[Column[Row]], order: Sequence[str] = (REST,)) -> tuple[Column[Row], ...]:
    """Return the columns of an output. `order`: their ids; REST stands for all ids that it does not name."""
    found = {column.id: column for column in columns if output in column.outputs}
    rest = [column for id, column in found.items() if id not in order]
    return tuple(column for id in order for column in (rest if id == REST else [found[id]]))
