"""Sparklines on a fixed scale: empty is 0 percent and full is 100, in every row and at any time, so that they can be
compared with one another."""

from __future__ import annotations

from collections.abc import Sequence

from . import signs

BLOCKS = "▁▂▃▄▅▆▇█"
LETTERS = "_.:-=+*#"
"""The same eight steps for a terminal that has no more than ASCII."""
GAP = " "
"""Unknown. 0 is drawn, as the lowest step."""
MIDDLE = "·"
"""Unknown, in a sparkline of several lines, on the lowest of them."""


def spark(values: Sequence[float | None], width: int, *, ascii_only: bool | None = None) -> str:
    """One line of exactly `width` columns, the newest of `values` (percent) at the right; blank where nothing is known
    or nothing was seen yet. Above 100 is full. `ascii_only` None: as the terminal is."""
    if width <= 0:
        return ""
    steps = LETTERS if (signs.are_plain() if ascii_only is None else ascii_only) else BLOCKS
    drawn = "".join(GAP if value is None else steps[_step(value, 8)] for value in values[-width:])
    return drawn.rjust(width)


def tall(values: Sequence[float | None], width: int, height: int, *, ascii_only: bool | None = None) -> tuple[str, ...]:
    """The same in `height` lines, from the top: each has eight steps of its own, in ASCII one."""
    if width <= 0 or height <= 0:
        return ()
    is_plain = signs.are_plain() if ascii_only is None else ascii_only
    shown = values[-width:]
    lines = []
    for line in range(height - 1, -1, -1):
        cells = "".join(_cell(value, line, height, ascii_only=is_plain) for value in shown)
        lines.append(cells.rjust(width))
    return tuple(lines)


def _cell(value: float | None, line: int, height: int, *, ascii_only: bool) -> str:
    """`line`: 0 is the lowest."""
    if value is None:
        return GAP if line else "." if ascii_only else MIDDLE
    if ascii_only:
        return "#" if _step(value, height) >= line else GAP
    above = _step(value, 8 * height) - 8 * line
    return GAP if above < 0 else BLOCKS[min(7, above)]


def _step(value: float, count: int) -> int:
    """Which of `count` equal steps; what is no number is the lowest."""
    return min(count - 1, int(min(100.0, max(0.0, value)) * count / 100)) if value == value else 0
