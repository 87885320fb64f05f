"""The source can be changed while the dashboard runs; one that cannot be had leaves the old one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from dashboards import a_picture, screen_text, until
from shell import FakeFeed, notes_of, shown_dashboard
from slurm_share_tui.screens.source import SourceScreen
from slurm_share_tui.source_keys import origin_for
from slurm_share_tui.wire import FeedFailure
from textual.widgets import Input

from slurm_share.core.errors import CommandError
from slurm_share.load import Origin
from slurm_share.node import processes

ME = processes.read_user_name(os.getuid()) or ""


def test_srun_shows_own_jobs_and_agents_all_users_again() -> None:
    first = Origin(user="carol", everybody=True, source="agents", nodes=("n1",), interval_s=5.0)
    own = origin_for("srun", "", first, first)
    assert (own.user, own.everybody, own.source, own.nodes) == (ME, False, "srun", ("n1",))
    assert origin_for("agents", "", own, first) == Origin(
        user="carol", everybody=True, source="agents", nodes=("n1",), interval_s=5.0, waiting=True
    )


def test_from_a_demonstration_the_own_user_is_asked_for() -> None:
    demo = Origin(user="alice", demo=True, everybody=True, interval_s=5.0, nodes=("h-1",))
    found = origin_for("srun", "", demo, demo)
    assert (found.user, found.demo, found.nodes, found.everybody) == (ME, False, (), False)
    played = origin_for("replay", "~/a.gz", demo, demo)
    assert played.replay == str(Path("~/a.gz").expanduser())
    assert not played.demo
    assert origin_for("demo", "", played, demo).user == "alice"


class OtherFeed(FakeFeed):
    """A feed of another source."""

    def __init__(self, origin: Origin) -> None:
        super().__init__()
        self.origin, self.closed, self.failure = origin, False, ""
        made.append(self)

    def start(self) -> None:
        if self.origin.source == "local":
            raise CommandError(("python",), 1, "no memory")

    def close(self) -> None:
        self.closed = True


made: list[Any] = []


@pytest.fixture(autouse=True)
def none_made() -> None:
    made.clear()


async def chosen(pilot: Any, app: Any, downs: int) -> None:
    """Choose a source in the list, from the first one."""
    await pilot.press("w")
    await until(pilot, lambda: isinstance(app.screen, SourceScreen))
    await pilot.press("home", *["down"] * downs, "enter")


async def test_another_source_is_taken_at_its_first_survey_with_its_own_history() -> None:
    feed = FakeFeed()
    feed.origin = Origin(user="alice", demo=True)  # type: ignore[attr-defined]
    feed.close = lambda: made.append("closed")  # type: ignore[attr-defined]
    async with shown_dashboard(feed=feed, make_feed=OtherFeed) as (pilot, app, _):
        await pilot.press("3")
        await until(pilot, lambda: app.main_screen.location.view == "jobs")
        await chosen(pilot, app, 1)
        await until(pilot, lambda: made and made[0].post is not None)
        other = made[0]
        assert other.origin.source == "agents"
        assert app.feed is feed
        other.bring(a_picture(user="bob", everybody=False))
        await until(pilot, lambda: app.feed is other and app.picture is not None)
        await until(pilot, lambda: "closed" in made)
        assert app.main_screen.shown.history is other.history
        assert app.main_screen.location.view == "jobs"
        await until(pilot, lambda: "cpu-pipeline" in screen_text(app))
        assert "llm-finetune" not in screen_text(app)
        other.bring(a_picture(user="carol", everybody=False))
        await until(pilot, lambda: "carol" in screen_text(app))


async def test_a_source_that_cannot_be_had_says_why_and_the_old_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = FakeFeed()
    feed.origin = Origin(user="alice", demo=True)  # type: ignore[attr-defined]
    async with shown_dashboard(feed=feed, make_feed=OtherFeed) as (pilot, app, _):
        notes = notes_of(app, monkeypatch)
        before = app.picture
        await chosen(pilot, app, 2)
        await until(pilot, lambda: made and made[0].post is not None)
        made[0].bring(FeedFailure("no Prometheus is configured: set prometheus_url", True))
        await until(pilot, lambda: made[0].closed)
        assert notes[-1] == "prometheus cannot be had: no Prometheus is configured: set prometheus_url"
        await chosen(pilot, app, 3)
        await until(pilot, lambda: "local cannot be had" in notes[-1])
        assert (app.feed, app.picture, app.trial) == (feed, before, None)


async def test_a_recording_is_asked_for_by_its_file() -> None:
    feed = FakeFeed()
    feed.origin = Origin(user="alice", demo=True)  # type: ignore[attr-defined]
    async with shown_dashboard(feed=feed, make_feed=OtherFeed) as (pilot, app, _):
        await chosen(pilot, app, 4)
        await until(pilot, lambda: app.screen.query_one(Input).has_focus)
        await pilot.press(*"/a", "enter")
        await until(pilot, lambda: bool(made))
        assert made[0].origin.replay == "/a"
