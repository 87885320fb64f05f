"""One call at a time: the lock of a transport, and Ctrl-C that does not tear a frame apart."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Turn:
    """The lock of a transport, as a context manager.

    While the main thread has its turn, Ctrl-C waits until the end of it: KeyboardInterrupt between two steps would
    leave half a frame behind. It comes at once while the thread waits in `asleep`.
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
        """Raise KeyboardInterrupt where Ctrl-C was pressed during the main thread's turn."""
        if self._interrupted and threading.get_ident() == self._main:
            self._interrupted = False
            raise KeyboardInterrupt

    def asleep(self, poller: Any, timeout: float | None) -> list[tuple[int, int]]:
        """Let others have their turn, and return what `poller.poll(timeout)` returns."""
        main = threading.get_ident() == self._main
        self.lock.release()
        try:
            if main:
                self._deferring = False
                self.raise_interrupt()  # one that came before this line; a later one is raised at once
            events: list[tuple[int, int]] = poller.poll(timeout)
        finally:
            if main:
                self._deferring = True  # before the call: what is raised within `acquire` would leave without the lock
            self.lock.acquire()
        return events

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._deferring:
            self._interrupted = True
        else:
            signal.default_int_handler(number, frame)
