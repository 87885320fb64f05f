"""Evaluate shares of the multiprocessors found by trials (`sm=auto`) on published curves, with simulated scores.

Truth: alone, a task with a share is as slow as measured in Pan 2021, Figure 2, and takes as much less of the GPU; with
neighbours the capacity model holds. Loads of single batch sizes were not published: the least share with at most 10 %
loss, divided by 1.5, is used instead.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise, product
from statistics import fmean, median

from bench import Row

from slurm_share.packing.rules import interference
from slurm_share.packing.rules.search import FREE, Search, part_levels
from slurm_share.packing.speed_records import LevelRun, Load

KNEES: dict[str, tuple[float, dict[int, float]]] = {
    "ResNet-18, batch 16": (0.40, {20: 1.68, 30: 1.39, 50: 1.14, 70: 1.07, 100: 1.0}),
    "ResNet-18, batch 32": (0.47, {20: 2.19, 30: 1.66, 50: 1.22, 70: 1.09, 100: 1.0}),
    "ResNet-18, batch 256": (0.60, {20: 3.02, 30: 2.18, 50: 1.47, 70: 1.22, 100: 1.0}),
    "ResNet-50, batch 16": (0.60, {20: 2.95, 30: 2.15, 50: 1.48, 70: 1.19, 100: 1.0}),
    "ResNet-50, batch 128": (0.60, {20: 3.26, 30: 2.30, 50: 1.52, 70: 1.22, 100: 1.0}),
    "Recommender": (0.25, {20: 1.15, 30: 1.09, 50: 1.0, 70: 1.0, 100: 1.0}),
}
"""Program -> (load, slowdown at a share): Pan 2021, Figure 2 (V100). Values below 1 are noise, and are 1 here."""
PAN_T2 = {FREE: 316 / 345 + 144 / 360, "90": 316 / 344 + 144 / 263}
"""Aggregate speed of ResNet-50 and SqueezeNet without limits, and with 90 and 10 %: Pan 2021, Table 2. SqueezeNet alone
takes 460 - 316 s. An even part was not published: 10 % less is assumed."""
NOISE, WINDOWS = 0.10, 12
"""Noise of one window, and number of windows whose median is a score."""
STARTS = 20
WORSE_BAR, FOUND_BAR = 3.0, 6

Truth = Callable[[str], float]


def slowed(program: str, percent: float) -> float:
    """Return the slowdown of a program with a share and without neighbours."""
    known = sorted(KNEES[program][1].items())
    if percent <= known[0][0]:
        return known[0][1] * known[0][0] / percent
    for (low, at_low), (high, at_high) in pairwise(known):
        if percent <= high:
            return at_low + (at_high - at_low) * (percent - low) / (high - low)
    return 1.0


def together(program: str, neighbour: str, arm: str) -> float:
    """Return the aggregate speed of a program with a share and one without."""
    percent = 100.0 if arm == FREE else 50.0 if arm == "even" else float(arm)
    slow = slowed(program, percent)
    loads = Load(sm_ratio=KNEES[program][0] / slow), Load(sm_ratio=KNEES[neighbour][0])
    own, other = interference.slowdowns(loads)
    return 1.0 / (slow * own) + 1.0 / other


def arms_chosen(truth: Truth, load: float, seed: int) -> tuple[str, int | None]:
    """Return the arm of the last start, and the number of trials before the first chosen one."""
    draw = random.Random(seed)
    belief = Load(sm_ratio=load)
    search, found = Search("part", part_levels(belief, 2), 0), []
    for number in range(STARTS):
        level, is_trial = search.begin_task(part_levels(belief, 2, search.pool), STARTS - number)
        found.append(is_trial)
        stp = truth(level.part) * median(draw.lognormvariate(0.0, NOISE) for _ in range(WINDOWS)) / truth(FREE)
        if is_trial:
            search.end_task(level, LevelRun(*level[:2], stp, 0.0, WINDOWS, level.part, 1.0 / stp))
    return level.part, found.index(False) if False in found else None


def percentages(seeds: Sequence[int]) -> list[Row]:
    """Return the largest loss of a choice against no limit, and the number of starts until a useful share is found."""
    chosen, even = [], []
    for program, neighbour in product(KNEES, KNEES):

        def truth(arm: str, one: str = program, other: str = neighbour) -> float:
            return together(one, other, arm)

        for seed in seeds:
            arm, _ = arms_chosen(truth, KNEES[program][0], seed)
            chosen.append(100.0 * (1.0 - truth(arm) / truth(FREE)))
        even.append(100.0 * (1.0 - truth("even") / truth(FREE)))
    pan = [arms_chosen(lambda arm: PAN_T2.get(arm, 0.9 * PAN_T2[FREE]), 0.6, seed) for seed in seeds]
    right = [starts for arm, starts in pan if arm == "90" and starts is not None]
    return [
        Row(f"shares: worse than no limit at most, {len(KNEES) ** 2} pairs of Pan's programs", max(chosen), "%",
            WORSE_BAR),
        Row("shares: worse than no limit, mean", fmean(chosen), "%"),
        Row("shares: an even part for each, worse than no limit at most", max(even), "%"),
        Row("shares: an even part for each, worse than no limit, mean", fmean(even), "%"),
        Row("shares: Pan's 90-10, starts until it is found, at most", max(right, default=float(STARTS)), "",
            FOUND_BAR),
        Row("shares: Pan's 90-10, runs that find it", fmean(arm == "90" for arm, _ in pan), ""),
    ]  # fmt: skip
