"""The screen with the large plot: three spans, hidden lines, live and recorded points."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace as changed
from typing import Any

import pytest
from dashboards import NOW, Asks, a_picture, running, screen_text, until
from msgspec.structs import replace
from slurm_share_tui.history import FigureHistory
from slurm_share_tui.screens.trend import Trend
from slurm_share_tui.widgets.charts import SERIES, observed_s
from slurm_share_tui.widgets.plot import Plot
from slurm_share_tui.wire import Point, RecordedPoints, Subject
from textual.pilot import Pilot

NODE = Subject(node="h-1")


def looked(history: FigureHistory, *times: float) -> None:
    """Return surveys at these seconds after NOW."""
    for at in times:
        picture = a_picture()
        history.take(changed(picture, survey=replace(picture.survey, taken=NOW + at)))


def a_node() -> str:
    return next(row.name for row in a_picture().nodes if row.figures.gpus and row.node.snapshot)


@asynccontextmanager
async def plotted(
    *times: float, title: str = "n", size: tuple[int, int] = (120, 40)
) -> AsyncIterator[tuple[Pilot[Any], Trend]]:
    """Run the screen of a node that was seen at these seconds after NOW."""
    history = FigureHistory()
    looked(history, *times)
    trend = Trend(history, Subject(node=a_node()), title)
    async with running(Asks(trend), size) as pilot:
        await pilot.pause()
        yield pilot, trend


async def test_it_says_what_it_is_of_and_what_each_line_is_now() -> None:
    async with plotted(0, 5, 10, title="node [red]n1[/red]\x1b[2J") as (pilot, _):
        shown = screen_text(pilot.app)
        assert "node [red]n1[/red]\\x1b[2J: 10 min, 10 s seen" in shown
        for series in SERIES:
            assert f"{series.letter} {series.label}" in shown


def test_only_what_was_seen_is_called_seen() -> None:
    times = [*range(0, 15, 5), *range(86_400, 86_415, 5)]
    assert observed_s([Point(NOW + at, cpu_load_percent=1.0) for at in times]) == 20
    assert observed_s([Point(NOW + at) for at in times]) == 0
    assert observed_s([Point(NOW, cpu_load_percent=1.0), Point(NOW + 5, cpu_load_percent=1.0), Point(NOW + 10)]) == 5
    assert observed_s([]) == observed_s([Point(NOW, cpu_load_percent=1.0)]) == 0


@pytest.mark.parametrize("size", [(20, 5), (12, 7), (40, 12)])
async def test_in_a_small_terminal_every_figure_is_there(size: tuple[int, int]) -> None:
    async with plotted(0, 5, 10, size=size) as (pilot, _):
        shown = " ".join(screen_text(pilot.app).split())
        assert all(re.search(rf"\b{series.letter} ({series.label} )?[0-9?]+", shown) for series in SERIES), shown
        assert "no room" not in shown


async def test_three_spans_by_number_and_by_arrow() -> None:
    async with plotted(*range(0, 7200, 30)) as (pilot, trend):
        plot = pilot.app.screen.query_one(Plot)
        spans = {}
        for key in ("1", "2", "3"):
            await pilot.press(key)
            await pilot.pause()
            spans[key] = plot.end - plot.begin
        assert (spans["1"], spans["2"]) == (600, 3600)
        assert 6000 < spans["3"] <= 7200
        for key, at in (("right", 2), ("left", 1), ("left", 0), ("left", 0), ("right", 1)):
            await pilot.press(key)
            assert trend.at == at


async def test_a_line_is_hidden_by_its_letter() -> None:
    async with plotted(0, 5) as (pilot, _):
        await pilot.press("c")
        await pilot.pause()
        assert [series.letter for series in pilot.app.screen.query_one(Plot).shown] == ["g", "s", "m", "v"]
        assert "CPU load (hidden)" in screen_text(pilot.app)
        await pilot.press("c")
        assert len(pilot.app.screen.query_one(Plot).shown) == 5


async def test_it_goes_on_while_looks_arrive() -> None:
    async with plotted() as (pilot, trend):
        assert "nothing has been seen of it yet" in screen_text(pilot.app)
        looked(trend.history, 0, 5)
        await until(pilot, lambda: len(pilot.app.screen.query_one(Plot).points) == 2)
        await pilot.pause()
        assert "nothing has been seen" not in screen_text(pilot.app)
        looked(trend.history, 10)
        await until(pilot, lambda: len(pilot.app.screen.query_one(Plot).points) == 3)


async def test_of_a_recording_its_past_is_asked_for_once() -> None:
    history = FigureHistory()
    looked(history, 100)
    asked: list[Subject] = []
    trend = Trend(history, NODE, "h-1", ask_recorded=asked.append)
    async with running(Asks(trend)) as pilot:
        await pilot.pause()
        assert asked == [NODE]
        history.add_recorded(
            RecordedPoints(NODE, tuple(Point(NOW + at, cpu_load_percent=50.0) for at in range(0, 1000, 10)))
        )
        await pilot.press("3")
        plot = pilot.app.screen.query_one(Plot)
        await until(pilot, lambda: len(plot.points) == 100)
        assert (plot.begin, plot.end, plot.here) == (NOW, NOW + 990, NOW + 100)
        await pilot.press("escape")
        await pilot.pause()
        assert pilot.app.screen is not trend
