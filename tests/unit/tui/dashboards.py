"""Pictures and apps for the dashboard's tests: a constant cluster, and a runner for Textual's Pilot."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from slurm_share_tui.picture import Picture, of_survey
from textual.app import App
from textual.pilot import Pilot

from slurm_share.load.rules.advice import advise
from slurm_share.load.snapshot import Survey
from slurm_share.load.sources.demo import Demo

NOW = 1_795_271_308.0
"""The time at which the demonstration stands still, where nothing else is said."""


def a_survey(*, count: int = 12, everybody: bool = True, user: str = "alice", now: float = NOW) -> Survey:
    """Return a survey of the simulated cluster, the same at every call."""
    return Demo(user=user, everybody=everybody, count=count, clock=lambda: now).read()


def picture_of(survey: Survey, *, number: int = 0, arrived: float = 0.0, **more: Any) -> Picture:
    """Return a survey as the feed puts it together."""
    return of_survey(survey, advise.advise_all(survey), number=number, arrived=arrived, **more)


def a_picture(**words: Any) -> Picture:
    """Return the picture of `a_survey`."""
    return picture_of(a_survey(**words))


def drive(app: App[Any], play: Callable[[Pilot[Any]], Awaitable[None]], size: tuple[int, int] = (120, 40)) -> None:
    """Run the app without a terminal, and `play` with its Pilot."""

    async def main() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await play(pilot)

    asyncio.run(main())
