"""The list of alerts: what has happened, what goes on, and what is silenced."""

from __future__ import annotations

import time
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from slurm_share.load import Column

from ..alerts import Alert, AlertBook
from ..keymap import ALERTS, bindings
from ..location import Location
from ..widgets.grid import Grid


def _state(one: Alert) -> str:
    return (
        "silenced" if one.is_silenced else "over" if one.over is not None else "now" if one.kind != "ended" else "new"
    )


def _at(one: Alert) -> str:
    return time.strftime("%H:%M:%S", time.localtime(one.began))


COLUMNS: tuple[Column[Alert], ...] = (
    Column("at", "At", "when it was noticed", _at, lambda one: one.began, least=8, most=8),
    Column("state", "State", "now, over, silenced", _state, _state, least=8, most=8),
    Column("said", "Alert", "what it is", lambda one: one.said, lambda one: one.said, least=20, most=200),
)


class AlertRows(Grid[Alert], inherit_bindings=False):
    """The alerts, the newest first, without sort, marks and filter."""

    BINDINGS: ClassVar[list[BindingType]] = [one for one in bindings("grid") if (one.id or "").startswith("grid.")]

    def __init__(self) -> None:
        super().__init__(COLUMNS, lambda one: f"{one.kind} {one.subject} {one.began}", name="alerts", empty="no alerts")

    def _give_letters(self, taken: set[str]) -> None:
        """Assign no letters: the table is not sorted."""


class AlertsScreen(ModalScreen[Location | None]):
    """Returns where to go; None: nowhere."""

    DEFAULT_CSS = """
    AlertsScreen {
        align: center middle;
        & > Vertical {
            width: 96%; max-width: 120; height: auto; max-height: 90%;
            background: $surface; border: round $primary; padding: 0 1;
        }
        & AlertRows { height: auto; max-height: 60vh; }
        & .alerts--said { height: auto; max-height: 3; }
        & .alerts--keys { height: 1; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [*ALERTS]

    def __init__(self, book: AlertBook) -> None:
        super().__init__()
        self._book = book

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "Alerts"
            yield AlertRows()
            yield Static("", classes="alerts--said", markup=False)
            yield Static(
                "s silence this  S silence all  Enter go there  Esc back", classes="alerts--keys", markup=False
            )

    def on_mount(self) -> None:
        self._grid.focus()
        self._show()

    def action_silence(self) -> None:
        if (one := self._grid.row) is not None:
            self._book.silence(one.key)
            self._show()

    def action_silence_all(self) -> None:
        self._book.silence()
        self._show()

    def action_go(self) -> None:
        one = self._grid.row
        self.dismiss(None if one is None else one.location)

    def on_grid_moved(self) -> None:
        self._say()

    @property
    def _grid(self) -> AlertRows:
        return self.query_one(AlertRows)

    def _show(self) -> None:
        self._grid.show(tuple(reversed(self._book.alerts)))
        self._say()

    def _say(self) -> None:
        """Show the whole sentence of the alert under the cursor."""
        one = self._grid.row
        self.query_one(".alerts--said", Static).update("no alerts" if one is None else one.said)
