"""Look through a folder that users write into: with a bound and a deadline, since they decide how much is in it."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # as mypy knows it; hooks load this module
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .process import Deadline

MOST = 1_000_000
"""Entries of one folder, of which a second or two is enough for so many."""
_OFTEN = 64
"""Entries between two readings of the clock."""


class Scan:
    """The entries of a folder, in the kernel's order, as far as bound and deadline let them be seen."""

    def __init__(self, folder: str | int, deadline: Deadline, most: int = MOST) -> None:
        """`folder`: its path, or a descriptor of it. Raises nothing before it is iterated, then OSError."""
        self._folder = folder
        self._deadline = deadline
        self._most = most
        self.is_whole = True
        """False: it was ended before all entries were seen."""

    def __iter__(self) -> Iterator[os.DirEntry[str]]:
        """Look from the first entry on."""
        self.is_whole = True
        with os.scandir(self._folder) as entries:
            for number, entry in enumerate(entries):
                if number >= self._most or (number % _OFTEN == 0 and self._deadline.left() <= 0):
                    self.is_whole = False
                    return
                yield entry
