"""Format the results of trials as tables and sentences for the job's log."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.text import amount
from ..speed_records import LevelRun, SharingMethod

UNITS = {"progress": "units/s", "log": "units/s", "output": "lines/s", "finished": "tasks/s"}
"""`RateSource` -> unit of the rate."""


def table(rows: Sequence[Sequence[str]], left: int = 0) -> list[str]:
    """Return rows as aligned lines: the first `left` columns to the left, the others to the right."""
    columns = []
    for at, column in enumerate(zip(*rows, strict=True)):
        width = max(map(len, column))
        columns.append([cell.ljust(width) if at < left else cell.rjust(width) for cell in column])
    return ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]


def levels_table(levels: Sequence[LevelRun], best: int, gpus: int, source: str) -> list[str]:
    """Return a table of levels. best: the chosen level."""
    ordered = sorted(levels, key=lambda one: one.level)
    top = next((one.per_s for one in ordered if one.level == best), 0.0)
    rows = [("LEVEL", "TASKS/GPU", f"RATE {UNITS.get(source, '1/s')}", "SPREAD", "x OF BEST")]
    for one in ordered:
        ratio = f"{one.per_s / top:.2f}" if top > 0 else "-"
        rows.append((
            str(one.level), f"{one.level / gpus:g}", amount(one.per_s), amount(one.spread_per_s), ratio
        ))  # fmt: skip
    return table(rows)


def methods_table(runs: Sequence[LevelRun], gpus: int, source: str) -> list[str]:
    alone = next((one.per_s for one in runs if one.sharing == "exclusive"), 0.0)
    rows = [("METHOD", "TASKS/GPU", f"RATE {UNITS.get(source, '1/s')}", "x OF ONE AT A TIME")]
    for one in runs:
        ratio = f"{one.per_s / alone:.2f}" if alone > 0 else "-"
        rows.append((one.sharing, f"{one.level / gpus:g}", amount(one.per_s), ratio))
    return table(rows)


def best_sentence(levels: Sequence[LevelRun], best: int, nodes: int) -> str:
    """Return a sentence with the best level, its gain, and the triple for the next run."""
    ordered = sorted(levels, key=lambda one: one.level)
    top = next((one for one in ordered if one.level == best), None)
    first = ordered[0] if ordered else None
    gain = ""
    if top is not None and first is not None and first.level != best and first.per_s > 0:
        gain = f": {top.per_s / first.per_s:.1f} x of {first.level}"
    return f"{best} on a node is best{gain}; next time [{nodes},{best}] or [{nodes},auto], which begins there"


def cost_s(spent: Sequence[tuple[SharingMethod, int, float]], runs: Sequence[LevelRun], best: LevelRun) -> float:
    """Return the time that trials lost against the best level, in seconds.

    spent: method, level and seconds of each trial. A trial without a rate counts as lost completely.
    """
    rates = {(one.sharing, one.level): one.per_s for one in runs}
    if best.per_s <= 0:
        return 0.0
    return sum(
        seconds * max(0.0, 1.0 - rates.get((sharing, level), 0.0) / best.per_s) for sharing, level, seconds in spent
    )
