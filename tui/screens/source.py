"""The screen to choose where figures come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from slurm_share.core import terminal


class SourceScreen(ModalScreen[tuple[str, str] | None]):
    """Returns the name of a source and, for `replay`, its file; None: nothing changes."""

    DEFAULT_CSS = """
    SourceScreen { align: center middle; background: $background 60%; }
    #source {
        width: 76; max-width: 100%; height: auto; max-height: 100%;
        background: $surface; color: $foreground; border: round $primary; padding: 0 1;
    }
    #source OptionList { height: auto; border: none; padding: 0; background: $surface; }
    #source-file { border: none; height: 1; padding: 0; display: none; }
    #source-said { width: 100%; height: auto; max-height: 2; color: $text-muted; }
    SourceScreen.-small #source { border: none; padding: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "back")]
    VERTICAL_BREAKPOINTS = [(0, "-small"), (12, "-high")]  # noqa: RUF012  (Textual's own has no ClassVar)

    def __init__(self, sources: Sequence[tuple[str, str]], now: str) -> None:
        """`sources`: name and meaning of each. `now`: the name of the present one."""
        super().__init__()
        self._sources, self._now = tuple(sources), now

    def compose(self) -> ComposeResult:
        wide = max(len(name) for name, _ in self._sources)
        with Vertical(id="source") as box:
            box.border_title = "Source"
            yield OptionList(
                *(
                    Option(
                        Content(f"{'*' if name == self._now else ' '} {name:<{wide}}  {terminal.safe(said)}"), id=name
                    )
                    for name, said in self._sources
                )
            )
            yield Input(placeholder="file of llload --record", id="source-file")
            yield Static("* now   Enter choose, Esc back", id="source-said", markup=False)

    def on_mount(self) -> None:
        names = [name for name, _ in self._sources]
        options = self.query_one(OptionList)
        options.highlighted = names.index(self._now) if self._now in names else 0
        self.set_focus(options)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option_id == "replay":
            entry = self.query_one(Input)
            entry.display = True
            self.set_focus(entry)
        elif event.option_id is not None:
            self.dismiss((event.option_id, ""))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if event.value.strip():
            self.dismiss(("replay", event.value.strip()))
