"""The keys of the screens that open over the main screen: their BINDINGS, and their texts in the help.

They are in a module of their own because the help must not import the plot's library. Only the keys that open a screen
can be configured; the same ones close it (`close_with`).
"""

from __future__ import annotations

from collections.abc import Iterable

from textual.binding import Binding, BindingsMap

from ..widgets import filter_line

TREND: tuple[Binding, ...] = (
    Binding("escape,q,backspace", "dismiss", "back"),
    Binding("1", "span(0)", "10 min"),
    Binding("2", "span(1)", "1 h"),
    Binding("3", "span(2)", "all"),
    Binding("left,h", "next_span(-1)", "shorter"),
    Binding("right,l", "next_span(1)", "longer"),
    Binding("c", "line(0)", "CPU load, or not", show=False),
    Binding("g", "line(1)", "GPU load, or not", show=False),
    Binding("s", "line(2)", "SM now, or not", show=False),
    Binding("m", "line(3)", "memory, or not", show=False),
    Binding("v", "line(4)", "GPU memory, or not", show=False),
)
LOG: tuple[Binding, ...] = (
    Binding("escape,q,backspace", "dismiss", "back"),
    Binding("f,p", "follow", "follow the end, or stop"),
    Binding("tab,n", "other(1)", "next file"),
    Binding("shift+tab,N", "other(-1)", "previous file", show=False),
    Binding("y", "copy", "copy its path"),
)
COLUMNS: tuple[Binding, ...] = (
    Binding("space", "choose", "show or hide", priority=True),
    Binding("shift+up,K", "move(-1)", "further left", priority=True),
    Binding("shift+down,J", "move(1)", "further right", priority=True),
    Binding("enter", "keep", "keep", priority=True),
    Binding("escape,q", "leave", "cancel", priority=True),
    Binding("d", "default", "default columns", priority=True),
)
SIGNAL: tuple[Binding, ...] = (
    Binding("escape,q,backspace", "dismiss", "back"),
    Binding("tab,right", "to(1)", "other processes"),
    Binding("shift+tab,left", "to(-1)", show=False),
    Binding("j", "move(1)", show=False),
    Binding("k", "move(-1)", show=False),
)
QUESTION: tuple[Binding, ...] = (
    Binding("n,escape,enter", "no", "no"),
    Binding("y", "yes", "yes, after the guard time"),
)
"""For the help only: `Confirm.on_key` also checks when a key was pressed."""
ABOVE: dict[str, tuple[Binding, ...]] = {
    "Filter line": filter_line.KEYS,
    "Columns": COLUMNS,
    "Plot": TREND,
    "Output": LOG,
    "Signal": SIGNAL,
    "Question": QUESTION,
}


def close_with(bindings: BindingsMap, keys: Iterable[str]) -> None:
    """Let these keys close the screen, unless they have another action there."""
    for key in keys:
        if key not in bindings.key_to_bindings:
            bindings.bind(key, "dismiss", show=False)
