"""The line with the time, position and speed of a replay. A click goes to that time."""

from __future__ import annotations

import datetime

from rich.cells import cell_len
from textual import events
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from ..picture import SurveyPicture
from ..wire import Position

LEAST_BAR = 8
DONE, HERE, LEFT = "━", "●", "─"


def clock(taken: float, *, day: bool = False, seconds: bool = True) -> str:
    """Return a time in the local time zone; `?` for one outside the calendar."""
    form = ("%Y-%m-%d " if day else "") + ("%H:%M:%S" if seconds else "%H:%M")
    try:
        return datetime.datetime.fromtimestamp(taken).strftime(form)
    except (ValueError, OverflowError, OSError):
        return "?"


def part_of(position: Position, taken: float) -> float:
    """Return the part of the recording before `taken`, 0.0 to 1.0; if all surveys have one time, by their number."""
    span = position.last - position.first
    if span > 0:
        return min(1.0, max(0.0, (taken - position.first) / span))
    return min(1.0, max(0.0, (position.number - 1) / max(1, position.count - 1)))


class ReplayBar(Widget):
    """Shown only during a replay."""

    DEFAULT_CSS = """
    ReplayBar { height: 1; display: none; background: $panel; color: $foreground; }
    """
    ALLOW_SELECT = False

    class Sought(Message):
        """Asks to go to this time (Unix time)."""

        def __init__(self, taken: float) -> None:
            self.taken = taken
            super().__init__()

    position: Position | None = None
    taken = 0.0
    held = False
    _bar = (0, 0)
    """First column and width of the bar."""

    def show(self, picture: SurveyPicture, *, held: bool) -> None:
        """Show the position of this survey. `held`: whether the replay is paused."""
        self.position, self.taken = picture.position, picture.survey.taken
        self.held = held
        self.display = self.position is not None
        self.refresh()

    def render(self) -> Content:
        """Return the time, the bar and its ends; in a narrow terminal without the ends, then without the bar."""
        one = self.position
        if one is None:
            return Content("")
        width = self.size.width
        over_days = clock(one.first, day=True)[:10] != clock(one.last, day=True)[:10]
        state = "over" if one.is_over else "paused" if self.held else "plays"
        now = f" {state} {clock(self.taken, day=over_days)} "
        count = f" {one.number} of {one.count}  {one.speed:g}x"
        first, last = (clock(each, day=over_days, seconds=False) for each in (one.first, one.last))
        for head, tail in ((f"{now} {first} ", f" {last} {count} "), (now, count), (now, "")):
            room = width - cell_len(head) - cell_len(tail)
            if room >= LEAST_BAR:
                self._bar = (cell_len(head), room)
                at = round(part_of(one, self.taken) * (room - 1))
                return Content.assemble((head, "bold"), DONE * at, (HERE, "bold"), LEFT * (room - 1 - at), tail)
        self._bar = (0, 0)
        return Content(now.strip()[:width])

    def on_click(self, event: events.Click) -> None:
        begin, room = self._bar
        if self.position is None or not begin <= event.x < begin + room:
            return
        event.stop()
        part = (event.x - begin) / max(1, room - 1)
        span = self.position.last - self.position.first
        self.post_message(self.Sought(self.position.first + part * span))
