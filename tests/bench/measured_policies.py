"""Compare `gain` with `booked` and the thesis' best policy without sizes: its traces, simulated at every setting."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import packing
from bench import Row
from packing import BOOKED, LUG, Figures, Key

GAIN = "gain"
POLICIES = (LUG, BOOKED, GAIN)
WORSE_BAR = 1.03
"""Largest accepted ratio of `gain` to `booked`."""
RATIOS = (("make-span", "make_span_s", 1.04), ("waiting", "wait_s", 0.7), ("JCT", "jct_s", 0.8))
"""Figure, its name, the bar against LUG, which is that of `booked` in packing.py."""


def one_seed(seed: int) -> dict[Key, Figures]:
    return packing.one_seed(seed, POLICIES)


def compared(every: Sequence[dict[Key, Figures]]) -> list[Row]:
    """Return a row for each trace and measure with the median over seeds at the worst setting."""
    rows = []
    names = list(dict.fromkeys(key[0] for key in every[0]))
    settings = list(dict.fromkeys(key[1:3] for key in every[0]))
    for name in names:
        for policy, what, figure, base, bar in (
            *((GAIN, f"{title}, of LUG's", figure, LUG, bar) for title, figure, bar in RATIOS),
            *((GAIN, f"{title}, of booked's", figure, BOOKED, WORSE_BAR) for title, figure, _ in RATIOS),
            (GAIN, "ANTT, of booked's", "antt", BOOKED, None),
        ):
            medians: list[tuple[float, float, tuple[float, float]]] = []
            for setting in settings:
                values = [of[name, *setting, policy][figure] / of[name, *setting, base][figure] for of in every]
                medians.append((statistics.median(values), max(values), setting))
            worst, largest, (alpha, settle_s) = max(medians)
            best = min(medians)[0]
            where = f"worst setting: alpha {alpha:g}, {settle_s:g} s; best {best:.2f}; worst seed {largest:.2f}"
            rows.append(Row(f"{policy}, {name}: {what} ({where})", worst, "", bar))
        for what, figure in (("out of memory", "oom"), ("tasks that did not end as done", "unfinished")):
            medians = [
                (statistics.median(of[name, *setting, GAIN][figure] for of in every), setting) for setting in settings
            ]
            booked = max(statistics.median(of[name, *setting, BOOKED][figure] for of in every) for setting in settings)
            bar = 2.0 if figure == "oom" else 0.0
            rows.append(Row(f"gain, {name}: {what} (booked {booked:g})", max(medians)[0], "", bar))
    return rows
