"""Hold packing to its bars in worlds of our own making: python tests/bench/packing_bars.py [OPTIONS] (no GPU).

    --policy NAME   the policy that is held to the bars, as `slurm-share lab simulate` knows it (default: llsub's)
    --part PART     only these bars; may be repeated: plain, harm, blind, sizes
    --worlds N      worlds of each kind (default: 100 plain, 20 harmful, 40 sheets)
    --final         seeds from 1000 on, for the figures that are published; without it, seeds from 0 on, for tuning
    --processes N   cores to use (default: all)

plain: worlds without harm and with sizes halved by the user, against one task on each GPU and a random GPU.
harm: worlds where a fifth of the pairs harms, against booking with a random GPU.
blind: a list submitted at once without history, against the same policy without any rate of a task.
sizes: sheets of measured memory as a user's history in random order: how often a size is enough, and its waste.

Prints all figures and writes results/packing_bars.json. Rows of other parts and policies stay unchanged there.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from statistics import fmean, median

from bench import RESULTS, Row, over_seeds, report
from msgspec.structs import replace

from slurm_share.lab import policies, sizes, worlds
from slurm_share.lab.report import harmful_ratio
from slurm_share.lab.world import simulate
from slurm_share.triples.rules.pack_options import DEFAULT_POLICY

PARTS = {"plain": 100, "harm": 20, "blind": 20, "sizes": 40}
"""Part -> worlds of each kind."""
FINAL_SEED = 1000
EXCLUSIVE, RANDOM = "exclusive", "random"
PLAIN_BAR, HALVED_BAR, HOLDING = 1.15, 1.35, 0.95
"""Make-span over that of one task on each GPU, in 95 of 100 worlds."""
MAKE_SPAN_BAR, JCT_BAR, EQUAL_BAR = 0.97, 0.95, 1.03
"""Over booking with a random GPU: one of the first two where pairs harm, the last one elsewhere."""
BLIND_BAR = 0.5
"""Time in harmful pairs, over that of the same policy that gets no rates."""
COVERAGE_BAR = 0.90

policy = str(DEFAULT_POLICY)
Figures = dict[str, dict[str, float]]
"""World -> figure -> value."""


def plain_kinds() -> tuple[worlds.WorldKind, ...]:
    return (*worlds.own_kinds(), worlds.WorldKind(name="halved sizes", trace_of=worlds.halved, assumed=worlds.QUIET))


def against(kind: worlds.WorldKind, seed: int, bases: Sequence[str]) -> dict[str, float]:
    """Return the policy's figures in one world, and its make-span, waiting and JCT over those of other policies."""
    trace = kind.trace_of(seed)
    own = simulate(trace, policies.parse(policy), kind.assumed, seed)
    found = {
        "make_span_s": own.make_span_s,
        "wait_s": own.wait_s,
        "jct_s": own.jct_s,
        "oom_own": float(own.oom_own),
        "unfinished": float(own.unfinished),
        "harmful": harmful_ratio(own),
        "sized": float(own.sized),
        "covered": float(own.covered),
    }
    for base in bases:
        other = simulate(trace, policies.parse(base), kind.assumed, seed)
        found[f"make-span / {base}"] = ratio(own.make_span_s, other.make_span_s)
        found[f"JCT / {base}"] = ratio(own.jct_s, other.jct_s)
        found[f"harmful {base}"] = harmful_ratio(other)
    return found


def label(part: str) -> str:
    """Return the beginning of the names of a part's rows."""
    return part if policy == DEFAULT_POLICY else f"{part} with {policy}"


def ratio(value: float, base: float) -> float:
    return 1.0 if value == base else value / base if base else math.inf


def plain(seed: int) -> Figures:
    return {kind.name: against(kind, seed, (EXCLUSIVE, RANDOM)) for kind in plain_kinds()}


def harm(seed: int) -> Figures:
    return {kind.name: against(kind, seed, (EXCLUSIVE, RANDOM)) for kind in worlds.harmful_kinds()}


def blind(seed: int) -> Figures:
    """Return the time in harmful pairs with and without rates, in lists submitted at once without history."""
    found = {}
    for kind in worlds.harmful_kinds():
        if "at once" in kind.name:
            trace = kind.trace_of(seed)
            seen, unseen = (
                simulate(trace, policies.parse(policy), replace(kind.assumed, has_rates=has_rates), seed)
                for has_rates in (True, False)
            )
            found[kind.name] = {"seen_s": seen.harmful_s, "unseen_s": unseen.harmful_s,
                                "seen": harmful_ratio(seen), "unseen": harmful_ratio(unseen),
                                "make-span": ratio(seen.make_span_s, unseen.make_span_s)}  # fmt: skip
    return found


def sheets(seed: int) -> Figures:
    """Return coverage and waste of sheets in which each size was run once, and of those in which it was run thrice."""
    drawn = {
        "20 models x 5 sizes, once": worlds.sheet(seed),
        "20 models x 5 sizes, thrice": worlds.sheet(seed, repeats=3),
        "unlike laws, once": worlds.unlike_sheet(seed),
        "unlike laws, thrice": worlds.unlike_sheet(seed, repeats=3),
    }
    found = {}
    for name, rows in drawn.items():
        one = sizes.score(rows)
        found[name] = {
            "coverage": 1.0 if one.coverage is None else one.coverage,
            "waste": one.waste or 0.0,
            "known": 1.0 - one.unknown / one.runs,
        }
    return found


