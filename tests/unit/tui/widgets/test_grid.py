"""The table's cursor, order, marks and filter."""

from __future__ import annotations

import pytest
from grids import Thing, lines, names, table, things
from slurm_share_tui.widgets.grid import Grid

# --- Cursor -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "line", "top"),
    [
        (["down", "j"], 2, 0),
        (["down", "down", "up"], 1, 0),
        (["k"], 0, 0),
        (["end"], 99, 89),
        (["G"], 99, 89),
        (["G", "home"], 0, 0),
        (["end", "g"], 0, 0),
        (["pagedown"], 10, 10),
        (["down", "pagedown", "pagedown"], 21, 20),
        (["pagedown", "pageup"], 0, 0),
        (["end", "pageup"], 89, 79),
        (["pageup"], 0, 0),
        (["down"] * 11, 11, 1),
        (["down"] * 11 + ["up"] * 10, 1, 1),
    ],
)
async def test_keys_move_the_cursor_and_the_view_no_further_than_it_must(keys: list[str], line: int, top: int) -> None:
    async with table() as (pilot, grid, _):
        await pilot.press(*keys)
        await pilot.pause()
        assert (grid.cursor, grid.scroll_offset.y) == (line, top)
        assert names(grid)[line - top] == grid.row.name == f"n{line + 1}"


async def test_the_cursor_stays_on_its_row_when_a_new_picture_moves_it() -> None:
    async with table() as (pilot, grid, _):
        await pilot.press("down", "down")
        grid.show(things(100)[::-1])
        await pilot.pause()
        assert grid.row == things(100)[2]
        assert grid.cursor == 97
        assert "n3" in names(grid)


async def test_a_cursor_that_nobody_has_moved_stays_on_the_first_line() -> None:
    async with table() as (pilot, grid, _):
        await pilot.press("L")
        assert grid.row == things(100)[99]
        grid.show((Thing("n500", 5.0), *things(100)))
        await pilot.pause()
        assert grid.row.name == "n500"
        await pilot.press("down", "home")
        grid.show(things(100))
        assert grid.cursor == 0


async def test_where_its_row_has_gone_the_cursor_is_on_the_next_one_and_goes_back_to_it() -> None:
    async with table() as (pilot, grid, _):
        grid.put(50)
        grid.show([thing for thing in things(100) if thing.name not in ("n51", "n52")])
        assert grid.row == things(100)[52]
        grid.show(things(100))
        assert grid.row == things(100)[50]
        grid.show(things(40))
        assert grid.row == things(40)[39]
        grid.show(())
        assert grid.row is None
        await pilot.press("down", "end", "space", "pagedown", "r")
        assert grid.marked_rows() == ()
        grid.show(things(100))
        assert grid.row == things(100)[50]


async def test_the_wheel_takes_the_cursor_along() -> None:
    async with table() as (pilot, grid, _):
        await pilot.press("down")
        grid.scroll_to(y=30, animate=False)
        await pilot.pause()
        assert grid.cursor == 30
        grid.scroll_to(y=5, animate=False)
        await pilot.pause()
        assert grid.cursor == 15
        assert names(grid)[10] == "n16"


async def test_a_cursor_that_nobody_has_moved_is_on_the_first_line_that_is_seen() -> None:
    async with table() as (pilot, grid, _):
        grid.scroll_to(y=30, animate=False)
        await pilot.pause()
        assert grid.cursor == 30
        grid.show(things(100)[::-1])
        await pilot.pause()
        assert (grid.cursor, grid.scroll_offset.y) == (30, 30)
        grid.show(things(20))
        await pilot.pause()
        assert (grid.cursor, grid.scroll_offset.y) == (9, 9)
        assert names(grid)[0] == "n10"
        grid.sort_by("load")
        await pilot.pause()
        assert (grid.cursor, grid.scroll_offset.y) == (0, 0)
        assert names(grid)[0] == "n20"


async def test_fewer_rows_leave_no_empty_lines() -> None:
    async with table() as (pilot, grid, _):
        await pilot.press("end", "up", "up", "up", "up", "up", "up")
        grid.show(things(97))
        await pilot.pause()
        assert grid.row == things(97)[93]
        assert names(grid)[-1] == "n97"
        assert len(names(grid)) == 11


