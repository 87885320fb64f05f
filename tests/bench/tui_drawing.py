"""Draw surveys that are ready: python tui_drawing.py NODES RATE SECONDS FILE (a bench's helper, in a terminal).

FILE gets, as JSON, the part of a core that drawing took, and the slowest frame: all that was done between two moments
at which the program was idle, in CPU time and by the clock; first with surveys alone, then with a key every 0.2 seconds
too. The history is updated before each survey in another thread, as the real feed does: its time is reported
separately, and counts in a frame by the clock when both threads compete.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import slurm_share_tui
from msgspec.structs import replace as changed
from slurm_share_tui.app import Dashboard
from slurm_share_tui.history import FigureHistory
from slurm_share_tui.location import Location
from slurm_share_tui.main import tune_collector
from slurm_share_tui.picture import SurveyPicture, put_together
from slurm_share_tui.user_config import UserConfig
from slurm_share_tui.wire import SurveyBegin

from slurm_share.load import rows_of
from slurm_share.load.sources.demo import Demo

BEGIN = 1_795_271_308.0
LOOKS = 6
"""Number of different surveys, shown in turn."""
WARM_S = 3.0
KEYS = ("down", "pagedown", "end", "up", "home", "greater_than_sign", "r", "right", "left", "space", "pagedown")


class Feed:
    """The parts of a feed that the dashboard needs."""

    def __init__(self) -> None:
        self.history = FigureHistory()
        self.post: Callable[[SurveyPicture], object] = lambda picture: None

    def attach(self, post: Callable[[SurveyPicture], object]) -> None:
        self.post = post

    def tell(self, told: Any) -> None:
        """Ignore the command."""


def picture(count: int, number: int, rate: float) -> SurveyPicture:
    """Return survey `number` of this many simulated nodes, `rate` of them a second."""
    survey = Demo(user="alice", everybody=True, count=count, clock=lambda: BEGIN + number / rate).read()
    begin = SurveyBegin(survey=survey, nodes=count, took_s=0.0)
    return put_together(begin, rows_of(survey), arrived=time.monotonic(), number=number)


class Frames:
    """Measures the work of the event loop between two idle moments."""

    def __init__(self) -> None:
        self.cpu_s: list[float] = []
        self.clock_s: list[float] = []
        self._woken: tuple[float, float] | None = None

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Measure from now on."""
        selector = loop._selector  # type: ignore[attr-defined]
        wait = selector.select

        def select(timeout: float | None = None) -> Any:
            if timeout == 0:
                return wait(timeout)  # there is more to do at once
            if self._woken is not None:
                self.cpu_s.append(time.thread_time() - self._woken[0])
                self.clock_s.append(time.perf_counter() - self._woken[1])
            found = wait(timeout)
            self._woken = (time.thread_time(), time.perf_counter())
            return found

        selector.select = select

    def slowest(self) -> tuple[float, float]:
        """Return CPU time and clock time of the slowest frames since the last call, milliseconds."""
        found = (1000 * max(self.cpu_s, default=0.0), 1000 * max(self.clock_s, default=0.0))
        self.cpu_s.clear()
        self.clock_s.clear()
        return found


class Measured(Dashboard):
    """The dashboard, with a worker that measures."""

    CSS_PATH = Path(slurm_share_tui.__file__).with_name("dashboard.tcss")

    def __init__(self, feed: Any, seconds: float) -> None:
        super().__init__(feed, config=UserConfig(theme="dark"), location=Location(view="nodes"))
        self.seconds = seconds
        self.found: dict[str, float] = {}
        self.frames = Frames()

    def on_mount(self) -> None:
        super().on_mount()
        self.frames.watch(asyncio.get_running_loop())
        self.run_worker(self.measure())

    async def measure(self) -> None:
        """Write figures into `found`, and end the dashboard."""
        raise NotImplementedError

    def sort(self) -> None:
        """Sort the nodes by a figure that changes."""
        grid = self.main_screen.grid
        assert grid is not None
        grid.sort_by("gpu", True)

    def run_into(self, file: Path) -> int:
        """Run, write `found` as JSON, and return the exit code."""
        tune_collector()
        self.run()
        if not self.return_code:
            file.write_text(json.dumps(self.found))
        return self.return_code or 0


class Bench(Measured):
    """The dashboard, driven with surveys and then with keys."""

    def __init__(self, pictures: list[SurveyPicture], rate: float, seconds: float) -> None:
        super().__init__(Feed(), seconds)
        self.pictures, self.rate = pictures, rate
        self.shown = 0

    async def measure(self) -> None:
        """Measure with surveys alone, then with keys too."""
        frames = self.frames
        await self._play(WARM_S, ["down", "down"])
        self.sort()
        await self._play(1.0, [])
        frames.slowest()
        for what, keys in (("", []), ("keys_", [*KEYS] * 1000)):
            drawn, all_of_it, begun = time.thread_time(), time.process_time(), time.perf_counter()
            shown = self.shown
            await self._play(self.seconds, keys)
            drawn, all_of_it = time.thread_time() - drawn, time.process_time() - all_of_it
            self.found[f"{what}share"] = 100 * drawn / (time.perf_counter() - begun)
            self.found[f"{what}looks"] = looks = self.shown - shown
            self.found[f"{what}history_ms"] = 1000 * (all_of_it - drawn) / looks
            self.found[f"{what}frame_ms"], self.found[f"{what}clock_ms"] = frames.slowest()
        self.exit(0)

    def _next(self) -> SurveyPicture:
        """Return the next survey, taken after all before: time does not go back."""
        one = self.pictures[self.shown % len(self.pictures)]
        return replace(one, survey=changed(one.survey, taken=BEGIN + self.shown / self.rate))

    async def _play(self, seconds: float, keys: list[str]) -> None:
        waiting = keys[::-1]
        now = time.perf_counter()
        end, next_look, next_key = now + seconds, now, now
        while (now := time.perf_counter()) < end:
            if now >= next_look:
                await asyncio.to_thread(self.feed.history.take, one := self._next())
                self.feed.post(one)
                self.shown += 1
                next_look += 1 / self.rate
            if waiting and now >= next_key:
                self.simulate_key(waiting.pop())
                next_key += 0.2
            due = min(next_look, next_key) if waiting else next_look
            await asyncio.sleep(max(0.001, min(due, end) - time.perf_counter()))


def main(count: int, rate: float, seconds: float, file: Path) -> int:
    return Bench([picture(count, number, rate) for number in range(LOOKS)], rate, seconds).run_into(file)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4])))
