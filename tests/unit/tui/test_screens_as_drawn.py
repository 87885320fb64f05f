"""Every view, and every screen that lies over one, is drawn as in the pictures beside this file: `__snapshots__/`.

One that differs fails its test. What to do:

1. Look: `build/screens.html` has both pictures of each that differs, side by side (open it in a browser).
2. It should be as it was: mend the code.
3. It should be as it is now: `.venv/bin/pytest -n0 tests/unit/tui/test_screens_as_drawn.py --snapshot-update`, look at
   the pictures that have changed (any browser shows an SVG), and commit them with the code. This also adds the
   pictures of a new view, and removes those that no test makes any more.

Everything differs after a new release of Textual or of rich: look at some, and make them anew.

Nothing here depends on the machine: the demonstration, the dashboard's clock and the time zone stand still, nothing
moves or blinks, and a picture is taken when nothing changes any more, however long that takes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from dashboards import NOW, a_picture, picture_of, until
from scenes import large, recorded
from shell import FakeFeed, a_dashboard
from slurm_share_tui import themes
from slurm_share_tui.action_rules import DashboardUser, cancelling
from slurm_share_tui.app import Dashboard
from slurm_share_tui.history import FigureHistory
from slurm_share_tui.location import JobPlace, Location, Process
from slurm_share_tui.picture import SurveyPicture
from slurm_share_tui.screens.alerts import AlertsScreen
from slurm_share_tui.screens.columns import ColumnsScreen
from slurm_share_tui.screens.confirm import Confirm
from slurm_share_tui.screens.export import ExportScreen
from slurm_share_tui.screens.help import Help
from slurm_share_tui.screens.trend import Trend
from slurm_share_tui.user_config import UserConfig
from textual import constants
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input

ME = DashboardUser("alice", 2001)
VIEWS = ("nodes", "users", "jobs", "gpus", "node", "gpu", "process", "advice", "queue", "job")
OVER: dict[str, type[Screen[Any]]] = {
    "help": Help,
    "confirm": Confirm,
    "trend": Trend,
    "columns": ColumnsScreen,
    "alerts": AlertsScreen,
    "export": ExportScreen,
}
SIZES = ("80x24", "120x40", "200x50")
THEMES = (themes.DARK, themes.MONO)
SCENES = {"large-nodes": ("nodes", lambda: large(NOW)), "recorded-jobs": ("jobs", recorded)}
"""A view of another cluster than the demonstration's: its name, the view, the survey (`scenes.py`)."""

CASES = [
    *product((*VIEWS, *SCENES), SIZES, THEMES[:1]),
    *product(OVER, SIZES[:2], THEMES[:1]),
    *product((*VIEWS, *OVER), SIZES[:1], THEMES[1:]),
]
"""What, in how large a terminal, in which theme: without colours at the smallest size only."""


@pytest.fixture
def draws_only_what_a_test_looks_at() -> None:
    """Let textual draw all that changes, as it does for a terminal."""


@pytest.fixture(autouse=True)
def the_same_everywhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the screens independent of the host and the user."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(constants, "FILTERS", "")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@cache
def seen(scene: str = "") -> tuple[FigureHistory, SurveyPicture]:
    """The demonstration's history of ten minutes and its last picture, or the one picture of a scene; constant."""
    history = FigureHistory()
    if scene:
        picture = picture_of(SCENES[scene][1](), arrived=98.0)
        history.take(picture)
        return history, picture
    for step in range(31):
        picture = a_picture(now=NOW - 600 + 20 * step)
        history.take(picture)
    return history, replace(picture, arrived=98.0)


def way_to(view: str, picture: SurveyPicture) -> tuple[Location, ...]:
    """Return the path: for tables from the top, for one thing from its user."""
    snapshot = picture.by_name["h-2"].node.snapshot
    job = next(job for job in picture.survey.jobs if job.job_id == snapshot.jobs[0].job)
    one = snapshot.processes[0]
    of_user = Location(view="jobs", user=job.user)
    of_job = Location(view="nodes", user=job.user, job=job.job_id, job_name=job.id)
    node = Location(view="node", user=job.user, job=job.job_id, job_name=job.id, node="h-2")
    gpu = Location(view="gpu", node="h-2", gpu=one.gpus[0].uuid, gpu_name="GPU 0")
    process = Location(
        view="process", node="h-2", gpu=gpu.gpu, gpu_name="GPU 0", process=Process(one.pid, one.start_ticks)
    )
    path = (Location(view="users"), of_user, of_job, node, gpu, process)
    if view == "job":
        return (Location(view="jobs"), Location(view="job", user=job.user, job=job.job_id, job_name=job.id))
    steps = {"node": 4, "gpu": 5, "process": 6}
    return path[: steps[view]] if view in steps else (Location(view=view),)  # type: ignore[arg-type]


