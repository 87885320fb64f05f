"""What a packed run says in the job's log: one line for starts and one for all else, at most once a second."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..rules import pack_sentences

SAY_S = 0.95
"""Between two lines in the job's log; ticks are a second apart, or less."""


class PackLog:
    """Sentences that wait for the next line."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """`say` writes one line."""
        self._say = say
        self._say_at = 0.0
        self._events: list[str] = []
        self._started: list[tuple[int, str]] = []
        """Tasks started since the last line, and why where."""

    def tell(self, sentence: str) -> None:
        """Say a sentence in the next line."""
        self._events.append(sentence)

    def started(self, task: int, why: str) -> None:
        """Say in the next line that a task was started."""
        self._started.append((task, why))

    def flush(self, *, is_last: bool = False) -> None:
        """Write what waits, unless that was done less than a second ago and this is not the last time."""
        if not is_last and time.monotonic() < self._say_at:
            return
        self._say_at = time.monotonic() + SAY_S
        started, self._started = self._started, []
        events, self._events = self._events, []
        at = time.strftime("%H:%M:%S")
        if started:
            self._say(f"{at} {pack_sentences.started(started)}")
        if events:
            self._say(f"{at} {pack_sentences.several(events)}")
