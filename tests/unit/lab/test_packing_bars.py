"""A few worlds of tests/bench/packing.py and tests/bench/packing_bars.py, held to their bars."""

from __future__ import annotations

from statistics import median

import pytest

from slurm_share.lab import policies, sizes, traces, worlds
from slurm_share.lab.records import Assumptions
from slurm_share.lab.world import simulate

SEEDS = (1801, 1802, 1803)
LUG, ORACLE, BOOKED, SECOND = "lug", "worst-fit", "booked", "booked,history,long"


@pytest.fixture(scope="module")
def played():
    """Play a trace under each policy: (policy, seed) -> result."""
    assumed = Assumptions(alpha=1.3)
    return {
        (text, seed): simulate(
            traces.thesis("thesis60", seed), policies.settled(policies.parse(text), 30.0), assumed, seed
        )
        for seed in SEEDS
        for text in (LUG, ORACLE, BOOKED, SECOND)
    }


def of(played, policy, base, figure):
    return median(getattr(played[policy, seed], figure) / getattr(played[base, seed], figure) for seed in SEEDS)


def test_every_task_is_done_under_every_policy(played):
    assert all(result.unfinished == 0 for result in played.values())


def test_a_cold_start_loses_few_tasks_and_no_neighbours(played):
    assert median(played[BOOKED, seed].oom_own for seed in SEEDS) <= 2
    assert median(played[BOOKED, seed].oom_neighbour for seed in SEEDS) == 0


def test_a_cold_start_is_as_fast_as_policies_that_read_memory_or_know_sizes(played):
    assert of(played, BOOKED, LUG, "make_span_s") <= 1.04
    assert of(played, BOOKED, ORACLE, "make_span_s") <= 1.06
    assert of(played, BOOKED, LUG, "wait_s") < 0.9


def test_a_second_run_loses_nothing_and_is_faster(played):
    assert all(played[SECOND, seed].oom_own + played[SECOND, seed].oom_neighbour == 0 for seed in SEEDS)
    assert of(played, SECOND, LUG, "make_span_s") <= 1.01
    assert of(played, SECOND, ORACLE, "make_span_s") <= 1.03


@pytest.mark.parametrize("kind", worlds.own_kinds(), ids=lambda kind: kind.name)
def test_without_harm_packing_is_not_slower_than_a_gpu_for_each_task(kind):
    for seed in range(3):
        packed, alone = (
            simulate(kind.trace_of(seed), policies.parse(name), kind.assumed, seed) for name in (BOOKED, "exclusive")
        )
        assert packed.unfinished == 0
        assert packed.make_span_s <= 1.15 * alone.make_span_s


def test_sizes_are_enough_in_small_histories():
    for seed in range(5):
        assert sizes.score(worlds.sheet(seed, repeats=3)).coverage >= 0.90
