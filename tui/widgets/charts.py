"""Small charts of one subject over the last ten minutes, or as long as it is known: load and memory from 0 to 100
percent, and the rate of its tasks.

A chart is an area of block characters (`#` in an ASCII terminal) with its scale at the left and a time axis below.
The series, their letters and the gaps in them are those of the large plot too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from rich.cells import cell_len
from textual.content import Content
from textual.widget import Widget

from slurm_share.core.terminal import safe
from slurm_share.core.text import rate_text, span_text
from slurm_share.load import text

from ..history import Figure
from ..wire import Point
from . import glyphs
from .bars import tall
from .replay_bar import clock

GAP = 3.0
"""A pause this many times longer than its neighbours is a gap."""
CHART_LEAST = 5
"""Least height of a chart: title, three lines of the area, time axis."""
CHART_WIDE, CHART_NARROW = 38, 30
"""Least width of a chart, with others at its side and alone."""
SPAN_S, SPAN_LEAST_S = 600.0, 10.0
"""Longest and shortest time that a chart shows, seconds."""
SCALE = 4
"""Least columns of the marks at the scale."""


@dataclass(frozen=True, slots=True)
class PlotSeries:
    """A figure of the plot, with its letter, label and colour."""

    of: Figure
    letter: str
    label: str
    role: str
    """The theme's colour."""


SERIES: tuple[PlotSeries, ...] = (
    PlotSeries("cpu_load_percent", "c", "CPU load", "primary"),
    PlotSeries("gpu_load_percent", "g", "GPU load", "success"),
    PlotSeries("sm_percent", "s", "SM now", "accent"),
    PlotSeries("memory_percent", "m", "memory", "warning"),
    PlotSeries("gpu_memory_percent", "v", "GPU memory", "secondary"),
)
"""All series; their letters are those of llload's flags. None has the colour of errors."""

Rates = tuple[tuple[float, float | None], ...]
"""(Unix time, units per second); None: unknown."""
Polyline = list[tuple[float, float]]
_STYLES = {series.of: f"$text-{series.role}" for series in SERIES} | {"rate": "$text-accent"}
_LABELS = {series.of: (series.letter, series.label) for series in SERIES} | {"rate": ("r", "rate of tasks")}
_LABELS["memory_percent"] = ("m", "host memory")


@dataclass(frozen=True, slots=True)
class Chart:
    """One of the charts, with its newest figure."""

    of: Figure | Literal["rate"]
    now: str
    """The newest figure as text."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Everything that the widget draws."""

    charts: tuple[Chart, ...]
    points: tuple[Point, ...]
    end: float
    """Unix time of the right edge."""
    of: str = ""
    """Name of the subject."""
    rates: Rates = ()
    """The values of the chart of rates."""
    span_s: float = SPAN_S
    """Longest time that the charts show, seconds."""
    title: str = ""
    """The line above the charts; empty: the span and the subject."""

    @property
    def begin(self) -> float:
        """Return the Unix time of the left edge: of the first known figure, at most SPAN_S ago."""
        known = [taken for taken, value in self.rates if value is not None][:1]
        known += [one.taken for one in self.points if any(getattr(one, each.of) is not None for each in SERIES)][:1]
        return min(self.end - SPAN_LEAST_S, max(self.end - self.span_s, min(known, default=self.end)))

    def values(self, chart: Chart) -> tuple[tuple[float, float | None], ...]:
        """Return what a chart shows: (Unix time, percent or units per second)."""
        if chart.of == "rate":
            return self.rates
        return tuple((point.taken, getattr(point, chart.of)) for point in self.points)


def known_charts(shown: Shown) -> Shown | None:
    """Return the charts of which something is known; None: there are none."""
    charts = tuple(one for one in shown.charts if any(value is not None for _, value in shown.values(one)))
    return replace(shown, charts=charts) if charts else None


def polylines(points: Sequence[Point], of: Figure) -> list[Polyline]:
    """Return the known values of one figure, split at gaps: (Unix time, percent)."""
    return _polylines([(point.taken, getattr(point, of)) for point in points])


def _polylines(values: Sequence[tuple[float, float | None]]) -> list[Polyline]:
    found: list[Polyline] = []
    pauses = [after - before for (before, _), (after, _) in pairwise(values)]
    is_open = False
    for number, (taken, value) in enumerate(values):
        if number and pauses[number - 1] > GAP * _near_pause_s(pauses, number - 1):
            is_open = False
        if value is None:
            is_open = False
            continue
        if not is_open:
            found.append([])
            is_open = True
        found[-1].append((taken, value))
    return found


def observed_s(points: Sequence[Point]) -> float:
    """Return the seconds in which something is known, without gaps; 0.0 if there is at most one point."""
    known = [point for point in points if any(getattr(point, series.of) is not None for series in SERIES)]
    pauses = [after.taken - before.taken for before, after in pairwise(known)]
    return sum(pause for at, pause in enumerate(pauses) if pause <= GAP * _near_pause_s(pauses, at))


def _near_pause_s(pauses: Sequence[float], at: int) -> float:
    """Return the longer of the pauses before and after. The pauses grow once where the history becomes coarser, which
    is no gap."""
    near = [*pauses[max(0, at - 1) : at], *pauses[at + 1 : at + 2]]
    return max(near, default=pauses[at])


