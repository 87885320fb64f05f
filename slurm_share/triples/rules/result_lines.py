"""Read the results that tasks print, `LLSUB_RESULT loss=0.12 acc=0.9`, from their logs.

The line begins with the word, and has only NAME=VALUE behind it, separated by blanks; a value with blanks is in double
quotes. Every other line is output like any other. The last value of a name counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from heapq import merge
from mmap import mmap

from msgspec import Struct

WORD = "LLSUB_RESULT"
LINE_MAX = 4096
"""Most bytes behind the word; a longer line is no result."""
NAMES_MAX = 100
"""Most names of one task; further ones are left out."""
VALUE_MAX = 200
"""Most characters of a value; a line with a longer one is no result."""
_MARK = re.compile(rb"--- task ([0-9]{1,8})(?:, attempt ([0-9]{1,9}))?\n")
"""The launcher's line before an attempt's output in a log of several (launcher/task_logs.py)."""
_LINE = re.compile(rb"LLSUB_RESULT[ \t]+([^\n\r]*?)(?=([\n\r]|--- task [0-9]{1,8}(?:, attempt [0-9]{1,9})?\n)|\Z)")
"""A line of results. Both expressions begin with plain text, for which Python searches ten times faster."""
_PAIR = re.compile(r'([A-Za-z_][A-Za-z0-9_./-]{0,63})=("(?:[^"]|"")*"|[^\s"]*)(?:[ \t]+|$)', re.ASCII)


class LogResults(Struct):
    """The results in one log."""

    found: dict[tuple[int, int], dict[str, str]] = {}
    """(task, attempt) -> its results. Attempt 0: the beginning of the file, before the first line of the launcher."""
    last: tuple[int, int] | None = None
    """The task and attempt whose output is at the end of the file; None: there is no line of the launcher."""

    def of(self, task: int, attempt: int) -> dict[str, str]:
        """Return the results of an attempt; empty: it has printed none.

        The launcher writes its line into the log of one task only if an earlier attempt has written something: without
        that line the beginning of the file belongs to the attempt.
        """
        own = self.found.get((task, attempt))
        return self.found.get((task, 0), {}) if own is None else own


def parse_line(text: str) -> dict[str, str] | None:
    """Return the results in a line, without its word; None: it is no line of results."""
    found: dict[str, str] = {}
    rest = text.strip()
    if not rest or len(text) > LINE_MAX or not rest.replace("\t", " ").isprintable():
        return None
    while rest:
        match = _PAIR.match(rest)
        if match is None:
            return None
        value = match[2]
        value = value[1:-1].replace('""', '"') if value.startswith('"') else value
        if len(value) > VALUE_MAX:
            return None
        found[match[1]] = value
        rest = rest[match.end() :]
    return found


def read(data: bytes | mmap, task: int | None, *, is_ended: bool) -> LogResults:
    """Return the results in a log. task: the log is of this task alone; None: it is of all tasks of a process.

    is_ended: nothing more is written, so that a last line without its end is whole.
    """
    results = LogResults()
    key = None if task is None else (task, 0)
    for match in merge(_MARK.finditer(data), _LINE.finditer(data), key=re.Match.start):
        if match.re is _MARK:
            number = int(match[1])
            if task in (None, number):
                key = (number, int(match[2] or 1))
                results.found[key] = {}
                results.last = key
        elif key is not None and (is_ended or match[2] is not None) and _begins_line(data, match.start()):
            line = parse_line(match[1][: LINE_MAX + 1].decode("utf-8", "replace"))
            if line is not None:
                _note(results.found.setdefault(key, {}), line)
    return results


def last_part(data: bytes) -> bytes:
    """Return the output after the launcher's last line in the end of a log; all of it, if there is none."""
    ends = [match.end() for match in _MARK.finditer(data)]
    return data[ends[-1] :] if ends else data


def _begins_line(data: bytes | mmap, place: int) -> bool:
    return not place or data[place - 1] in b"\n\r"


def _note(found: dict[str, str], line: Mapping[str, str]) -> None:
    for name, value in line.items():
        if name in found or len(found) < NAMES_MAX:
            found[name] = value
