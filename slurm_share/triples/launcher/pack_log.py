"""The job's log of a packed run: at most once a second, one line for starts and one for other events."""

from __future__ import annotations

import time
from collections.abc import Callable

from ...core.text import fold_some

SAY_S = 0.95
"""Seconds between two writes; slightly less than the second between two ticks."""
STARTS_MOST = 3
EVENTS_MOST = 4


class PackLog:
    """Collects sentences for the next line."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._say_at = 0.0
        self._events: list[str] = []
        self._started: list[tuple[int, str]] = []
        """Tasks started since the last line, and the reasons for their places."""

    def tell(self, sentence: str) -> None:
        self._events.append(sentence)

    def started(self, task: int, why: str) -> None:
        self._started.append((task, why))

    def flush(self, *, is_last: bool = False) -> None:
        """Write the collected sentences, unless the last write was less than SAY_S ago. `is_last`: in any case."""
        if not is_last and time.monotonic() < self._say_at:
            return
        self._say_at = time.monotonic() + SAY_S
        started, self._started = self._started, []
        events, self._events = self._events, []
        at = time.strftime("%H:%M:%S")
        if len(started) > STARTS_MOST:
            self._say(f"{at} {len(started)} tasks started: {fold_some(sorted({task for task, _ in started}), 20)}")
        elif started:
            self._say(f"{at} {'; '.join(f'task {task} -> {why}' for task, why in started)}")
        if events:
            more = len(events) - EVENTS_MOST
            self._say(f"{at} {'; '.join(events[:EVENTS_MOST])}{f'; and {more} more like these' if more > 0 else ''}")
