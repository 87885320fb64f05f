"""Add up the rates of a run's tasks, where they count the same, and write them as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct

from ...packing import Rate, RateSource

SOURCE_TEXTS: Mapping[str, str] = {
    "progress": "LLSUB_PROGRESS",
    "log": "--progress",
    "output": "lines of output",
    "finished": "finished tasks",
}


class WorkRate(Struct, frozen=True, kw_only=True):
    """How much several tasks do together."""

    per_s: float
    tasks: int
    """Those that are measured."""
    source: RateSource


def together(rates: Sequence[tuple[Rate, str | None]]) -> WorkRate | None:
    """Return the sum of rates, each with the kind of its task's work; None: there are none, or they differ in what they
    count. Kind None: not known, and equal to nothing."""
    kinds = {(rate.source, kind) for rate, kind in rates}
    if len(kinds) != 1 or (len(rates) > 1 and rates[0][1] is None):
        return None
    return WorkRate(per_s=rounded(sum(rate.per_s for rate, _ in rates)), tasks=len(rates), source=rates[0][0].source)


def usual_source(sources: Sequence[RateSource]) -> RateSource | None:
    """Return the source of most rates; None: there is none."""
    return Counter(sources).most_common(1)[0][0] if sources else None


def rounded(value: float) -> float:
    """Return a rate with six significant digits."""
    return float(f"{value:.6g}")


def amount(per_s: float) -> str:
    """Return a number with three digits, as people read it: 412, 51.2, 0.0031."""
    return f"{per_s:.0f}" if per_s >= 100 else f"{per_s:.3g}"


def unit(source: str) -> str:
    """Return what is counted."""
    return "lines" if source == "output" else "units"
