"""Run a call in a background thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Answered = TypeVar("Answered")


class BackgroundCall(Generic[Answered]):
    """A call that runs in a daemon thread: the program can end without waiting for it."""

    def __init__(self, question: Callable[[], Answered]) -> None:
        self._question = question
        self._answer: Answered | Exception | None = None
        self._thread = threading.Thread(target=self._run, name="background call", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer = self._question()
        except Exception as error:  # noqa: BLE001 - raised by `answer`
            self._answer = error

    def wait(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` seconds. Return whether the call has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def answer(self) -> Answered:
        """Wait for the call and return its result. Raises what the call raised."""
        self._thread.join()
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer  # type: ignore[return-value]