async def test_a_smaller_terminal_still_shows_the_cursor() -> None:
    async with table() as (pilot, grid, _):
        await pilot.press(*["down"] * 10)
        for size in ((80, 5), (20, 5), (20, 2), (300, 100), (80, 24)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            assert "n11" in names(grid)
        assert len(names(grid)) == 23


async def test_moving_is_told_once_for_each_row() -> None:
    async with table() as (pilot, grid, app):
        await pilot.pause()
        app.said.clear()
        await pilot.press("up")
        await pilot.pause()
        assert not app.said
        await pilot.press("down")
        await pilot.pause()
        assert len(app.heard(Grid.Moved)) == 1
        assert app.said[0].grid is grid
        app.said.clear()
        grid.show(things(100))
        await pilot.pause()
        assert not app.said
        grid.show(things(1))
        grid.show(())
        await pilot.pause()
        assert app.heard(Grid.Moved)


# --- Order ------------------------------------------------------------------------------------------------------------


async def test_shift_and_the_letter_of_a_heading_sort_by_it() -> None:
    async with table() as (pilot, grid, app):
        assert grid.letters == {"name": "N", "load": "L", "user": "U", "trend": "T", "size": "I", "extra": "E"}
        await pilot.press("L")
        assert grid.sort == ("load", True)
        assert names(grid)[:2] == ["n100", "n99"]
        assert "▼LOAD" in lines(grid)[0]
        await pilot.press("L")
        assert grid.sort == ("load", False)
        assert "▲LOAD" in lines(grid)[0]
        await pilot.press("N")
        assert names(grid)[:3] == ["n1", "n2", "n3"]
        assert "NAME▲" in lines(grid)[0]
        assert len(app.heard(Grid.Changed)) == 3


async def test_a_letter_that_is_a_key_already_sorts_nothing() -> None:
    async with table() as (pilot, grid, _):
        assert "G" not in grid.letters.values()
        assert "S" not in grid.letters.values()
        await pilot.press("S")
        assert grid.sort == ("", False)


async def test_less_and_greater_sort_by_the_next_column_and_stop_at_the_first() -> None:
    async with table() as (pilot, grid, _):
        for key, column in ((">", "name"), (">", "load"), ("<", "name"), ("<", "name")):
            await pilot.press("greater_than_sign" if key == ">" else "less_than_sign")
            assert grid.sort[0] == column


async def test_r_sorts_the_other_way_round() -> None:
    async with table() as (pilot, grid, _):
        await pilot.press("r")
        assert names(grid)[0] == "n100"
        await pilot.press("r")
        assert names(grid)[0] == "n1"


async def test_the_order_is_kept_for_the_next_picture_and_unknown_is_last() -> None:
    async with table() as (_, grid, _):
        grid.sort_by("load", True)
        grid.show([Thing("a", None), Thing("b", 0.1), Thing("c", 0.9)])
        assert names(grid) == ["c", "b", "a"]
        grid.action_reverse()
        assert names(grid) == ["b", "c", "a"]
        grid.sort_by("")
        assert names(grid) == ["a", "b", "c"]
        grid.sort_by("there is none such")
        assert grid.sort == ("", False)


# --- Marks ------------------------------------------------------------------------------------------------------------


async def test_space_marks_and_goes_on_and_u_unmarks() -> None:
    async with table() as (pilot, grid, _):
        await pilot.press("space", "space", "down", "space")
        await pilot.pause()
        assert grid.marks == {"n1", "n2", "n4"}
        assert [line[0] for line in lines(grid)[1:6]] == ["*", "*", " ", "*", " "]
        await pilot.press("up", "space")
        assert grid.marks == {"n1", "n2"}
        await pilot.press("u")
        await pilot.pause()
        assert not grid.marks
        assert lines(grid)[1][0] == " "


async def test_marks_stay_with_their_rows_and_come_in_the_order_of_the_table() -> None:
    async with table() as (_, grid, _):
        grid.marks = frozenset(("n3", "n70", "n5", "gone"))
        grid.sort_by("load", True)
        assert [thing.name for thing in grid.marked_rows()] == ["n70", "n5", "n3"]
        grid.show(things(60)[::-1])
        assert grid.marks == {"n3", "n5"}
        grid.query_text = "load<=6"
        assert [thing.name for thing in grid.marked_rows()] == ["n3", "n5"]
        grid.show(things(100))
        assert grid.marks == {"n3", "n5", "n70"}


# --- Filter -----------------------------------------------------------------------------------------------------------


async def test_a_filter_stays_for_the_next_picture() -> None:
    async with table() as (_, grid, _):
        grid.query_text = " load>98 "
        assert (grid.count, grid.total, grid.query_text) == (2, 100, "load>98")
        grid.show(things(200))
        assert (grid.count, grid.total) == (3, 200)  # 98.5 is shown as 98%
        assert [thing.name for thing in grid.shown_rows] == ["n198", "n199", "n200"]


async def test_a_mistake_leaves_the_filter_that_there_was() -> None:
    async with table() as (pilot, grid, app):
        grid.query_text = "load>98"
        await pilot.pause()
        app.said.clear()
        grid.query_text = "lod>98"
        await pilot.pause()
        assert (grid.count, grid.query_text) == (2, "load>98")
        assert grid.mistake.startswith("there is no column lod: did you mean load?")
        assert not app.heard(Grid.Changed)
        grid.query_text = ""
        assert (grid.count, grid.mistake) == (100, "")


async def test_the_cursor_comes_back_to_its_row_when_the_filter_goes() -> None:
    async with table() as (_, grid, _):
        grid.put(41)
        grid.query_text = "name~n*5"
        assert grid.row == things(100)[44]
        grid.query_text = ""
        assert grid.row == things(100)[41]


async def test_a_table_without_rows_says_why() -> None:
    async with table() as (pilot, grid, _):
        grid.query_text = "nobody"
        await pilot.pause()
        assert "none of 100 rows fits the filter nobody; Esc clears it" in lines(grid)[2]
        grid.show(())
        await pilot.pause()
        assert "there is no thing" in lines(grid)[2]
        assert lines(grid)[0].split()[0] == "NAME"
