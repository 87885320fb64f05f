"""Lock of a transport that delays Ctrl-C, so that it does not interrupt the writing of a frame."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class TransportLock:
    """The lock of a transport, a context manager.

    While the main thread holds the lock, KeyboardInterrupt is delayed until the release: between two steps it would
    leave half a frame behind. It is raised at once while the thread waits in `poll_unlocked`.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._main = threading.main_thread().ident
        self._deferring = False
        self._interrupted = False
        if threading.get_ident() == self._main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._on_interrupt)

    def __enter__(self) -> None:
        if threading.get_ident() == self._main:
            self._deferring = True
        self.lock.acquire()

    def __exit__(self, *_exception: object) -> None:
        self.lock.release()
        if threading.get_ident() == self._main:
            self._deferring = False
            self.raise_interrupt()

    def raise_interrupt(self) -> None:
        """Raise a delayed KeyboardInterrupt in the main thread."""
        if self._interrupted and threading.get_ident() == self._main:
            self._interrupted = False
            raise KeyboardInterrupt

    def poll_unlocked(self, poller: Any, timeout: float | None) -> list[tuple[int, int]]:
        """Release the lock during `poller.poll(timeout)`, and return its result."""
        main = threading.get_ident() == self._main
        self.lock.release()
        try:
            if main:
                self._deferring = False
                self.raise_interrupt()  # from before the line above; a later one is raised at once
            events: list[tuple[int, int]] = poller.poll(timeout)
        finally:
            if main:
                self._deferring = True  # first, because an exception within `acquire` would leave the lock free
            self.lock.acquire()
        return events

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._deferring:
            self._interrupted = True
        else:
            signal.default_int_handler(number, frame)
