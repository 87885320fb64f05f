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

from .. import keymap
from ..widgets.glyphs import arrow
from .screen_keys import ABOVE, close_with

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
    ("H", "high: more is asked for than there is"),
    ("!", "above the limit, or failed"),
    ("?", "unknown"),
    ("-", "none"),
)


class Help(ModalScreen[None]):
    """The help page; arrows and wheel scroll it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q,backspace", "dismiss", "close"),
        Binding("down,j", "scroll(1)", show=False),
        Binding("up,k", "scroll(-1)", show=False),
        Binding("pagedown,space", "page(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("home,g", "edge(0)", show=False),
        Binding("end,G", "edge(1)", show=False),
    ]

    def __init__(
        self,
        overrides: Mapping[str, str],
        title: str = "",
        columns: Sequence[Column[Any]] = (),
        now: Sequence[str] = (),
    ) -> None:
        """`overrides`: as `keymap.checked` returns. `title`, `columns`: of the table with the focus. `now`: the full
        text of the status line."""
        super().__init__()
        self.now = tuple(now)
        self.overrides, self.table, self.columns = overrides, title, columns
        close_with(self._bindings, keymap.keys_of("help", overrides))

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

    def action_scroll(self, lines: int) -> None:
        self.query_one("#help-page", VerticalScroll).scroll_relative(y=lines, animate=False)

    def action_page(self, pages: int) -> None:
        area = self.query_one("#help-page", VerticalScroll)
        area.scroll_relative(y=pages * max(1, area.size.height - 1), animate=False)

    def action_edge(self, end: int) -> None:
        area = self.query_one("#help-page", VerticalScroll)
        area.scroll_to(y=area.max_scroll_y if end else 0, animate=False)


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
        section(
            group,
            [
                (keymap.keys_text(keymap.keys_of(key.id, overrides)), _said(key))
                for key in keymap.KEYS
                if key.group == group
            ],
        )
    section(
        f"Columns of {title}" if title else "Columns",
        [(column.heading, f"{column.doc} ({_names(column)})") for column in columns],
    )
    for name, bindings in ABOVE.items():
        section(
            f"{name}, while it is open",
            [(keymap.keys_text(one.key.split(",")), one.description) for one in bindings if one.description],
        )
    section("Filter", FILTER)
    section("Marks", LETTERS)
    section(
        "Mouse",
        [("click", "on a heading: sort; on a row: move the cursor, twice: go to it; on tabs, keys and status too")],
    )
    return Content("\n").join(parts)


def _said(key: keymap.Key) -> str:
    return f"{key.label}: {key.help}" if key.group == keymap.VIEWS else key.help


def _names(column: Column[Any]) -> str:
    return ", ".join((column.id, *column.alias))


def _table(rows: Sequence[tuple[str, str]], width: int) -> list[Content]:
    """Return two columns; a left text that is too wide gets a line of its own."""
    safe = [(terminal.safe(left), terminal.safe(right)) for left, right in rows]
    first = min(max(cell_len(left) for left, _ in safe), max(8, width // 3))
    found: list[Content] = []
    for left, right in safe:
        lines = _wrapped(right, max(10, width - first - 4))
        if cell_len(left) > first:
            found.append(Content.assemble("  ", (left, "bold")))
            left = ""
        pad = " " * (first - cell_len(left))
        for number, line in enumerate(lines or [""]):
            found.append(Content.assemble("  ", (left + pad if number == 0 else " " * first, "bold"), "  ", line))
    return found


def _wrapped(text: str, width: int) -> list[str]:
    from slurm_share.load import text as load_text

    return [line.strip() for line in load_text.wrapped([text], width)]
