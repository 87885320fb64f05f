"""A dashboard with a fake feed, which keeps the commands it gets and delivers what a test gives it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from dashboards import a_picture, running, until
from slurm_share_tui.app import Dashboard
from slurm_share_tui.feed import Post
from slurm_share_tui.history import FigureHistory
from slurm_share_tui.picture import SurveyPicture
from slurm_share_tui.user_config import UserConfig
from slurm_share_tui.wire import Command, FeedFailure
from textual.pilot import Pilot


class FakeFeed:
    """A feed without a process."""

    def __init__(self) -> None:
        self.history = FigureHistory()
        self.told: list[Command] = []
        self.post: Post | None = None

    def attach(self, post: Post) -> None:
        self.post = post

    def tell(self, told: Command) -> None:
        """Keep the command."""
        self.told.append(told)

    def bring(self, one: SurveyPicture | FeedFailure) -> None:
        """Deliver a survey or a failure."""
        if isinstance(one, SurveyPicture):
            self.history.take(one)
        self.post(one)


def a_dashboard(feed: FakeFeed | None = None, **words: Any) -> Dashboard:
    """Return a dashboard that looks the same on every terminal."""
    words.setdefault("config", UserConfig(theme="dark"))
    words.setdefault("clock", lambda: 100.0)
    return Dashboard(feed or FakeFeed(), **words)


def notes_of(app: Dashboard, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the dashboard's notes from now on; none may be markup."""
    notes: list[str] = []

    def keep(words: str, *, markup: bool = True, **more: Any) -> None:
        assert not markup
        notes.append(words)

    monkeypatch.setattr(app, "notify", keep)
    return notes


@asynccontextmanager
async def dashboard(
    *, size: tuple[int, int] = (120, 40), notifications: bool = False, feed: FakeFeed | None = None, **words: Any
) -> AsyncIterator[tuple[Pilot[Any], Dashboard, FakeFeed]]:
    """Run a dashboard with a fake feed, which has sent nothing yet."""
    feed = feed or FakeFeed()
    app = a_dashboard(feed, **words)
    async with running(app, size, notifications=notifications) as pilot:
        yield pilot, app, feed


async def shown(pilot: Pilot[Any], feed: FakeFeed, picture: SurveyPicture | None = None) -> None:
    """Deliver a picture and wait until it is drawn."""
    picture = arrived_picture() if picture is None else picture
    feed.bring(picture)
    app: Any = pilot.app
    await until(pilot, lambda: app.picture is picture, "the picture")
    await pilot.pause()


@asynccontextmanager
async def shown_dashboard(
    picture: SurveyPicture | None = None, **words: Any
) -> AsyncIterator[tuple[Pilot[Any], Dashboard, FakeFeed]]:
    """Run a dashboard that shows this picture, or the simulated cluster."""
    async with dashboard(**words) as (pilot, app, feed):
        await shown(pilot, feed, picture)
        yield pilot, app, feed


def arrived_picture(**words: Any) -> SurveyPicture:
    """Return the simulated cluster, arrived at 98 on the clock."""
    return replace(a_picture(**words), arrived=98.0)
