"""Sparklines on a fixed scale of 0 to 100 percent, so that all of them can be compared."""

from __future__ import annotations

from collections.abc import Sequence

from . import glyphs

BLOCKS = "▁▂▃▄▅▆▇█"
LETTERS = "_.:-=+*#"
"""The eight steps in ASCII."""
GAP = " "
"""An unknown value. 0 is drawn as the lowest step."""
MIDDLE = "·"
"""An unknown value in the lowest line of a tall sparkline."""


def spark(values: Sequence[float | None], width: int, *, ascii_only: bool | None = None) -> str:
    """Return one line of exactly `width` columns, the newest of `values` (percent) at the right; blank where unknown,
    full above 100. `ascii_only` None: as the terminal is."""
    if width <= 0:
        return ""
    steps = LETTERS if (glyphs.is_ascii_only() if ascii_only is None else ascii_only) else BLOCKS
    drawn = "".join(GAP if value is None else steps[_step(value, 8)] for value in values[-width:])
    return drawn.rjust(width)


def tall(values: Sequence[float | None], width: int, height: int, *, ascii_only: bool | None = None) -> tuple[str, ...]:
    """Return the same in `height` lines, top first, with eight steps in each, or one in ASCII."""
    if width <= 0 or height <= 0:
        return ()
    is_plain = glyphs.is_ascii_only() if ascii_only is None else ascii_only
    shown = values[-width:]
    lines = []
    for line in range(height - 1, -1, -1):
        cells = "".join(_cell(value, line, height, ascii_only=is_plain) for value in shown)
        lines.append(cells.rjust(width))
    return tuple(lines)


def _cell(value: float | None, line: int, height: int, *, ascii_only: bool) -> str:
    """Return one column of one line; `line`: 0 is the lowest."""
    if value is None:
        return GAP if line else "." if ascii_only else MIDDLE
    if ascii_only:
        return "#" if _step(value, height) >= line else GAP
    above = _step(value, 8 * height) - 8 * line
    return GAP if above < 0 else BLOCKS[min(7, above)]


def _step(value: float, count: int) -> int:
    """Return which of `count` equal steps a value is in; NaN is the lowest."""
    return min(count - 1, int(min(100.0, max(0.0, value)) * count / 100)) if value == value else 0
