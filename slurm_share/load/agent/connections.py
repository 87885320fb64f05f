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
    """One open connection."""

    key: Hashable
    """The caller: a user id or an address."""
    put_out: Callable[[], object]
    """Close the connection at once."""


class Connections:
    """The open connections of each caller, oldest first."""

    def __init__(self, most: int, most_each: int) -> None:
        self._most = most
        self._most_each = most_each
        self._by_key: dict[Hashable, list[Connection]] = {}
        self.put_out = 0
        """Connections closed so far to make room for others."""

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values()))

    def enter(self, key: Hashable, put_out: Callable[[], object]) -> Connection:
        """Add a connection; close an older one if the limit is reached."""
        connection = Connection(key, put_out)
        self._make_room(key)
        self._by_key.setdefault(key, []).append(connection)
        return connection

    def leave(self, connection: Connection) -> bool:
        """Remove a connection that has ended. Return False if it was closed to make room."""
        there = self._by_key.get(connection.key, [])
        if connection not in there:
            return False
        there.remove(connection)
        if not there:
            del self._by_key[connection.key]
        return True

    def _make_room(self, key: Hashable) -> None:
        if len(self._by_key.get(key, ())) >= self._most_each:
            self._put_out(self._by_key[key][0])
        elif len(self) >= self._most:
            self._put_out(max(self._by_key.values(), key=len)[0])

    def _put_out(self, connection: Connection) -> None:
        self.leave(connection)
        self.put_out += 1
        connection.put_out()
