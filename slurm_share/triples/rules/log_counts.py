"""Count the lines of a task's output, and find the number in them that says how much the task has done."""

from __future__ import annotations

import math
import re
import warnings

from ...core.errors import UsageError, shown

LINE_MAX = 4096
"""Bytes of a line that are searched. What is behind them is no word about progress, and a search takes time."""
PATTERN_MAX = 500
WINDOW_MIN_S, WINDOW_MAX_S = 1, 3600
_SECONDS = re.compile(r"[0-9]{1,5}(?:\.[0-9]{1,3})?", re.ASCII)


def parse_pattern(text: str, option: str) -> re.Pattern[str]:
    """Return the regular expression of --progress. Raises UsageError, which begins with `option`."""
    if not text or len(text) > PATTERN_MAX or not text.isprintable():
        raise UsageError(
            f"{option} {shown(text) or repr('')} has to be printable, with 1 to {PATTERN_MAX} characters; write the "
            r"text before the number and the number in parentheses, such as 'step (\d+)'"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pattern = re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"{option} {shown(text)} is no regular expression of Python: {error}") from error
    if pattern.groups != 1:
        raise UsageError(
            f"{option} {shown(text)} has {pattern.groups} groups, and the number of one group is read; put the number "
            r"alone in parentheses, such as 'epoch (\d+)'; (?: ) is a group that does not count"
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
    """What the output of one attempt has shown so far. It is given piece by piece, as it was written."""

    def __init__(self, pattern: re.Pattern[str] | None) -> None:
        self.lines = 0
        """Newlines and carriage returns: progress bars write the latter."""
        self._pattern = pattern
        self._begun = b""
        """The line whose end has not come."""
        self._is_cut = False
        """That line is longer than what is kept of it."""

    def skip(self) -> None:
        """Note that output in front of the next piece was left out: that piece begins within a line."""
        self._begun, self._is_cut = b"", True

    def feed(self, data: bytes) -> list[float]:
        """Take the next piece; return the numbers in the lines that are complete with it, in their order."""
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
        """Return the number in the last line, whose end never came."""
        last, self._begun = self._begun, b""
        return [] if self._is_cut or not last else self._numbers([last])

    def _numbers(self, lines: list[bytes]) -> list[float]:
        found = []
        for line in lines:
            match = None if self._pattern is None else self._pattern.search(_text(line))
            if match is not None and (number := _number(match[1])) is not None:
                found.append(number)
        return found


def _text(line: bytes) -> str:
    return line[:LINE_MAX].decode(errors="replace")


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
