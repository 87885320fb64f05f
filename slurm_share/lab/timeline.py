"""Draw a run or a simulation: GPUs are rows, time goes to the right, tasks are stacked by their memory."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise

from .records import Bar

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
"""The colours of Okabe and Ito, which are distinguishable with any colour vision."""
DONE = ("done", "running")
WIDTH, ROW, GAP, LEFT, TOP, RIGHT = 1200, 110, 26, 110, 70, 24
LABEL_LEAST = 34
"""Least width of a bar in pixels for the number of its task."""
FONT = "font-family='DejaVu Sans, Arial, sans-serif'"


def draw(
    bars: Sequence[Bar], gpu_mib: Sequence[int], title: str, *, is_simulated: bool, gpu_names: Sequence[str] = ()
) -> str:
    """Return an SVG. `gpu_mib`: memory of each GPU, by index. Tasks that did not end as done are hatched in red."""
    begin = min((bar.start_s for bar in bars), default=0.0)
    end = max((bar.end_s for bar in bars), default=1.0)
    span = max(end - begin, 1e-9)
    plot = WIDTH - LEFT - RIGHT
    height = TOP + len(gpu_mib) * (ROW + GAP) + 70
    head = f"{'simulated: ' if is_simulated else ''}{title}"
    out = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height}' viewBox='0 0 {WIDTH} {height}' "
        f"role='img' {FONT} font-size='13'>",
        f"<title>{escape(head)}</title>",
        "<defs><pattern id='lost' width='6' height='6' patternUnits='userSpaceOnUse' patternTransform='rotate(45)'>"
        "<rect width='6' height='6' fill='#ffffff'/><rect width='2.5' height='6' fill='#B00020'/></pattern></defs>",
        f"<rect width='{WIDTH}' height='{height}' fill='#ffffff'/>",
        f"<text x='{LEFT}' y='26' font-size='17' font-weight='bold'>{escape(head)}</text>",
        f"<text x='{LEFT}' y='48' fill='#333333'>each bar is a task, and its height its GPU memory; hatched, with a "
        "cross: it did not end as done</text>",
    ]
    for gpu, mib in enumerate(gpu_mib):
        top = TOP + gpu * (ROW + GAP)
        name = gpu_names[gpu] if gpu < len(gpu_names) else f"GPU {gpu}"
        out += [
            f"<rect x='{LEFT}' y='{top}' width='{plot}' height='{ROW}' fill='#f4f4f4' stroke='#888888'/>",
            f"<text x='{LEFT - 8}' y='{top + ROW / 2}' text-anchor='end' font-weight='bold'>{escape(name)}</text>",
            f"<text x='{LEFT - 8}' y='{top + ROW / 2 + 17}' text-anchor='end' fill='#333333' font-size='11'>"
            f"{mib / 1024:.1f} GiB</text>",
        ]
        own = [bar for bar in bars if bar.gpu == gpu]
        stacked = _stacked(own)
        scale, high = plot / span, ROW / max(mib, 1)
        for bar, pieces in stacked:
            out += _bar(bar, pieces, begin, scale, top, high)
        for bar, pieces in stacked:
            if bar.outcome not in DONE and pieces:
                _, to, below, last = pieces[-1]
                out.append(_cross(LEFT + (to - begin) * scale, top + ROW - (below + last) * high))
    out += _axis(span, plot, TOP + len(gpu_mib) * (ROW + GAP))
    out.append("</svg>")
    return "\n".join(out) + "\n"


Piece = tuple[float, float, int, int]
"""(from, to, MiB below it, its MiB)"""


def _stacked(bars: Sequence[Bar]) -> list[tuple[Bar, list[Piece]]]:
    """Return each bar of one GPU with its pieces, stacked by start time from the bottom."""
    bars = sorted(bars, key=lambda bar: (bar.start_s, bar.task, bar.attempt))
    pieces: list[list[Piece]] = [[] for _ in bars]
    changes = sorted({time for bar in bars for time in (bar.start_s, bar.end_s, *(at for at, _ in bar.memory))})
    cursors = [0] * len(bars)
    active: list[int] = []
    upcoming = 0
    for at, to in pairwise(changes):
        while upcoming < len(bars) and bars[upcoming].start_s <= at:
            active.append(upcoming)
            upcoming += 1
        active = [index for index in active if bars[index].end_s > at]
        below = 0
        for index in active:
            memory = bars[index].memory
            while cursors[index] + 1 < len(memory) and memory[cursors[index] + 1][0] <= at:
                cursors[index] += 1
            mib = memory[cursors[index]][1] if memory and memory[0][0] <= at else 0
            before = pieces[index][-1] if pieces[index] else None
            if before is not None and before[1] == at and before[2:] == (below, mib):
                pieces[index][-1] = (before[0], to, below, mib)
            else:
                pieces[index].append((at, to, below, mib))
            below += mib
    return list(zip(bars, pieces, strict=True))


def _bar(bar: Bar, pieces: Sequence[Piece], begin: float, scale: float, top: float, high: float) -> list[str]:
    fill = COLOURS[bar.task % len(COLOURS)] if bar.outcome in DONE else "url(#lost)"
    tip = f"task {bar.task}{f' ({bar.name})' if bar.name else ''}, attempt {bar.attempt}: {bar.outcome}"
    peak = max((mib for _, _, _, mib in pieces), default=0)
    if bar.reserved_mib is not None:
        tip += f"; {bar.reserved_mib} MiB reserved"
    upper, lower = [], []
    for at, to, below, mib in pieces:
        left, right = LEFT + (at - begin) * scale, LEFT + (to - begin) * scale
        floor, ceiling = top + ROW - below * high, top + ROW - (below + mib) * high
        upper += [f"{left:.1f},{ceiling:.1f}", f"{right:.1f},{ceiling:.1f}"]
        lower += [f"{left:.1f},{floor:.1f}", f"{right:.1f},{floor:.1f}"]
    out = [
        f"<g><title>{escape(tip)}; peak {peak} MiB</title>",
        f"<polygon points='{' '.join(upper + lower[::-1])}' fill='{fill}' stroke='#222222' stroke-width='0.7'/>",
    ]
    widest = max(pieces, key=lambda piece: (piece[1] - piece[0]) * min(piece[3] * high, 40.0), default=None)
    if widest is not None:
        at, to, below, mib = widest
        if (to - at) * scale >= LABEL_LEAST and mib * high >= 11.0:
            middle = LEFT + ((at + to) / 2 - begin) * scale
            floor = top + ROW - (below + mib / 2) * high + 4.0
            at_middle = f"<text x='{middle:.1f}' y='{floor:.1f}' text-anchor='middle' font-size='11' font-weight='bold'"
            out += [
                f"{at_middle} stroke='#ffffff' stroke-width='3'>{bar.task}</text>",
                f"{at_middle}>{bar.task}</text>",
            ]
    out.append("</g>")
    return out


def _cross(x: float, y: float) -> str:
    """Return a cross for an attempt that did not end as done, since many are too short to be visible as a bar."""
    return (
        f"<path d='M{x - 4:.1f},{y - 4:.1f} l8,8 m0,-8 l-8,8' stroke='#ffffff' stroke-width='4'/>"
        f"<path d='M{x - 4:.1f},{y - 4:.1f} l8,8 m0,-8 l-8,8' stroke='#B00020' stroke-width='2'/>"
    )


def _axis(span: float, plot: float, top: float) -> list[str]:
    unit, name = (3600.0, "h") if span >= 7200.0 else (60.0, "min") if span >= 120.0 else (1.0, "s")
    length = span / unit
    step = next(
        (one for one in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if length / one <= 12), max(1, round(length / 10))
    )
    out = []
    tick = 0
    while tick <= length + 1e-9:
        x = LEFT + tick * unit / span * plot
        out += [
            f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{top - GAP + 2}' y2='{top - GAP + 10}' stroke='#333333'/>",
            f"<text x='{x:.1f}' y='{top + 2}' text-anchor='middle'>{tick}</text>",
        ]
        tick += step
    out.append(f"<text x='{LEFT + plot / 2:.1f}' y='{top + 26}' text-anchor='middle'>time, {name}</text>")
    return out
