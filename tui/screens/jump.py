"""The screen to go to a time of a recording."""

from __future__ import annotations

import math
import re
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from slurm_share.core import terminal
from slurm_share.core.errors import UsageError
from slurm_share.load import origin

from ..widgets.replay_bar import clock
from ..wire import Position

FORMS = "14:30, 2026-01-31T14:30, +5m, -90s, 50%"
_STEP = re.compile(r"([+-])([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhd]?)")
_PART = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,3})?)%")
_SECONDS = {"s": 1, "": 1, "m": 60, "h": 3600, "d": 86400}


def target_of(text: str, position: Position, now: float) -> tuple[float, str]:
    """Return the time in a text, or the nearest one within the recording with a sentence that says so. `now`: the
    present time of the replay. Raises UsageError if there is no time in the text."""
    text = text.strip()
    if step := _STEP.fullmatch(text):
        wanted = now + float(step[1] + step[2]) * _SECONDS[step[3]]
    elif part := _PART.fullmatch(text):
        wanted = position.first + min(100.0, float(part[1])) / 100 * (position.last - position.first)
    else:
        try:
            wanted = origin.until(text, position.last)
        except UsageError as error:
            written = terminal.shortened(text, 30) or "an empty text"
            raise UsageError(f"{written} is not a time; write {FORMS}") from error
    outside = ""
    if wanted < position.first:
        outside = f"{clock(wanted, day=True)} is before the recording; this is its first survey"
    elif math.floor(wanted) > position.last:  # times are written in whole seconds
        outside = f"{clock(wanted, day=True)} is after the recording; this is its last survey"
    return min(position.last, max(position.first, wanted)), outside


class Jump(ModalScreen[float | None]):
    """Returns a Unix time within the recording; None: the replay stays where it is."""

    DEFAULT_CSS = """
    Jump { align: center middle; background: $background 60%; }
    #jump {
        width: 64; max-width: 100%; height: auto; max-height: 100%;
        background: $surface; color: $foreground; border: round $primary; padding: 0 1;
    }
    #jump-span, #jump-said { width: 100%; height: auto; max-height: 2; }
    #jump-said { color: $text-muted; }
    #jump-time { border: none; height: 1; padding: 0; }
    Jump.-small #jump { border: none; padding: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "back")]
    VERTICAL_BREAKPOINTS = [(0, "-small"), (8, "-high")]  # noqa: RUF012  (Textual's own has no ClassVar)

    def __init__(self, position: Position, taken: float) -> None:
        """`taken`: the present time of the replay."""
        super().__init__()
        self.position, self.taken = position, taken

    def compose(self) -> ComposeResult:
        one = self.position
        span = f"recorded {clock(one.first, day=True)} to {clock(one.last, day=True)}, now {clock(self.taken)}"
        with Vertical(id="jump"):
            yield Static(span, id="jump-span", markup=False)
            yield Input(placeholder="time", id="jump-time")
            yield Static(f"{FORMS}   Enter go, Esc back", id="jump-said", markup=False)

    def on_mount(self) -> None:
        self.set_focus(self.query_one(Input))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Return the time, or show why the text is none."""
        event.stop()
        try:
            taken, outside = target_of(event.value, self.position, self.taken)
        except UsageError as error:
            self.query_one("#jump-said", Static).update(terminal.safe(str(error)))
            return
        if outside:
            self.app.notify(outside, markup=False)
        self.dismiss(taken)
