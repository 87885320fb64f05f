"""Small charts of one thing over the last ten minutes, on a fixed scale of 0 to 100 percent: CPU and GPU load, memory.

Each is an area of block characters (of `#` in a terminal with no more than ASCII) with its scale at the left and a time
axis below. The letters and colours are those of the one large plot.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from textual.content import Content
from textual.widget import Widget

from slurm_share.core.terminal import safe
from slurm_share.load import text

from ..history import Of
from ..wire import Point
from . import signs
from .spark import tall
from .strokes import SERIES, strokes

CHART_LEAST = 5
"""Lines of one chart: its title, three of the area, the time axis."""
CHART_WIDE, CHART_NARROW = 44, 30
"""Columns of one chart that others stand beside, and of one alone, at the least."""
SPAN_S = 600.0
AXIS = 6
"""Columns of the scale: 100% and a line."""
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
    """One of them."""

    of: Of
    now: str
    """The newest figure, and of how much it is a part."""


@dataclass(frozen=True, slots=True)
class Shown:
    """All that is drawn."""

    charts: tuple[Chart, ...]
    points: tuple[Point, ...]
    end: float
    """Unix time of the right edge."""
    of: str = ""
    """What it is of, in words."""


def over_time(points: Sequence[Point], of: Of, end: float, width: int) -> tuple[float | None, ...]:
    """A figure over the SPAN_S seconds before `end` in `width` columns, oldest first: of each column the mean of what
    is known in it; between two surveys the one before holds. None: unknown, or not looked at."""
    begin, column_s = end - SPAN_S, SPAN_S / max(1, width)
    sums, counts = [0.0] * width, [0] * width
    held: list[float | None] = [None] * width
    for stroke in strokes(points, of):
        before: tuple[int, float] | None = None
        for taken, value in stroke:
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
    """Lines that they need, with the line above them."""
    across = max(1, min(charts, width // CHART_WIDE))
    return 1 + CHART_LEAST * -(-charts // across)


def columns_of(charts: int, width: int, height: int) -> int:
    """How many charts stand beside one another: two where there is room, more where the height wants it."""
    most = max(1, min(charts, width // CHART_WIDE))
    return next((each for each in range(min(2, most), most) if -(-charts // each) * CHART_LEAST <= height), most)


def drawn(shown: Shown, width: int, height: int) -> list[Content]:
    """The charts as lines, as many as there is room for."""
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
    """Exactly `width` columns and `height` lines."""
    letter, label = _LABELS[chart.of]
    room = width - AXIS
    title = text.filled(f"{label}  {chart.now}", width - 2)
    area = tall(over_time(shown.points, chart.of, shown.end, room), room, height - 2)
    bar = "|" if signs.are_plain() else "│"
    marks = {0: "100%", len(area) - 1: "0%", **({len(area) // 2: "50%"} if len(area) >= 5 and len(area) % 2 else {})}
    lines = [Content.assemble((f"{letter} ", f"bold {STYLES[chart.of]}"), (title, "bold"))]
    for number, line in enumerate(area):
        lines.append(Content.assemble((f"{marks.get(number, ''):>4} {bar}", "$text-muted"), (line, STYLES[chart.of])))
    return [*lines, Content.assemble((" " * AXIS + _axis(shown.end, room), "$text-muted"))]


def _axis(end: float, room: int) -> str:
    """When the left edge, the middle and the right edge are."""
    left, middle, right = "10 min ago", "5 min ago", _clock(end)
    if room < len(left) + len(right) + 1:
        return right.rjust(room)
    axis = left.ljust(room - len(right)) + right
    at = room // 2 - len(middle) // 2
    if at > len(left) and at + len(middle) < room - len(right):
        axis = axis[:at] + middle + axis[at + len(middle) :]
    return axis


def _clock(taken: float) -> str:
    try:
        return datetime.datetime.fromtimestamp(taken).strftime("%H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "now"  # of a year that no calendar has


class Charts(Widget):
    """The charts of the row under the cursor. Where there are none, it is not there."""

    DEFAULT_CSS = """
    Charts { width: 1fr; height: 1fr; padding: 0 1; background: $panel; display: none; text-wrap: nowrap; }
    """

    def __init__(self, *, classes: str | None = None) -> None:
        super().__init__(classes=classes)
        self.shown: Shown | None = None

    def show(self, shown: Shown | None) -> None:
        """These from now on; None: none."""
        self.display = shown is not None
        if shown != self.shown:
            self.shown = shown
            self.refresh()

    def render(self) -> Content:
        """As much as there is room for."""
        if self.shown is None:
            return Content("")
        size = self.content_size
        title = text.cut(f"── last 10 minutes of {safe(self.shown.of)} ", size.width)
        head = Content(title + "─" * (size.width - cell_len(title)))
        return Content("\n").join([head, *drawn(self.shown, size.width, size.height - 1)])
