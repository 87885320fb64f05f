"""Compute a safe bound above an estimate: a one-sided split conformal quantile of log(seen / estimated).

Exchangeable cases give P(seen <= point * exp(q)) >= 1 - alpha for any distribution. If they are not exchangeable, for
example after a change of the program, `adapt` moves alpha until the long-run rate of misses is the wanted one (adaptive
conformal inference, Gibbs and Candes 2021).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

ALPHA = 0.05
"""The wanted part of tasks whose peak exceeds their bound."""
ALPHA_MIN, ALPHA_MAX = 0.005, 0.20
ALPHA_STEP = 0.02
"""One miss moves alpha down by 0.019, one hit moves it up by 0.001."""
Q_MIN, Q_MAX = math.log(1.02), math.log(2.0)
"""A bound is 2 % to 100 % above its estimate: sampling misses about 1 %, and a factor above 2 is not useful."""
NEWEST = 200
"""Newest scores in a pool: more than the 99 that alpha 0.01 needs, few enough to follow a change."""


def quantile(scores: Sequence[float], alpha: float) -> float | None:
    """Return the conformal quantile of the scores at 1 - alpha; None: too few scores for this alpha.

    The index is ceil((n + 1) (1 - alpha)): 4 scores are enough for alpha 0.2, 9 for 0.1, 19 for 0.05, 99 for 0.01.
    """
    # The small constant compensates for rounding: in floats, 20 * 0.95 is slightly above 19.
    index = math.ceil((len(scores) + 1) * (1 - alpha) - 1e-9)
    if index > len(scores):
        return None
    return sorted(scores)[max(index, 1) - 1]


def pooled(pools: Iterable[Sequence[float]], alpha: float, default: float) -> float:
    """Return the quantile of the first pool with enough scores, from Q_MIN to Q_MAX; without one, log(default).
    `pools`: the narrowest first."""
    for scores in pools:
        found = quantile(scores, alpha)
        if found is not None:
            return min(max(found, Q_MIN), Q_MAX)
    return math.log(default)


def adapt(alpha: float, *, is_miss: bool, step: float = ALPHA_STEP) -> float:
    return min(max(alpha + step * (ALPHA - is_miss), ALPHA_MIN), ALPHA_MAX)


def score(seen_mib: float, point_mib: float) -> float:
    """Return the score of one case: log(seen / estimated). Both are above 0."""
    return math.log(seen_mib / point_mib)
