"""The filter line."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from dashboards import until
from grids import GridApp, table, things
from slurm_share_tui.widgets.filter_line import FilterLine
from textual.pilot import Pilot
from textual.widgets import Input, Static


@asynccontextmanager
async def filter_table() -> AsyncIterator[tuple[Pilot[Any], GridApp, FilterLine]]:
    """Run a table with a hundred rows."""
    async with table() as (pilot, _, app):
        yield pilot, app, app.query_one(FilterLine)


def note(line: FilterLine) -> str:
    """Return the note at the right end."""
    return str(line.query_one(".filter-line--note", Static).render())


async def test_the_table_follows_every_letter_and_enter_keeps_the_filter() -> None:
    async with filter_table() as (pilot, app, line):
        assert not line.display
        await pilot.press("slash", *"n9")
        await pilot.pause()
        assert line.display
        assert app.grid.count == 11
        assert note(line) == "11 of 100"
        await pilot.press("enter")
        await pilot.pause()
        assert app.grid.has_focus
        assert line.display
        assert app.grid.query_text == "n9"
        app.grid.show(things(200))
        await pilot.pause()
        assert note(line) == "11 of 200"


async def test_escape_clears_it() -> None:
    async with filter_table() as (pilot, app, line):
        await pilot.press("slash", *"n9", "enter", "slash")
        await pilot.pause()
        assert line.query_one(Input).value == "n9"
        await pilot.press("escape")
        await pilot.pause()
        assert (app.grid.count, app.grid.query_text) == (100, "")
        assert not line.display
        assert app.grid.has_focus


async def test_an_empty_filter_is_none() -> None:
    async with filter_table() as (pilot, app, line):
        await pilot.press("slash", "enter")
        await pilot.pause()
        assert not line.display
        assert app.grid.has_focus


async def test_a_mistake_is_said_while_one_writes_and_kept_to_be_corrected() -> None:
    async with filter_table() as (pilot, app, line):
        await pilot.press("slash", *"load>98")
        await pilot.pause()
        assert app.grid.count == 2
        await pilot.press(*" & [x]=3", "enter")
        await pilot.pause()
        assert note(line).startswith("there is no column [x]")
        assert app.grid.count == 2
        assert line.query_one(Input).has_focus
        assert line.query_one(Input).value == "load>98 & [x]=3"


async def test_what_fits_nothing_yet_does_not_empty_the_table() -> None:
    async with filter_table() as (pilot, app, line):
        await pilot.press("slash", *"load")
        await pilot.pause()
        assert app.grid.count == 100
        assert note(line) == "nothing fits"
        await pilot.press(*">98")
        await pilot.pause()
        assert app.grid.count == 2
        await pilot.press("escape", "slash", *"load", "enter")
        await pilot.pause()
        assert app.grid.count == 0


async def test_the_name_of_a_column_is_completed() -> None:
    async with filter_table() as (pilot, _, line):
        await pilot.press("slash", *"n9 & lo")
        entry = line.query_one(Input)
        await until(pilot, lambda: entry._suggestion)
        await pilot.press("right")
        assert entry.value == "n9 & load"


async def test_the_cursor_moves_while_one_writes() -> None:
    async with filter_table() as (pilot, app, line):
        await pilot.press("slash", "n", "down", "down", "up", "pagedown")
        await pilot.pause()
        assert app.grid.cursor > 1
        assert line.query_one(Input).has_focus


async def test_another_table_has_its_own_filter() -> None:
    async with filter_table() as (pilot, app, line):
        await pilot.press("slash", *"n9", "enter")
        line.show_for(None)
        assert not line.display
        line.show_for(app.grid)
        assert line.display
        assert line.query_one(Input).value == "n9"
        assert app.grid.query_text == "n9"
