"""Evaluate decisions by measured speed: python tests/bench/measured.py [--seeds [PART=]N] (no GPU).

Parts: training (published slowdowns, predicted without training), undo (harmful pairs in simulation), tuner (published
curves), shares (published knees), gain (against `booked` and LUG in simulation). GPUs, tasks, times and rates of undo,
tuner, shares and gain are simulated. Published figures are given with their source.

Seeds are drawn at the start and printed, so no code or constant is fitted to them. --seed N repeats a run.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Mapping, Sequence

import measured_pairs
import measured_policies
import measured_shares
import measured_tuning
import measured_undo
from bench import RESULTS, Row, over_seeds, report

PARTS = ("training", "undo", "tuner", "shares", "gain")
BEGINNINGS = ("no training", "undo", "tuner", "shares", "gain")
"""Beginning of the names of each part's rows."""
SEEDS = {"undo": 100, "tuner": 200, "shares": 50, "gain": 20}


def play(parts: Sequence[str], first: int, counts: Mapping[str, int], processes: int | None) -> bool:
    """Run the parts, print the table, write results/measured.json, and return whether every bar holds.

    Rows of parts that are not run stay unchanged in that file.

    counts: part -> its number of seeds.
    """

    def seeds(of: str) -> range:
        return range(first, first + counts[of])

    file = RESULTS / "measured.json"
    before = json.loads(file.read_text()) if file.is_file() and len(parts) < len(PARTS) else {}
    rows, took = [], before.get("took_s", {})
    for part in parts:
        begin = time.perf_counter()
        if part == "training":
            rows += measured_pairs.no_training()
        elif part == "undo":
            rows += measured_undo.undo(over_seeds(measured_undo.one_seed, seeds("undo"), part, processes))
        elif part == "tuner":
            rows += measured_tuning.tuner(seeds("tuner"))
        elif part == "shares":
            rows += measured_shares.percentages(seeds("shares"))
        else:
            rows += measured_policies.compared(over_seeds(measured_policies.one_seed, seeds("gain"), part, processes))
        took[part] = round(time.perf_counter() - begin, 1)
    kept = tuple(one for part, one in zip(PARTS, BEGINNINGS, strict=True) if part not in parts)
    for row in before.get("rows", []):
        if row["what"].startswith(kept):
            rows.append(Row(row["what"], row["value"], row["unit"], row["bar"], row["better"]))
    return report(
        "measured",
        None,
        rows,
        note="undo, tuner, shares and gain are simulated; no training is scored on published figures",
        first_seed=first,
        seeds=before.get("seeds", {}) | {part: count for part, count in counts.items() if part in parts},
        took_s=took,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", dest="parts", action="append", choices=PARTS, help="only this one; may be repeated")
    parser.add_argument(
        "--seeds", action="append", default=[], metavar="[PART=]N", help="so many seeds, of one part or of each"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="the first seed (default: drawn)")
    parser.add_argument("--processes", type=int, metavar="N", help="(default: one for each core)")
    chosen = parser.parse_args(arguments)
    first = random.SystemRandom().randrange(10**6) if chosen.seed is None else chosen.seed
    print(f"first seed {first}; repeat with --seed {first}", flush=True)
    counts = dict(SEEDS)
    for text in chosen.seeds:
        part, equals, number = text.rpartition("=")
        if (equals and part not in SEEDS) or not (number.isascii() and number.isdecimal()):
            parser.error(f"--seeds {text}: a number, or PART=N with a part of {', '.join(SEEDS)}")
        counts |= {one: int(number) for one in ([part] if equals else SEEDS)}
    return 0 if play(chosen.parts or PARTS, first, counts, chosen.processes) else 1


if __name__ == "__main__":
    sys.exit(main())
