"""Every key of the dashboard: action, id in the configuration, text of the help.

The configuration assigns other keys by id: `[keys]`, `"go.down" = "enter,space"`. Of a screen that opens over the main
screen (ABOVE) only the keys that open it can be configured; the same ones close it (`close_with`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from textual.binding import Binding, BindingsMap
from textual.keys import REPLACED_KEYS, _character_to_key, key_to_character

from slurm_share.core.errors import UsageError, shown
from slurm_share.core.text import did_you_mean

from .widgets.glyphs import ARROWS, arrow

Handler = Literal["app", "screen", "grid"]
"""The part that runs the action: the application on every screen, the main screen, or the table that has the focus."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key binding and its action."""

    id: str
    keys: str
    """Names of the keys in Textual, with commas between."""
    action: str
    handler: Handler
    group: str
    """Heading in the help."""
    label: str
    """One or two words for the last line of the screen."""
    help: str
    footer: int = 0
    """Its position in the last line of the screen, where the highest are left out first; 0: not in that line."""
    priority: bool = False
    """True: it works whatever has the focus, an input line too."""


VIEWS, MOVE, TABLE, TIME, DO, PROGRAM = "Views", "Moving", "Tables", "Time", "Acting", "Program"
GROUPS = (VIEWS, MOVE, TABLE, TIME, DO, PROGRAM)

