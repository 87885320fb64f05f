"""Lines over non-blocking sockets and pipes, for rendezvous processes and ranks. Standard library only."""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Callable
from typing import BinaryIO

READ_BYTES = 64 << 10
"""Limit of one read, so that one busy connection does not delay the others."""


class AwakeClock:
    """Clock that does not count time in which this process was stopped (SIGSTOP, suspended job).

    Otherwise the other processes would seem to have been silent for that time.
    """

    def __init__(self, most_step_s: float) -> None:
        """`most_step_s`: the longest time between two calls of `step` if nothing stops this process."""
        self._most_step_s = most_step_s
        self._last = time.monotonic()
        self.now = 0.0

    def step(self) -> None:
        """Advance `now` to the present."""
        now = time.monotonic()
        self.now += min(now - self._last, self._most_step_s)
        self._last = now


class LineConnection:
    """Non-blocking socket or pipe that splits its input into lines and buffers its output."""

    def __init__(self, file: socket.socket | BinaryIO, limit: int) -> None:
        """`limit`: bytes of the longest valid line; a longer one ends the connection."""
        self.file = file
        self._fd = file.fileno()
        os.set_blocking(self._fd, False)
        self._limit = limit
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self.is_broken = False
        """Whether the other end violated the protocol, rather than closed the connection."""
        self.end: str | None = None
        """Reason why the connection has ended; None: it is open."""

    @property
    def is_flushed(self) -> bool:
        """Whether the kernel has accepted all output, or the connection has ended."""
        return not self._outgoing or self.end is not None

    def receive(self, size: int = READ_BYTES) -> bytes:
        """Return up to `size` bytes that have arrived; no bytes: none have, or `end` is set."""
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
        """Read once and return the complete lines. If there are none, `end` may be set."""
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
        """Append bytes to the output; `flush` sends them."""
        if self.end is None:
            self._outgoing += data

    def flush(self) -> None:
        """Send as much of the output as the kernel accepts."""
        if self.end is not None or not self._outgoing:
            return
        try:
            del self._outgoing[: os.write(self._fd, self._outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            self._outgoing.clear()  # data that the other end sent before it closed can still be read

    def close(self) -> None:
        """Close the socket or pipe."""
        self.end = self.end or "closed"
        self.file.close()


class ConnectionSet:
    """Connections in a selector: read when data is there, written when the kernel accepts data."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self.selector = selector
        self._watched: dict[LineConnection, tuple[int, Callable[[], None]]] = {}

    def add(self, connection: LineConnection, ready: Callable[[], None]) -> None:
        """Call `ready` when there is data to read. If it leaves data, the next step calls it again."""
        self._watched[connection] = (selectors.EVENT_READ, ready)
        self.selector.register(connection.file, selectors.EVENT_READ, ready)

    def replace(self, connection: LineConnection, ready: Callable[[], None]) -> None:
        """Replace the function that `add` registered."""
        events, _before = self._watched[connection]
        self._watched[connection] = (events, ready)
        self.selector.modify(connection.file, events, ready)

    def flush(self) -> None:
        """Send the output of all connections; select for writing where the kernel does not accept all."""
        for connection, (events, ready) in self._watched.items():
            connection.flush()
            wanted = selectors.EVENT_READ if connection.is_flushed else selectors.EVENT_READ | selectors.EVENT_WRITE
            if events != wanted:
                self._watched[connection] = (wanted, ready)
                self.selector.modify(connection.file, wanted, ready)

    def close(self, connection: LineConnection) -> None:
        """Close a connection; does nothing if it is closed already."""
        if self._watched.pop(connection, None) is not None:
            self.selector.unregister(connection.file)
            connection.close()
