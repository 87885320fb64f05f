"""Bars and sparklines of a fixed width on a fixed scale, so that all of them can be compared; in ASCII where the
terminal has no blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from . import glyphs

BLOCKS, LETTERS = "▁▂▃▄▅▆▇█", "_.:-=+*#"
"""The eight steps of a sparkline, also in ASCII."""
PARTS = " ▏▎▍▌▋▊▉"
"""One column of a bar filled by no to seven eighths."""
FULL, TRACK, OVER = ("█", "#"), ("·", "."), ("»", ">")
"""A full column; an empty one, which shows the end of the scale without colours; the last one of a bar above full (not
`!`, which is a flag: above full may be fine). Each also in ASCII."""
GAP = " "
"""An unknown value of a sparkline, above its lowest line. 0 is drawn as the lowest step."""


def bar(share: float | None, width: int) -> tuple[str, str]:
    """Return the filled part and the rest of a bar of exactly `width` columns. `share`: 1.0 is full; above, the last
    column says so; below 0 is empty; None and NaN give a question mark. A share above 0 is never drawn empty."""
    if width <= 0:
        return "", ""
    if share is None or math.isnan(share):
        return "", "?".ljust(width)
    is_plain = glyphs.is_ascii_only()
    full, parts = FULL[is_plain], " -" if is_plain else PARTS
    if share > 1.0:
        return full * (width - 1) + OVER[is_plain], ""
    filled = max(1, int(share * width * len(parts))) if share > 0 else 0
    whole, part = divmod(filled, len(parts))
    text = full * whole + (parts[part] if part else "")
    return text, TRACK[is_plain] * (width - len(text))


def spark(values: Sequence[float | None], width: int) -> str:
    """Return one line of exactly `width` columns, the newest of `values` (percent) at the right; blank where unknown,
    full above 100."""
    if width <= 0:
        return ""
    steps = LETTERS if glyphs.is_ascii_only() else BLOCKS
    return "".join(GAP if value is None else steps[_step(value, 8)] for value in values[-width:]).rjust(width)


def tall(values: Sequence[float | None], width: int, height: int) -> tuple[str, ...]:
    """Return the same in `height` lines, top first, with eight steps in each, or one in ASCII."""
    if width <= 0:
        return ()
    lines = (
        "".join(_cell(value, line, height, glyphs.is_ascii_only()) for value in values[-width:])
        for line in range(height - 1, -1, -1)
    )
    return tuple(line.rjust(width) for line in lines)


def _cell(value: float | None, line: int, height: int, is_plain: bool) -> str:
    """Return one column of one line; `line`: 0 is the lowest."""
    if value is None:
        return GAP if line else TRACK[is_plain]
    if is_plain:
        return "#" if _step(value, height) >= line else GAP
    above = _step(value, 8 * height) - 8 * line
    return GAP if above < 0 else BLOCKS[min(7, above)]


def _step(value: float, count: int) -> int:
    """Return which of `count` equal steps a value is in; NaN is the lowest."""
    return min(count - 1, int(min(100.0, max(0.0, value)) * count / 100)) if value == value else 0
