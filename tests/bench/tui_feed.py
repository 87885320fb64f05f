"""Run the dashboard with its real feed: python tui_feed.py NODES SECONDS FILE (a bench's helper, in a terminal).

A thread reads and decodes surveys and adds them to the history while frames are drawn under the same interpreter lock.
FILE gets, as JSON, the slowest frame as in tui_drawing.py, and the number of surveys.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

from slurm_share_tui.feed import Feed
from tui_drawing import WARM_S, Measured

from slurm_share.load.sources.origin import Origin

INTERVAL_S = 2.0


class Whole(Measured):
    """The dashboard with its real feed."""

    async def measure(self) -> None:
        """Measure from the second survey on."""
        while self.picture is None or self.picture.number < 2:
            await asyncio.sleep(0.1)
        self.sort()
        await asyncio.sleep(WARM_S)
        self.frames.slowest()
        before = self.picture.number
        await asyncio.sleep(self.seconds)
        self.found["looks"] = self.picture.number - before
        self.found["frame_ms"], self.found["clock_ms"] = self.frames.slowest()
        self.exit(0)


def main(count: int, seconds: float, file: Path) -> int:
    origin = Origin(user="alice", demo=True, everybody=True, demo_nodes=count, interval_s=INTERVAL_S)
    with contextlib.closing(Feed(origin)) as feed:
        feed.start()
        return Whole(feed, seconds).run_into(file)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])))