def over_time(
    values: Sequence[tuple[float, float | None]], begin: float, end: float, width: int
) -> tuple[float | None, ...]:
    """Return values (Unix time, figure) from `begin` to `end` in `width` columns, oldest first: the mean of the known
    ones in each column, and the last value in columns between two surveys. None: unknown."""
    column_s = (end - begin) / max(1, width)
    sums, counts = [0.0] * width, [0] * width
    held: list[float | None] = [None] * width
    for polyline in _polylines(values):
        before, last = width, 0.0
        for taken, value in polyline:
            if begin <= taken <= end:
                at = min(width - 1, int((taken - begin) / column_s))
                sums[at] += value
                counts[at] += 1
                for between in range(before + 1, at):
                    held[between] = last
                before, last = at, value
    return tuple(sums[at] / counts[at] if counts[at] else held[at] for at in range(width))


def least_height(charts: int, width: int) -> int:
    """Return the least height of these charts, with their title line."""
    across = max(1, min(charts, width // CHART_WIDE))
    return 1 + CHART_LEAST * -(-charts // across)


def drawn(shown: Shown, width: int, height: int) -> list[Content]:
    """Return the charts as lines, as many charts as fit: two side by side, more if the height requires it."""
    charts, count = shown.charts, len(shown.charts)
    most = max(1, min(count, width // CHART_WIDE))
    first = 3 if count == 3 <= most else min(2, most)
    across = next((one for one in range(first, most) if -(-count // one) * CHART_LEAST <= height), most)
    rows = max(1, min(-(-count // across), height // CHART_LEAST))
    charts = charts[: across * rows]
    if height < CHART_LEAST or width < CHART_NARROW or not charts:
        return []
    wide = (width - 2 * (across - 1)) // across
    lines: list[Content] = []
    for row in range(rows):
        high = height // rows + (row < height % rows)
        blocks = [_chart(one, shown, wide, high) for one in charts[row * across : (row + 1) * across]]
        lines += [Content("  ").join(parts) for parts in zip(*blocks, strict=True)]
    return lines


def _chart(chart: Chart, shown: Shown, width: int, height: int) -> list[Content]:
    """Return a chart in exactly `width` columns and `height` lines."""
    (letter, label), style = _LABELS[chart.of], _STYLES[chart.of]
    values, top, half, bottom = shown.values(chart), "100%", "50%", "0%"
    if chart.of == "rate":
        full = full_scale(max((value for _, value in values if value is not None), default=0.0))
        values = tuple((taken, None if value is None else 100 * value / full) for taken, value in values)
        top, half, bottom = rate_text(full), rate_text(full / 2), "0"
    scale = max(SCALE, cell_len(top), cell_len(half))
    room = width - scale - 2
    title = text.filled(f"{label}  {chart.now}", width - 2)
    area = tall(over_time(values, shown.begin, shown.end, room), room, height - 2)
    bar = "|" if glyphs.is_ascii_only() else "│"
    marks = {0: top, len(area) - 1: bottom, **({len(area) // 2: half} if len(area) >= 5 and len(area) % 2 else {})}
    lines = [Content.assemble((f"{letter} ", f"bold {style}"), (title, "bold"))]
    for number, line in enumerate(area):
        lines.append(Content.assemble((f"{marks.get(number, ''):>{scale}} {bar}", "$text-muted"), (line, style)))
    return [*lines, Content.assemble((" " * (scale + 2) + _axis(shown, room), "$text-muted"))]


def full_scale(most: float) -> float:
    """Return the end of a scale of rates: 1, 2 or 5 times a power of ten, of the unit in which the rate is written.
    `most`, result: units per second."""
    unit_s = next((one for one in (1, 60) if most * one >= 1), 3600)
    if most <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most * unit_s))
    return next(step for step in (1, 2, 5, 10) if most * unit_s <= 1.0001 * step * power) * power / unit_s


def _axis(shown: Shown, room: int) -> str:
    span_s = shown.end - shown.begin
    left, middle, right = f"{span_text(span_s)} ago", f"{span_text(span_s / 2)} ago", clock(shown.end)
    if room < len(left) + len(right) + 1:
        return right.rjust(room)
    axis = left.ljust(room - len(right)) + right
    at = room // 2 - len(middle) // 2
    if at > len(left) and at + len(middle) < room - len(right):
        axis = axis[:at] + middle + axis[at + len(middle) :]
    return axis


class Charts(Widget):
    """The charts of the row under the cursor. Hidden while there are none."""

    DEFAULT_CSS = """
    Charts { width: 1fr; height: 1fr; padding: 0 1; background: $panel; display: none; text-wrap: nowrap; }
    """
    shown: Shown | None = None

    def show(self, shown: Shown | None) -> None:
        self.display = shown is not None
        if shown != self.shown:
            self.shown = shown
            self.refresh()

    def render(self) -> Content:
        if self.shown is None:
            return Content("")
        size = self.content_size
        span_s = self.shown.end - self.shown.begin
        span = f"{span_s / 60:.0f} minutes" if span_s >= 119.5 else f"{span_s:.0f} seconds"
        said = self.shown.title or f"last {span} of {self.shown.of}"
        title = text.cut(f"── {safe(said)} ", size.width)
        head = Content(title + "─" * (size.width - cell_len(title)))
        return Content("\n").join([head, *drawn(self.shown, size.width, size.height - 1)])
