"""Spans of time for a person: seconds in, words out."""

from __future__ import annotations


def span_words(seconds: float) -> str:
    """A span of time."""
    if seconds < 9.95:
        return f"{seconds:.1f} s" if seconds % 1 >= 0.05 else f"{seconds:.0f} s"
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
