"""Worlds of our own making, and the scores of sizes on a sheet."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slurm_share.lab import policies, sizes, worlds
from slurm_share.lab.world import simulate
from slurm_share.lab.worlds import SheetRow

KINDS = (
    *worlds.own_kinds(),
    *worlds.harmful_kinds(),
    worlds.WorldKind(name="halved sizes", trace_of=worlds.halved, assumed=worlds.QUIET),
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_world_is_the_same_for_a_seed_and_its_tasks_all_end(kind):
    trace = kind.trace_of(3)
    assert trace == kind.trace_of(3)
    assert trace != kind.trace_of(4)
    trace = replace(trace, tasks=trace.tasks[:30])
    assert simulate(trace, policies.parse("random"), kind.assumed, 3).unfinished == 0


def test_every_task_and_every_size_that_a_user_gives_fits_on_a_gpu():
    tasks = [task for seed in range(60) for task in worlds.mix(seed).tasks]
    assert max(task.peak_mib for task in tasks) <= worlds.MOST_MIB
    assert max(task.gpu_mem_mib or 0 for task in tasks) <= worlds.MOST_MIB


def test_about_a_fifth_of_measured_pairs_harms():
    found = [worlds.measured_speeds(seed, [f"kind{number}" for number in range(10)]) for seed in range(20)]
    stps = [of[a, b] + of[b, a] for of in found for a, b in of if a != b]
    assert 0.17 < sum(stp < 1.0 for stp in stps) / len(stps) < 0.27
    assert 1.2 < sum(stps) / len(stps) < 1.4


def test_a_random_gpu_differs_from_the_choice_of_booked_in_the_gpu_only():
    trace = worlds.mix(2, is_at_once=True)
    trace = replace(trace, gpus=4, tasks=trace.tasks[:8])
    random, booked = (
        simulate(trace, policies.parse(name), worlds.QUIET, 2, has_bars=True) for name in ("random", "booked")
    )
    assert [bar.gpu for bar in random.bars] != [bar.gpu for bar in booked.bars]
    assert random.oom_neighbour == 0


def test_equal_runs_are_covered_and_others_are_unknown():
    rows = [SheetRow("a", (("--batch", 8.0),), 5000)] * 4 + [SheetRow("b", (), 3000)]
    found = sizes.score(rows)
    assert (found.runs, found.unknown, found.covered, found.coverage) == (5, 2, 3, 1.0)
    assert found.waste == pytest.approx(0.10, abs=0.01)


def test_a_run_above_its_estimate_is_not_covered():
    rows = [SheetRow("a", (), 5000), SheetRow("a", (), 9000)]
    found = sizes.score(rows)
    assert (found.covered, found.coverage, found.waste) == (0, 0.0, None)