def quantile(values: Sequence[float], part: float) -> float:
    """Return the smallest value that this part of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def rows_plain(every: Sequence[Figures]) -> list[Row]:
    rows = []
    for name in every[0]:
        values = {figure: [of[name][figure] for of in every] for figure in every[0][name]}
        span = values[f"make-span / {EXCLUSIVE}"]
        bar = HALVED_BAR if name == "halved sizes" else PLAIN_BAR
        where = f"{label('plain')}, {name}"
        rows += [
            Row(f"{where}: make-span / exclusive, 95 of 100 (worst {max(span):.2f})", quantile(span, HOLDING), "", bar),
            Row(f"{where}: make-span / exclusive, median", median(span), ""),
            Row(f"{where}: JCT / exclusive, median", median(values[f"JCT / {EXCLUSIVE}"]), ""),
            Row(f"{where}: make-span / random, mean", fmean(values[f"make-span / {RANDOM}"]), "", EQUAL_BAR),
            Row(f"{where}: JCT / random, mean", fmean(values[f"JCT / {RANDOM}"]), "", EQUAL_BAR),
            Row(f"{where}: own OOM in a run", fmean(values["oom_own"]), ""),
            Row(f"{where}: tasks that did not end as done", max(values["unfinished"]), "", 0.0),
        ]
    return rows


def rows_harm(every: Sequence[Figures]) -> list[Row]:
    rows = []
    for name in every[0]:
        values = {figure: [of[name][figure] for of in every] for figure in every[0][name]}
        span, jct = fmean(values[f"make-span / {RANDOM}"]), fmean(values[f"JCT / {RANDOM}"])
        where = f"{label('harm')}, {name}"
        rows += [
            Row(f"{where}: make-span / random, mean", span, ""),
            Row(f"{where}: JCT / random, mean", jct, ""),
            Row(
                f"{where}: the better of make-span / {MAKE_SPAN_BAR:g} and JCT / {JCT_BAR:g}",
                min(span / MAKE_SPAN_BAR, jct / JCT_BAR),
                "",
                1.0,
            ),
            Row(f"{where}: make-span / exclusive, mean", fmean(values[f"make-span / {EXCLUSIVE}"]), ""),
            Row(f"{where}: JCT / exclusive, mean", fmean(values[f"JCT / {EXCLUSIVE}"]), ""),
            Row(f"{where}: shared time in harmful pairs", 100 * fmean(values["harmful"]), "%"),
            Row(f"{where}: shared time in harmful pairs, random", 100 * fmean(values[f"harmful {RANDOM}"]), "%"),
            Row(f"{where}: tasks that did not end as done", max(values["unfinished"]), "", 0.0),
        ]
    return rows


def rows_blind(every: Sequence[Figures]) -> list[Row]:
    rows = []
    for name in every[0]:
        of = [one[name] for one in every]
        unseen_s, where = sum(one["unseen_s"] for one in of), f"{label('blind')}, {name}"
        rows += [
            Row(f"{where}: time in harmful pairs / without rates",
                ratio(sum(one["seen_s"] for one in of), unseen_s), "", BLIND_BAR),
            Row(f"{where}: share of time in harmful pairs", 100 * fmean(one["seen"] for one in of), "%"),
            Row(f"{where}: the same without rates", 100 * fmean(one["unseen"] for one in of), "%"),
            Row(f"{where}: make-span / without rates", fmean(one["make-span"] for one in of), ""),
        ]  # fmt: skip
    return rows


def rows_sizes(every: Sequence[Figures]) -> list[Row]:
    rows = []
    for name in every[0]:
        of = [one[name] for one in every]
        where = f"{label('sizes')}, {name}"
        rows += [
            Row(
                f"{where}: coverage, worst seed",
                min(one["coverage"] for one in of),
                "",
                COVERAGE_BAR,
                "higher",
            ),
            Row(f"{where}: coverage, mean", fmean(one["coverage"] for one in of), ""),
            Row(f"{where}: waste, median of a seed, mean", fmean(one["waste"] for one in of), ""),
            Row(f"{where}: runs with an estimate", 100 * fmean(one["known"] for one in of), "%"),
        ]
    return rows


PLAYS = {
    "plain": (plain, rows_plain), "harm": (harm, rows_harm), "blind": (blind, rows_blind), "sizes": (sheets, rows_sizes)
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    global policy  # each process of over_seeds is forked after this
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default=policy)
    parser.add_argument("--part", dest="parts", action="append", choices=tuple(PARTS))
    parser.add_argument("--worlds", type=int)
    parser.add_argument("--final", action="store_true")
    parser.add_argument("--processes", type=int)
    given = parser.parse_args(arguments)
    policy = given.policy
    policies.parse(policy)
    parts = given.parts or list(PARTS)
    rows: list[Row] = []
    first = FINAL_SEED if given.final else 0
    for part in parts:
        play, tell = PLAYS[part]
        seeds = range(first, first + (given.worlds or PARTS[part]))
        rows += tell(over_seeds(play, seeds, part, given.processes))
    file = RESULTS / "packing_bars.json"
    before = json.loads(file.read_text()) if file.is_file() else {}
    played = before.get("worlds", {}) | {part: given.worlds or PARTS[part] for part in parts}
    kept = [
        Row(one["what"], one["value"], one["unit"], one["bar"], one["better"])
        for one in before.get("rows", ())
        if not one["what"].startswith(tuple(f"{label(part)}," for part in parts))
    ]
    note = "simulated; seeds below 1000 are for tuning, those from 1000 on are not looked at until the end"
    return 0 if report("packing_bars", None, [*kept, *rows], note=note, first_seed=first, worlds=played) else 1


if __name__ == "__main__":
    sys.exit(main())
