"""Run a call in a background thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class BackgroundCall(Generic[Result]):
    """A callable that runs in a daemon thread; a minimal Future. The program can end without waiting for it."""

    def __init__(self, call: Callable[[], Result]) -> None:
        self._call = call
        self._result: Result | Exception | None = None
        self._thread = threading.Thread(target=self._run, name="background call", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except Exception as error:  # noqa: BLE001 - raised by `answer`
            self._result = error

    def wait(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` seconds. Return whether the call has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def answer(self) -> Result:
        """Wait for the call and return its result. Raises what the call raised."""
        self._thread.join()
        if isinstance(self._result, Exception):
            raise self._result
        return self._result  # type: ignore[return-value]
