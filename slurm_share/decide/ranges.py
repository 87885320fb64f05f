"""Lists of numbers for people: tasks, ranks, CPUs."""

from __future__ import annotations

from collections.abc import Iterable

from ClusterShell.RangeSet import RangeSet


def fold(numbers: Iterable[int]) -> str:
    """`0-3,8`, as the kernel writes lists of CPUs; empty for none, of which RangeSet makes an error."""
    found = set(numbers)
    return str(RangeSet(found)) if found else ""
