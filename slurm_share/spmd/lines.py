"""Lines over sockets that nobody waits for: what a rendezvous process reads and writes. Standard library only."""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Callable
from typing import BinaryIO

READ_BYTES = 64 << 10
"""Read from one connection at a time: one that sends without end does not keep the others waiting."""


class OwnClock:
    """Seconds in which this process could act: a stop (SIGSTOP, suspended job) is not silence of the others."""

    def __init__(self, most_step_s: float) -> None:
        """`most_step_s`: what passes between two calls of `step` at most, if nothing stops this process."""
        self._most_step_s = most_step_s
        self._last = time.monotonic()
        self.now = 0.0

    def step(self) -> float:
        """Go on to this moment, and return it."""
        now = time.monotonic()
        self.now += min(now - self._last, self._most_step_s)
        self._last = now
        return self.now


class Connection:
    """A non-blocking socket or pipe, its incoming bytes cut into lines and its outgoing bytes kept until they fit."""

    def __init__(self, file: socket.socket | BinaryIO, limit: int) -> None:
        """`limit`: bytes of the longest line; a longer one ends the connection."""
        self.file = file
        self._fd = file.fileno()
        os.set_blocking(self._fd, False)
        self._limit = limit
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self.is_broken = False
        """The other end broke the rules, and did not just go away."""
        self.end: str | None = None
        """Why nothing more can be read or written; None: it is open."""

    @property
    def is_flushed(self) -> bool:
        """Whether all that was written is in the kernel's hands, or the connection has ended."""
        return not self._outgoing or self.end is not None

    def receive(self, size: int = READ_BYTES) -> bytes:
        """Return bytes that have come, at most `size`; none: there are none now, or `end` is set."""
        if self.end is not None:
            return b""
        try:
            data = os.read(self._fd, size)
        except BlockingIOError:
            return b""
        except OSError as error:
            self.end = str(error.strerror or error)
            return b""
        if not data:
            self.end = "the connection was closed"
        return data

    def lines(self) -> list[bytes]:
        """Read once, and return the whole lines that have come. Where there are none, look at `end`."""
        start = len(self._incoming)
        self._incoming += self.receive()
        last = self._incoming.rfind(b"\n", start)
        whole = bytes(self._incoming[: last + 1]).split(b"\n")
        del self._incoming[: last + 1]
        if max(len(self._incoming), *map(len, whole)) > self._limit:
            self.end = f"it sent a line of more than {self._limit} bytes"
            self.is_broken = True
            return []
        return [line for line in whole if line]

    def write(self, data: bytes) -> None:
        """Keep bytes for `flush`."""
        if self.end is None:
            self._outgoing += data

    def flush(self) -> None:
        """Hand the kernel what it takes."""
        if self.end is not None or not self._outgoing:
            return
        try:
            del self._outgoing[: os.write(self._fd, self._outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            self._outgoing.clear()  # what the other end said before it went can still be read

    def close(self) -> None:
        """Close the file."""
        self.end = self.end or "closed"
        self.file.close()


class Watched:
    """Connections in a selector: read when there is something, written to when there is room."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._watched: dict[Connection, tuple[int, Callable[[], None]]] = {}

    def add(self, connection: Connection, ready: Callable[[], None]) -> None:
        """Call `ready` when there is something to read. It reads as much as it likes; more is announced again."""
        self._watched[connection] = (selectors.EVENT_READ, ready)
        self._selector.register(connection.file, selectors.EVENT_READ, ready)

    def replace(self, connection: Connection, ready: Callable[[], None]) -> None:
        """Call another function from now on."""
        events, _before = self._watched[connection]
        self._watched[connection] = (events, ready)
        self._selector.modify(connection.file, events, ready)

    def flush(self) -> None:
        """Write what was kept, and wait for room where not all could be written."""
        for connection, (events, ready) in self._watched.items():
            connection.flush()
            wanted = selectors.EVENT_READ if connection.is_flushed else selectors.EVENT_READ | selectors.EVENT_WRITE
            if events != wanted:
                self._watched[connection] = (wanted, ready)
                self._selector.modify(connection.file, wanted, ready)

    def close(self, connection: Connection) -> None:
        """Close a connection. One that is closed already is fine."""
        if self._watched.pop(connection, None) is not None:
            self._selector.unregister(connection.file)
            connection.close()
