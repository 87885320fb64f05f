"""The screen to choose the columns of a table."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from dashboards import Asks, running, until
from grids import columns, lines
from slurm_share_tui.screens.columns import Choices, ColumnsScreen
from textual.app import App
from textual.pilot import Pilot

SHOWN = ("name", "load", "user", "trend", "size")


def answered(
    *keys: str,
    chosen: tuple[str, ...] = SHOWN,
    size: tuple[int, int] = (80, 24),
    look: Callable[[Pilot[Any], Choices], Awaitable[None]] | None = None,
) -> tuple[str, ...] | None:
    """Return the answer to these keys."""
    app = Asks(ColumnsScreen(columns(), chosen))

    async def main() -> None:
        async with running(app, size) as pilot:
            await pilot.press(*keys)
            await pilot.pause()
            if look is not None:
                await look(pilot, app.screen.query_one(Choices))
                await pilot.press("enter")
            await until(pilot, lambda: app.answers)

    asyncio.run(main())
    assert len(app.answers) == 1
    return app.answers[0]


def test_enter_keeps_what_there_was_and_escape_answers_nothing() -> None:
    assert answered("enter") == SHOWN
    assert answered("space", "escape") is None


def test_a_chosen_column_without_room_is_marked() -> None:
    async def main() -> None:
        async with running(Asks(ColumnsScreen(columns(), SHOWN, without_room=("size", "extra")))) as pilot:
            text = "\n".join(lines(pilot.app.screen.query_one(Choices)))
            assert text.count("(no room)") == 1
            assert next(line for line in text.splitlines() if "(no room)" in line).split()[:2] == ["[x]", "SIZE"]

    asyncio.run(main())


def test_space_hides_and_shows() -> None:
    assert answered("down", "space", "enter") == ("name", "user", "trend", "size")
    assert answered("end", "space", "enter") == (*SHOWN, "extra")
    assert answered("down", "space", "space", "enter") == SHOWN


def test_shift_and_an_arrow_move_a_column_and_the_cursor_with_it() -> None:
    assert answered("down", "shift+up", "enter") == ("load", "name", "user", "trend", "size")
    assert answered("shift+down", "shift+down", "enter") == ("load", "user", "name", "trend", "size")
    assert answered("shift+up", "enter") == SHOWN
    assert answered("end", "shift+down", "space", "shift+up", "enter") == (*SHOWN[:4], "extra", "size")


def test_the_last_column_cannot_be_hidden() -> None:
    assert answered("space", "enter", chosen=("load",)) == ("load",)


def test_d_is_as_the_table_was_made() -> None:
    assert answered("d", "enter", chosen=("extra", "size", "nonsense")) == SHOWN


def test_every_column_is_explained() -> None:
    async def look(pilot: Pilot[Any], choices: Choices) -> None:
        said = lines(choices)
        assert "[x] LOAD" in said[2]
        assert "load" in said[2]
        assert "how busy it is, percent" in said[2]
        assert "[ ] EXTRA" in said[6]

    answered(look=look)


def test_a_click_on_the_box_shows_or_hides() -> None:
    async def look(pilot: Pilot[Any], choices: Choices) -> None:
        await pilot.click(choices, offset=(2, 2))
        await pilot.click(choices, offset=(12, 3))
        await pilot.click(choices, offset=(2, 0))
        await pilot.pause()
        assert choices.cursor == 2
        assert choices.sort == ("", False)

    assert answered(look=look) == ("name", "user", "trend", "size")


def test_letters_of_the_table_do_nothing_here() -> None:
    assert answered("N", "r", "u", "less_than_sign", "enter") == SHOWN


def test_it_can_be_used_in_the_smallest_terminal() -> None:
    assert answered("down", "space", "enter", size=(20, 5)) == ("name", "user", "trend", "size")


async def test_in_the_smallest_terminal_there_are_several_columns_to_be_seen() -> None:
    app: App[None] = App()
    async with running(app, size=(20, 5)) as pilot:
        await app.push_screen(ColumnsScreen(columns(), SHOWN))
        for _ in range(200):
            await pilot.pause()
            if app.screen.query_one(Choices).size.height == 4:
                return
        raise AssertionError(app.screen.query_one(Choices).size)
