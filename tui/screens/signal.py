"""The screen to choose a signal and the processes that get it, before the confirmation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from ..action_rules import MEANINGS, SignalScope
from ..keymap import SIGNAL

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
