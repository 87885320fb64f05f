"""The table's columns, mouse and drawing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from grids import Thing, columns, lines, names, strips, table, things
from slurm_share_tui.widgets.grid import Grid

from slurm_share.load.columns.base import Column

# --- Columns ----------------------------------------------------------------------------------------------------------


async def test_columns_are_those_that_were_chosen_in_their_order() -> None:
    async with table() as (pilot, grid, _):
        assert lines(grid)[0].split() == ["NAME", "LOAD", "USER", "TREND", "SIZE"]
        grid.chosen = ("extra", "name", "extra", "nonsense")
        await pilot.pause()
        assert grid.chosen == ("extra", "name")
        assert lines(grid)[0].split() == ["EXTRA", "NAME"]
        grid.chosen = ()
        assert grid.chosen == ("extra", "name")


async def test_a_narrow_terminal_leaves_out_what_may_go_and_the_right_key_reaches_it() -> None:
    async with table(size=(33, 12)) as (pilot, grid, _):
        assert lines(grid)[0].split() == ["NAME", "LOAD", "USER", "SIZE›"]
        await pilot.press("right")
        assert lines(grid)[0].split()[:2] == ["NAME", "LOAD"]
        seen = set()
        for _ in range(6):
            seen |= set(lines(grid)[0].split())
            await pilot.press("right")
            assert lines(grid)[1].startswith(" n1 ")
        assert {"TREND", "SIZE", "USER", "LOAD"} < seen
        assert lines(grid)[0].startswith("‹")
        assert not lines(grid)[0].rstrip().endswith("›")
        for _ in range(8):
            await pilot.press("left")
        assert lines(grid)[0].split() == ["NAME", "LOAD", "USER", "SIZE›"]


async def test_where_all_columns_are_seen_there_is_no_sideways() -> None:
    async with table() as (pilot, grid, _):
        before = lines(grid)
        await pilot.press("right", "right", "left")
        assert lines(grid) == before


async def test_columns_grow_with_what_is_seen_and_not_with_every_picture() -> None:
    async with table() as (pilot, grid, _):
        before = lines(grid)[0]
        grid.show([replace(thing, user="bo") for thing in things(100)])
        await pilot.pause()
        assert lines(grid)[0] == before
        grid.show([replace(thing, user="somebody-else") for thing in things(100)])
        await pilot.pause()
        assert lines(grid)[0] != before
        assert "somebody-else" in lines(grid)[1]


# --- Mouse ------------------------------------------------------------------------------------------------------------


async def test_a_click_on_a_heading_sorts_and_on_a_row_moves_the_cursor() -> None:
    async with table() as (pilot, grid, app):
        await pilot.click(grid, offset=(lines(grid)[0].index("LOAD"), 0))
        assert grid.sort == ("load", True)
        await pilot.click(grid, offset=(5, 3))
        assert grid.row == things(100)[97]
        await pilot.click(grid, offset=(5, 4), control=True)
        assert grid.marks == {"n97"}
        await pilot.double_click(grid, offset=(5, 6))
        await pilot.pause()
        assert [event.row.name for event in app.heard(Grid.Entered)] == ["n95"]


async def test_a_click_below_the_last_row_does_nothing() -> None:
    async with table(rows=things(3)) as (pilot, grid, app):
        await pilot.double_click(grid, offset=(5, 6))
        grid.show(())
        await pilot.double_click(grid, offset=(5, 1))
        await pilot.pause()
        assert not app.heard(Grid.Entered)


# --- Drawing ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def draws_only_what_a_test_looks_at() -> None:
    """Let textual draw what has changed, as it does for a terminal."""


async def test_only_lines_that_are_different_are_drawn_again() -> None:
    async with table() as (pilot, grid, _):
        await pilot.pause()
        drawn: list[int] = []
        before = grid.render_line

        def counted(y: int) -> Any:
            drawn.append(y)
            return before(y)

        grid.render_line = counted  # type: ignore[method-assign]
        rows = list(things(100))
        grid.show(tuple(rows))
        await pilot.pause()
        assert drawn == []
        rows[3] = replace(rows[3], user="bob")
        grid.show(tuple(rows))
        await pilot.pause()
        assert drawn == [4]
        assert "bob" in lines(grid)[4]
        drawn.clear()
        await pilot.press("down")
        await pilot.pause()
        assert sorted(set(drawn)) == [1, 2]


async def test_only_rows_that_are_seen_are_thought_out() -> None:
    asked: list[str] = []

    def counted() -> tuple[Column[Thing], ...]:
        first, *others = columns()

        def text(thing: Thing) -> str:
            asked.append(thing.name)
            return thing.name

        return (replace(first, text=text), *others)

    async with table(rows=things(10_000), made=counted) as (pilot, grid, _):
        assert 11 <= len(asked) < 200
        asked.clear()
        grid.show(things(10_000))
        await pilot.pause()
        assert len(asked) == 11
        asked.clear()
        await pilot.press("pagedown")
        await pilot.pause()
        assert len(asked) <= 11


async def test_a_mark_is_more_than_a_hue() -> None:
    async with table(rows=(Thing("a"), Thing("b", 1.5, letter="!"), Thing("c", 0.9, letter="H"), Thing("d"))) as (
        _,
        grid,
        _,
    ):

        def style(line: int) -> Any:
            return next(segment.style for segment in strips(grid)[line] if "%" in segment.text)

        assert style(2).reverse
        assert style(2).bold
        assert style(3).bold
        assert not style(4).bold
        plain, cursor = strips(grid)[4], strips(grid)[1]
        assert {segment.style.bgcolor for segment in cursor} != {segment.style.bgcolor for segment in plain}


@pytest.mark.usefixtures("colourless")
async def test_the_cursor_is_seen_without_colours() -> None:
    async with table() as (pilot, grid, app):
        assert all(segment.style.reverse for segment in row(grid, 1))
        assert not any(segment.style.reverse for segment in row(grid, 2))
        app.set_focus(None)
        await pilot.pause()
        assert all(segment.style.underline and not segment.style.reverse for segment in row(grid, 1))


def row(grid: Grid[Thing], y: int) -> Any:
    """Return a line without the scroll bar."""
    return strips(grid)[y].crop(0, grid.size.width - 1)


@pytest.fixture
def colourless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set NO_COLOR."""
    monkeypatch.setenv("NO_COLOR", "1")


async def test_another_theme_is_drawn_at_once() -> None:
    async with table() as (pilot, grid, app):
        before = strips(grid)
        app.theme = "textual-light"
        await pilot.pause()
        after = strips(grid)
        assert all(new != old for new, old in zip(after, before, strict=True))


async def test_a_table_that_is_hidden_has_the_newest_rows_when_it_is_shown() -> None:
    async with table() as (pilot, grid, _):
        grid.display = False
        await pilot.pause()
        grid.show([replace(thing, user="bob") for thing in things(100)])
        grid.sort_by("load", True)
        await pilot.pause()
        grid.display = True
        await pilot.pause()
        assert names(grid)[0] == "n100"
        assert "bob" in lines(grid)[1]


async def test_a_table_may_have_its_rows_before_it_is_on_a_screen() -> None:
    async with table() as (pilot, _, app):
        other = Grid(columns(), lambda thing: thing.name, name="other")
        other.sort_by("load", True)
        other.show(things(100))
        other.query_text = "load>50"
        other.put(40)
        await app.mount(other)
        await pilot.pause()
        assert other.row == things(100)[59]
        assert "n60" in names(other)
