"""Evaluate the number of tasks found by trials on published curves of throughput, with simulated windows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import fmean

import tuning_curves
from bench import Row

NOISE = 0.10
TASKS = 1000
GOOD_RATIO, GOOD_RUNS = 0.95, 0.90
LEVELS_MOST = 5
BASE_WINDOWS, BASE_GAIN = 3, 1.10


def doubled(curve: tuning_curves.Curve, noise: float, seed: int, hi: int, gpus: int) -> int:
    """Return the level that plain doubling finds: three windows each, until the first gain below 10 %."""
    draw = random.Random(seed)

    def measured(level: int) -> float:
        return fmean(curve(level) * draw.lognormvariate(0.0, noise) for _ in range(BASE_WINDOWS))

    best, of_best = gpus, measured(gpus)
    while best < hi:
        level = min(2 * best, hi)
        rate = measured(level)
        if rate < BASE_GAIN * of_best:
            return best
        best, of_best = level, rate
    return best


def tuner(seeds: Sequence[int]) -> list[Row]:
    """Return how often a good level is found without and with noise, and the cost."""
    rows = []
    for name, (curve, gpus, hi) in tuning_curves.CASES.items():
        most = tuning_curves.top(curve, hi, gpus)
        exact = tuning_curves.play(curve, 0.0, 1, hi, gpus, TASKS)
        found = [tuning_curves.play(curve, NOISE, seed, hi, gpus, TASKS) for seed in seeds]
        base = [doubled(curve, NOISE, seed, hi, gpus) for seed in seeds]
        good = fmean(curve(one.best) >= GOOD_RATIO * most for one in found)
        plain = fmean(curve(level) >= GOOD_RATIO * most for level in base)
        levels = max(len(one.levels) for one in found)
        highest = max(level.level for one in [exact, *found] for level in one.levels)
        where = f"tuner, {name}"
        rows += [
            Row(f"{where}: without noise, level {exact.best}, of the best rate", curve(exact.best) / most, "", 0.9,
                "higher"),
            Row(f"{where}: noise 10 %, runs within 5 % of the best", good, "", GOOD_RUNS, "higher"),
            Row(f"{where}: noise 10 %, levels tried at most", levels, "", LEVELS_MOST),
            Row(f"{where}: levels above what has memory", float(highest > hi), "", 0.0),
            Row(f"{where}: doubling without a noise test, runs within 5 % of the best", plain, ""),
            Row(f"{where}: noise 10 %, mean rate of the best", fmean(curve(one.best) for one in found) / most, ""),
            Row(f"{where}: the same of doubling", fmean(curve(level) for level in base) / most, ""),
        ]  # fmt: skip
    return rows
