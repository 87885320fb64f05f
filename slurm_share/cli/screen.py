"""How a table reaches a person: the terminal's width, or the table's own width where there is no terminal."""

from __future__ import annotations

from rich.console import Console, RenderableType

WIDE = 10_000


def show(*parts: RenderableType) -> None:
    """Print to standard output. In a pipe nothing is folded or cut: the reader may be grep."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, emoji=False, width=WIDE)
    for part in parts:
        console.print(part)
