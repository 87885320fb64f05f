"""Score estimates of GPU memory on a sheet of measured runs, as a user's history in the order of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from ..packing.history_records import TaskRun
from ..packing.records import TaskAsk, TaskKey
from ..packing.rules.estimate.estimator import Estimator
from .worlds import BEGIN_UNIX_S, SheetRow

MODEL, TOTAL_MIB = "measured", 81_920
"""The GPU of a sheet, large enough for every run in it."""
SECONDS = 600.0
"""Duration of a run whose sheet has none."""


class SizeScore(Struct, frozen=True, kw_only=True):
    """The estimates of a sheet's runs before each of them."""

    runs: int
    unknown: int
    """Runs without an estimate: the first of a kind."""
    covered: int
    """Runs whose peak is within the size that was taken as safe."""
    wastes: tuple[float, ...]
    """(safe size - peak) / peak of each covered run, in order."""
    sources: tuple[tuple[str, int, int], ...]
    """(source of the estimate, runs, covered runs)."""

    @property
    def coverage(self) -> float | None:
        """Covered part of the runs with an estimate; None: there is none."""
        known = self.runs - self.unknown
        return self.covered / known if known else None

    @property
    def waste(self) -> float | None:
        return median(self.wastes) if self.wastes else None


def key_of(row: SheetRow) -> TaskKey:
    """Return the key of a command `model --number X ...`."""
    exact = " ".join((row.model, *(f"{name} {x:g}" for name, x in row.numbers)))
    return TaskKey(exact=exact, family=row.model, numbers=row.numbers, series=row.model)


def score(rows: Sequence[SheetRow]) -> SizeScore:
    """Estimate each run of a sheet from those before it, in the order of the rows."""
    estimator = Estimator(now=BEGIN_UNIX_S)
    unknown, covered, wastes = 0, 0, []
    sources: dict[str, tuple[int, int]] = {}
    for number, row in enumerate(rows):
        key = key_of(row)
        found = estimator.estimate(TaskAsk(task=number, key=key), MODEL, TOTAL_MIB)
        if found.safe_mib is None:
            unknown += 1
        else:
            is_covered = row.peak_mib <= found.safe_mib
            runs, right = sources.get(found.source, (0, 0))
            sources[found.source] = (runs + 1, right + is_covered)
            covered += is_covered
            if is_covered:
                wastes.append(found.safe_mib / row.peak_mib - 1.0)
        estimator.learn(
            TaskRun(
                when=BEGIN_UNIX_S + number * SECONDS,
                exact=key.exact,
                family=key.family,
                series=key.series,
                numbers=key.numbers,
                gpu_model=MODEL,
                gpu_total_mib=TOTAL_MIB,
                kind="done",
                seconds=SECONDS if row.seconds is None else row.seconds,
                peak_mib=row.peak_mib,
                source=found.source,
                estimate_mib=found.point_mib,
                safe_mib=found.safe_mib,
            )
        )
    return SizeScore(
        runs=len(rows),
        unknown=unknown,
        covered=covered,
        wastes=tuple(wastes),
        sources=tuple((source, runs, right) for source, (runs, right) in sorted(sources.items())),
    )
