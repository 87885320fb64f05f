"""Format the results of trials as tables and sentences for the job's log."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...core.text import amount, counted
from ..speed_records import LevelRun, SearchEnd, SearchRun, SharingMethod
from .tune import FRESH_S, LEVELS_MAX

UNITS = {"progress": "units/s", "log": "units/s", "output": "lines/s", "finished": "tasks/s"}
"""`RateSource` -> unit of the rate."""


def table(rows: Sequence[Sequence[str]], left: int = 0) -> list[str]:
    """Return rows as aligned lines: the first `left` columns to the left, the others to the right."""
    columns = []
    for at, column in enumerate(zip(*rows, strict=True)):
        width = max(map(len, column))
        columns.append([cell.ljust(width) if at < left else cell.rjust(width) for cell in column])
    return ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]


def levels_table(
    levels: Sequence[LevelRun], best: int, gpus: int, source: str, earlier: Sequence[LevelRun] = ()
) -> list[str]:
    """Return a table of levels. best: the chosen level. earlier: levels that only earlier runs have measured."""
    ordered = sorted((*levels, *earlier), key=lambda one: one.level)
    top = next((one.per_s for one in ordered if one.level == best), 0.0)
    rows = [["LEVEL", "TASKS/GPU", f"RATE {UNITS.get(source, '1/s')}", "SPREAD", f"x OF {best}"]]
    for one in ordered:
        ratio = f"{one.per_s / top:.2f}" if top > 0 else "-"
        rows.append([str(one.level), f"{one.level / gpus:g}", amount(one.per_s), amount(one.spread_per_s), ratio])
    if earlier:
        runs = ["RUN", *("earlier" if one in earlier else "this" for one in ordered)]
        rows = [[*row, run] for row, run in zip(rows, runs, strict=True)]
    return table(rows)


def methods_table(runs: Sequence[LevelRun], gpus: int, source: str) -> list[str]:
    alone = next((one.per_s for one in runs if one.sharing == "exclusive"), 0.0)
    rows = [("METHOD", "TASKS/GPU", f"RATE {UNITS.get(source, '1/s')}", "x OF ONE AT A TIME")]
    for one in runs:
        ratio = f"{one.per_s / alone:.2f}" if alone > 0 else "-"
        rows.append((one.sharing, f"{one.level / gpus:g}", amount(one.per_s), ratio))
    return table(rows)


WHY: dict[SearchEnd, str] = {
    "no gain": "more tasks at once do no more",
    "no room": "no more tasks have room",
    "same": "it does as much as it did in the run that was tuned",
    "levels": f"{LEVELS_MAX} trials were made",
    "cost": "the tasks that are left cannot pay back another trial",
    "few tasks": "too few tasks are left to try more",
    "no rates": "no task shows progress, and none was done in the time that a level may take",
    "stopped": "the run ended",
}


def begin_sentence(known: SearchRun, level: int, now: float) -> str:
    """Return a sentence with what an earlier run found and the level with which this one begins. now: Unix time."""
    if now - known.when > FRESH_S:
        return (
            f"a run of this script found {known.best} tasks at once, more than {FRESH_S / 86400:.0f} days ago; this "
            f"run searches again, from {level} on"
        )
    if known.next:
        return (
            f"an earlier run of this script did not finish its search, which goes on with "
            f"{counted(level, 'task')} at once"
        )
    return f"an earlier run of this script found {known.best} tasks at once; this run begins with {level}"


def best_sentence(pool: Collection[LevelRun], best: int, end: SearchEnd, following: int, nodes: int) -> str:
    """Return a sentence with the chosen level, its gain, and the triple for the next run.

    It is called best only if a higher level was measured. pool: the known levels that have room. following: level with
    which the next run goes on; 0: the search is finished.
    """
    ordered = sorted(pool, key=lambda one: one.level)
    top = next((one for one in ordered if one.level == best), None)
    first = ordered[0] if ordered else None
    gain = ""
    if top is not None and first is not None and first.level != best and first.per_s > 0:
        gain = f": {top.per_s / first.per_s:.1f} x of {first.level}"
    again = f"next time [{nodes},{best}] or [{nodes},auto], which begins there"
    if following:
        again = f"the search is not finished ({WHY[end]}); next time [{nodes},auto] goes on with {following}"
        again += ", or with what another node has found" if nodes > 1 else ""
    if end == "same":
        return f"{best} on a node, as an earlier run found{gain}; {again}"
    if any(one.level > best for one in ordered):
        return f"{best} on a node is best{' of those tried' if following else ''}{gain}; {again}"
    if len(ordered) == 1 and following:
        return f"{best} was the only level tried; {again}"
    if end == "no room":
        return f"{best} on a node, the most that have room, do most{gain}; {again}"
    return f"{best} on a node, the most that were tried, do most{gain}; {again}"


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
