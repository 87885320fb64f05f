"""The sentences of a packed run for the job's log."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.text import fold_some
from ...packing import After

STARTS_MOST = 3
"""Most starts that a line lists one by one."""
EVENTS_MOST = 4


def started(begun: Sequence[tuple[int, str]]) -> str:
    """Return a line about started tasks, given as (number, reason for the place)."""
    if len(begun) <= STARTS_MOST:
        return "; ".join(f"task {task} -> {why}" for task, why in begun)
    return f"{len(begun)} tasks started: {fold_some(sorted({task for task, _ in begun}), 20)}"


def several(events: Sequence[str]) -> str:
    """Return one line for several events, of which it shows EVENTS_MOST."""
    more = len(events) - EVENTS_MOST
    return "; ".join(events[:EVENTS_MOST]) + (f"; and {more} more like these" if more > 0 else "")


def ended(after: After) -> str:
    """Return the text after the number of a task whose attempt is not done."""
    if after.is_retried and "again" not in after.why:
        return f"{after.why}; it runs again"
    return after.why
