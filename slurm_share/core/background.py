"""Asking one thing while another is being asked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Answered = TypeVar("Answered")


class BackgroundCall(Generic[Answered]):
    """A question under way, in a thread that nobody has to wait for: not even the end of the program does."""

    def __init__(self, question: Callable[[], Answered]) -> None:
        self._question = question
        self._answer: Answered | Exception | None = None
        self._thread = threading.Thread(target=self._run, name="background call", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer = self._question()
        except Exception as error:  # noqa: BLE001 - handed to whoever wants the answer
            self._answer = error

    def wait(self, timeout_s: float) -> bool:
        """Whether there is an answer, after at most `timeout_s`."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def answer(self) -> Answered:
        """What was answered; waits for it. Raises whatever the question raised."""
        self._thread.join()
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer  # type: ignore[return-value]
