"""The order of names that people expect: n2 before n10, whatever the capitals."""

from __future__ import annotations

import re
from functools import lru_cache

_DIGITS = re.compile(r"[0-9]+")


@lru_cache(maxsize=65_536)
def natural(text: str) -> str:
    """What names are sorted and compared by: one string, because strings are compared fastest. Remembered, because the
    same names come with every look."""
    return _DIGITS.sub(_digits, text.casefold())


def _digits(found: re.Match[str]) -> str:
    """With how many they are before them; 007 is 7."""
    digits = found[0].lstrip("0")
    return f"{len(digits):04d}{digits}"
