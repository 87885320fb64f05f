"""How a table reaches a person: the terminal's width, or the table's own width where there is no terminal."""

from __future__ import annotations

from rich.console import Console, RenderableType

WIDE = 10_000


def width() -> int:
    """Columns that a line may have."""
    return console().width


def console() -> Console:
    """Standard output. In a pipe nothing is folded or cut: the reader may be grep."""
    terminal = Console(highlight=False, markup=False, emoji=False)
    return terminal if terminal.is_terminal else Console(highlight=False, markup=False, emoji=False, width=WIDE)


def show(*parts: RenderableType) -> None:
    """Print to standard output."""
    out = console()
    for part in parts:
        out.print(part)
