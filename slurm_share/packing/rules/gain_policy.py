"""The policy `gain`: as `booked`, on the GPU where a further task adds most to the aggregate speed (STP)."""

from __future__ import annotations

from . import undo
from .booked_policy import Booked


class Gain(Booked):
    """Place tasks by booked memory, beside neighbours that suit."""

    def run(self) -> None:
        """Undo what did not pay, then decide about the waiting tasks."""
        self.actions += undo.actions(self.view)
        super().run()
