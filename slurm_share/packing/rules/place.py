"""Decide which waiting task starts on which GPU."""

from __future__ import annotations

from ..records import Decision, PackView


def decide(view: PackView) -> Decision:
    """Return the starts, holds, reservations and final ends that follow from a view.

    Has no clock and no randomness; ties go to the lower GPU index, then to the lower task number.
    """
    raise NotImplementedError
