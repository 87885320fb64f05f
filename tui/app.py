"""The dashboard: the program with its screen and command palette."""

from __future__ import annotations

from .main_screen import DashboardScreen
from .palette import KeyCommands, SubjectCommands
from .program import Program


class Dashboard(Program):
    """The application that `llload-tui` runs."""

    TITLE = "llload-tui"
    CSS_PATH = "dashboard.tcss"
    COMMANDS = {KeyCommands, SubjectCommands}  # noqa: RUF012

    def get_default_screen(self) -> DashboardScreen:
        return DashboardScreen(self.start)
