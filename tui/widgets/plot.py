"""A large plot of percent over time. Each line shows its letter, so that lines differ without colours."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Sequence
from typing import Any

from rich.text import Text
from textual.color import Color, ColorParseError
from textual_plotext import PlotextPlot

from ..history import Figure
from ..wire import Point
from . import glyphs
from .charts import SERIES, PlotSeries, Polyline, polylines

TOP = 100.0
TOP_MOST = 200.0
"""Higher values are drawn here; the legend has the figure."""


def downsampled(points: Sequence[Point], most: int) -> tuple[Point, ...]:
    """Return at most about `most` points, each the mean of several; a point without figures stays a gap."""
    if len(points) <= most or most <= 0:
        return tuple(points)
    each = -(-len(points) // most)
    return tuple(_mean(points[at : at + each]) for at in range(0, len(points), each))


def _mean(points: Sequence[Point]) -> Point:
    def mean(of: Figure) -> float | None:
        known = [value for point in points if (value := getattr(point, of)) is not None]
        return statistics.fmean(known) if known else None

    return Point(points[-1].taken, *(mean(series.of) for series in SERIES))


def top_of(points: Sequence[Point], shown: Sequence[PlotSeries]) -> float:
    """Return the end of the scale: 100, unless a value is clearly above."""
    most = max((value for point in points for one in shown if (value := getattr(point, one.of)) is not None), default=0)
    return TOP if most <= 1.05 * TOP else min(TOP_MOST, 50.0 * -(-most // 50))


def ticks(begin: float, end: float, count: int) -> list[tuple[float, str]]:
    """Return at most `count` times for the axis, at round minutes or hours if the span allows it."""
    span = end - begin
    steps = (10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400, 604800)
    step = next((one for one in steps if span / one <= max(1, count)), max(1.0, span))
    form = "%H:%M:%S" if step < 60 else "%H:%M" if span < 86400 else "%Y-%m-%d %H:%M"
    found: list[tuple[float, str]] = []
    try:
        zone = datetime.datetime.fromtimestamp(begin).astimezone().utcoffset() or datetime.timedelta()
        shift = zone.total_seconds()
        at = -(-(begin + shift) // step) * step - shift
        while at <= end and len(found) <= count:
            found.append((at, datetime.datetime.fromtimestamp(at).strftime(form)))
            at += step
    except (ValueError, OverflowError, OSError):
        return []  # a time outside the calendar
    return found


class Plot(PlotextPlot):
    """Draws points in the theme's colours on the screen's background."""

    DEFAULT_CSS = "Plot { width: 1fr; height: 1fr; }"

    points: tuple[Point, ...] = ()
    shown: tuple[PlotSeries, ...] = SERIES
    begin = end = 0.0
    here: float | None = None

    def on_mount(self) -> None:
        self.app.theme_changed_signal.subscribe(self, lambda _theme: self.refresh())

    def draw(
        self,
        points: Sequence[Point],
        begin: float,
        end: float,
        *,
        shown: Sequence[PlotSeries] = SERIES,
        here: float | None = None,
    ) -> None:
        """Draw these points. `begin`, `end`: Unix times of the left and the right edge. `here`: a mark at this time."""
        self.points, self.begin, self.end = tuple(points), begin, end
        self.shown, self.here = tuple(shown), here
        self.refresh()

    def colour_of(self, role: str) -> str | tuple[int, int, int]:
        """Return the theme's colour in plotext's form."""
        value = self.app.theme_variables.get(role, "")
        if value.startswith("ansi_"):
            name = value.removeprefix("ansi_")
            return f"{name.removeprefix('bright_')}+" if name.startswith("bright_") else name
        try:
            red, green, blue = Color.parse(value).rgb
        except ColorParseError:
            return "default"
        return red, green, blue

    def render(self) -> Text:
        width, height = self.size
        if width < 12 or height < 4:
            return Text("no room for a plot"[: max(0, width)])
        plt: Any = self.plt
        plt.clear_figure()
        plt.plotsize(width, height)
        plt._set_size(width, height)  # as PlotextPlot does: plotsize alone is lost at a resize
        for paint in (plt.canvas_color, plt.axes_color, plt.ticks_color):
            paint("default")
        span = max(1.0, self.end - self.begin)
        top = top_of(self.points, self.shown)
        plt.xlim(0, span)
        plt.ylim(0, top)
        marks = [0, 50, 100] if height < 14 else [0, 25, 50, 75, 100]
        marks += [150] * (top >= 150) + [200] * (top >= 200)
        plt.yticks(marks, [f"{mark:g}%" for mark in marks])
        times = ticks(self.begin, self.end, max(1, width // 18))
        plt.xticks([at - self.begin for at, _ in times], [label for _, label in times])
        plt.grid(True, False)
        plt.scatter([0], [0], marker=" ", color="default")  # without a point plotext draws no scale
        self._lines(plt, width, top)
        if self.here is not None and self.begin <= self.here <= self.end:
            plt.vline(self.here - self.begin, "default")
        return Text.from_ansi(plt.build())

    def _lines(self, plt: Any, width: int, top: float) -> None:
        points = downsampled(self.points, 2 * width)
        letters: list[tuple[str, Any, Polyline]] = []
        marker = "." if glyphs.is_ascii_only() else "braille"
        for number, series in enumerate(self.shown):
            colour = self.colour_of(series.role)
            found: Polyline = []
            for polyline in polylines(points, series.of):
                xs = [taken - self.begin for taken, _ in polyline]
                ys = [min(top, max(0.0, value)) for _, value in polyline]
                plt.plot(xs, ys, marker=marker, color=colour)
                found += zip(xs, ys, strict=True)
            letters.append((series.letter, colour, _spread(found, width, number, self.end - self.begin)))
        for letter, colour, places in letters:  # above all lines
            if places:
                plt.scatter([x for x, _ in places], [y for _, y in places], marker=letter, color=colour)


def _spread(places: Polyline, width: int, number: int, span: float) -> Polyline:
    """Return places for a line's letter, at other columns than those of the other lines, and always the newest."""
    if not places or span <= 0:
        return places[-1:]
    every = span * 15 / width
    due = number * every / len(SERIES)
    found: Polyline = []
    for x, y in places[:-1]:
        if x >= due:
            found.append((x, y))
            due += every * max(1, (x - due) // every + 1)
    return [*found, places[-1]]
