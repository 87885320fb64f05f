"""Lists of numbers for people: tasks, ranks, CPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from ClusterShell.RangeSet import RangeSet


def fold(numbers: Iterable[int]) -> str:
    """`0-3,8`, as the kernel writes lists of CPUs; empty for none, of which RangeSet makes an error."""
    found = set(numbers)
    return str(RangeSet(found)) if found else ""


def spans(numbers: Iterable[int]) -> Iterator[str]:
    """Yield `0-3`, `8`: rising numbers, those that follow one another together."""
    first = last = None
    for number in numbers:
        if first is None or last is None or number != last + 1:
            if first is not None:
                yield _span(first, last)
            first = number
        last = number
    if first is not None:
        yield _span(first, last)


def _span(first: int, last: int | None) -> str:
    return str(first) if first == last else f"{first}-{last}"


def fold_some(numbers: Sequence[int], most: int) -> str:
    """Return `0-3,8` of rising numbers; of more than `most` such parts the first ones, and the count of all."""
    parts = list(islice(spans(numbers), most + 1))
    if len(parts) <= most:
        return ",".join(parts)
    return f"{','.join(parts[:most])},... ({len(numbers)} in all)"
