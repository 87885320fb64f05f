"""The command palette: whatever a key does, columns to sort by, themes; and any node, user or job by its name."""

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
from .picture import Picture
from .place import Place
from .program import Program

MOST_THINGS = 50
"""Nodes, users and jobs that are offered for what was typed."""
AT_ONCE = 500
"""Names that are compared before keys are listened to again."""


@dataclass(frozen=True)
class Offer:
    """One line of the palette."""

    name: str
    help: str
    run: Callable[[], Any]
    key: str = ""
    """How its key is written."""


class Commands(Provider):
    """Commands of the palette: what each key does."""

    async def discover(self) -> Hits:
        """Yield all commands, before anything is typed."""
        for offer in offers(_dashboard(self)):
            yield DiscoveryHit(Content(_label(offer)), offer.run, text=offer.name, help=_plain(offer.help))

    async def search(self, query: str) -> Hits:
        """Yield the commands that match the text."""
        matcher = self.matcher(query)
        for offer in offers(_dashboard(self)):
            name = _label(offer)
            score, places = matcher.fuzzy_search.match(query, name)
            if score > 0:
                lit = Content(name)
                for place in places:
                    lit = lit.stylize(matcher.match_style, place, place + 1)
                yield Hit(score, lit, offer.run, text=offer.name, help=_plain(offer.help))


class Things(Provider):
    """Commands of the palette that go to a node, a user or a job."""

    async def search(self, query: str) -> Hits:
        """Those with it in their name; at once those that begin with it."""
        dashboard = _dashboard(self)
        if dashboard.picture is None:
            return
        wanted, count = query.casefold(), 0
        async for name, help, place in _slowly(things(dashboard.picture)):
            at = name.casefold().find(wanted)
            if at < 0:
                continue
            shown = terminal.shortened(name, 60)
            lit = Content(shown)
            if shown == name:
                lit = lit.stylize(self.matcher(query).match_style, at, at + len(query))
            score = 1.0 if len(name) == len(query) else 0.9 if at == 0 else 0.6
            yield Hit(score, lit, partial(dashboard.jump_to, place), text=shown, help=_plain(help))
            count += 1
            if count == MOST_THINGS:
                return


def offers(dashboard: Program) -> Iterator[Offer]:
    """Every key by its words, then what has no key of its own."""
    for key in keymap.KEYS:
        if (
            key.room == "grid"
            or key.id in ("palette", "quit.now", "pane.next", "pane.previous")
            or not dashboard.board.does(key)
        ):
            continue
        written = keymap.signs(keymap.keys_of(key.id, dashboard.keys))
        yield Offer(f"{key.group}: {key.label}", key.help, partial(dashboard.press, key), written)
    grid = dashboard.board.grid
    if grid is not None:
        for column in grid.columns:
            yield Offer(f"Sort by {column.heading}", column.doc, partial(grid.sort_by, column.id))
    for name in themes.NAMES:
        yield Offer(f"Theme {name}", "colours of the dashboard", partial(dashboard.choose_theme, name))


def things(picture: Picture) -> Iterator[tuple[str, str, Place]]:
    """(name, what it is, where it is shown) of everything that has a name."""
    users = {user.user for row in picture.nodes if row.node.snapshot is not None for user in row.node.snapshot.users}
    users |= {job.user for job in picture.survey.jobs}
    for user in sorted(users):
        yield user, "user: jobs", Place(view="jobs", user=user)
    for row in picture.nodes:
        yield row.name, "node", Place(view="node", node=row.name)
    for job in picture.survey.jobs:
        place = Place(view="nodes", user=job.user, job=job.job_id, job_name=job.id)
        yield f"{job.id} {job.name}", f"job of {job.user}: its nodes", place


async def _slowly(found: Iterator[tuple[str, str, Place]]) -> AsyncIterator[tuple[str, str, Place]]:
    """The same, with room for a key press in between."""
    for number, one in enumerate(found, 1):
        yield one
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)


def _label(offer: Offer) -> str:
    return f"{offer.name}  ({offer.key})" if offer.key else offer.name


def _plain(text: str) -> str:
    """The palette reads its help as markup; a stranger's brackets are to stay brackets. (`textual.markup.escape` lets
    [$primary] through.)"""
    return terminal.safe(text).replace("[", "\\[")


def _dashboard(provider: Provider) -> Program:
    assert isinstance(provider.app, Program)
    return provider.app
