"""Compute a safe bound above an estimate: a one-sided split conformal quantile of log(seen / estimated).

Exchangeable cases give P(seen <= point * exp(q)) >= 1 - alpha for any distribution. If they are not exchangeable, for
example after a change of the program, `adapt` moves alpha until the long-run rate of misses is the wanted one (adaptive
conformal inference, Gibbs and Candes 2021). Also correct the sums of dry runs with fake tensors, before such a bound.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import combinations

ALPHA = 0.05
"""The wanted part of tasks whose peak exceeds their bound."""
ALPHA_MIN, ALPHA_MAX = 0.005, 0.20
ALPHA_STEP = 0.02
"""One miss moves alpha down by 0.019, one hit moves it up by 0.001."""
Q_MIN, Q_MAX = math.log(1.02), math.log(2.0)
"""A bound is 2 % to 100 % above its estimate: sampling misses about 1 %, and a factor above 2 is not useful."""
ASSUMED = 20
"""Assumed scores at the start of a pool: alpha 0.05 needs 19."""
NEWEST = 200
"""Newest scores in a pool: more than the 99 that alpha 0.01 needs, few enough to follow a change."""
PROBE_SLOPE, PROBE_BASE_MIB = 1.12, 2150.0
"""Peak as a line over the sum of fake tensors, fitted to published measurements of 1,017 timm models with five batch
sizes; median error 5.3 %. tests/bench/estimates.py compares."""
PROBES_MOST = 30
"""Newest dry runs in a fit: 435 slopes, about 0.1 ms."""


def quantile(scores: Sequence[float], alpha: float) -> float | None:
    """Return the conformal quantile of the scores at 1 - alpha; None: too few scores for this alpha.

    The index is ceil((n + 1) (1 - alpha)): 4 scores are enough for alpha 0.2, 9 for 0.1, 19 for 0.05, 99 for 0.01.
    """
    # The small constant compensates for rounding: in floats, 20 * 0.95 is slightly above 19.
    index = math.ceil((len(scores) + 1) * (1 - alpha) - 1e-9)
    if index > len(scores):
        return None
    return sorted(scores)[max(index, 1) - 1]


def pool(factor: float) -> deque[float]:
    """Return a pool of scores that begins with assumed ones, the largest of which gives a bound of `factor`.

    Half of them are 0, as if the estimate were exact. Each seen score counts as much as an assumed one, so the factor
    follows the first few runs, and the assumption disappears with the NEWEST scores.
    """
    begin = [math.log(factor) * (2 * index / ASSUMED - 1) ** 2 for index in range(ASSUMED // 2, ASSUMED + 1)]
    return deque([0.0] * (ASSUMED - len(begin)) + begin, maxlen=NEWEST)


def pooled(pools: Sequence[Sequence[float]], alpha: float) -> float:
    """Return the quantile of the first pool with enough scores, else the largest score of the last one; from Q_MIN to
    Q_MAX. `pools`: the narrowest first."""
    found = next((found for scores in pools if (found := quantile(scores, alpha)) is not None), None)
    return min(max(max(pools[-1]) if found is None else found, Q_MIN), Q_MAX)


def adapt(alpha: float, *, is_miss: bool, step: float = ALPHA_STEP) -> float:
    return min(max(alpha + step * (ALPHA - is_miss), ALPHA_MIN), ALPHA_MAX)


def score(seen_mib: float, point_mib: float) -> float:
    """Return the score of one case: log(seen / estimated). Both are above 0."""
    return math.log(seen_mib / point_mib)


def probe_mib(fake_mib: float, slope: float = PROBE_SLOPE, base_mib: float = PROBE_BASE_MIB) -> float:
    """Return the memory of a process whose fake tensors sum up to `fake_mib`, in MiB."""
    return slope * fake_mib + base_mib


def fit_probes(points: Iterable[tuple[float, float]]) -> tuple[float, float] | None:
    """Return slope and base of the line through (sum of fake tensors, peak), by the median of all slopes (Theil-Sen);
    None: all sums are equal."""
    known = list(points)[-PROBES_MOST:]
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(known, 2) if a[0] != b[0]]
    if not slopes:
        return None
    slope = max(statistics.median(slopes), 0.0)
    return slope, statistics.median(y - slope * x for x, y in known)
