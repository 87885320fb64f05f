"""Pictures of the README and the manual, drawn by the dashboard; called by screenshots.sh.

They are reproducible: the clocks of the demonstration and the dashboard stand still, nothing blinks, and the terminal
has a fixed size. They show no measurement, as the first line of each says.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from slurm_share_tui import themes
from slurm_share_tui.app import Dashboard
from slurm_share_tui.history import FigureHistory
from slurm_share_tui.location import Location
from slurm_share_tui.picture import SurveyPicture, put_together
from slurm_share_tui.user_config import UserConfig
from slurm_share_tui.wire import Command, SurveyBegin
from textual.pilot import Pilot

from slurm_share.load import rows_of
from slurm_share.load.rules.advice import advise
from slurm_share.load.sources.demo import Demo

FOLDER = Path(__file__).parent / "docs" / "pictures"
NOW = 1_795_271_308.0
"""Time in the demonstration, in seconds since 1970."""
EARLIER_S, STEP_S = 600, 20
"""Length of the history before NOW, and the interval of its snapshots."""
NODE = "h-2"
"""The node that the pictures show in detail."""
WIDTH = 120
HEIGHTS = {"nodes": 21, "jobs": 32, "node": 22, "advice": 29}
TURNS_MOST = 500
FONTS = 'ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace'
"""Fonts that readers' machines have. Cairo knows only the fourth, and only if it is named alone."""


class FixedFeed:
    """A feed that sends one picture."""

    def __init__(self) -> None:
        self.history = FigureHistory()
        for ago_s in range(EARLIER_S, -1, -STEP_S):
            self.picture = a_picture(NOW - ago_s)
            self.history.take(self.picture)

    def attach(self, post: Callable[[Any], object]) -> None:
        """Send the picture to the dashboard."""
        post(self.picture)

    def tell(self, message: Command) -> None:
        """Ignore a command, since no process reads it."""


def a_picture(now: float) -> SurveyPicture:
    """Return the picture that the reading process sends at a time."""
    survey = Demo(everybody=True, clock=lambda: now).read()
    begin = SurveyBegin(survey=survey, nodes=len(survey.nodes), took_s=0.0)
    return put_together(begin, rows_of(survey), advise.advise_all(survey), number=1)


async def nodes(pilot: Pilot[Any], app: Dashboard) -> None:
    """Show every node in a line, and details of the one under the cursor."""
    await app.main_screen.go((Location(view="nodes"),))
    assert app.picture is not None
    await pilot.press(*["down"] * [row.name for row in app.picture.nodes].index(NODE))


async def jobs(pilot: Pilot[Any], app: Dashboard) -> None:
    """Show the jobs, those with the most idle GPUs first, with charts of the worst."""
    await app.main_screen.go((Location(view="jobs"),))
    await pilot.press("I")


async def node(pilot: Pilot[Any], app: Dashboard) -> None:
    """Show one node, reached through its user."""
    assert app.picture is not None
    snapshot = app.picture.by_name[NODE].node.snapshot
    assert snapshot is not None
    job = next(one for one in app.picture.survey.jobs if one.job_id == snapshot.jobs[0].job)
    of_job = Location(view="nodes", user=job.user, job=job.job_id, job_name=f"{job.id} {job.name}")
    path = (Location(view="users"), Location(view="jobs", user=job.user), of_job)
    await app.main_screen.go(
        (*path, Location(view="node", user=job.user, job=job.job_id, job_name=of_job.job_name, node=NODE))
    )


async def advice(pilot: Pilot[Any], app: Dashboard) -> None:
    """Show the advice on the number of processes."""
    await app.main_screen.go((Location(view="advice"),))


PICTURES: dict[str, Callable[[Pilot[Any], Dashboard], Awaitable[None]]] = {
    "nodes": nodes,
    "jobs": jobs,
    "node": node,
    "advice": advice,
}


async def drawn(name: str) -> str:
    """Return one picture as SVG."""
    feed = FixedFeed()
    app = Dashboard(feed, config=UserConfig(theme=themes.DARK), clock=lambda: 2.0, location=Location(view="nodes"))
    async with app.run_test(size=(WIDTH, HEIGHTS[name])) as pilot:
        await turn(pilot, lambda: app.picture is not None)
        await PICTURES[name](pilot, app)
        before: list[Any] = []

        def is_stable() -> bool:
            before.append(app.screen._compositor.render_strips())
            return len(before) > 3 and before[-1] == before[-2] == before[-3]

        await turn(pilot, is_stable)
        return smaller(app.export_screenshot(title="llload-tui --demo --all"))


async def turn(pilot: Pilot[Any], holds: Callable[[], bool]) -> None:
    """Run the dashboard until `holds()` is true."""
    for _ in range(TURNS_MOST):
        await pilot.pause()
        if holds():
            return
    raise SystemExit("screenshots: the dashboard keeps changing")


def smaller(svg: str) -> str:
    """Return the picture in half the bytes, without fonts that a browser would download."""
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<clipPath id="[\w-]+-line-\d+">.*?</clipPath>\s*', "", svg, flags=re.DOTALL)
    svg = re.sub(r' clip-path="url\(#[\w-]+-line-\d+\)"', "", svg)
    svg = svg.replace("font-family: Fira Code, monospace;", f"font-family: {FONTS};")
    svg = svg.replace(' shape-rendering="crispEdges"', "").replace(
        "<style>", "<style>rect { shape-rendering: crispEdges }"
    )
    return svg.replace("&#160;", "\u00a0").rstrip() + "\n"


def main() -> int:
    """Make the pictures, or compare them with `--check`."""
    parser = argparse.ArgumentParser(prog="screenshots.sh", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only name the outdated pictures")
    parser.add_argument("--png", metavar="FOLDER", type=Path, help="also make PNG files")
    wanted = parser.parse_args()
    os.environ.pop("NO_COLOR", None)
    os.environ["TZ"] = "UTC"
    time.tzset()
    made = {f"{name}.svg": asyncio.run(drawn(name)) for name in PICTURES}
    if wanted.png:
        import cairosvg

        wanted.png.mkdir(parents=True, exist_ok=True)
        for name, svg in made.items():
            of_cairo = svg.replace(FONTS, "DejaVu Sans Mono")
            cairosvg.svg2png(of_cairo.encode(), write_to=str(wanted.png / name.replace(".svg", ".png")))
    there = {file.name: file.read_text() for file in FOLDER.glob("*.svg")}
    if wanted.check:
        differ = sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))
        if differ:
            sys.stderr.write(
                f"{', '.join(differ)} in {FOLDER.name} {'is' if len(differ) == 1 else 'are'} outdated; "
                "packaging/screenshots.sh makes them anew; then review them\n"
            )
        return 1 if differ else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in there.keys() - made.keys():
        (FOLDER / name).unlink()
    for name, svg in made.items():
        (FOLDER / name).write_text(svg)
    return 0


if __name__ == "__main__":
    sys.exit(main())
