"""One column: how a quantity is read from a row, its unit, its text, and which outputs have it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from ..text import UNKNOWN, Letter, Triple

Row = TypeVar("Row")
Value = float | int | str | None
"""None: nobody could say. It is last whichever way a table is sorted, and no filter but `column=?` finds it."""
Raw = str | int | float | bool | None
"""A field of TSV or CSV; None: empty."""
Unit = Literal["", "%", "GB", "s"]
Output = Literal["table", "plain", "values", "dashboard"]
"""llload's tables, llload --plain, TSV and CSV, the dashboard with its filters, help and choice of columns."""
EVERYWHERE: frozenset[Output] = frozenset({"table", "plain", "values", "dashboard"})
GOES_FIRST = 50
"""`goes` of a column for which nobody chose one."""
REST = "*"
"""In an order of ids: the columns that it does not name."""


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column. Its functions are pure, quick, and called for visible rows only, `value` for every row when sorting or
    filtering by it."""

    id: str
    """Its name in filters, in sorting and in the user's configuration: gpu, mem, user ..."""
    heading: str
    doc: str
    """Its meaning and unit, in one line, for the help and the choice of columns."""
    text: Callable[[Row], str]
    """Returns the text of a cell: `?` where the value is not known, `-` where there is none."""
    value: Callable[[Row], Value]
    """Returns the value for sorting and filtering, in the unit that a person would write: percent, GB, seconds."""
    unit: Unit = ""
    """The unit of `value`; a filter with another unit is refused. Empty: a count, a load, a name."""
    needs: Literal["", "details"] = ""
    """details: nobody knows its values where of each node only a line was fetched (`Picture.details`)."""
    outputs: frozenset[Output] = EVERYWHERE
    """Which outputs have it."""
    field: str = ""
    """Its name in TSV and CSV, that of the record's field; empty: its id."""
    raw: Callable[[Row], Raw] | None = None
    """Returns the value for TSV and CSV, not rounded, in the unit of the record. None: as `value`."""
    table: Callable[[Row], str] | None = None
    """Returns the text for llload's tables. None: as `text`."""
    triple: Callable[[Row], Triple] | None = None
    """TOTAL, USED, FREE, where llload's tables have all three."""
    plain: Callable[[Row], str] | None = None
    """Returns the text for --plain. None: heading and text."""
    is_moment: bool = False
    """The text is a time of day, and `value` the seconds until then, below 0 for the past."""
    twin: str = ""
    """Id of the column with the same quantity in another unit, for a filter that names that unit."""
    right: bool = False
    """Numbers stand at the right."""
    least: int = 4
    """Narrower the dashboard never draws it (columns of the terminal)."""
    keeps: int = 0
    """So much of its text is never cut; where it says less, it is narrower (but for `least`)."""
    most: int = 40
    """Wider neither; longer text is cut with a sign."""
    goes: int = 0
    """Where the dashboard is too narrow, columns are left out, the highest of these first; 0: never."""
    letter: Callable[[Row], Letter] | None = None
    """What marks its cell: colour where there are colours, and never colour alone, since `text` or another column says
    the same."""
    bar: Callable[[Row], float | None] | None = None
    """A bar before the text, 0.0 to 1.0 is empty to full (above is full, and marked); None: not known."""
    spark: Callable[[Row], Sequence[float | None]] | None = None
    """A sparkline instead of text, of percent on a fixed scale of 0 to 100, newest last; the dashboard's only."""
    alias: tuple[str, ...] = ()
    """Further names for filters."""
    shown: bool = True
    """Whether the dashboard has it before the user chose."""
    unless_empty: bool = False
    """Whether it is left out of tables and lines in which it has nothing to say: `text` is empty where `value` is
    None."""
    sorts_down: bool = False
    """Whether sorting by it begins with the largest."""

    @property
    def name(self) -> str:
        """What a filter calls it first: its heading, since that is what one reads; where that is no one word, its
        id."""
        return self.id if " " in self.heading or not self.heading else self.heading.casefold()

    @property
    def field_name(self) -> str:
        """Its name in TSV and CSV."""
        return self.field or self.id

    def table_of(self, row: Row) -> str:
        """Return what llload's tables say of a row, where it has no `triple`."""
        return self.text(row) if self.table is None else self.table(row)

    def raw_of(self, row: Row) -> Raw:
        """Return what TSV and CSV have of a row."""
        return self.value(row) if self.raw is None else self.raw(row)

    def says(self, row: Row) -> bool:
        """Return whether a line of facts has it."""
        return not self.unless_empty or self.value(row) is not None

    def plain_of(self, row: Row, between: str = " ") -> str:
        """Return what --plain says of a row, such as: memory 2.0GB of 32.0GB used. `between`: heading and text."""
        if self.plain is not None:
            return self.plain(row)
        text = self.text(row)
        return f"{self.heading.casefold()}{between}{'unknown' if text == UNKNOWN else text}"


def shown_in(output: Output, columns: Iterable[Column[Row]], order: Sequence[str] = (REST,)) -> tuple[Column[Row], ...]:
    """Return the columns that an output has. `order`: of ids, with REST for those that it does not name."""
    found = {column.id: column for column in columns if output in column.outputs}
    rest = [column for id, column in found.items() if id not in order]
    return tuple(column for id in order for column in (rest if id == REST else [found[id]]))