async def settled(pilot: Pilot[Any]) -> None:
    """Wait until nothing has changed for three turns of every message loop."""
    before: list[Any] = []
    for _ in range(400):
        await pilot.pause()
        before.append(pilot.app.screen._compositor.render_strips())
        if len(before) > 3 and before[-1] == before[-2] == before[-3]:
            return
    raise AssertionError("the screen does not come to rest")


async def in_view(pilot: Pilot[Any], app: Dashboard, feed: FakeFeed, view: str, scene: str = "") -> None:
    """Run the demonstration, or a scene, in this view."""
    history, picture = seen(scene)
    feed.history = history
    await until(pilot, lambda: feed.post is not None and app.main_screen.path, "the dashboard")
    feed.post(picture)
    await until(pilot, lambda: app.picture is picture, "the picture")
    await app.main_screen.go((Location(view=view),) if scene else way_to(view, picture))  # type: ignore[arg-type]
    await settled(pilot)


def jobs_to_cancel(picture: SurveyPicture) -> Confirm:
    """Return a question for the user's own job and for another user's."""
    jobs = picture.survey.jobs
    own = next(job for job in jobs if job.user == ME.name)
    other = next(job for job in jobs if job.user != ME.name)
    targets = [JobPlace(owner=job.user, job=job.id, job_id=job.job_id) for job in (own, other)]
    return Confirm(cancelling(targets, jobs, ME))


async def lay_over(pilot: Pilot[Any], app: Dashboard, name: str) -> None:
    """Open this screen as its key does."""
    if name == "confirm":  # its key asks Slurm first
        app.push_screen(jobs_to_cancel(seen()[1]))
    else:
        await app.run_action(f"{name}()", app.main_screen)
    await until(pilot, lambda: isinstance(app.screen, OVER[name]), name)
    await settled(pilot)


def smaller(svg: str) -> str:
    """Return the same picture in half the bytes, without fonts that a browser would fetch."""
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<clipPath id="[\w-]+-line-\d+">.*?</clipPath>\s*', "", svg, flags=re.DOTALL)
    svg = re.sub(r' clip-path="url\(#[\w-]+-line-\d+\)"', "", svg)
    crisp = ' shape-rendering="crispEdges"'
    svg = svg.replace(crisp, "").replace("<style>", "<style>rect { shape-rendering: crispEdges }")
    return svg.replace("&#160;", "\u00a0")


def name_of(case: tuple[str, str, str]) -> str:
    """Return the name of the test and its picture."""
    return "-".join(case)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.weekly] if case[1] == SIZES[-1] else []) for case in CASES],
    ids=[name_of(case) for case in CASES],
)
def test_drawn(case: tuple[str, str, str], snap_compare: Callable[..., bool]) -> None:
    what, size, theme = case
    feed = FakeFeed()
    app = a_dashboard(feed, config=UserConfig(theme=theme))
    app.animation_level = "none"
    draw = app.export_screenshot
    app.export_screenshot = lambda **words: smaller(draw(**words))  # type: ignore[method-assign]

    async def before(pilot: Pilot[Any]) -> None:
        if what in SCENES:
            await in_view(pilot, app, feed, SCENES[what][0], what)
            return
        view = {"confirm": "jobs", "trend": "node"}.get(what, "nodes") if what in OVER else what
        await in_view(pilot, app, feed, view)
        if what in OVER:
            await lay_over(pilot, app, what)
            for field in app.screen.query(Input):
                field._pause_blink(visible=True)  # on a busy machine the picture could be of its other half second
            await settled(pilot)

    width, _, height = size.partition("x")
    is_same = snap_compare(app, terminal_size=(int(width), int(height)), run_before=before)
    assert is_same, f"{name_of(case)} is drawn differently: what to do stands at the top of {Path(__file__).name}"


def test_no_picture_is_left_of_a_test_that_is_no_more(pytestconfig: pytest.Config) -> None:
    if pytestconfig.option.update_snapshots:
        pytest.skip("pictures are written and removed when all tests have run")
    kept = {path.name for path in Path(__file__).parent.glob(f"__snapshots__/{Path(__file__).stem}/*")}
    assert kept == {f"test_drawn[{name_of(case)}].svg" for case in CASES}
