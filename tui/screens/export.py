"""The screen that asks for the file of an export. An existing file is replaced only after a second Enter."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from slurm_share.core import terminal
from slurm_share.core.errors import UsageError

from .. import export


class ExportScreen(ModalScreen[tuple[Path, bool] | None]):
    """Returns the file, and whether it may be replaced; None: nothing is written."""

    DEFAULT_CSS = """
    ExportScreen { align: center middle; background: $background 60%; }
    #export {
        width: 76; max-width: 100%; height: auto; max-height: 100%;
        background: $surface; color: $foreground; border: round $primary; padding: 0 1;
    }
    #export-what, #export-said { width: 100%; height: auto; max-height: 3; }
    #export-said { color: $text-muted; }
    #export-said.-mistake { color: $text-error; text-style: bold; }
    #export-file { border: none; height: 1; padding: 0; }
    ExportScreen.-small #export { border: none; padding: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "back")]
    VERTICAL_BREAKPOINTS = [(0, "-small"), (8, "-high")]  # noqa: RUF012  (Textual's own has no ClassVar)

    def __init__(self, what: str, name: str) -> None:
        """`what`: what is exported, as text. `name`: the name that is offered."""
        super().__init__()
        self._what, self._name = what, name
        self._asked: Path | None = None
        """The existing file that was asked about."""

    def compose(self) -> ComposeResult:
        with Vertical(id="export"):
            yield Static(terminal.safe(self._what), id="export-what", markup=False)
            yield Input(value=self._name, id="export-file", select_on_focus=False)
            yield Static(
                ".csv .json: these rows and columns; .svg: the screen   Enter, Esc back",
                id="export-said", markup=False,
            )  # fmt: skip

    def on_mount(self) -> None:
        self.set_focus(self.query_one(Input))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Return the file, or ask once more about one that exists."""
        event.stop()
        try:
            file = export.file_of(event.value)
            exists = file.is_symlink() or file.exists()
        except (UsageError, OSError) as error:
            self._say(str(error) if isinstance(error, UsageError) else f"{error.strerror}: choose another file")
            return
        if exists and file != self._asked:
            self._asked = file
            self._say("this file exists: Enter again replaces it, another name keeps it")
            return
        self.dismiss((file, exists))

    def _say(self, text: str) -> None:
        said = self.query_one("#export-said", Static)
        said.set_class(True, "-mistake")
        said.update(terminal.safe(text))
