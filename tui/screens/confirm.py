"""The question before an action, and the choice of a signal before it. Enter, Esc and accidental keys answer no.

Yes has its own key, which counts only after the question could be read: neither keys typed ahead nor a key that is held
down confirm.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from ..action_rules import MEANINGS, PlannedAction, SignalScope
from ..keymap import SIGNAL

GUARD_S = 0.8
"""Least time without a key press before a yes counts, seconds."""


class Answers(Static):
    """The last line: both answers, the chosen one in brackets and reverse."""

    def __init__(self) -> None:
        super().__init__(markup=False, id="confirm-answers")
        self.verb = ""
        self.on_yes = False

    def draw(self) -> None:
        no, yes = (" no ", ""), (f" [{self.verb}] ", "reverse bold")
        if not self.on_yes:
            no, yes = (" [no] ", "reverse bold"), (f" {self.verb} ", "")
        self.update(Content.assemble(no, "  ", yes, f"   n, Enter, Esc: no   y: yes, {self.verb}"))


class Confirm(ModalScreen[bool]):
    """Returns True only if the user has read the question and confirmed."""

    DEFAULT_CSS = """
    Confirm { align: center middle; background: $background 60%; }
    #confirm {
        width: 100; max-width: 100%; height: auto; max-height: 100%;
        background: $surface; color: $foreground; border: round $primary; padding: 0 1;
    }
    #confirm-title { text-style: bold; width: 100%; height: auto; max-height: 3; }
    #confirm-what { height: auto; max-height: 60vh; scrollbar-size-vertical: 1; }
    #confirm-lines, #confirm-command { width: 100%; height: auto; }
    #confirm-command { margin-top: 1; color: $text-muted; }
    #confirm-answers { width: 100%; height: 1; }
    Confirm.-small #confirm { border: none; padding: 0; }
    Confirm.-small #confirm-what { height: 1fr; }
    Confirm.-small #confirm { height: 100%; }
    Confirm.-small #confirm-title { max-height: 1; }
    Confirm.-small #confirm-command { margin-top: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = []
    AUTO_FOCUS = None
    VERTICAL_BREAKPOINTS = [(0, "-small"), (14, "-high")]  # noqa: RUF012  (Textual's own has no ClassVar)

    def __init__(self, planned: PlannedAction, *, guard_s: float = GUARD_S) -> None:
        super().__init__()
        self.planned = planned
        self._guard_s = guard_s
        self._since: float | None = None
        """Start of the present time without a key press, time.monotonic(); None: the question is not drawn yet."""

    def compose(self) -> ComposeResult:
        with Vertical(id="confirm"):
            yield Static(self.planned.title, id="confirm-title", markup=False)
            with VerticalScroll(id="confirm-what", can_focus=False):
                yield Static("\n".join(self.planned.lines), id="confirm-lines", markup=False)
                yield Static(f"runs: {self.planned.command}", id="confirm-command", markup=False)
            yield Answers()

    def on_mount(self) -> None:
        """Start the guard time when the question is drawn."""
        answers = self.query_one(Answers)
        answers.verb = self.planned.yes
        answers.draw()
        self.call_after_refresh(self._is_shown)

    def _is_shown(self) -> None:
        self._since = time.monotonic()

    def _counts(self, event: events.Event) -> bool:
        """Return whether the guard time is over; if not, start it again."""
        if self._since is not None and event.time - self._since >= self._guard_s:
            return True
        if self._since is not None:
            self._since = max(self._since, event.time)
        return False

    def on_key(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()
        answers = self.query_one(Answers)
        if event.key in ("n", "N", "escape", "q", "backspace") or (event.key == "enter" and not answers.on_yes):
            self.dismiss(False)
        elif event.key in ("y", "Y", "enter"):
            if self._counts(event):
                self.dismiss(True)
        elif event.key in ("tab", "shift+tab"):
            if self._counts(event):
                answers.on_yes = not answers.on_yes
                answers.draw()
        elif event.key in ("down", "j", "up", "k", "pagedown", "pageup"):
            area = self.query_one("#confirm-what", VerticalScroll)
            step = max(1, area.size.height - 1) if event.key.startswith("page") else 1
            area.scroll_relative(y=step if event.key in ("down", "j", "pagedown") else -step, animate=False)
        else:
            self._counts(event)

    def on_click(self, event: events.Click) -> None:
        """Take a click on an answer; ignore any other."""
        if not isinstance(event.widget, Answers):
            return
        event.stop()
        no = 6 if not event.widget.on_yes else 4
        yes = len(event.widget.verb) + (4 if event.widget.on_yes else 2)
        if event.x < no:
            self.dismiss(False)
        elif no + 2 <= event.x < no + 2 + yes and self._counts(event):
            self.dismiss(True)


Choice = tuple[SignalScope, str]


class SignalChoice(ModalScreen[Choice | None]):
    """Returns the scope and the signal; None: none. Sends nothing."""

    DEFAULT_CSS = """
    SignalChoice { align: center middle; background: $background 60%; }
    #signal {
        width: 90; max-width: 100%; height: auto; max-height: 100%;
        background: $surface; color: $foreground; border: round $primary; padding: 0 1;
    }
    #signal-to { width: 100%; height: auto; max-height: 3; text-style: bold; }
    #signal-names { height: auto; max-height: 12; border: none; padding: 0; scrollbar-size-vertical: 1; }
    #signal-keys { width: 100%; height: 1; color: $text-muted; }
    SignalChoice.-small #signal { border: none; padding: 0; height: 100%; }
    SignalChoice.-small #signal-names { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [*SIGNAL]
    VERTICAL_BREAKPOINTS = [(0, "-small"), (18, "-high")]  # noqa: RUF012  (Textual's own has no ClassVar)

    def __init__(self, scopes: Sequence[SignalScope]) -> None:
        """`scopes`: at least one; the first is offered first."""
        super().__init__()
        self.scopes = tuple(scopes)
        self.at = 0

    @property
    def scope(self) -> SignalScope:
        return self.scopes[self.at]

    def compose(self) -> ComposeResult:
        with Vertical(id="signal"):
            yield Static(id="signal-to", markup=False)
            yield OptionList(id="signal-names", markup=False)
            more = "  Tab other processes" if len(self.scopes) > 1 else ""
            yield Static(f"Enter ask{more}  Esc back", id="signal-keys", markup=False)

    def on_mount(self) -> None:
        self._write()
        self.query_one(OptionList).focus()

    def _write(self) -> None:
        self.query_one("#signal-to", Static).update(f"Signal to {self.scope.target_text}")
        names = self.query_one(OptionList)
        names.clear_options()
        names.add_options(Option(_line(name, number == 0), id=name) for number, name in enumerate(self.scope.signals))
        names.highlighted = 0

    def action_to(self, by: int) -> None:
        self.at = (self.at + by) % len(self.scopes)
        self._write()

    def action_move(self, by: int) -> None:
        names = self.query_one(OptionList)
        (names.action_cursor_down if by > 0 else names.action_cursor_up)()

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Put a sign before the signal, which is visible without colours."""
        event.stop()
        for number, name in enumerate(self.scope.signals):
            event.option_list.replace_option_prompt_at_index(number, _line(name, number == event.option_index))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option_id is not None:
            self.dismiss((self.scope, event.option_id))


def _line(name: str, is_chosen: bool) -> str:
    return f"{'>' if is_chosen else ' '} {name:<5} {MEANINGS[name]}"
