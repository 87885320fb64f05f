"""Keys in one write go to the screens that the keys before them open."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from dashboards import running, until
from msgspec.structs import replace as changed
from shell import a_dashboard, arrived_picture, dashboard, shown_dashboard
from slurm_share_tui.app import Dashboard
from slurm_share_tui.program import NOTES_MOST
from slurm_share_tui.screens.columns import ColumnsScreen
from slurm_share_tui.screens.help import Help
from slurm_share_tui.widgets.filter_line import FilterLine
from slurm_share_tui.widgets.status import StatusLine
from slurm_share_tui.wire import Position, Seek
from textual import events
from textual.keys import _character_to_key
from textual.widgets import Input

NAMED = {"\r": "enter", "\x1b": "escape", "\x03": "ctrl+c"}


def type_at_once(app: Dashboard, text: str) -> None:
    """Post all keys before the first one is handled, as the terminal's driver does."""
    for letter in text:
        key = NAMED.get(letter) or (letter if letter.isalnum() else _character_to_key(letter))
        app.post_message(events.Key(key, letter if letter.isprintable() else None))


@pytest.mark.parametrize("is_pasted", [False, True])
async def test_what_follows_a_slash_is_the_filter(is_pasted: bool) -> None:
    async with shown_dashboard() as (pilot, app, feed):
        type_at_once(app, "/" if is_pasted else "/squeuxpotfcy")
        if is_pasted:
            app.post_message(events.Paste("squeuxpotfcy"))
        box = app.main_screen.query_one(FilterLine).query_one(Input)
        await until(pilot, lambda: box.value == "squeuxpotfcy")
        assert app.screen is app.main_screen
        assert not app.is_ending
        assert feed.told == []


async def test_a_filter_is_written_and_kept_and_the_rest_is_the_tables() -> None:
    async with shown_dashboard() as (pilot, app, _):
        type_at_once(app, "/v-7\r5")
        await until(pilot, lambda: app.main_screen.location.node == "v-7", "into the node that the filter left")
        type_at_once(app, "2/alice\r\r")
        await until(pilot, lambda: app.main_screen.location.user == "alice", "into the user that the filter left")
        assert app.main_screen.location.view == "jobs"


@pytest.mark.parametrize(
    ("typed", "over"), [("?q", None), ("c\x1b?", Help), ("?\x1bc", ColumnsScreen), ("?jj\x1b/x\x1b?", Help)]
)
async def test_what_follows_a_key_that_opens_is_for_what_it_opened(typed: str, over: type[Any] | None) -> None:
    async with shown_dashboard() as (pilot, app, _):
        type_at_once(app, typed + ("p" if over is None else ""))
        if over is None:
            await until(pilot, lambda: app.status.held, "the pause after the help")
        else:
            await until(pilot, lambda: isinstance(app.screen, over), over.__name__)
        assert not app.is_ending


async def test_what_follows_a_colon_is_the_time_to_jump_to() -> None:
    look = arrived_picture()
    taken = look.survey.taken
    position = Position(first=taken, last=taken + 60, number=1, count=13, speed=1.0)
    async with dashboard() as (pilot, app, feed):
        feed.bring(replace(look, survey=changed(look.survey, source="replay"), position=position))
        await until(pilot, lambda: app.picture)
        type_at_once(app, ":100%\r")
        await until(pilot, lambda: Seek(taken + 60) in feed.told)


async def test_keys_before_there_is_a_view_are_for_the_first_one() -> None:
    app = a_dashboard()
    first_screen = app.get_default_screen

    def early() -> Any:
        type_at_once(app, "4/util")
        return first_screen()

    def typed() -> str:
        return app.main_screen.path and app.main_screen.query_one(FilterLine).query_one(Input).value

    app.get_default_screen = early  # type: ignore[method-assign]
    async with running(app) as pilot:
        await until(pilot, lambda: typed() == "util")
        assert app.main_screen.location.view == "gpus"


@pytest.mark.parametrize("typed", ["q4", "q5", "q\r", "/squeue\r\x034", "q?", "qx/a"])
async def test_nothing_is_opened_or_drawn_after_the_end(typed: str) -> None:
    async with shown_dashboard() as (pilot, app, feed):
        type_at_once(app, typed)
        for _ in range(400):
            if app.is_ending:
                break
            feed.bring(arrived_picture())
            await pilot.pause(0.01)
        assert app.is_ending
        await app.main_screen.action_view("advice")
        app.main_screen.draw()
    assert app.return_code == 0


async def test_a_sentence_stands_there_once() -> None:
    async with shown_dashboard() as (pilot, app, _):
        for _ in range(20):
            app.say("no")
        app.say("other")
        await until(pilot, lambda: [one.message for one in app._notifications] == ["no", "other"])
        app.say("third")
        await until(pilot, lambda: [one.message for one in app._notifications] == ["other", "third"])


@pytest.mark.parametrize("size", [(80, 24), (20, 5), (40, 12)])
async def test_notes_leave_the_status_and_the_answer_of_the_filter_free(size: tuple[int, int]) -> None:
    async with shown_dashboard(size=size, notifications=True) as (pilot, app, _):
        type_at_once(app, "/nobody")
        await until(pilot, lambda: app.main_screen.query_one(FilterLine).region.height)
        for word in ("one ", "two ", "three "):
            app.say(word * 60)
        await until(pilot, lambda: len(app.screen.query("Toast")) == NOTES_MOST)
        await until(pilot, lambda: all(one.region.height for one in app.screen.query("Toast")))
        rack = app.screen.query_one("ToastRack").region
        keep = [app.main_screen.query_one(FilterLine).region, app.main_screen.query_one(StatusLine).region]
        assert all(not one.overlaps(rack) for one in keep if one.height), (rack, keep)
