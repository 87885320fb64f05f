"""Pictures and apps for the dashboard's tests: a constant cluster, and apps that run without a terminal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from slurm_share_tui.picture import SurveyPicture, put_together
from slurm_share_tui.wire import SurveyBegin
from textual.app import App
from textual.pilot import Pilot
from textual.screen import Screen

from slurm_share.load.rules.advice import advise
from slurm_share.load.rules.node_rows import rows_of
from slurm_share.load.snapshot import Survey
from slurm_share.load.sources.demo import Demo

NOW = 1_795_271_308.0
"""The time at which the demonstration stands still, where nothing else is said."""


def a_survey(*, count: int = 12, everybody: bool = True, user: str = "alice", now: float = NOW) -> Survey:
    """Return a survey of the simulated cluster, the same at every call."""
    return Demo(user=user, everybody=everybody, count=count, clock=lambda: now).read()


def picture_of(survey: Survey, *, number: int = 0, arrived: float = 0.0, **more: Any) -> SurveyPicture:
    """Return a survey as the feed puts it together. `more`: fields of `SurveyBegin`."""
    begin = SurveyBegin(survey=survey, nodes=len(survey.nodes), took_s=0.0, **more)
    return put_together(begin, rows_of(survey), advise.advise_all(survey), arrived=arrived, number=number)


def a_picture(**words: Any) -> SurveyPicture:
    """Return the picture of `a_survey`."""
    return picture_of(a_survey(**words))


class Asks(App[None]):
    """Opens one screen and keeps its answer."""

    def __init__(self, screen: Screen[Any]) -> None:
        super().__init__()
        self.asked = screen
        self.answers: list[Any] = []

    def on_mount(self) -> None:
        self.push_screen(self.asked, self.answers.append)


@asynccontextmanager
async def running(app: App[Any], size: tuple[int, int] = (120, 40), **options: Any) -> AsyncIterator[Pilot[Any]]:
    """Run the app without a terminal, and draw its last screen."""
    async with app.run_test(size=size, **options) as pilot:
        await pilot.pause()
        yield pilot
        if app.is_running and app.screen_stack:
            screen_text(app)


def screen_text(app: App[Any]) -> str:
    """Return the text of the screen, line by line."""
    lines = app.screen._compositor.render_strips()  # the only way to the characters without a terminal
    return "\n".join("".join(segment.text for segment in strip) for strip in lines[: app.size.height])


async def until(pilot: Pilot[Any], holds: Callable[[], object], what: str = "what was waited for") -> None:
    """Wait until the condition holds, at most 100 s of the app's time: some conditions wait for a thread."""
    for _ in range(10_000):
        if holds():
            return
        await pilot.pause(0.01)
    raise AssertionError(f"{what} did not come: {holds()!r}")
