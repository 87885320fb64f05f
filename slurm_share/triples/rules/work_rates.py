"""Add up the rates of a run's tasks, where they count the same, and write them as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ...packing import Rate, RateSource
from ..records import WorkRate

SOURCE_TEXTS: Mapping[str, str] = {
    "progress": "LLSUB_PROGRESS",
    "log": "--progress",
    "output": "lines of output",
    "finished": "finished tasks",
}


def together(rates: Sequence[tuple[Rate, str | None]]) -> WorkRate | None:
    """Return the sum of rates, each with the kind of its task's work; None: there are none, or they differ in what they
    count. Kind None: not known, and equal to nothing."""
    return add_up(WorkRate(per_s=rate.per_s, tasks=1, source=rate.source, kind=kind) for rate, kind in rates)


def add_up(parts: Iterable[WorkRate]) -> WorkRate | None:
    """Return the sum of what several tasks, or nodes, do; None: there are none, or they differ in what they count."""
    found = list(parts)
    if len({(one.source, one.kind) for one in found}) != 1 or (len(found) > 1 and found[0].kind is None):
        return None
    return WorkRate(
        per_s=rounded(sum(one.per_s for one in found)),
        tasks=sum(one.tasks for one in found),
        source=found[0].source,
        kind=found[0].kind,
    )


def as_text(work: WorkRate) -> str:
    """Return what tasks do together, such as: 412 units/s, 8 tasks 51.5 each (LLSUB_PROGRESS)."""
    each = "" if work.tasks == 1 else f", {work.tasks} tasks {amount(work.per_s / work.tasks)} each"
    return f"{amount(work.per_s)} {unit(work.source)}/s{each} ({SOURCE_TEXTS[work.source]})"


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
