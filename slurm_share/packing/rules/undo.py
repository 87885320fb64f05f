"""Decide what to undo: neighbours that together do less than one at a time would, by measured rates only."""

from __future__ import annotations

from ..records import Action, PackView


def actions(view: PackView) -> list[Action]:
    """Return the bans, pauses, resumptions and moves that follow from the measured rates of a view."""
    return []
