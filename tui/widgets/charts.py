"""Small charts of one subject over the last ten minutes, from 0 to 100 percent: CPU and GPU load, memory.

A chart is an area of block characters (`#` in an ASCII terminal) with its scale at the left and a time axis below.
Letters and colours are those of the large plot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from textual.content import Content
from textual.widget import Widget

from slurm_share.core.terminal import safe
from slurm_share.load import text

from ..history import Figure
from ..wire import Point
from . import glyphs
from .replay_bar import clock
from .series import SERIES, polylines
from .spark import tall

CHART_LEAST = 5
"""Least height of a chart: title, three lines of the area, time axis."""
CHART_WIDE, CHART_NARROW = 44, 30
"""Least width of a chart, with others at its side and alone."""
SPAN_S = 600.0
AXIS = 6
"""Columns of the scale, with its line."""
STYLES = {
    "cpu_load_percent": "$text-primary",
    "gpu_load_percent": "$text-success",
    "memory_percent": "$text-warning",
    "gpu_memory_percent": "$text-error",
}
_LABELS = {series.of: (series.letter, series.label) for series in SERIES}
_LABELS["memory_percent"] = ("m", "host memory")


@dataclass(frozen=True, slots=True)
class Chart:
    """One of the charts, with its newest figure."""

    of: Figure
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


def over_time(points: Sequence[Point], of: Figure, end: float, width: int) -> tuple[float | None, ...]:
    """Return a figure over the SPAN_S seconds before `end` in `width` columns, oldest first: the mean of the known
    values in each column, and the last value in columns between two surveys. None: unknown."""
    begin, column_s = end - SPAN_S, SPAN_S / max(1, width)
    sums, counts = [0.0] * width, [0] * width
    held: list[float | None] = [None] * width
    for polyline in polylines(points, of):
        before: tuple[int, float] | None = None
        for taken, value in polyline:
            at = min(width - 1, int((taken - begin) / column_s)) if begin <= taken <= end else -1
            if at < 0:
                continue
            sums[at] += value
            counts[at] += 1
            if before is not None:
                for between in range(before[0] + 1, at):
                    held[between] = before[1]
            before = (at, value)
    return tuple(sums[at] / counts[at] if counts[at] else held[at] for at in range(width))


def least_height(charts: int, width: int) -> int:
    """Return the least height of these charts, with their title line."""
    across = max(1, min(charts, width // CHART_WIDE))
    return 1 + CHART_LEAST * -(-charts // across)


def columns_of(charts: int, width: int, height: int) -> int:
    """Return how many charts are side by side: two if they fit, more if the height requires it."""
    most = max(1, min(charts, width // CHART_WIDE))
    return next((each for each in range(min(2, most), most) if -(-charts // each) * CHART_LEAST <= height), most)


def drawn(shown: Shown, width: int, height: int) -> list[Content]:
    """Return the charts as lines, as many charts as fit."""
    charts = shown.charts
    across = columns_of(len(charts), width, height)
    rows = max(1, min(-(-len(charts) // across), height // CHART_LEAST))
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
    letter, label = _LABELS[chart.of]
    room = width - AXIS
    title = text.filled(f"{label}  {chart.now}", width - 2)
    area = tall(over_time(shown.points, chart.of, shown.end, room), room, height - 2)
    bar = "|" if glyphs.is_ascii_only() else "│"
    marks = {0: "100%", len(area) - 1: "0%", **({len(area) // 2: "50%"} if len(area) >= 5 and len(area) % 2 else {})}
    lines = [Content.assemble((f"{letter} ", f"bold {STYLES[chart.of]}"), (title, "bold"))]
    for number, line in enumerate(area):
        lines.append(Content.assemble((f"{marks.get(number, ''):>4} {bar}", "$text-muted"), (line, STYLES[chart.of])))
    return [*lines, Content.assemble((" " * AXIS + _axis(shown.end, room), "$text-muted"))]


def _axis(end: float, room: int) -> str:
    """Return the time axis."""
    left, middle, right = "10 min ago", "5 min ago", clock(end)
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

    def __init__(self, *, classes: str | None = None) -> None:
        super().__init__(classes=classes)
        self.shown: Shown | None = None

    def show(self, shown: Shown | None) -> None:
        """Show these charts; None: none."""
        self.display = shown is not None
        if shown != self.shown:
            self.shown = shown
            self.refresh()

    def render(self) -> Content:
        if self.shown is None:
            return Content("")
        size = self.content_size
        title = text.cut(f"── last 10 minutes of {safe(self.shown.of)} ", size.width)
        head = Content(title + "─" * (size.width - cell_len(title)))
        return Content("\n").join([head, *drawn(self.shown, size.width, size.height - 1)])
