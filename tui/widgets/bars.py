"""Bars of a fixed width on a fixed scale, drawn in eighths of a column, or in ASCII."""

from __future__ import annotations

import math

from . import glyphs

FULL = "█"
PARTS = " ▏▎▍▌▋▊▉"
"""One column filled by no to seven eighths."""
TRACK = "·"
"""The empty part, which shows the end of the scale without colours."""
OVER = "»"
"""The last column of a bar above full. Not `!`, which is a flag: above full may be fine."""
ASCII_FULL, ASCII_HALF, ASCII_TRACK, ASCII_OVER = "#", "-", ".", ">"
UNKNOWN = "?"


def bar(share: float | None, width: int, *, ascii_only: bool | None = None) -> tuple[str, str]:
    """Return the filled part and the rest of a bar of exactly `width` columns. `share`: 1.0 is full; above, the last
    column says so; below 0 is empty; None and NaN give a question mark. A share above 0 is never drawn empty.
    `ascii_only` None: as the terminal is."""
    if width <= 0:
        return "", ""
    if share is None or math.isnan(share):
        return "", UNKNOWN.ljust(width)
    ascii_only = glyphs.is_ascii_only() if ascii_only is None else ascii_only
    forms = (ASCII_FULL, ASCII_HALF, ASCII_TRACK, ASCII_OVER) if ascii_only else (FULL, "", TRACK, OVER)
    full, half, track, over = forms
    if share > 1.0:
        return full * (width - 1) + over, ""
    steps = width * (2 if ascii_only else 8)
    filled = max(1, int(share * steps)) if share > 0 else 0
    whole, part = divmod(filled, 2 if ascii_only else 8)
    text = full * whole + ((half if ascii_only else PARTS[part]) if part else "")
    return text, track * (width - len(text))
