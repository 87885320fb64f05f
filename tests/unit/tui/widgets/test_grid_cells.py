"""The lines of a table with any content."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as any_
from rich.cells import cell_len
from rich.style import Style
from slurm_share_tui.widgets.grid_cells import (
    Cell,
    HeadStyle,
    LineStyle,
    cell_text,
    filled,
    head,
    letters_for,
    line_of,
    need,
)
from slurm_share_tui.widgets.grid_layout import fitted, scrolled

from slurm_share.load.columns.base import Column

PLAIN, OTHER = Style(bold=True), Style(dim=True)
LETTERS = dict.fromkeys(("", "L", "H", "!"), PLAIN)
LOOK = LineStyle(PLAIN, OTHER, LETTERS, LETTERS)
HEAD = HeadStyle(PLAIN, OTHER, Style(underline=True))

any_text = any_.text(max_size=12) | any_.sampled_from(["张伟" * 9, "x" * 900, "[red]", "\x1b[2J", "e\u0301" * 5, ""])


def column(heading: str, text: str, kind: str, *, right: bool = False, goes: int = 0) -> Column[None]:
    """Return a column with one text."""
    draws = {"bar": {"bar": lambda row: 0.4}, "spark": {"spark": lambda row: (1.0, None, 99.0)}}.get(kind, {})
    return Column(heading, heading, "", lambda row: text, lambda row: text, right=right, goes=goes, **draws)


kinds = any_.sampled_from(["text", "bar", "spark"])
any_column = any_.builds(column, any_text, any_text, kinds, right=any_.booleans(), goes=any_.integers(0, 3))


@given(any_.lists(any_column, min_size=1, max_size=6), any_.integers(2, 90), any_.integers(0, 4), any_.booleans())
def test_every_line_is_exactly_as_wide_as_the_terminal(
    columns: list[Column[None]], width: int, first: int, is_down: bool
) -> None:
    texts = [cell_text(one, None) for one in columns]
    widest = [cell_len(text) for text in texts]
    needs = [need(one, wide) for one, wide in zip(columns, widest, strict=True)]
    layout = scrolled(needs, width, first) if first else fitted(needs, width)
    cells = [
        Cell(place.x, place.width, texts[place.column], widest[place.column], columns[place.column])
        for place in layout.placed
    ]
    strip = line_of(cells, None, width, LOOK, is_marked=True)
    assert cell_len(strip.text) == strip.cell_length == width
    assert strip.text.isprintable()
    for one in columns:
        sort = (one.id, is_down)
        strip = head(layout, columns, letters_for(columns, lambda letter: False), sort, HEAD)
        assert cell_len(strip.text) == strip.cell_length == width
        assert strip.text.isprintable()


@given(any_text.filter(str.isprintable), any_.integers(0, 40), any_.booleans())
def test_what_is_filled_has_its_width(text: str, width: int, right: bool) -> None:
    assert cell_len(filled(text, width, right)) == width
    if cell_len(text) > width > 0:
        assert filled(text, width, right).endswith("…")


def test_figures_are_never_cut() -> None:
    assert need(column("MEM", "", "text", right=True), 9).least == 9
    assert need(column("NOTE", "", "text"), 30).least == 4
    assert (need(column("NOTE", "", "text"), 90).wish, need(column("NOTE", "", "text"), 90).most) == (40, 90)


def test_a_column_is_as_wide_as_its_heading_where_there_is_room() -> None:
    assert need(column("LONG HEADING", "", "text"), 2).wish == 12
    assert need(column("CPU", "", "bar"), 4).least == 4
    assert need(column("CPU", "", "bar"), 4).wish == 9
    assert need(column("CPU", "", "bar"), 4).most == 25


def test_the_arrow_stands_in_the_gap_where_its_column_is_full() -> None:
    columns = [column("NAME", "n1", "text"), column("SIZE", "16GB", "text", right=True)]
    layout = fitted([need(one, 4) for one in columns], 30)
    plain = head(layout, columns, {}, ("", False), HEAD).text
    assert plain.split() == ["NAME", "SIZE"]
    for sort, shown in ((("NAME", True), "NAME▼ SIZE"), (("SIZE", False), "NAME  SIZE▲")):
        text = head(layout, columns, {}, sort, HEAD).text
        assert text.strip() == shown
        assert text.index("SIZE") == plain.index("SIZE")


def test_the_letter_that_sorts_is_marked_in_its_heading() -> None:
    columns = [column("NAME", "n1", "text"), column("NODE", "n1", "text")]
    layout = fitted([need(one, 4) for one in columns], 30)
    letters = letters_for(columns, lambda letter: letter == "O")
    assert letters == {"NAME": "N", "NODE": "D"}
    strip = head(layout, columns, letters, ("", False), HEAD)
    assert [one.text for one in strip if one.style is not None and one.style.underline] == ["N", "D"]
