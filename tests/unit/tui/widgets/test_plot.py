"""The large plot: gaps, fixed scales, and a letter on every line."""

from __future__ import annotations

import datetime

import pytest
from dashboards import NOW, running
from slurm_share_tui import themes
from slurm_share_tui.widgets.charts import SERIES, polylines
from slurm_share_tui.widgets.plot import Plot, downsampled, ticks, top_of
from slurm_share_tui.wire import Point
from textual.app import App


def points(*values: float | None, every: float = 5.0) -> tuple[Point, ...]:
    """Return points with this CPU load."""
    return tuple(Point(NOW + number * every, cpu_load_percent=value) for number, value in enumerate(values))


def test_what_is_unknown_is_a_gap() -> None:
    found = polylines(points(1.0, 2.0, None, 3.0), "cpu_load_percent")
    assert [[value for _, value in polyline] for polyline in found] == [[1.0, 2.0], [3.0]]
    assert polylines(points(None, None), "cpu_load_percent") == []
    assert polylines((), "cpu_load_percent") == []


def test_a_pause_without_looks_is_a_gap_and_a_coarser_past_is_none() -> None:
    paused = (*points(1.0, 1.0, 1.0), *(Point(NOW + 70 + 5 * n, cpu_load_percent=1.0) for n in range(3)))
    assert [len(polyline) for polyline in polylines(paused, "cpu_load_percent")] == [3, 3]
    coarse = tuple(Point(NOW - at, cpu_load_percent=1.0) for at in (1800, 1200, 600, 540, 480, 475, 470, 465))
    assert [len(polyline) for polyline in polylines(coarse, "cpu_load_percent")] == [8]


def test_a_long_history_is_thinned_to_means() -> None:
    many = points(*[float(number % 2) for number in range(100)], *[None] * 100)
    few = downsampled(many, 20)
    assert len(few) == 20
    assert [point.cpu_load_percent for point in few] == [0.5] * 10 + [None] * 10
    assert downsampled(many, 200) == many


def test_the_scale_ends_at_100_unless_something_is_well_above() -> None:
    assert top_of(points(1.0, 2.0), SERIES) == 100
    assert top_of(points(104.0), SERIES) == 100
    assert top_of(points(106.0), SERIES) == 150
    assert top_of(points(1e9), SERIES) == 200
    assert top_of(points(300.0), SERIES[1:]) == 100
    assert top_of((), SERIES) == 100


@pytest.mark.parametrize("span", [1.0, 30.0, 600.0, 3600.0, 86400.0, 30 * 86400.0])
@pytest.mark.parametrize("count", [1, 5, 12])
def test_times_below_are_round_and_few(span, count) -> None:
    found = ticks(NOW, NOW + span, count)
    assert len(found) <= count + 1
    assert all(NOW <= at <= NOW + span for at, _ in found)
    if span == 600.0:
        assert all(datetime.datetime.fromtimestamp(at).second == 0 for at, _ in found)


def test_a_time_that_no_calendar_has_is_not_written() -> None:
    assert ticks(1e15, 1e15 + 600, 5) == []


class Plots(App[None]):
    """Shows one plot in one of our themes."""

    def __init__(self, theme: str) -> None:
        super().__init__()
        for one in themes.THEMES:
            self.register_theme(one)
        self.theme = theme

    def compose(self):
        yield Plot()


def every_line() -> tuple[Point, ...]:
    """Return points with five different known figures."""
    return tuple(Point(NOW + 5 * n, 90.0, 70.0, 50.0, 30.0, 10.0) for n in range(100))


@pytest.mark.parametrize("theme", [theme.name for theme in themes.THEMES])
async def test_every_line_has_its_letter_in_every_theme(theme) -> None:
    async with running(Plots(theme), size=(100, 30)) as pilot:
        plot = pilot.app.query_one(Plot)
        plot.draw(every_line(), NOW, NOW + 500)
        await pilot.pause()
        text = plot.render().plain
        for series in SERIES:
            assert text.count(series.letter) >= 3, series
        assert "100%" in text


async def test_a_colour_of_the_terminals_own_keeps_its_name() -> None:
    async with running(Plots(themes.MONO)) as pilot:
        plot = pilot.app.query_one(Plot)
        assert plot.colour_of("nothing") == "default"
        assert isinstance(plot.colour_of("primary"), str)
        pilot.app.theme = themes.DARK
        await pilot.pause()
        assert isinstance(plot.colour_of("primary"), tuple)


@pytest.mark.parametrize("size", [(20, 5), (12, 4), (5, 3), (300, 100), (80, 24)])
async def test_it_is_drawn_at_any_size(size) -> None:
    async with running(Plots(themes.DARK), size=size) as pilot:
        plot = pilot.app.query_one(Plot)
        plot.draw(every_line(), NOW, NOW + 500, here=NOW + 250)
        await pilot.pause()
        lines = plot.render().plain.splitlines()
        assert len(lines) <= size[1]
        assert max(map(len, lines)) <= size[0]


async def test_one_point_and_no_time_are_drawn_too() -> None:
    async with running(Plots(themes.DARK)) as pilot:
        plot = pilot.app.query_one(Plot)
        for some in ((), points(1.0), points(None), points(1e300, -1e300)):
            plot.draw(some, NOW, NOW)
            assert "100%" in plot.render().plain
