"""Reduce the number of values to the width of a line. Pure: values in, values out."""

from __future__ import annotations

from collections.abc import Sequence


def downsampled(numbers: Sequence[int], values: Sequence[float | None], count: int) -> tuple[float | None, ...]:
    """Return at most `count` values, newest last: the values themselves, or the means of 2, 4, 8 ... of them.

    `numbers`: the number of the survey of each value.
    """
    if count <= 0 or not numbers:
        return ()
    each = 1
    # Groups begin at multiples of `each`, so that a drawn value does not change, it only moves to the left.
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
