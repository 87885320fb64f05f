"""Run the dashboard with its real feed: python tui_feed.py NODES SECONDS FILE (a bench's helper, in a terminal).

A thread reads and decodes surveys and adds them to the history while frames are drawn under the same interpreter lock.
FILE gets, as JSON, the slowest frame as in tui_drawing.py, and the number of surveys.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path

import slurm_share_tui
from slurm_share_tui.app import Dashboard
from slurm_share_tui.feed import Feed
from slurm_share_tui.location import Location
from slurm_share_tui.main import tune_collector
from slurm_share_tui.user_config import UserConfig
from tui_drawing import WARM_S, Frames

from slurm_share.load.sources.origin import Origin

INTERVAL_S = 2.0


class Whole(Dashboard):
    """The dashboard, with a worker that measures."""

    CSS_PATH = Path(slurm_share_tui.__file__).with_name("dashboard.tcss")

    def __init__(self, feed: Feed, seconds: float) -> None:
        super().__init__(feed, config=UserConfig(theme="dark"), location=Location(view="nodes"))
        self.seconds = seconds
        self.found: dict[str, float] = {}

    def on_mount(self) -> None:
        super().on_mount()
        self.run_worker(self.measure())

    async def measure(self) -> None:
        """Measure from the second survey on."""
        frames = Frames()
        frames.watch(asyncio.get_running_loop())
        while self.picture is None or self.picture.number < 2:
            await asyncio.sleep(0.1)
        grid = self.main_screen.grid
        assert grid is not None
        grid.sort_by("gpu", True)
        await asyncio.sleep(WARM_S)
        frames.slowest()
        before = self.picture.number
        await asyncio.sleep(self.seconds)
        self.found["looks"] = self.picture.number - before
        self.found["frame_ms"], self.found["clock_ms"] = frames.slowest()
        self.exit(0)


def main(count: int, seconds: float, file: Path) -> int:
    """Measure and write; return the app's exit code."""
    origin = Origin(user="alice", demo=True, everybody=True, demo_nodes=count, interval_s=INTERVAL_S)
    with contextlib.closing(Feed(origin)) as feed:
        feed.start()
        app = Whole(feed, seconds)
        tune_collector()
        app.run()
    if app.return_code:
        return app.return_code
    file.write_text(json.dumps(app.found))
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])))
