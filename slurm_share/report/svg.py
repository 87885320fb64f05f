"""Draw plots over time as SVG, in Python: lines with a limit, and a timeline of tasks. Values in, text out.

Every text is escaped here. Colours are classes of the page's style sheet, so that a dark screen and paper have theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from msgspec import Struct

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 720, 62, 12, 14, 24
HEIGHT = 190
LANE = 9
"""Height of a task in the timeline."""
COLOURS = 8
"""Classes c0 to c7 of the style sheet."""


class Line(Struct, frozen=True):
    """One line of a plot."""

    label: str
    points: tuple[tuple[float, float | None], ...]
    """(seconds since the start, value); None: not known, so that the line has a gap."""


class Block(Struct, frozen=True):
    """One task in the timeline."""

    begin: float
    end: float
    kind: str
    """Class of the style sheet: done, bad, saved."""
    title: str


class Lanes(Struct, frozen=True):
    """The tasks of one GPU in the timeline, in lanes above each other."""

    label: str
    lanes: tuple[tuple[Block, ...], ...]


def plot(
    lines: Sequence[Line],
    *,
    until: float,
    write: Callable[[float], str],
    limit: tuple[float, str] | None = None,
    top: float | None = None,
    name: str,
) -> str:
    """Return the plot of lines from 0 to `until` seconds. `write`: a value as text. `limit`: a horizontal line and its
    label. `top`: the least upper end of the axis. `name`: what a screen reader says."""  # fmt: skip
    values = [value for line in lines for _, value in line.points if value is not None]
    most = max([*values, top or 0.0, limit[0] if limit and limit[0] <= 4 * max(values, default=0.0) else 0.0])
    ticks = axis(most)
    high = ticks[-1] or 1.0
    height = HEIGHT - TOP - BOTTOM

    def x(seconds: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(1.0, max(0.0, seconds / until if until else 0.0))

    def y(value: float) -> float:
        return TOP + height * (1 - min(value, high) / high)

    parts = [_open(HEIGHT, name)]
    for tick in ticks:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text class="tick end" x="{LEFT - 6}" y="{y(tick) + 4:.1f}">{escape(write(tick))}</text>')
    parts += _time_axis(until, x, HEIGHT)
    if limit is not None and limit[0] <= high:
        place = y(limit[0])
        parts.append(f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{place:.1f}" y2="{place:.1f}"/>')
        parts.append(f'<text class="tick end" x="{WIDTH - RIGHT}" y="{place - 3:.1f}">{escape(limit[1])}</text>')
    for number, line in enumerate(lines):
        for run in _runs(line.points):
            points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in run)
            kind = f"line c{number % COLOURS}"
            if len(run) == 1:
                at, value = run[0]
                parts.append(f'<circle class="dot c{number % COLOURS}" cx="{x(at):.1f}" cy="{y(value):.1f}" r="2"/>')
            else:
                parts.append(f'<polyline class="{kind}" points="{points}"/>')
    return "".join([*parts, "</svg>"])


def timeline(rows: Sequence[Lanes], *, until: float, name: str) -> str:
    """Return the timeline of tasks on GPUs. Neighbours that are narrower than a pixel become one block."""
    height = TOP + sum(len(row.lanes) * LANE + 8 for row in rows) + BOTTOM

    def x(seconds: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(1.0, max(0.0, seconds / until if until else 0.0))

    parts = [_open(height, name, "lanes"), *_time_axis(until, x, height)]
    place = float(TOP)
    for row in rows:
        middle = place + len(row.lanes) * LANE / 2
        parts.append(f'<text class="tick end" x="{LEFT - 6}" y="{middle + 4:.1f}">{escape(row.label)}</text>')
        for lane in row.lanes:
            for block in _joined(lane, until):
                left = x(block.begin)
                size = max(0.8, x(block.end) - left - 0.3)
                parts.append(
                    f'<rect class="task {block.kind}" x="{left:.1f}" y="{place:.1f}" width="{size:.1f}" '
                    f'height="{LANE - 1}"><title>{escape(block.title)}</title></rect>'
                )
            place += LANE
        place += 8
    return "".join([*parts, "</svg>"])


def _joined(lane: Sequence[Block], until: float) -> list[Block]:
    """Return the blocks of a lane; those of one kind that are closer than a pixel are one."""
    pixel = until / (WIDTH - LEFT - RIGHT) if until else 0.0
    found: list[Block] = []
    count = 1
    for block in lane:
        last = found[-1] if found else None
        is_narrow = last is not None and block.end - last.begin < 2 * pixel
        if last is not None and is_narrow and last.kind == block.kind:
            count += 1
            found[-1] = Block(last.begin, block.end, block.kind, f"{count} tasks")
        else:
            found.append(block)
            count = 1
    return found


def _runs(points: Sequence[tuple[float, float | None]]) -> list[list[tuple[float, float]]]:
    """Return the points between the gaps."""
    found: list[list[tuple[float, float]]] = [[]]
    for at, value in points:
        if value is None:
            found.append([])
        else:
            found[-1].append((at, value))
    return [run for run in found if run]


def _open(height: float, name: str, kind: str = "plot") -> str:
    said = escape(name)
    return f'<svg class="{kind}" viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{said}"><title>{said}</title>'


def _time_axis(until: float, x: Callable[[float], float], height: float) -> list[str]:
    parts = []
    for tick in time_ticks(until):
        place = x(tick)
        anchor = "start" if tick == 0 else "end" if place > WIDTH - RIGHT - 30 else "middle"
        parts.append(f'<line class="grid" x1="{place:.1f}" x2="{place:.1f}" y1="{TOP}" y2="{height - BOTTOM:g}"/>')
        parts.append(f'<text class="tick {anchor}" x="{place:.1f}" y="{height - 8:g}">{span(tick)}</text>')
    return parts


_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800)


def time_ticks(until: float) -> list[float]:
    """Return at most seven moments of an axis of time, in seconds."""
    step = next((step for step in _STEPS if until / step <= 6), math.ceil(until / 6) or 1)
    return [float(step * number) for number in range(int(until // step) + 1)]


def span(seconds: float) -> str:
    """Return a moment of the axis: 0, 45 s, 10 min, 1:30 h, 2 d."""
    whole = round(seconds)
    if whole == 0:
        return "0"
    if whole % 86400 == 0:
        return f"{whole // 86400} d"
    if whole % 3600 == 0:
        return f"{whole // 3600} h"
    if whole > 3600:
        return f"{whole // 3600}:{whole % 3600 // 60:02} h"
    return f"{whole // 60} min" if whole % 60 == 0 else f"{whole} s"


def axis(most: float) -> list[float]:
    """Return the ticks of an axis from 0 to at least `most`, in steps of 1, 2, 2.5 or 5."""
    if most <= 0 or not math.isfinite(most):
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(most / 4))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power * 4 >= most * 0.999)
    return [step * number for number in range(math.ceil(most / step - 0.001) + 1)]
