"""Thread that sends the data that the kernel did not accept at once. It exists only while there is such a backlog."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable

from .channels import Outgoing

_TURN_S = 0.5
"""Seconds after which the thread checks all connections again."""
_RETRY_S = 0.01


class Drainer:
    """Sender of the backlogs of a process's connections."""

    def __init__(
        self, lock: threading.Lock, connections: Callable[[], Iterable[Outgoing]], progressed: Callable[[], None]
    ) -> None:
        """`connections` and `progressed` are called with the lock held; `progressed` after data was sent."""
        self._lock, self._connections, self._progressed = lock, connections, progressed
        self._thread: threading.Thread | None = None
        self._wake = -1

    def start(self) -> None:
        """Start the thread, or wake it for a new backlog. The lock is held.

        If no thread can be started, send what the kernel accepts now; the caller has to call again.
        """
        if self._thread is None:
            if self._wake < 0:
                self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            thread = threading.Thread(target=self._run, name="slurm-share-send", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter is ending (Python 3.12 and newer), or no thread can be made
                self.send_now()
            else:
                self._thread = thread
        else:
            os.eventfd_write(self._wake, 1)

    def send_now(self) -> None:
        """Send what the kernel accepts now. The lock is held."""
        waiting = self._unsent()
        before = sum(one.backlog_bytes for one in waiting)
        for one in waiting:
            if one.retry_at is not None and one.retry_at <= time.monotonic():
                one.reconnect()  # an attempt that fails drops the backlog, which counts as progress below
            if one.retry_at is None and one.broken is None:
                one.flush()
        if sum(one.backlog_bytes for one in waiting) != before:
            self._progressed()

    def _unsent(self) -> list[Outgoing]:
        """Return the connections with a backlog."""
        return [one for one in self._connections() if one.backlog_bytes and one.broken is None]

    @property
    def thread(self) -> threading.Thread | None:
        """The thread, if it runs."""
        return self._thread

    @property
    def is_running(self) -> bool:
        return self._thread is not None

    def close(self) -> None:
        """Close the file descriptor that wakes the thread, if the thread has ended."""
        if self._thread is None and self._wake >= 0:
            os.close(self._wake)
            self._wake = -1

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the program's threads handle signals
        while True:
            with self._lock:
                poller = select.poll()
                patience_s = _TURN_S
                waiting = {}
                for one in self._unsent():
                    if one.retry_at is not None and one.retry_at <= time.monotonic():
                        one.reconnect()
                    if one.retry_at is not None:
                        patience_s = min(patience_s, max(one.retry_at - time.monotonic(), 0.0))
                    elif one.broken is None:
                        poller.register(one.sock, select.POLLIN if one.client is not None else select.POLLOUT)
                    waiting[one.sock.fileno()] = one
                if not waiting:
                    self._thread = None
                    self._progressed()
                    return
                poller.register(self._wake, select.POLLIN)
            events = poller.poll(patience_s * 1000)
            with self._lock:
                self._send(waiting, events)

    def _send(self, waiting: dict[int, Outgoing], events: list[tuple[int, int]]) -> None:
        before = sum(one.backlog_bytes for one in waiting.values())
        for fd, _mask in events:
            if fd in waiting:
                waiting[fd].flush()
            elif fd == self._wake:
                os.eventfd_read(self._wake)
        if sum(one.backlog_bytes for one in waiting.values()) != before:
            self._progressed()
        elif any(fd in waiting for fd, _mask in events):
            self._pause()

    def _pause(self) -> None:
        """Pause when a connection is writable but accepts nothing: too many file descriptors are in transit."""
        self._lock.release()
        try:
            time.sleep(_RETRY_S)
        finally:
            self._lock.acquire()
