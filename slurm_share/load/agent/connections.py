"""How many connections there are at once: bounded in all, and bounded for each caller.

Nobody is turned away at the door, because whoever fills the room with connections that say nothing would then keep it
closed. The newcomer comes in and the longest-waiting connection of the same caller, or of the caller with the most,
goes: a caller with a question is answered in milliseconds and is gone before its turn comes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass


@dataclass(eq=False)
class Connection:
    """One connection."""

    key: Hashable
    """Whose it is: a user id, an address."""
    put_out: Callable[[], object]
    """Ends the connection at once."""


class Connections:
    """The connections that are open, oldest first under each key."""

    def __init__(self, most: int, most_each: int) -> None:
        self._most = most
        self._most_each = most_each
        self._by_key: dict[Hashable, list[Connection]] = {}
        self.put_out = 0
        """Connections that had to go for others so far."""

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values()))

    def enter(self, key: Hashable, put_out: Callable[[], object]) -> Connection:
        """Take a connection in; another one is put out where there is no room."""
        connection = Connection(key, put_out)
        self._make_room(key)
        self._by_key.setdefault(key, []).append(connection)
        return connection

    def leave(self, connection: Connection) -> bool:
        """The connection has ended; False where it had been put out."""
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
