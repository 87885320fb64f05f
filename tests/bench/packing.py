"""Compare packing with the policies of Yousefzadeh 2025 in simulation: python tests/bench/packing.py [SEEDS] (no GPU).

python tests/bench/packing.py --fixed: a fixed list of 20 seeds. --seed N: the seeds from N on, to repeat a run.

Each seed is a trace of thesis60 and of thesis90 with its own noise. For each, at every setting of the unmeasured values
(SM activity x 0.8, 1, 1.3, 1.6; GPUs closed for 30 or 90 s after a start), `booked` is compared with the thesis' best
policy without sizes (LUG, 80 % SM activity, 5 GB, recovery only) and with sizes (oracle worst fit) in the same
simulator: first without a history, then with the history of a first run and long tasks first. Bars are for medians over
the seeds at the worst setting; the worst seed is printed too.

Seeds are drawn at the start and printed, so no code or constant is fitted to them.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import packing_decide
from bench import Row, over_seeds, report

from slurm_share.lab import policies, traces
from slurm_share.lab.records import Assumptions
from slurm_share.lab.report import assumptions
from slurm_share.lab.world import Simulation, simulate
from slurm_share.packing import events
from slurm_share.packing.rules import place

SEEDS = 50
FIXED = tuple(range(1801, 1821))
TRACES = ("thesis60", "thesis90")
LUG, ORACLE, BOOKED, SECOND = "lug", "worst-fit", "booked", "booked,history,long"
GUARDED = "booked,sm_guard=0.95"
"""With a limit on measured SM activity; shown only."""
POLICIES = ("exclusive", LUG, ORACLE, BOOKED, GUARDED, SECOND)
MANY, NODES = 10_000, 8
MANY_S = 60.0
PUBLISHED = (
    ("thesis90", ORACLE, "make_span_s", -30.13, "6.4.1"),
    ("thesis90", LUG, "make_span_s", -28.0, "6.4.2"),
    ("thesis60", LUG, "energy", -13.30, "Table 6.6, MAGM, 2 GB"),
)
"""Trace, policy, figure -> published change against exclusive in percent; shown only."""

Figures = dict[str, float]
Key = tuple[str, float, float, str]
"""(trace, alpha, settle time, policy)"""


def one_seed(seed: int, names: Sequence[str] = POLICIES) -> dict[Key, Figures]:
    """Return the figures of these policies at every setting for one seed."""
    found: dict[Key, Figures] = {}
    for name in TRACES:
        trace = traces.GENERATORS[name](seed)
        for assumed in assumptions():
            for text in names:
                policy = policies.settled(policies.parse(text), assumed.settle_s)
                result = simulate(trace, policy, assumed, seed)
                found[name, assumed.alpha, assumed.settle_s, text] = {
                    "make_span_s": result.make_span_s,
                    "wait_s": result.wait_s,
                    "jct_s": result.jct_s,
                    "oom": result.oom_own + result.oom_neighbour,
                    "oom_own": result.oom_own,
                    "oom_neighbour": result.oom_neighbour,
                    "unfinished": result.unfinished,
                    "antt": result.antt,
                    "stp": result.stp,
                    "bound": result.lower_bound_s / result.make_span_s,
                    **{f"energy_j k {exponent:g}": joules for exponent, joules in result.energy_j},
                }
    return found


Measure = tuple[str, float | None, Callable[[dict[str, Figures]], float]]


def _ratio(policy: str, base: str, figure: str) -> Callable[[dict[str, Figures]], float]:
    return lambda of: of[policy][figure] / of[base][figure]


MEASURES: tuple[Measure, ...] = (
    ("tasks that did not end as done", 0.0, lambda of: of[BOOKED]["unfinished"] + of[SECOND]["unfinished"]),
    ("out of memory, own", 2.0, lambda of: of[BOOKED]["oom_own"]),
    ("out of memory, neighbours'", 0.0, lambda of: of[BOOKED]["oom_neighbour"]),
    ("waiting, of LUG's", 0.7, _ratio(BOOKED, LUG, "wait_s")),
    ("JCT, of LUG's", 0.8, _ratio(BOOKED, LUG, "jct_s")),
    ("make-span, of LUG's", 1.04, _ratio(BOOKED, LUG, "make_span_s")),
    ("make-span, of the oracle's", 1.06, _ratio(BOOKED, ORACLE, "make_span_s")),
    ("with SM guard, waiting, of LUG's", None, _ratio(GUARDED, LUG, "wait_s")),
    ("with SM guard, JCT, of LUG's", None, _ratio(GUARDED, LUG, "jct_s")),
    ("with SM guard, make-span, of LUG's", None, _ratio(GUARDED, LUG, "make_span_s")),
    ("second run, out of memory", 0.0, lambda of: of[SECOND]["oom"]),
    ("second run, make-span, of LUG's", 1.01, _ratio(SECOND, LUG, "make_span_s")),
    ("second run, make-span, of the oracle's", 1.03, _ratio(SECOND, ORACLE, "make_span_s")),
)


def compared(every: Sequence[dict[Key, Figures]]) -> list[Row]:
    """Return a row for each trace and measure, at its worst setting."""
    rows = []
    for name in TRACES:
        worst: dict[str, tuple[float, float, str]] = {}
        for assumed in assumptions():
            setting = f"alpha {assumed.alpha:g}, {assumed.settle_s:g} s"
            for what, _, measure in MEASURES:
                values = [
                    measure({text: of[name, assumed.alpha, assumed.settle_s, text] for text in POLICIES})
                    for of in every
                ]
                median = statistics.median(values)
                if what not in worst or median > worst[what][0]:
                    worst[what] = (median, max(values), setting)
        for what, bar, _ in MEASURES:
            median, largest, setting = worst[what]
            rows.append(Row(f"{name}: {what} (worst setting: {setting}; worst seed {largest:.2f})", median, "", bar))
    return rows


def published(every: Sequence[dict[Key, Figures]]) -> list[Row]:
    """Return the changes of the policies against exclusive, with the published ones."""
    rows = []
    for name, policy, figure, percent, where in PUBLISHED:
        values = []
        for of in every:
            for assumed in assumptions():
                new, old = (of[name, assumed.alpha, assumed.settle_s, text] for text in (policy, "exclusive"))
                keys = [key for key in new if key.startswith(figure)]
                values += [100.0 * (new[key] / old[key] - 1.0) for key in keys]
        what = f"{name}: {policy}, {figure.removesuffix('_s')} against exclusive"
        rows.append(
            Row(
                f"{what} ({min(values):.0f} to {max(values):.0f}; published {percent:g}, {where})",
                statistics.median(values),
                "%",
            )
        )
    return rows


def energy(every: Sequence[dict[Key, Figures]]) -> list[Row]:
    """Return the energy of `booked` against exclusive for each power exponent."""
    rows = []
    for name in TRACES:
        for key in (key for key in next(iter(every[0].values())) if key.startswith("energy_j")):
            values = [
                100.0 * (of[*at, BOOKED][key] / of[*at, "exclusive"][key] - 1.0)
                for of in every
                for at in ((name, one.alpha, one.settle_s) for one in assumptions())
            ]
            what = f"{name}: booked, {key.replace('_j', '')} against exclusive ({min(values):.0f} to {max(values):.0f})"
            rows.append(Row(what, statistics.median(values), "%"))
    return rows


def many_s() -> float:
    """Return the time of a simulation of many tasks on one core."""
    trace = traces.many(MANY, NODES, 1)
    begin = time.perf_counter()
    result = simulate(trace, policies.parse(BOOKED), Assumptions(), 1)
    assert result.unfinished == 0
    return time.perf_counter() - begin


def replayed(seed: int) -> float:
    """Return the number of decisions among the events of a simulation that differ when they are decided again."""
    trace = traces.GENERATORS["thesis60"](seed)
    with tempfile.TemporaryDirectory() as folder:
        notes = events.EventLog(Path(folder), "bench", time.time())
        Simulation(trace, policies.parse(BOOKED), Assumptions(), seed, events=notes).run()
        notes.close()
        entries = list(events.read_decisions((Path(folder) / events.EVENTS).read_bytes()))
    assert entries
    return float(sum(entry.actions != place.decide(entry.view).actions for entry in entries if entry.repeats is None))


def drawn(arguments: Sequence[str]) -> tuple[int, ...]:
    """Return the seeds: fixed, from one on, or drawn."""
    if "--fixed" in arguments:
        return FIXED
    words = list(arguments)
    first = random.SystemRandom().randrange(10**6)
    if "--seed" in words:
        at = words.index("--seed")
        first = int(words[at + 1])
        del words[at : at + 2]
    return tuple(range(first, first + (int(words[0]) if words else SEEDS)))


def main(arguments: Sequence[str]) -> int:
    seeds = drawn(arguments)
    print(f"seeds {seeds[0]} to {seeds[-1]}; repeat with {len(seeds)} --seed {seeds[0]}", flush=True)
    every = over_seeds(one_seed, seeds, "packing", None)
    rows = [*compared(every), *published(every), *energy(every)]
    decide_ms = max(packing_decide.measure().values())
    rows += [
        Row(f"{MANY} tasks on {8 * NODES} GPUs, one core", many_s(), "s", MANY_S),
        Row("a decision: 64 waiting tasks, 16 GPUs, 8 tasks on each", decide_ms, "ms", packing_decide.BAR_MS),
        Row("decisions of a simulation that differ when decided again", replayed(seeds[0]), "", 0.0),
    ]
    note = "simulated; SM activity of tasks assumed"
    return 0 if report("packing", None, rows, note=note, seeds=list(seeds)) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
