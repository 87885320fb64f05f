"""The help has the texts of bindings and columns, at every width."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from dashboards import running, screen_text, until
from msgspec.structs import replace as changed
from rich.cells import cell_len
from shell import arrived_picture, dashboard, shown_dashboard
from slurm_share_tui import keymap
from slurm_share_tui.history import FigureHistory
from slurm_share_tui.keymap import TREND
from slurm_share_tui.screens.columns import ColumnsScreen
from slurm_share_tui.screens.confirm import SignalChoice
from slurm_share_tui.screens.help import Help, page
from slurm_share_tui.screens.log import LogScreen
from slurm_share_tui.screens.trend import Trend
from slurm_share_tui.widgets.charts import SERIES
from slurm_share_tui.widgets.filter_line import FilterLine
from slurm_share_tui.widgets.status import StatusLine
from slurm_share_tui.wire import Subject
from textual.app import App
from textual.containers import VerticalScroll
from textual.widgets import Static

from slurm_share.core.errors import SlurmShareError
from slurm_share.load.columns.base import Column
from slurm_share.triples.job_output import LogFile, Tail

COLUMNS: tuple[Column[Any], ...] = (
    Column("gpu", "GPU", "load of its GPUs, percent [of all]", str, float, alias=("gpu_load",)),
    Column("user", "用户名", "a\x1b[31mb", str, str),
)


@pytest.mark.parametrize("width", [16, 40, 104])
def test_every_key_and_every_column_is_in_it(width: int) -> None:
    text = page({}, "Nodes", COLUMNS, width).plain
    flat = "".join(text.split())
    for key in keymap.KEYS:
        assert "".join(key.help.split()) in flat
    assert "GPU" in text
    assert "[ofall]" in flat
    assert "gpu,gpu_load" in flat
    assert "\x1b" not in text
    assert all(cell_len(line) <= max(width, 30) for line in text.splitlines())


def test_it_shows_the_keys_that_the_configuration_gave() -> None:
    text = page(keymap.checked({"pause": "f9", "go.down": "n"}), "", (), 100).plain
    assert "  F9" in text
    assert "Enter l" not in text


@pytest.mark.parametrize(
    ("screen", "name"),
    [(Trend, "Plot"), (LogScreen, "Output"), (ColumnsScreen, "Columns"), (SignalChoice, "Signal"),
     (FilterLine, "Filter line")],
)  # fmt: skip
def test_the_keys_of_what_opens_over_it_are_in_it(screen: Any, name: str) -> None:
    text = page({}, "", (), 100).plain
    part = text.partition(f"{name}, while it is open\n")[2].partition("\n\n")[0]
    said = [one for one in screen.BINDINGS if one.description]
    assert said
    lines = [" ".join(line.split()) for line in part.splitlines()]
    assert lines == [f"{keymap.keys_text(one.key.split(','))} {one.description}" for one in said]


def test_the_letters_of_the_plot_are_those_of_its_lines() -> None:
    letters = [one for one in TREND if one.action.startswith("line(")]
    assert [(one.key, one.description) for one in letters] == [(one.letter, f"{one.label}, or not") for one in SERIES]


@pytest.mark.parametrize(
    ("make", "keys"),
    [
        (lambda closes: Trend(FigureHistory(), Subject(node="n1"), "n1", closes=closes), ("f9", "1")),
        (lambda closes: LogScreen([LogFile("output", "/nowhere")], refused, closes=closes), ("f9", "f")),
    ],
)
async def test_what_opens_a_screen_closes_it(make: Any, keys: tuple[str, str]) -> None:
    app: App[None] = App()
    async with running(app) as pilot:
        await app.push_screen(make(keys))
        await pilot.press(keys[1])
        await pilot.pause()
        assert len(app.screen_stack) == 2
        await pilot.press(keys[0])
        await until(pilot, lambda: len(app.screen_stack) == 1)


def refused(file: LogFile) -> Tail:
    """Raise the error of an unreadable file."""
    raise SlurmShareError("not yours")


async def test_it_scrolls_and_closes_by_any_of_its_keys() -> None:
    async with shown_dashboard(size=(80, 24)) as (pilot, app, _):
        for closes in ("escape", "q", "question_mark", "f1", "backspace"):
            await pilot.press("question_mark")
            await until(pilot, lambda: isinstance(app.screen, Help))
            area = app.screen.query_one("#help-page", VerticalScroll)
            await until(pilot, lambda area=area: area.max_scroll_y > 0)  # type: ignore[misc]
            await pilot.press("down", "j", "k")
            assert area.scroll_y == 1
            await pilot.press("end")
            assert area.scroll_y == area.max_scroll_y
            await pilot.press("pageup", "home", "pagedown")
            assert area.scroll_y > 3
            await pilot.press(closes)
            await until(pilot, lambda: len(app.screen_stack) == 1, closes)


async def test_a_small_terminal_is_all_page() -> None:
    async with dashboard(size=(20, 5)) as (pilot, app, _):
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, Help))
        page = app.screen.query_one("#help-page", VerticalScroll)
        await until(pilot, lambda: page.size.height == 4)


async def test_it_is_of_the_table_that_has_the_focus() -> None:
    async with shown_dashboard() as (pilot, app, _):
        for view, title in (("1", "Columns of Nodes"), ("4", "Columns of GPUs"), ("6", "Columns of Advice")):
            await pilot.press(view)
            grid = app.main_screen.grid
            assert grid is not None
            await pilot.press("question_mark")
            await until(pilot, lambda: isinstance(app.screen, Help))
            text = str(app.screen.query_one("#help-text", Static).render())
            assert title in text
            flat = " ".join(text.split())
            assert all(column.id in flat for column in grid.columns)
            await pilot.press("escape")


@pytest.mark.parametrize("by", ["key", "click"])
async def test_what_the_status_had_no_room_for_is_in_it(by: str) -> None:
    note = "a note that nobody could read " * 5
    async with dashboard(size=(80, 24)) as (pilot, app, feed):
        picture = arrived_picture()
        feed.bring(replace(picture, survey=changed(picture.survey, notes=(note.strip(),))))
        await until(pilot, lambda: app.picture)
        await pilot.pause()
        assert "? all keys" in screen_text(app).splitlines()[-1]
        if by == "key":
            await pilot.press("question_mark")
        else:
            await pilot.click(StatusLine, offset=(3, 0))
        await until(pilot, lambda: isinstance(app.screen, Help) and app.screen.is_mounted)
        text = str(app.screen.query_one("#help-text", Static).content)
        assert note.replace(" ", "") in "".join(text.split())
