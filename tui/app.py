"""The dashboard: the program with its screen and its command palette."""

from __future__ import annotations

from .board import Board
from .palette import Commands, Things
from .program import Program


class Dashboard(Program):
    """`llload-tui`."""

    TITLE = "llload-tui"
    CSS_PATH = "dashboard.tcss"
    COMMANDS = {Commands, Things}  # noqa: RUF012

    def get_default_screen(self) -> Board:
        """Return the screen that is always there; others come and go over it."""
        return Board(self.start)
