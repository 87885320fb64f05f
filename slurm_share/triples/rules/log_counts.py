"""Count the lines of a task's output, and find the number in them that says how much the task has done."""

from __future__ import annotations

import math
import re
import warnings

from ...core.errors import UsageError, shown

LINE_MAX = 4096
"""Most bytes of a line that are searched, to limit the time of a search."""
PATTERN_MAX = 500
WINDOW_MIN_S, WINDOW_MAX_S = 1, 3600
_SECONDS = re.compile(r"[0-9]{1,5}(?:\.[0-9]{1,3})?", re.ASCII)


def parse_pattern(text: str, option: str) -> re.Pattern[str]:
    """Return the regular expression of --progress. Raises UsageError, which begins with `option`."""
    if not text or len(text) > PATTERN_MAX or not text.isprintable():
        raise UsageError(
            f"{option} {shown(text) or repr('')} must have 1 to {PATTERN_MAX} printable characters; write the text "
            r"before the number, and the number in parentheses, such as 'step (\d+)'"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pattern = re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"{option} {shown(text)} is not a regular expression of Python: {error}") from error
    if pattern.groups != 1:
        raise UsageError(
            f"{option} {shown(text)} has {pattern.groups} groups and must have one; put only the number in "
            r"parentheses, such as 'epoch (\d+)', and write (?: ) for other groups"
        )
    return pattern


def parse_window(text: str, option: str) -> float:
    """Return the length of a window in seconds. Raises UsageError, which begins with `option`."""
    seconds = float(text) if _SECONDS.fullmatch(text) else 0.0
    if not WINDOW_MIN_S <= seconds <= WINDOW_MAX_S:
        raise UsageError(
            f"{option} {shown(text) or repr('')} is not a time in seconds from {WINDOW_MIN_S} to {WINDOW_MAX_S}"
        )
    return seconds


class LogCounts:
    """The number of lines, and the numbers, in the output of one attempt, which is read in pieces."""

    def __init__(self, pattern: re.Pattern[str] | None) -> None:
        self.lines = 0
        """Newlines and carriage returns; progress bars write the latter."""
        self._pattern = pattern
        self._begun = b""
        """The last, incomplete line."""
        self._is_cut = False
        """True: the beginning of the incomplete line was skipped."""

    def skip(self) -> None:
        """Note that output before the next piece was skipped, so that the piece begins within a line."""
        self._begun, self._is_cut = b"", True

    def feed(self, data: bytes) -> list[float]:
        """Add the next piece; return the numbers in the lines that it completes, in their order."""
        self.lines += data.count(b"\n") + data.count(b"\r")
        if self._pattern is None:
            return []
        first, *rest = data.replace(b"\r", b"\n").split(b"\n")
        lines = [(self._begun + first)[:LINE_MAX]]
        if not rest:
            self._is_cut = self._is_cut and not self._begun
            self._begun = b"" if self._is_cut else lines[0]
            return []
        if self._is_cut:
            lines = []
        self._begun, self._is_cut = rest[-1][:LINE_MAX], False
        return self._numbers([*lines, *rest[:-1]])

    def end(self) -> list[float]:
        """Return the number in the last line, if it has no line end."""
        last, self._begun = self._begun, b""
        return [] if self._is_cut or not last else self._numbers([last])

    def _numbers(self, lines: list[bytes]) -> list[float]:
        found = []
        for line in lines:
            match = None if self._pattern is None else self._pattern.search(line[:LINE_MAX].decode(errors="replace"))
            if match is not None and (number := amount_of(match[1])) is not None:
                found.append(number)
        return found


def amount_of(text: str | bytes | None) -> float | None:
    """Return the amount of work in a text; None: it is not one."""
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
