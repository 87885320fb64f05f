"""Bars of a fixed width on a fixed scale, empty to full, in eighths of a column; and the same for ASCII terminals."""

from __future__ import annotations

import math

from . import signs

FULL = "█"
PARTS = " ▏▎▍▌▋▊▉"
"""One column, from empty by eighths."""
TRACK = "·"
"""What is not filled, so that the end of the scale is seen without colours."""
OVER = "»"
"""The last column of a bar that is above full. Not `!`: that is a flag, and more than full may be well."""
ASCII_FULL, ASCII_HALF, ASCII_TRACK, ASCII_OVER = "#", "-", ".", ">"
UNKNOWN = "?"


def bar(share: float | None, width: int, *, ascii_only: bool | None = None) -> tuple[str, str]:
    """(filled, the rest), together exactly `width` columns. `share`: 1.0 is full; above, the last column says so; below
    0 is empty. None, or what is no number: a question mark and blanks. What is not empty is never drawn as empty.
    `ascii_only` None: as the terminal is."""
    if width <= 0:
        return "", ""
    if share is None or math.isnan(share):
        return "", UNKNOWN.ljust(width)
    ascii_only = signs.are_plain() if ascii_only is None else ascii_only
    forms = (ASCII_FULL, ASCII_HALF, ASCII_TRACK, ASCII_OVER) if ascii_only else (FULL, "", TRACK, OVER)
    full, half, track, over = forms
    if share > 1.0:
        return full * (width - 1) + over, ""
    steps = width * (2 if ascii_only else 8)
    filled = max(1, int(share * steps)) if share > 0 else 0
    whole, part = divmod(filled, 2 if ascii_only else 8)
    text = full * whole + ((half if ascii_only else PARTS[part]) if part else "")
    return text, track * (width - len(text))
