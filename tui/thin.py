"""Fewer values for a line that has no room for all of them. Values in, values out."""

from __future__ import annotations

from collections.abc import Sequence


def thinned(numbers: Sequence[int], values: Sequence[float | None], count: int) -> tuple[float | None, ...]:
    """Return the values in at most `count`, newest last: as they are, or the means of 2, 4, 8 ... of them.

    `numbers`: of the surveys that they are from.
    """
    if count <= 0 or not numbers:
        return ()
    each = 1
    # Groups begin at numbers that `each` divides, so that a value that was drawn once only moves to the left.
    while numbers[-1] // each - numbers[0] // each >= count:
        each *= 2
    if each == 1:
        return tuple(values)
    groups: dict[int, list[float]] = {}
    for number, value in zip(numbers, values, strict=True):
        known = groups.setdefault(number // each, [])
        if value is not None:
            known.append(value)
    return tuple(sum(known) / len(known) if known else None for known in groups.values())[-count:]
