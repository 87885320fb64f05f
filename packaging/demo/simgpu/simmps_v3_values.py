"""SIMULATED MPS, protocol 3: arguments of a front end's command, values in them, and lists as they are printed.

A table cuts PIDs to three digits, as users of 615 saw it; csv does not. Nothing is quoted: a client's command may hold
commas, and is the last field.
"""

from __future__ import annotations

import re

from simmps_common import choice
from simmps_v3 import NamedServer, Namespace, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Mapping
    from typing import Any

    from simmps_v3 import DaemonV3

Answer = tuple[int, str] | None if TYPE_CHECKING else object
"""Exit code and text; None: it comes later."""

PRIVILEGE = "Insufficient privileges for UID {uid}. '{command}' requires server owner."
NAME = re.compile(r"[a-z0-9_]{1,64}")
MEMORY = re.compile(r"([0-9]{1,12})([KMG])")
CAPS = ("pinned-memory-limit", "active-thread-percentage", "client-priority")


class Caller:
    """The sender of a command; `line` is None for the daemon's own standard input."""

    def __init__(self, uid: int, line: _socket.socket | None) -> None:
        self.uid = uid
        self.line = line


class Words:
    """The arguments after module and verb."""

    def __init__(self, argv: list[str], known: tuple[str, ...]) -> None:
        """Raise Usage for an option that the verb does not have."""
        self.plain: list[str] = []
        self.options: dict[str, str] = {}
        for word in argv:
            name, equals, value = word.removeprefix("--").partition("=")
            if not equals and not word.startswith("--"):
                self.plain.append(word)
            elif name in known:
                self.options[name] = value if equals else "true"
            else:
                raise Usage
        if len(self.plain) > 3:
            raise Usage

    def get(self, name: str) -> str:
        """Return an option that has to be there. Raises Usage."""
        if name not in self.options:
            raise Usage
        return self.options[name]

    def first(self) -> str:
        if not self.plain:
            raise Usage
        return self.plain[0]


class Usage(Exception):
    """A command of an unknown form: the program prints how it is used."""


# ---- Values ----


def memory_mib(text: str) -> int:
    """Return a limit in MiB; 0: unlimited. Raises Refused."""
    found = MEMORY.fullmatch(text)
    if found is None and text != "unlimited":
        raise Refused(f"Invalid pinned memory limit '{text}'")
    if found is None:
        return 0
    return int(found[1]) * {"K": 1, "M": 1 << 10, "G": 1 << 20}[found[2]] >> 10


def memory_text(mib: int) -> str:
    if not mib:
        return "unlimited"
    return f"{mib >> 10}G" if mib % 1024 == 0 else f"{mib}M"


def percentage(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise Refused(f"Invalid active thread percentage '{text}'")
    return value


def set_caps(space: Namespace, values: Mapping[str, Any]) -> None:
    """Set those caps that are given, under the names of options or of the file's keys. Raises Refused."""
    by_name = {name.replace("_", "-"): str(value) for name, value in values.items()}
    pinned, percent, priority = (by_name.get(name) for name in CAPS)
    if priority is not None and priority not in ("0", "1"):
        raise Refused(f"Invalid client priority '{priority}'")
    mib = space.pinned_mib if pinned is None else memory_mib(pinned)
    percent_is = space.percent if percent is None else percentage(percent)
    space.pinned_mib, space.percent = mib, percent_is
    space.priority = space.priority if priority is None else int(priority)


def caps_of(space: Namespace) -> list[str]:
    return [memory_text(space.pinned_mib), f"{space.percent or 100.0:.2f}", str(space.priority)]


# ---- Finding ----


def server_named(daemon: DaemonV3, name: str) -> NamedServer:
    if name not in daemon.named:
        raise Refused(f"Server '{name}' not found")
    return daemon.named[name]


def namespace_named(server: NamedServer, name: str) -> Namespace:
    if name not in server.namespaces:
        raise Refused(f"Namespace '{name}' not found on server '{server.name}'")
    return server.namespaces[name]


def own(caller: Caller, uid: int, command: str) -> None:
    if caller.uid not in (0, uid):
        raise Refused(PRIVILEGE.format(uid=caller.uid, command=command))


def new_name(name: str) -> str:
    if NAME.fullmatch(name) is None:
        raise Refused(f"Invalid name '{name}'")
    return name


def field(names: list[str], values: list[str], asked: str) -> str:
    """Return one field of a list's row. Raises Refused."""
    known = [name.replace("-", choice("SIMMPS_FIELD", "-")) for name in names]
    if asked not in known:
        raise Refused(f"Unknown field '{asked}'")
    return values[known.index(asked)] + "\n"


def cut_pid(name: str, cell: str) -> str:
    return f"{cell[:3]}..." if name == "pid" and len(cell) > 3 else cell


def listing(words: Words, names: list[str], rows: list[list[str]]) -> Answer:
    """Return a list in the form that `--format` asks for."""
    form, _, more = words.options.get("format", "table").partition(",")
    if form not in ("table", "csv") or more not in ("", "noheader"):
        raise Refused(f"Invalid format '{words.options['format']}'")
    if form == "csv":
        safe = [[*(cell.replace(",", ";") for cell in row[:-1]), row[-1]] for row in rows]
        return 0, "".join(",".join(row) + "\n" for row in [*([] if more else [names]), *safe])
    cut = [[cut_pid(name, cell) for name, cell in zip(names, row, strict=True)] for row in rows]
    head = [name.replace("-", " ").upper() if "-" in name and name not in TIED else name.upper() for name in names]
    table = [*([] if more else [head]), *cut]
    wide = [max((len(row[place]) for row in table), default=0) for place in range(len(names))]
    lines = ("  ".join(f"{cell:<{size}}" for cell, size in zip(row, wide, strict=True)) for row in table)
    return 0, "".join(f"{line.rstrip()}\n" for line in lines)


TIED = ("sm-count", "include-remainder", "visible-uuid")
"""Columns whose head keeps its hyphen in a table."""
