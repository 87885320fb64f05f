"""The dashboard: the program with its screen and command palette.

The palette has the actions of keys, columns to sort by, themes, and nodes, users and jobs by name.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from slurm_share.core import terminal

from . import keymap, themes
from .location import Location
from .main_screen import DashboardScreen
from .picture import SurveyPicture
from .program import Program

NOT_OFFERED = ("palette", "quit.now", "pane.next", "pane.previous")
MOST_THINGS = 50
"""Most nodes, users and jobs that match what was typed."""
AT_ONCE = 500
"""Names to compare before a key press is handled."""


@dataclass(frozen=True)
class Offer:
    """A command of the palette, with its help and key."""

    name: str
    help: str
    run: Callable[[], Any]
    key: str = ""
    """The key as text."""


class KeyCommands(Provider):
    """Provides the actions of keys."""

    async def discover(self) -> Hits:
        """Yield all commands, before anything is typed."""
        for offer in offers(_dashboard(self)):
            yield DiscoveryHit(Content(_label(offer)), offer.run, text=offer.name, help=_plain(offer.help))

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for offer in offers(_dashboard(self)):
            name = _label(offer)
            score, places = matcher.fuzzy_search.match(query, name)
            if score > 0:
                lit = Content(name)
                for location in places:
                    lit = lit.stylize(matcher.match_style, location, location + 1)
                yield Hit(score, lit, offer.run, text=offer.name, help=_plain(offer.help))


class SubjectCommands(Provider):
    """Provides the nodes, users and jobs whose names contain the text."""

    async def search(self, query: str) -> Hits:
        dashboard = _dashboard(self)
        if dashboard.picture is None:
            return
        wanted, count = query.casefold(), 0
        async for name, help, location in _slowly(things(dashboard.picture)):
            at = name.casefold().find(wanted)
            if at < 0:
                continue
            shown = terminal.shortened(name, 60)
            lit = Content(shown)
            if shown == name:
                lit = lit.stylize(self.matcher(query).match_style, at, at + len(query))
            score = 1.0 if len(name) == len(query) else 0.9 if at == 0 else 0.6
            yield Hit(score, lit, partial(dashboard.jump_to, location), text=shown, help=_plain(help))
            count += 1
            if count == MOST_THINGS:
                return


def offers(dashboard: Program) -> Iterator[Offer]:
    """Yield the actions of keys, then what has no key of its own."""
    for key in keymap.KEYS:
        is_offered = key.handler != "grid" and key.id not in NOT_OFFERED
        if is_offered and dashboard.main_screen.is_available(key):
            written = keymap.keys_text(keymap.keys_of(key.id, dashboard.keys))
            yield Offer(f"{key.group}: {key.label}", key.help, partial(dashboard.press, key), written)
    grid = dashboard.main_screen.grid
    if grid is not None:
        for column in grid.columns:
            yield Offer(f"Sort by {column.heading}", column.doc, partial(grid.sort_by, column.id))
    for name in themes.NAMES:
        yield Offer(f"Theme {name}", "colours of the dashboard", partial(dashboard.choose_theme, name))


def things(picture: SurveyPicture) -> Iterator[tuple[str, str, Location]]:
    """Yield name, kind and location of every user, node and job."""
    users = {user.user for row in picture.nodes if row.node.snapshot is not None for user in row.node.snapshot.users}
    users |= {job.user for job in picture.survey.jobs}
    for user in sorted(users):
        yield user, "user: jobs", Location(view="jobs", user=user)
    for row in picture.nodes:
        yield row.name, "node", Location(view="node", node=row.name)
    for job in picture.survey.jobs:
        location = Location(view="nodes", user=job.user, job=job.job_id, job_name=job.id)
        yield f"{job.id} {job.name}", f"job of {job.user}: its nodes", location


async def _slowly(found: Iterator[tuple[str, str, Location]]) -> AsyncIterator[tuple[str, str, Location]]:
    """Yield the same, and let key presses be handled in between."""
    for number, one in enumerate(found, 1):
        yield one
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)


def _label(offer: Offer) -> str:
    return f"{offer.name}  ({offer.key})" if offer.key else offer.name


def _plain(text: str) -> str:
    """Escape a text that the palette reads as markup. (`textual.markup.escape` lets [$primary] through.)"""
    return terminal.safe(text).replace("[", "\\[")


def _dashboard(provider: Provider) -> Program:
    assert isinstance(provider.app, Program)
    return provider.app


class Dashboard(Program):
    """The application that `llload-tui` runs."""

    TITLE = "llload-tui"
    CSS_PATH = "dashboard.tcss"
    COMMANDS = {KeyCommands, SubjectCommands}  # noqa: RUF012

    def get_default_screen(self) -> DashboardScreen:
        return DashboardScreen(self.start)
