"""List a folder that users write into, with a limit and a deadline: users decide how much is in it."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # as mypy knows it; hooks load this module
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .process import Deadline

MOST = 1_000_000
"""Most entries of one folder; so many take a second or two."""
_OFTEN = 64
"""Entries between two readings of the clock."""


class Scan:
    """The entries of a folder in the kernel's order, up to the limit and the deadline."""

    def __init__(self, folder: str | int, deadline: Deadline, most: int = MOST) -> None:
        """folder: its path or a descriptor. Iterating it raises OSError if it cannot be read."""
        self._folder = folder
        self._deadline = deadline
        self._most = most
        self.is_whole = True
        """False: the limit or the deadline came before the last entry."""

    def __iter__(self) -> Iterator[os.DirEntry[str]]:
        self.is_whole = True
        with os.scandir(self._folder) as entries:
            for number, entry in enumerate(entries):
                if number >= self._most or (number % _OFTEN == 0 and self._deadline.left() <= 0):
                    self.is_whole = False
                    return
                yield entry
