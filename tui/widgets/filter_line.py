"""The line in which the user types a filter. The table is filtered at every key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.suggester import Suggester
from textual.widgets import Input, Static

from slurm_share.load import Column

from ..keymap import FILTER_LINE
from ..query import LONGEST, completed_name
from .grid import Grid


class FilterLine(Horizontal):
    """Hidden until `open` is called for a table, and while the table has no filter. Enter keeps the filter and returns
    to the table; Esc clears it."""

    DEFAULT_CSS = """
    FilterLine {
        height: 1;
        display: none;
        background: $panel;
        & > .filter-line--sign { width: 2; color: $text-accent; text-style: bold; }
        & > Input { width: 1fr; min-width: 12; background: $panel; padding: 0; }
        & > .filter-line--note {
            width: auto; max-width: 65%; height: 1; padding: 0 1; color: $text-muted;
            text-wrap: nowrap; text-overflow: ellipsis;
        }
        & > .-mistake { color: $text-error; text-style: bold; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [*FILTER_LINE]

    def __init__(self) -> None:
        super().__init__()
        self.grid: Grid[Any] | None = None
        """The table that is filtered."""
        self._followed: list[Grid[Any]] = []

    def compose(self) -> ComposeResult:
        yield Static("/", classes="filter-line--sign", markup=False)
        yield Input(compact=True, max_length=LONGEST, select_on_focus=False)
        yield Static("", classes="filter-line--note", markup=False)

    def open(self, grid: Grid[Any]) -> None:
        self.show_for(grid)
        self.display = True
        self._input.suggester = ColumnNames(grid.columns)
        self.screen.set_focus(self._input)  # at once: `focus()` takes effect after the next keys
        self._input.cursor_position = len(self._input.value)

    def forget(self) -> None:
        """Forget all tables: they are removed."""
        self._followed.clear()
        self.show_for(None)

    def show_for(self, grid: Grid[Any] | None) -> None:
        """Show the filter of this table, if it has one."""
        if grid is not self.grid and grid is not None and grid not in self._followed:
            self._followed.append(grid)
            grid.arranged.subscribe(self, self._on_arranged)
        self.grid = grid
        text = "" if grid is None else grid.query_text
        with self.prevent(Input.Changed):
            if self._input.value.strip() != text:
                self._input.value = text
        self.display = bool(text) or (self._input.has_focus and grid is not None)
        self._say()

    @on(Input.Changed)
    def _follow(self, event: Input.Changed) -> None:
        event.stop()
        if self.grid is not None:
            self.grid.ask(event.value, is_whole=False)
            self._say()

    @on(Input.Submitted)
    def _keep(self, event: Input.Submitted) -> None:
        """Keep the filter; explain an invalid one, which can be corrected."""
        event.stop()
        if self.grid is None:
            return
        self.grid.ask(event.value)
        self._say()
        if self.grid.mistake:
            self.app.notify(self.grid.mistake, title="Filter", severity="warning", markup=False)
            return
        self.display = bool(self.grid.query_text)
        self.grid.focus()

    def action_clear(self) -> None:
        """Clear the filter and return to the table."""
        if self.grid is not None:
            self.grid.query_text = ""
            self.show_for(self.grid)
            self.grid.focus()
        self.display = False

    def action_grid(self, name: str, by: int) -> None:
        """Move the cursor of the table while typing."""
        if self.grid is not None:
            getattr(self.grid, f"action_{name}")(by)

    @property
    def _input(self) -> Input:
        return self.query_one(Input)

    def _on_arranged(self, grid: Grid[Any]) -> None:
        if grid is self.grid and self.display:
            self._say()

    def _say(self) -> None:
        note, said = self.query_one(".filter-line--note", Static), ""
        if self.grid is not None:
            waits = f", not fetched yet: {', '.join(self.grid.waits_for)}" if self.grid.waits_for else ""
            said = self.grid.mistake or f"{self.grid.count_text()}{waits}"
        note.set_class(self.grid is not None and bool(self.grid.mistake), "-mistake")
        note.update(Content(said))


class ColumnNames(Suggester):
    def __init__(self, columns: Sequence[Column[Any]]) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._columns = columns

    async def get_suggestion(self, value: str) -> str | None:
        name = completed_name(value, self._columns)
        begun = re.split(r"[\s&|(!]", value)[-1]
        return value + name[len(begun) :] if name else None