KEYS: tuple[Key, ...] = (
    Key("view.nodes", "1", "view('nodes')", "screen", VIEWS, "Nodes", "a line for each node, with bars"),
    Key("view.users", "2", "view('users')", "screen", VIEWS, "Users", "what each user has"),
    Key("view.jobs", "3", "view('jobs')", "screen", VIEWS, "Jobs", "jobs, your own first"),
    Key("view.gpus", "4", "view('gpus')", "screen", VIEWS, "GPUs", "every GPU: users, tasks, memory and load"),
    Key("view.node", "5", "view('node')", "screen", VIEWS, "Node", "the node under the cursor: history, slots"),
    Key("view.advice", "6", "view('advice')", "screen", VIEWS, "Advice", "how many processes to run, and why"),
    Key("view.queue", "7", "view('queue')", "screen", VIEWS, "Queue",
        "what waits and why, free GPUs, nodes out of service"),
    Key("go.down", "enter,l", "go_down", "screen", MOVE, "down",
        "go to what the cursor is on: user, job, node, GPU, process", 1),
    Key("describe", "d", "describe", "screen", MOVE, "describe",
        "page of the job under the cursor: asked, had, limits, why it waits, its whole life", 16),
    Key("go.back", "escape,backspace,h", "go_back", "screen", MOVE, "back",
        "clear the filter; without one, back to where you came from", 2),
    Key("grid.up", "up,k", "move(-1)", "grid", MOVE, "up", "one row up"),
    Key("grid.down", "down,j", "move(1)", "grid", MOVE, "down", "one row down"),
    Key("grid.page_up", "pageup", "page(-1)", "grid", MOVE, "page up", "one screen up"),
    Key("grid.page_down", "pagedown", "page(1)", "grid", MOVE, "page down", "one screen down"),
    Key("grid.first", "home,g", "first", "grid", MOVE, "first", "first row"),
    Key("grid.last", "end,G", "last", "grid", MOVE, "last", "last row"),
    Key("grid.left", "left", "sideways(-1)", "grid", MOVE, "left", "columns further left"),
    Key("grid.right", "right", "sideways(1)", "grid", MOVE, "right", "columns further right"),
    Key("pane.next", "tab", "pane(1)", "screen", MOVE, "next pane", "next table of this view"),
    Key("pane.previous", "shift+tab", "pane(-1)", "screen", MOVE, "previous pane", "previous table of this view"),
    Key("filter", "/", "filter", "screen", TABLE, "filter",
        "only matching rows: words, gpu<50, user=alice & mem>80, name~n1*", 3),
    Key("flagged", "f", "flagged", "screen", TABLE, "attention",
        "only rows that need attention: dead, full or waste", 9),
    Key("sort.left", "<", "sort_next(-1)", "grid", TABLE, "sort left", "sort by the column to the left"),
    Key("sort.right", ">", "sort_next(1)", "grid", TABLE, "sort right", "sort by the column to the right"),
    Key("sort.reverse", "r", "reverse", "grid", TABLE, "reverse", "reverse the sort"),
    Key("mark", "space", "mark", "grid", TABLE, "mark", "mark this row for a command, or unmark it"),
    Key("unmark.all", "u", "unmark_all", "grid", TABLE, "unmark", "unmark all rows"),
    Key("columns", "c", "columns", "screen", TABLE, "columns", "choose columns and their order", 10),
    Key("pause", "p", "pause", "screen", TIME, "pause", "pause or resume", 4),
    Key("look.now", "f5", "read_now", "screen", TIME, "read now", "read a new survey now"),
    Key("interval.longer", "+", "interval(1)", "screen", TIME, "slower", "longer interval between surveys"),
    Key("interval.shorter", "-", "interval(-1)", "screen", TIME, "faster", "shorter interval between surveys"),
    Key("trend", "t", "trend", "screen", TIME, "plot", "large plot of what the cursor is on", 5),
    Key("charts", "v", "charts", "screen", TIME, "charts", "charts of the row under the cursor: show or hide", 15),
    Key("replay.back", "[", "step(-1)", "screen", TIME, "step back", "replay: one survey back"),
    Key("replay.on", "]", "step(1)", "screen", TIME, "step on", "replay: one survey on"),
    Key("replay.slower", "{", "speed(0.5)", "screen", TIME, "slower", "replay: half as fast"),
    Key("replay.faster", "}", "speed(2.0)", "screen", TIME, "faster", "replay: twice as fast"),
    Key("replay.jump", ":", "jump", "screen", TIME, "jump", "replay: to a time"),
    Key("cancel", "x", "act('cancel')", "screen", DO, "cancel", "cancel the job, after a confirmation", 11),
    Key("signal", "s", "act('signal')", "screen", DO, "signal", "signal the task or process, after a confirmation", 12),
    Key("output", "o", "act('output')", "screen", DO, "output", "the end of the job's output, as it grows", 8),
    Key("copy", "y", "copy", "screen", DO, "copy", "copy the row's name; in Advice the lines to submit", 13),
    Key("export", "e", "export", "screen", DO, "export", "write the table as CSV or JSON, or the screen as SVG", 17),
    Key("alerts", "a", "alerts", "screen", DO, "alerts", "list alerts and silence them", 18),
    Key("source", "w", "source", "screen", TIME, "source", "choose where figures come from, such as a recording"),
    Key("theme", "ctrl+t", "next_theme", "app", PROGRAM, "theme", "next theme: dark, light, high-contrast ..."),
    Key("help", "?,f1", "help", "screen", PROGRAM, "help", "this page", 6),
    Key("palette", "ctrl+p", "command_palette", "app", PROGRAM, "palette",
        "any command, node, user or job by name", 14),
    Key("suspend", "ctrl+z", "suspend_process", "app", PROGRAM, "stop", "back to the shell; fg resumes",
        priority=True),
    Key("quit", "q", "quit", "app", PROGRAM, "quit", "quit", 7),
    Key("quit.now", "ctrl+c,ctrl+q", "quit", "app", PROGRAM, "quit", "quit, whatever is open", priority=True),
)  # fmt: skip

BY_ID: dict[str, Key] = {key.id: key for key in KEYS}

SCROLL: tuple[Binding, ...] = (
    Binding("up,k", "scroll(-1)", show=False),
    Binding("down,j", "scroll(1)", show=False),
    Binding("pageup", "page(-1)", show=False),
    Binding("pagedown,space", "page(1)", show=False),
    Binding("home,g", "edge(0)", show=False),
    Binding("end,G", "edge(1)", show=False),
)
"""Keys of the screens for help and for output of commands."""
FILTER_LINE: tuple[Binding, ...] = (
    Binding("escape", "clear", "no filter", id="filter.clear"),
    Binding("up", "grid('move', -1)", show=False),
    Binding("down", "grid('move', 1)", show=False),
    Binding("pageup", "grid('page', -1)", show=False),
    Binding("pagedown", "grid('page', 1)", show=False),
)
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
ALERTS: tuple[Binding, ...] = (
    Binding("s", "silence", "silence this one"),
    Binding("S", "silence_all", "silence all"),
    Binding("enter", "go", "go there"),
    Binding("escape,q,backspace", "dismiss", "back"),
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
    "Filter line": FILTER_LINE, "Columns": COLUMNS, "Plot": TREND, "Alerts": ALERTS,
    "Output": LOG, "Signal": SIGNAL, "Question": QUESTION,
}  # fmt: skip

