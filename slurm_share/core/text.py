"""Text for people: durations, sizes, rates, lists of numbers, and the order of names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice

_DIGITS = re.compile(r"[0-9]+")
_WIDE = re.compile(r"[^\x00-\x7f]")


def ascii_json(data: bytes) -> bytes:
    r"""Return JSON in UTF-8 with each character beyond ASCII as an escape (`\u202e`), as json.dumps writes it.

    It has the same value. Names that users choose may hold characters that reorder or hide what a terminal shows.
    """
    return data if data.isascii() else _WIDE.sub(_escape, data.decode()).encode("ascii")


def _escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4))


def span_text(seconds: float) -> str:
    """Return a duration as `3.5 s`, `40 s`, `5 min` or `3 h`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s" if seconds % 1 >= 0.05 else f"{seconds:.0f} s"
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def joules_text(joules: float, like: float = 0.0) -> str:
    """Return an energy as text for people: "0.4 J", "512 J", "5.1 kJ", "1.20 kWh".

    `like`: an energy beside it, whose unit it gets.
    """
    largest = max(joules, like)
    if largest < 1000:
        return f"{joules:.1f} J" if 0 < joules < 9.95 else f"{joules:.0f} J"
    return f"{joules / 1000:.1f} kJ" if largest < 1e6 else f"{joules / 3.6e6:.2f} kWh"


def gib_text(mib: float) -> str:
    """Return a size in MiB as text for people: "6.7 GiB"."""
    return f"{mib / 1024:.1f} GiB"


def gib_range_text(least_mib: float, most_mib: float) -> str:
    """Return two sizes in MiB as text for people: "2.0-6.7 GiB", or "6.7 GiB" if both are written alike."""
    least, most = f"{least_mib / 1024:.1f}", gib_text(most_mib)
    return most if most == f"{least} GiB" else f"{least}-{most}"


def gib_from_to_text(least_mib: float, most_mib: float) -> str:
    """Return the guaranteed memory and the most, in MiB, as text for people: "8 to 20 GiB", "20 GiB" if equal."""
    least, most = (f"{round(mib / 1024, 1):g}" for mib in (least_mib, most_mib))
    return f"{most} GiB" if least == most else f"{least} to {most} GiB"


@lru_cache(maxsize=65_536)
def natural(text: str) -> str:
    """Return the sort key of a name: n2 before n10, upper and lower case alike.

    The key is a string because strings compare fastest. It is cached because all snapshots have the same names.
    """
    return _DIGITS.sub(_digits, text.casefold())


def _digits(found: re.Match[str]) -> str:
    """Return digits without leading zeros, with their count before them."""
    digits = found[0].lstrip("0")
    return f"{len(digits):04d}{digits}"


def fold(numbers: Iterable[int]) -> str:
    """Return numbers as the kernel writes lists of CPUs, `0-3,8`; "" for no numbers."""
    return ",".join(_ranges(sorted(set(numbers))))


def counted(number: int, noun: str) -> str:
    """Return a count with its noun: 1 task, 2 tasks, 2 processes."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return "; did you mean X?" with the known word that is most like another, or `otherwise` in its place; "" for
    neither."""
    import difflib  # only errors need it, and its import takes time

    near = difflib.get_close_matches(word, known, n=1)
    hint = f"did you mean {near[0]}?" if near else otherwise
    return f"; {hint}" if hint else ""


def fold_some(numbers: Sequence[int], most: int) -> str:
    """Return rising numbers as `0-3,8`. Of more than `most` parts, return the first, and the count of all numbers."""
    parts = list(islice(_ranges(numbers), most + 1))
    if len(parts) <= most:
        return ",".join(parts)
    return f"{','.join(parts[:most])},... ({len(numbers)} in all)"


def _ranges(numbers: Iterable[int]) -> Iterator[str]:
    """Yield consecutive rising numbers as ranges: `0-3`, `8`."""
    first = last = None
    for number in numbers:
        if first is None or last is None or number != last + 1:
            if first is not None:
                yield _range(first, last)
            first = number
        last = number
    if first is not None:
        yield _range(first, last)


def _range(first: int, last: int | None) -> str:
    return str(first) if first == last else f"{first}-{last}"


WHOLE_MOST = 1e7
"""From here on numbers are written with three digits: more are no measurement, and widen tables."""


def amount(number: float) -> str:
    """Return a number with at least three digits, as people read it: 41234, 412, 51.2, 0.0031, 6.24e+28."""
    return f"{number:.0f}" if 100 <= number < WHOLE_MOST else f"{number:.3g}"


def rate_text(per_s: float | None, source: str = "") -> str:
    """Return a rate in a readable unit of time: 51/s, 2.4/min, 0.8/h; "" for None. `source` follows it."""
    if per_s is None:
        return ""
    value, unit = next(
        ((per_s * seconds, unit) for unit, seconds in (("s", 1), ("min", 60)) if per_s * seconds >= 1 or not per_s),
        (per_s * 3600, "h"),
    )
    if value >= 9999.5:
        thousands = value / 1000
        written = f"{thousands:.0f}k" if thousands < 9999.5 else f"{thousands / 1000:.0f}M"
    else:
        written = f"{value:.0f}" if value >= 9.95 or not value else f"{value:.1f}" if value >= 0.095 else f"{value:.2g}"
    return f"{written}/{unit} {source}".rstrip()
