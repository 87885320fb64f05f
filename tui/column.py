"""One column of a table of the dashboard: what its cells say, what they are sorted and filtered by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

Row = TypeVar("Row")
Value = float | int | str | None
"""None: nobody could say. It is last whichever way a table is sorted, and no filter but `column=?` finds it."""
Unit = Literal["", "%", "GB", "s"]
Letter = Literal["L", "H", "!", ""]
"""How a cell is marked, besides its words: low, high, over; as llload's flags."""


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column. Its functions are pure, quick, and called for visible rows only, `value` for every row when sorting or
    filtering by it."""

    id: str
    """What filters, the sort, and the user's own configuration call it: gpu, mem, user ..."""
    heading: str
    doc: str
    """What it means, with its unit: a line for the help and the choice of columns."""
    text: Callable[[Row], str]
    """What a cell says; `?` where nobody could say, `-` where there is none."""
    value: Callable[[Row], Value]
    """What it is sorted and filtered by, in the unit that a person would write: percent, GB, seconds."""
    unit: Unit = ""
    """What `value` is in; a filter with another unit is a mistake. Empty: a count, a load, a name."""
    is_moment: bool = False
    """The text is a time of day, and `value` the seconds until then, below 0 for the past."""
    twin: str = ""
    """Id of the column that has the same in another unit, for whoever asked this one for it."""
    details: bool = False
    """Nobody knows its values where of each node only a line was fetched (`Picture.details`)."""
    right: bool = False
    """Numbers stand at the right."""
    least: int = 4
    """Narrower it is never drawn (columns of the terminal)."""
    keeps: int = 0
    """So much of its text is never cut; where it says less, it is narrower (but for `least`)."""
    most: int = 40
    """Wider neither; longer text is cut with a sign."""
    goes: int = 0
    """Where the terminal is too narrow, columns are left out, the highest of these first; 0: never."""
    letter: Callable[[Row], Letter] | None = None
    """What marks its cell: colour where there are colours, and never colour alone, since `text` or another column says
    the same."""
    bar: Callable[[Row], float | None] | None = None
    """A bar before the text, 0.0 to 1.0 is empty to full (above is full, and marked); None: not known."""
    spark: Callable[[Row], Sequence[float | None]] | None = None
    """A sparkline instead of text, of percent on a fixed scale of 0 to 100, newest last."""
    alias: tuple[str, ...] = ()
    """Further names for filters."""
    shown: bool = True
    """Whether it is there before the user chose."""
    sorts_down: bool = False
    """Whether sorting by it begins with the largest."""

    @property
    def name(self) -> str:
        """What a filter calls it first: its heading, since that is what one reads; where that is no one word, its
        id."""
        return self.id if " " in self.heading or not self.heading else self.heading.casefold()
