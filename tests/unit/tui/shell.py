"""A dashboard with a fake feed, which keeps the commands it gets and delivers what a test gives it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from dashboards import a_picture
from slurm_share_tui.app import Dashboard
from slurm_share_tui.history import History
from slurm_share_tui.messages import Arrived
from slurm_share_tui.picture import Picture
from slurm_share_tui.user_config import UserConfig
from slurm_share_tui.wire import Command
from textual.message import Message
from textual.pilot import Pilot


class FakeFeed:
    """A feed without a process."""

    def __init__(self) -> None:
        self.history = History()
        self.told: list[Command] = []
        self.post: Callable[[Message], object] | None = None

    def attach(self, post: Callable[[Message], object]) -> None:
        self.post = post

    def tell(self, told: Command) -> None:
        """Keep the command."""
        self.told.append(told)

    def bring(self, message: Message) -> None:
        """Deliver a message of the feed process."""
        if isinstance(message, Arrived):
            self.history.take(message.picture)
        assert self.post is not None
        self.post(message)

    def picture(self, picture: Picture) -> None:
        """Deliver a survey."""
        self.bring(Arrived(picture))


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


def arrived_picture(**words: Any) -> Picture:
    """Return the simulated cluster, arrived at 98 on the clock."""
    return replace(a_picture(**words), arrived=98.0)


async def until(pilot: Pilot[Any], holds: Callable[[], object], what: str = "what was waited for") -> None:
    """Wait until the condition holds, at most 4 s of the dashboard's time."""
    for _ in range(400):
        if holds():
            return
        await pilot.pause(0.01)
    raise AssertionError(f"{what} did not come: {holds()!r}")


def screen_text(app: Dashboard) -> str:
    """Return the text of the screen, line by line."""
    height = app.size.height
    lines = app.screen._compositor.render_strips()  # the only way to the characters without a terminal
    return "\n".join("".join(segment.text for segment in strip) for strip in lines[:height])
