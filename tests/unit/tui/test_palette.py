"""The palette has the actions of keys, columns to sort by, themes, and everything with a name; no name is markup."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from dashboards import a_survey, picture_of, screen_text, until
from msgspec.structs import replace as changed
from shell import dashboard, shown, shown_dashboard
from slurm_share_tui import app as palette
from slurm_share_tui import keymap, themes
from slurm_share_tui.app import Dashboard
from slurm_share_tui.location import Location
from textual.command import CommandPalette
from textual.content import Content
from textual.pilot import Pilot


async def choose(pilot: Pilot[Any], app: Dashboard, words: str) -> None:
    """Type a text and take the first match."""
    await pilot.press("ctrl+p")
    await until(pilot, lambda: isinstance(app.screen, CommandPalette))
    await pilot.press(*("space" if one == " " else one for one in words))
    listed = app.screen.query_one("CommandList")
    await until(pilot, lambda: listed.option_count and listed.highlighted == 0, "an offer")  # type: ignore[attr-defined]
    await pilot.pause(0.3)
    await pilot.press("enter")
    await until(pilot, lambda: len(app.screen_stack) == 1)
    await pilot.pause()


async def test_whatever_a_key_does_is_offered_with_its_key() -> None:
    async with dashboard() as (pilot, app, feed):
        app.keys = {"pause": "f9"}
        await shown(pilot, feed)
        offers = {offer.name: offer for offer in palette.offers(app)}
        for key in keymap.KEYS:
            if key.handler != "grid" and key.id not in ("palette", "quit.now", "pane.next", "pane.previous"):
                assert f"{key.group}: {key.label}" in offers
        assert offers["Time: pause"].key == "F9"
        assert all(f"Theme {name}" in offers for name in themes.NAMES)
        grid = app.main_screen.grid
        assert all(f"Sort by {column.heading}" in offers for column in grid.columns)


async def test_what_is_forbidden_is_not_offered() -> None:
    async with shown_dashboard(readonly=True) as (_, app, _):
        names = {offer.name for offer in palette.offers(app)}
        assert not names & {"Acting: cancel", "Acting: signal"}
        assert {"Acting: output", "Acting: copy", "Tables: filter"} <= names


@pytest.mark.parametrize(
    ("words", "holds"),
    [
        ("views gpus", lambda app: app.main_screen.location.view == "gpus"),
        ("theme light", lambda app: app.theme == themes.LIGHT),
        ("sort by load", lambda app: app.main_screen.grid.sort[0] != ""),
        ("time pause", lambda app: app.status.held),
        ("v-7", lambda app: (app.main_screen.location.view, app.main_screen.location.node) == ("node", "v-7")),
        ("carol", lambda app: app.main_screen.path == (Location(view="users"), Location(view="jobs", user="carol"))),
        ("95598", lambda app: (app.main_screen.location.view, app.main_screen.location.job_name) == ("nodes", "95598")),
    ],
)
async def test_what_is_chosen_is_done(words: str, holds: Any) -> None:
    async with shown_dashboard() as (pilot, app, _):
        await choose(pilot, app, words)
        await until(pilot, lambda: holds(app), words)


@pytest.mark.parametrize("name", ["[red]x[/red]", "[$primary]x", "a\\[b]", "[@click=app.quit]x[/]", "\x1b[31mx\n"])
async def test_names_in_the_palette_are_text(name: str) -> None:
    survey = a_survey()
    jobs = tuple(changed(job, user=name, name=name) for job in survey.jobs)
    async with dashboard() as (pilot, app, feed):
        feed.bring(picture_of(changed(survey, jobs=jobs)))
        await until(pilot, lambda: app.picture)
        await pilot.press("ctrl+p", "x" if "x" in name else "b")
        listed = app.screen.query_one("CommandList")
        await until(pilot, lambda: "user: jobs" in screen_text(app) or listed.option_count > 5)  # type: ignore[attr-defined]
        assert "\x1b" not in screen_text(app)
    written = name if name.isprintable() else "\\x1b[31mx\\n"
    assert Content.from_markup(palette._plain(name)).plain == written


@pytest.mark.weekly
async def test_a_large_cluster_does_not_hold_up_the_keys() -> None:
    found = list(palette.things(picture_of(a_survey(count=10_000))))
    assert len(found) > 10_000

    async def search() -> int:
        return len([one async for one in palette._slowly(iter(found))])

    task, others = asyncio.create_task(search()), 0
    while not task.done():
        others += 1
        await asyncio.sleep(0)
    assert await task == len(found)
    assert others >= len(found) // palette.AT_ONCE
