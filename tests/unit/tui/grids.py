"""An app with one table, for the tests of tables."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from dashboards import running
from rich.cells import cell_len
from slurm_share_tui.widgets.filter_line import FilterLine
from slurm_share_tui.widgets.grid import Grid
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.pilot import Pilot
from textual.strip import Strip

from slurm_share.load.columns.base import Column, Letter


@dataclass(frozen=True)
class Thing:
    """A row of the table."""

    name: str
    load: float | None = 0.0
    user: str = "alice"
    letter: Letter = ""


def things(count: int, begin: int = 1) -> tuple[Thing, ...]:
    """Return `count` rows with a load that grows with their number."""
    return tuple(Thing(f"n{number}", number / count) for number in range(begin, begin + count))


def percent(thing: Thing) -> float | None:
    """Return the load in percent, the value for sorting."""
    return None if thing.load is None else 100 * thing.load


def columns(**words: Any) -> tuple[Column[Thing], ...]:
    """Return columns of every kind. `words`: further options of the user column."""
    return (
        Column("name", "NAME", "what it is called", lambda thing: thing.name, lambda thing: thing.name, least=6),
        Column(
            "load", "LOAD", "how busy it is, percent",
            text=lambda thing: "?" if thing.load is None else f"{percent(thing):.0f}%",
            value=percent, bar=lambda thing: thing.load, right=True, most=18, sorts_down=True,
            letter=lambda thing: thing.letter,
        ),
        Column("user", "USER", "whose it is", lambda thing: thing.user, lambda thing: thing.user, **words),
        Column(
            "trend", "TREND", "how busy it was", lambda thing: "", lambda thing: None,
            spark=lambda thing: (0.0, None, 100.0), goes=9,
        ),
        Column("size", "SIZE", "GB", lambda thing: "16GB", lambda thing: 16, right=True, goes=5),
        Column("extra", "EXTRA", "more", lambda thing: "more", lambda thing: "more", shown=False),
    )  # fmt: skip


class GridApp(App[None]):
    """A table with its filter line; keeps the table's messages."""

    BINDINGS = (Binding("slash", "filter"), Binding("S", "silence"))

    def __init__(self, rows: Sequence[Thing] = (), made: Callable[[], tuple[Column[Thing], ...]] = columns) -> None:
        super().__init__()
        self.rows, self.made = rows, made
        self.said: list[Grid.GridMessage] = []

    def compose(self) -> ComposeResult:
        yield FilterLine()
        yield Grid(self.made(), lambda thing: thing.name, name="things", empty="there is no thing")

    def on_mount(self) -> None:
        self.grid.focus()
        self.grid.show(self.rows)

    def action_filter(self) -> None:
        """Open the filter line."""
        self.query_one(FilterLine).open(self.grid)

    def action_silence(self) -> None:
        """Do nothing: the letter of this key is taken."""

    def on_grid_moved(self, event: Grid.Moved) -> None:
        self.said.append(event)

    on_grid_changed = on_grid_moved
    on_grid_entered = on_grid_moved

    @property
    def grid(self) -> Grid[Thing]:
        """The table of the app."""
        return self.query_one(Grid)

    def heard(self, kind: type[Grid.GridMessage]) -> list[Any]:
        """Return the messages of this kind."""
        return [one for one in self.said if type(one) is kind]


def strips(grid: Grid[Any]) -> list[Strip]:
    """Return the table's lines as the screen has them."""
    return grid.render_lines(grid.size.region)


def lines(grid: Grid[Any]) -> list[str]:
    """Return the table's lines as text without the scroll bar, headings first."""
    assert all(cell_len(strip.text) == strip.cell_length == grid.size.width for strip in strips(grid))
    return [strip.text for strip in strips(grid)]


def names(grid: Grid[Any]) -> list[str]:
    """Return the first word of every row on the screen."""
    return [line[1:].split()[0] for line in lines(grid)[1 : grid.count + 1] if line.strip()]


@asynccontextmanager
async def table(
    rows: tuple[Thing, ...] = things(100), size: tuple[int, int] = (80, 12), **words: Any
) -> AsyncIterator[tuple[Pilot[Any], Grid[Thing], GridApp]]:
    """Run a table with these rows."""
    app = GridApp(rows, **words)
    async with running(app, size) as pilot:
        yield pilot, app.grid, app
