"""Format the results of trials as tables and sentences for the job's log."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...core.text import amount, counted
from ..speed_records import LevelRun, SearchEnd, SearchRun
from .level_runs import FRESH_S, Level, level_of
from .search import LEVELS_MAX, Search

UNITS = {"progress": "units/s", "log": "units/s", "output": "lines/s", "finished": "tasks/s"}
"""`RateSource` -> unit of the rate."""


def table(rows: Sequence[Sequence[str]], left: int = 0) -> list[str]:
    """Return rows as aligned lines: the first `left` columns to the left, the others to the right."""
    columns = []
    for at, column in enumerate(zip(*rows, strict=True)):
        width = max(map(len, column))
        columns.append([cell.ljust(width) if at < left else cell.rjust(width) for cell in column])
    return ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]


def levels_table(search: Search, source: str) -> list[str]:
    """Return a table of the levels that are known, with those that only earlier runs have measured."""
    is_number = search.kind == "tasks"
    first = ("LEVEL",) if is_number else ("METHOD",)
    spread = ("SPREAD",) if is_number else ()
    of = search.pool.get(search.level if is_number else search.listed[0])
    ratio = f"x OF {search.level.tasks}" if is_number else "x OF ONE AT A TIME"
    rows = [[*first, "TASKS/GPU", f"RATE {UNITS.get(source, '1/s')}", *spread, ratio, "RUN"]]
    own = {level_of(one) for one in search.levels}
    for one in search.known_levels:
        rows.append([
            str(one.level) if is_number else one.sharing, f"{one.level / search.gpus:g}", amount(one.per_s),
            *([amount(one.spread_per_s)] if is_number else []),
            f"{one.per_s / of.per_s:.2f}" if of is not None and of.per_s > 0 else "-",
            "this" if level_of(one) in own else "earlier",
        ])  # fmt: skip
    return table(rows if any(row[-1] == "earlier" for row in rows) else [row[:-1] for row in rows])


WHY: dict[SearchEnd, str] = {
    "no gain": "more tasks at once do no more",
    "no room": "no more tasks have room",
    "all tried": "each was tried",
    "same": "it does as much as it did in the run that was tuned",
    "levels": f"{LEVELS_MAX} trials were made",
    "cost": "the tasks that are left cannot pay back another trial",
    "few tasks": "too few tasks are left to try more",
    "no rates": "no task shows progress, and none was done in the time that a level may take",
    "stopped": "the run ended",
}


def begin_sentence(known: SearchRun, level: Level, now: float) -> str:
    """Return a sentence with what an earlier run found and the level with which this one begins. now: Unix time."""
    what, at_once, begin = (
        f"found {known.best} tasks at once",
        counted(level.tasks, "task") + " at once",
        str(level.tasks),
    )
    if known.kind == "sharing":
        what, at_once, begin = "compared ways of sharing", level.sharing, level.sharing
    if now - known.when > FRESH_S:
        days = f"{FRESH_S / 86400:.0f} days"
        return f"a run of this script {what}, more than {days} ago; this run searches again, from {begin} on"
    if known.next:
        return f"an earlier run of this script did not finish its search, which goes on with {at_once}"
    return f"an earlier run of this script {what}; this run begins with {begin}"


def end_sentences(search: Search) -> list[str]:
    """Return sentences with the level from now on, and why the search has ended with it."""
    assert search.end is not None
    at_once = f"{counted(search.level.tasks, 'task')} at once"
    if search.kind == "tasks":
        return [f"{at_once} from now on: {WHY[search.end]}"]
    untried = ", ".join(one.sharing for one in search.untried)
    found = [f"not compared: {untried}; {WHY[search.end]}"] if untried else []
    if len(search.known_levels) < 2:
        return [*found, f"{search.level.sharing} from now on, {at_once}, as without a comparison"]
    why = "it is the fastest of those compared" if untried else "it is fastest"
    if search.end == "same":
        why = WHY["same"]
    return [*found, f"{search.level.sharing} from now on, {at_once}: {why}"]


def result_lines(search: Search, where: str, source: str, nodes: int, *, is_idle: bool) -> list[str]:
    """Return the table of a search, and what it means for the next run. where: the node. is_idle: no task was done."""
    what = "tasks at once" if search.kind == "tasks" else "ways of sharing"
    if not search.levels:
        why = "no task was done" if is_idle else "the run was too short"
        if search.end in ("no rates", "cost"):
            why = WHY[search.end]
        return [f"no {'number of tasks at once' if search.kind == 'tasks' else 'way of sharing'} was measured: {why}"]
    found = [f"{what} on {where}:", *levels_table(search, source)]
    if search.kind == "tasks" and search.end is not None:
        found.append(best_sentence(search.known_levels, search.level.tasks, search.end, search.next, nodes))
    return found


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


def cost_s(spent: Sequence[tuple[Level, float]], runs: Sequence[LevelRun], best: LevelRun) -> float:
    """Return the time that trials lost against the best level, in seconds.

    spent: seconds of each trial. A trial without a rate counts as lost completely.
    """
    rates = {level_of(one): one.per_s for one in runs}
    if best.per_s <= 0:
        return 0.0
    return sum(seconds * max(0.0, 1.0 - rates.get(level, 0.0) / best.per_s) for level, seconds in spent)
