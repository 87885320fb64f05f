"""Parse the text of slurm.conf and its companion files as Slurm does. Reads no files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

_PAIR = re.compile(r'\s*([A-Za-z0-9_.]+)\s*[-+*/]?=\s*(?:"([^"]*)"|([^\s"]\S*))(?=\s|$)')
"""One `Key=value`, as the pattern of parse_config.c: blanks around the sign, an operator before it, quotes."""
_INCLUDE = re.compile(r"\s*include\s+(\S+).*", re.IGNORECASE)
_ESCAPE = re.compile(r"\\(.)")
_BLOCKS = frozenset({"nodename", "partitionname", "nodeset", "downnodes", "name"})
"""Keys that begin a line about one node, partition or resource. The other keys of such a line are about that one."""


class ConfLine(Struct, frozen=True):
    """One line as Slurm reads it: without comment, joined with the lines that continue it."""

    file: Path
    number: int
    """The number of its first line in the file, from 1."""
    last: int
    """The number of its last line: more than `number` where a backslash continues the line."""
    text: str
    """The text without comment, continuation and newline. Never empty."""
    pairs: tuple[tuple[str, str], ...] = ()
    """(key as written, value without quotes), in order. Empty for `Include x` and in plugstack.conf."""

    @property
    def include(self) -> str | None:
        """The file or pattern that the line includes; None: it includes nothing."""
        match = _INCLUDE.fullmatch(self.text)
        return match[1].strip('"') if match else None

    @property
    def is_block(self) -> bool:
        """Whether the line is about one node, partition or resource."""
        return bool(self.pairs) and self.pairs[0][0].lower() in _BLOCKS

    def get(self, key: str) -> str | None:
        """Return the last value of a key on this line; None: the key is not there."""
        return next((value for name, value in reversed(self.pairs) if name.lower() == key.lower()), None)


class ConfText(Struct, frozen=True):
    """A configuration file with everything it includes, in the order Slurm reads it."""

    file: Path
    lines: tuple[ConfLine, ...]
    missing: tuple[Path, ...] = ()
    """Files that are included by name and do not exist: Slurm would not start."""

    def values(self, key: str) -> tuple[str, ...]:
        """Return every value of a key, in either case. Other keys of a line about one node, partition or resource are
        not found here, but by `line.get`."""
        return tuple(value for _, value in self._found(key))

    def value(self, key: str) -> str | None:
        """Return the last value of a key, which is the one in force; None: the key is not there."""
        return next((value for _, value in reversed(list(self._found(key)))), None)

    def lines_of(self, key: str) -> tuple[ConfLine, ...]:
        """Return the lines that have this key, each once."""
        return tuple(dict.fromkeys(line for line, _ in self._found(key)))

    def node_lines(self, *keys: str) -> Iterator[tuple[ConfLine, str]]:
        """Yield each node line with the value of the first of these keys that it has; a line without any inherits the
        value of the last NodeName=DEFAULT before it, or has ""."""
        default = ""
        for line in self.lines_of("NodeName"):
            value = next((found for key in keys if (found := line.get(key)) is not None), default)
            if line.pairs[0][1].upper() == "DEFAULT":
                default = value
            else:
                yield line, value

    def listed(self, key: str) -> tuple[str, ...]:
        """Return the value in force, split at its commas."""
        return tuple(value.strip() for value in (self.value(key) or "").split(",") if value.strip())

    @property
    def files(self) -> tuple[Path, ...]:
        """The file and those it includes, each once."""
        return tuple(dict.fromkeys([self.file, *(line.file for line in self.lines)]))

    def _found(self, key: str) -> Iterator[tuple[ConfLine, str]]:
        for line in self.lines:
            for name, value in line.pairs[:1] if line.is_block else line.pairs:
                if name.lower() == key.lower():
                    yield line, value


class Edit(Struct, frozen=True):
    """One change to a file's text, with all that is needed to undo it after other lines have changed."""

    file: str
    add: str
    """The new line, without a newline."""
    key: str = ""
    """The keyword that the line sets; empty: a comment, or a file without keywords."""
    word: str = ""
    """The part of the value, or of the line, that is ours. Where no line has it any more, the change was undone."""
    instead: tuple[str, ...] = ()
    """The lines that it replaces; none: the line is added."""
    at: int = 0
    """Number of the line that it goes before, or replaces; 0: at the end."""


def parse(text: str, file: Path) -> tuple[ConfLine, ...]:
    """Return the lines of one file's text; includes are left as lines."""
    lines: list[ConfLine] = []
    parts: list[str] = []
    first = 1
    for number, raw in enumerate(text.split("\n"), 1):
        if not parts:
            first = number
        part, goes_on = _continued(_without_comment(raw))
        parts.append(part)
        if not goes_on:
            _add(lines, parts, file, first, number)
    _add(lines, parts, file, first, max(first, text.count("\n") + 1))
    return tuple(lines)


def parse_named(text: str, name: str = "") -> tuple[ConfLine, ...]:
    """Return the lines of one file's text, as `parse` does, for a path that is a string."""
    return parse(text, Path(name))


def _add(lines: list[ConfLine], parts: list[str], file: Path, first: int, last: int) -> None:
    """Append the collected parts as one line, unless they are blank, and empty the list of parts."""
    whole = _ESCAPE.sub(r"\1", "".join(parts)).strip()
    parts.clear()
    if whole:
        lines.append(ConfLine(file, first, last, whole, _pairs(whole)))


def _without_comment(line: str) -> str:
    """Return the line without its comment, which begins at a # with an even number of backslashes before it, in
    quotes as well (_strip_comments)."""
    if "#" not in line:
        return line
    backslashes = 0
    for place, sign in enumerate(line):
        if sign == "#" and backslashes % 2 == 0:
            return line[:place]
        backslashes = backslashes + 1 if sign == "\\" else 0
    return line


def _continued(line: str) -> tuple[str, bool]:
    """Return the line, and whether an odd number of backslashes at its end continues it (_strip_continuation)."""
    bare = line.rstrip()
    backslashes = len(bare) - len(bare.rstrip("\\"))
    return (bare[:-1], True) if backslashes % 2 else (line.rstrip("\r"), False)


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    if _INCLUDE.fullmatch(text):
        return ()
    found: list[tuple[str, str]] = []
    place = 0
    while match := _PAIR.match(text, place):
        found.append((match[1], match[3] if match[2] is None else match[2]))
        place = match.end()
    return tuple(found)
