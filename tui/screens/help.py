"""The help: every key, and the columns of the table, made from the bindings and the columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from slurm_share.core import terminal
from slurm_share.load import Column
from slurm_share.load import text as load_text

from .. import keymap
from ..widgets.glyphs import arrow

FILTER = (
    ("alice", "rows with this in any text, in upper or lower case"),
    ("gpu<50", "a figure of a column, as it is shown; also <= > >= = !="),
    ("gpu>=50%", "with the unit that the column has: % K M G T s m h d"),
    ("memory>40G", "memory in use; in the table of jobs also time<2h"),
    ("user=alice & mem>80", "both; | either, ! not, ( )"),
    ("name~test", "with the text in it; name!~test without"),
    ("name~n1*", "* and ? as in a shell, for all of the name"),
    ('name="a (b)"', "blanks, parentheses and signs in quotes"),
    ("gpu=?", "unknown values, which no other filter matches"),
)
LETTERS = (
    ("L", "low: capacity is left unused"),
    ("H", "high or full, or failed in the past"),
    ("!", "wrong now"),
    ("?", "unknown"),
    ("-", "none"),
)


MOUSE = (("click", "on a heading: sort; on a row: move the cursor, twice: go to it; on tabs, keys and status too"),)


class Help(ModalScreen[None]):
    """The help page; arrows and wheel scroll it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q,backspace", "dismiss", "close"), *keymap.SCROLL]

    def __init__(
        self, overrides: Mapping[str, str], title: str, columns: Sequence[Column[Any]], now: Sequence[str] = ()
    ) -> None:
        """`overrides`: as `keymap.checked` returns. `title`, `columns`: of the table. `now`: the whole status line."""
        super().__init__()
        self.overrides, self.table, self.columns, self.now = overrides, title, columns, now
        keymap.close_with(self._bindings, keymap.keys_of("help", overrides))

    def compose(self) -> ComposeResult:
        with Vertical(id="help"):
            with VerticalScroll(id="help-page", can_focus=False):
                yield Static(id="help-text", markup=False)
            yield Static(f" {arrow('up')} {arrow('down')} PgUp PgDn scroll   Esc back", id="help-keys", markup=False)

    def on_mount(self) -> None:
        self._write()

    def on_resize(self) -> None:
        self.set_class(self.size.height < 10, "-small")
        self._write()

    def _write(self) -> None:
        width = max(16, min(self.size.width, 110) - 6)
        self.query_one("#help-text", Static).update(page(self.overrides, self.table, self.columns, width, self.now))

    @property
    def _area(self) -> VerticalScroll:
        return self.query_one("#help-page", VerticalScroll)

    def action_scroll(self, lines: int) -> None:
        self._area.scroll_relative(y=lines, animate=False)

    def action_page(self, pages: int) -> None:
        self._area.scroll_relative(y=pages * max(1, self._area.size.height - 1), animate=False)

    def action_edge(self, end: int) -> None:
        self._area.scroll_to(y=self._area.max_scroll_y if end else 0, animate=False)


def page(
    overrides: Mapping[str, str], title: str, columns: Sequence[Column[Any]], width: int, now: Sequence[str] = ()
) -> Content:
    """Return the whole page for a width."""
    parts: list[Content] = []

    def section(heading: str, rows: Sequence[tuple[str, str]]) -> None:
        if rows:
            parts.append(Content.styled(heading, "bold underline"))
            parts.extend(_table(rows, width))
            parts.append(Content(""))

    section("Now", [("", line) for line in now])
    for group in keymap.GROUPS:
        keys = [key for key in keymap.KEYS if key.group == group]
        said = [f"{key.label}: {key.help}" if group == keymap.VIEWS else key.help for key in keys]
        names = [keymap.keys_text(keymap.keys_of(key.id, overrides)) for key in keys]
        section(group, [*zip(names, said, strict=True)])
    docs = [(column.heading, f"{column.doc} ({', '.join((column.id, *column.alias))})") for column in columns]
    section(f"Columns of {title}", docs)
    for name, bindings in keymap.ABOVE.items():
        shown = [one for one in bindings if one.description]
        rows = [(keymap.keys_text(one.key.split(",")), one.description) for one in shown]
        section(f"{name}, while it is open", rows)
    section("Filter", FILTER)
    section("Marks", LETTERS)
    section("Mouse", MOUSE)
    return Content("\n").join(parts)


def _table(rows: Sequence[tuple[str, str]], width: int) -> list[Content]:
    """Return two columns; a left text that is too wide gets a line of its own."""
    safe = [(terminal.safe(left), terminal.safe(right)) for left, right in rows]
    first = min(max(cell_len(left) for left, _ in safe), max(8, width // 3))
    found: list[Content] = []
    for left, right in safe:
        lines = [line.strip() for line in load_text.wrapped([right], max(10, width - first - 4))]
        if cell_len(left) > first:
            found.append(Content.assemble("  ", (left, "bold")))
            left = ""
        pad = " " * (first - cell_len(left))
        for number, line in enumerate(lines or [""]):
            found.append(Content.assemble("  ", (left + pad if number == 0 else " " * first, "bold"), "  ", line))
    return found
