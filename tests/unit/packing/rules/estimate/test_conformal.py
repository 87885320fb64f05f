from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.packing.rules.estimate import conformal


@pytest.mark.parametrize(("alpha", "least"), [(0.2, 4), (0.1, 9), (0.05, 19), (0.02, 49), (0.01, 99)])
def test_a_pool_counts_from_the_number_of_scores_that_its_alpha_needs(alpha, least):
    assert conformal.quantile([0.0] * (least - 1), alpha) is None
    assert conformal.quantile(list(range(least)), alpha) == least - 1


@pytest.mark.parametrize(
    ("pools", "factor"),
    [
        (([0.5] * 3, [0.1] * 30, [0.6] * 300), math.exp(0.1)),  # 3 scores are too few
        (([0.5] * 3, [0.1, 0.3]), math.exp(0.3)),  # the largest one of the last pool
        (([0.5] * 3, conformal.pool(1.5)), 1.5),
        (([0.0] * 30,), 1.02),
        (([math.log(10)] * 30,), 2.0),
    ],
)
def test_the_first_pool_with_enough_scores_decides_within_limits(pools, factor):
    assert math.exp(conformal.pooled(pools, 0.05)) == pytest.approx(factor)


def test_a_new_pool_follows_what_is_seen_and_forgets_what_was_assumed():
    pool = conformal.pool(1.5)
    pool.append(0.1)
    assert math.exp(conformal.pooled([pool], 0.05)) == pytest.approx(1.5)
    pool.append(0.6)
    assert conformal.pooled([pool], 0.05) == 0.6
    pool.extend([0.1] * conformal.NEWEST)
    assert conformal.pooled([pool], 0.005) == 0.1


@given(st.lists(st.floats(-0.5, 0.6, allow_nan=False), min_size=1, max_size=300), st.sampled_from([0.2, 0.1, 0.05]))
def test_leaving_one_out_at_most_alpha_of_the_scores_exceed_the_quantile_of_all(scores, alpha):
    """The finite form of the promise: of n + 1 exchangeable scores, at most alpha are above the quantile of the n
    others."""
    missed = 0
    for index, one in enumerate(scores):
        bound = conformal.quantile(scores[:index] + scores[index + 1 :], alpha)
        missed += bound is not None and one > bound
    assert missed <= alpha * len(scores) + 1e-9


@given(st.lists(st.booleans(), max_size=500))
def test_alpha_stays_within_its_limits(misses):
    alpha = conformal.ALPHA
    for is_miss in misses:
        alpha = conformal.adapt(alpha, is_miss=is_miss)
        assert conformal.ALPHA_MIN <= alpha <= conformal.ALPHA_MAX


def test_a_dry_run_is_corrected_by_the_published_line():
    assert conformal.probe_mib(10_000) == pytest.approx(13_350)
