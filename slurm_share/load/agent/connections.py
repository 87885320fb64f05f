"""Bound the open connections, in total and per caller.

A new connection is always accepted. If the limit is reached, the oldest connection of the same caller, or of the
caller with the most connections, is closed. Rejecting new connections instead would let idle connections block all
others; a normal request is answered within milliseconds, before its connection becomes the oldest.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass


@dataclass(eq=False)
class Connection:
    """A connection that is open, and how to close it."""

    key: Hashable
    """The caller: a user id or an address."""
    close: Callable[[], object]
    """Closes the connection at once."""


class Connections:
    """The open connections of each caller, oldest first."""

    def __init__(self, most: int, most_each: int) -> None:
        self._most = most
        self._most_each = most_each
        self._by_key: dict[Hashable, list[Connection]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values()))

    def add(self, key: Hashable, close: Callable[[], object]) -> Connection:
        """Add a connection; close an older one if the limit is reached."""
        connection = Connection(key, close)
        if len(self._by_key.get(key, ())) >= self._most_each:
            self._evict(self._by_key[key][0])
        elif len(self) >= self._most:
            self._evict(max(self._by_key.values(), key=len)[0])
        self._by_key.setdefault(key, []).append(connection)
        return connection

    def remove(self, connection: Connection) -> bool:
        """Remove a connection that has ended. Return False if it was closed to make room."""
        there = self._by_key.get(connection.key, [])
        if connection not in there:
            return False
        there.remove(connection)
        if not there:
            del self._by_key[connection.key]
        return True

    def _evict(self, connection: Connection) -> None:
        self.remove(connection)
        connection.close()
