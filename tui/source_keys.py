"""Handle the key for the source: choose one, try it in a feed of its own, and keep the old one if it cannot be had."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from slurm_share.core.errors import CommandError, SlurmShareError
from slurm_share.load import Origin, options
from slurm_share.node import processes

from .picture import SurveyPicture
from .wire import FeedFailure

if TYPE_CHECKING:
    from .feed import Feed, Heard
    from .program import Program

SOURCES = (
    ("srun", "your own jobs, by a step of srun on each node"),
    ("agents", "slurm-share-agent on the nodes"),
    ("prometheus", "the site's Prometheus, which reads the agents"),
    ("local", "this machine"),
    ("replay", "a recording of llload --record"),
    ("demo", "a simulated cluster"),
)
OF_EVERYBODY = ("agents", "prometheus")
"""Sources that an operator may read for all users."""


def name_of(origin: Origin, picture: SurveyPicture | None) -> str:
    """Return the name of the present source."""
    if origin.demo:
        return "demo"
    if origin.replay is not None:
        return "replay"
    return origin.source or ("" if picture is None else picture.survey.source)


def origin_for(name: str, file: str, now: Origin, first: Origin) -> Origin:
    """Return the origin of a source. `now`: the present one. `first`: that of the command line. Raises OSError or
    RuntimeError for a file that cannot be named."""
    if name == "replay":
        return replace(
            now, demo=False, source="", replay=str(Path(file).expanduser().absolute()), at=None, details=True
        )
    if name == "demo":
        user = options.user(None, demo=True)
        return replace(now, demo=True, source="", replay=None, at=None, user=user, nodes=(), jobs=())
    was_real = not first.demo and first.replay is None
    user = first.user if was_real and name in OF_EVERYBODY else processes.read_user_name(os.getuid()) or ""
    return replace(
        first, demo=False, replay=None, at=None, source=name, user=user, interval_s=now.interval_s, waiting=True,
        everybody=first.everybody and name in OF_EVERYBODY, nodes=first.nodes if was_real else (),
        jobs=first.jobs if was_real else (),
    )  # fmt: skip


def begin(dashboard: Program) -> None:
    """Ask for a source, and switch to it."""
    from .screens.source import SourceScreen

    if dashboard.make_feed is None:
        dashboard.say("this dashboard has one source only")
        return
    if dashboard.trial is not None:
        dashboard.say("another source is being tried")
        return

    def answer(chosen: tuple[str, str] | None) -> None:
        if chosen is not None:
            _try(dashboard, *chosen)

    dashboard.push_screen(SourceScreen(SOURCES, name_of(dashboard.feed.origin, dashboard.picture)), answer)


def _try(dashboard: Program, name: str, file: str) -> None:
    """Start a feed of this source. Its first message decides."""
    assert dashboard.make_feed is not None
    assert dashboard.first_origin is not None
    try:
        feed = dashboard.make_feed(origin_for(name, file, dashboard.feed.origin, dashboard.first_origin))
        feed.start()
    except (SlurmShareError, CommandError, OSError, RuntimeError) as error:
        dashboard.say(f"{name} cannot be had: {error}", severity="warning")
        return
    dashboard.trial = feed
    dashboard.say(f"{name} is being read ...")

    def hear(one: Heard) -> None:
        dashboard.call_later(_decide, dashboard, feed, name, one)

    feed.attach(hear)


async def _decide(dashboard: Program, feed: Feed, name: str, one: Heard) -> None:
    """Take the new feed at its first survey; drop it at a failure before one."""
    if dashboard.trial is not feed:
        return
    if isinstance(one, SurveyPicture):
        dashboard.trial = None
        old = dashboard.feed
        await dashboard.change_feed(feed, one)
        close(old)
        dashboard.say(f"source: {name}")
    elif isinstance(one, FeedFailure):
        dashboard.trial = None
        close(feed)
        dashboard.say(f"{name} cannot be had: {one.why}", severity="warning")


def close(feed: Feed) -> None:
    """End a feed in a thread: its process may take seconds to end."""
    threading.Thread(target=feed.close, name="close the feed", daemon=True).start()
