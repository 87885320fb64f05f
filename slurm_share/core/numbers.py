"""Read whole numbers from text that a user, a file or another program wrote.

`str.isdecimal` is true for the digits of every script, and `int` raises ValueError for more than 4300 digits. So no
other module asks `isdecimal`, `isdigit` or `isnumeric`, except for what the kernel writes (tests/unit/core/
test_numbers.py).
"""

from __future__ import annotations

MOST = 2**63 - 1
"""The largest number that JSON, C and Lua all take."""
_MOST_DIGITS = 20
UINT32_MOST = 2**32 - 1
"""The largest number in Slurm's `uint32_t`: ids of jobs, users and steps."""


def whole(text: str | bytes | None, most: int = MOST) -> int | None:
    """Return the number that is written in ASCII digits; None: the text is something else, or above `most`, or None."""
    if text is None or len(text) > _MOST_DIGITS or not text.isascii() or not text.isdigit():
        return None
    number = int(text)
    return number if number <= most else None