_SIGNS = {
    "enter": "Enter", "escape": "Esc", "backspace": "Bksp", "pageup": "PgUp", "pagedown": "PgDn", "home": "Home",
    "end": "End", "space": "Space", "tab": "Tab", "insert": "Ins", "delete": "Del",
}  # fmt: skip
_NAMED = frozenset({*_SIGNS, *ARROWS, *(f"f{number}" for number in range(1, 25))})
_MODIFIERS = ("ctrl", "shift", "alt", "super", "meta", "hyper")


def bindings(handler: Handler) -> list[Binding]:
    """Return the bindings of one handler for Textual's BINDINGS."""
    keys = (key for key in KEYS if key.handler == handler)
    return [Binding(one.keys, one.action, one.label, one.footer > 0, priority=one.priority, id=one.id) for one in keys]


def checked(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the configured keys by id, with Textual's names. Raises UsageError for an unknown id or key, and for a key
    with two actions."""
    found: dict[str, str] = {}
    for id, keys in overrides.items():
        if id not in BY_ID:
            hint = did_you_mean(id, BY_ID, f"the ids are {', '.join(BY_ID)}")
            raise UsageError(f"keys: there is no id {shown(id)}{hint}")
        if not _apart(keys):
            raise UsageError(f"keys: {id} needs at least one key")
        found[id] = ",".join(_key(id, one) for one in _apart(keys))
    taken: dict[str, str] = {}
    for id in BY_ID:
        for one in keys_of(id, found):
            if one in taken and taken[one] != id:
                both = f"{key_text(one)} is assigned to {taken[one]} and to {id}"
                raise UsageError(f"keys: {both}; give one of them another key")
            taken[one] = id
    return found


def keys_of(id: str, overrides: Mapping[str, str]) -> tuple[str, ...]:
    """Return the keys of an action, with Textual's names; `overrides` as `checked` returns."""
    return tuple(_long(one) for one in _apart(overrides.get(id) or BY_ID[id].keys))


def key_text(key: str) -> str:
    """Return a key as people write it: Esc, ^p, /."""
    *modifiers, name = key.split("+") if len(key) > 1 else [key]
    written = _SIGNS.get(name) or _character(name) or (name.upper() if name in _NAMED else name)
    if name in ARROWS:
        written = arrow(name)
    if modifiers == ["ctrl"]:
        return f"^{written}"
    return "+".join([*(modifier.capitalize() for modifier in modifiers), written])


def keys_text(keys: Iterable[str]) -> str:
    """Return several keys as people write them: Enter l."""
    return " ".join(map(key_text, keys))


def _apart(keys: str) -> list[str]:
    """Split keys at commas; a comma alone is a key."""
    if keys.strip() == ",":
        return [","]
    return [one.strip() for one in keys.split(",") if one.strip()]


def _key(id: str, written: str) -> str:
    *modifiers, name = written.split("+") if len(written) > 1 else [written]
    is_known = name in _NAMED or (len(name) == 1 and name.isprintable()) or _character(name) != ""
    if not is_known or not all(modifier in _MODIFIERS for modifier in modifiers):
        raise UsageError(f"keys: {id}: there is no key {shown(written)}; write a, G, ctrl+a, f5, enter, space ...")
    return _long(written)


def _long(key: str) -> str:
    """Return Textual's name of a key: slash for /."""
    *modifiers, name = key.split("+") if len(key) > 1 else [key]
    return "+".join([*modifiers, _character_to_key(name) if len(name) == 1 else name])


def _character(name: str) -> str:
    """Return the character of a key's name, / for slash; empty: it has none."""
    return key_to_character(name) or key_to_character(REPLACED_KEYS.get(name, name)) or ""


def close_with(bindings: BindingsMap, keys: Iterable[str]) -> None:
    """Let these keys close the screen, unless they have another action there."""
    for key in keys:
        if key not in bindings.key_to_bindings:
            bindings.bind(key, "dismiss", show=False)
