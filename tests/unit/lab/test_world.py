from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from slurm_share.lab import policies, traces, truth
from slurm_share.lab.records import Assumptions, GpuKind, SimTask, Trace
from slurm_share.lab.world import simulate
from slurm_share.packing.rules.board import LEFT_S

EXACT = Assumptions(pair_sigma=0.0, run_sigma=0.0, sm_noise=0.0, power_exponents=(1.0,))
"""Nothing is noisy, and power is linear in SM activity."""


def task(number, submitted_s=0.0, **changes):
    """Return a task of its own kind that keeps half a GPU busy for 1000 s."""
    given = {
        "task": number, "name": f"kind {number}", "submitted_s": submitted_s, "work_s": 1000.0, "memory_mib": 10_000,
        "sm_ratio": 0.5,
    }  # fmt: skip
    return SimTask(**(given | changes))


def play(tasks, policy="booked", assumed=EXACT, gpus=1, seed=1, **more):
    trace = Trace(name="test", tasks=tuple(tasks), gpus=gpus)
    return simulate(trace, policies.parse(policy), assumed, seed, has_bars=True, **more)


def spans(result):
    """Return task -> (start, end) of its last attempt."""
    return {bar.task: (bar.start_s, bar.end_s) for bar in result.bars}


def test_one_after_the_other_is_the_sum():
    result = play([task(0), task(1, 100.0)], "exclusive")
    assert spans(result) == {0: (0.0, 1000.0), 1: (1000.0, 2000.0)}
    assert (result.make_span_s, result.wait_s, result.jct_s) == (2000.0, 450.0, 1450.0)
    assert (result.stp, result.antt) == (1.0, 1.0)


def test_two_tasks_side_by_side_slow_each_other_as_the_model_says():
    """The second joins at 100 s; both run at the pair's speed until the first ends, and the rest alone."""
    result = play([task(0, gpu_mem_mib=12_000), task(1, 100.0, gpu_mem_mib=12_000)])
    loads = [truth.TrueLoad(one, EXACT) for one in (task(0), task(1))]
    speed = truth.Interference(EXACT, 1).speeds(loads)[0]
    first_end = 100.0 + 900.0 / speed
    second_end = first_end + (1000.0 - (first_end - 100.0) * speed)
    assert spans(result)[0] == pytest.approx((0.0, first_end))
    assert spans(result)[1] == pytest.approx((100.0, second_end))
    assert result.make_span_s == pytest.approx(second_end)
    assert result.stp == pytest.approx(2000.0 / second_end)


def test_energy_is_the_integral_of_power():
    result = play([task(0)], "exclusive", gpus=2)
    busy_w = 52.0 + (275.0 - 52.0) * 0.5
    assert result.energy_j == ((1.0, pytest.approx((busy_w + 52.0) * 1000.0)),)


@pytest.mark.parametrize("policy", ["exclusive", "rr", "lug", "worst-fit", "booked", "booked,long"])
def test_all_work_is_done_and_no_gpu_holds_more_than_it_has(policy):
    trace = traces.thesis("thesis60", 3)
    result = simulate(trace, policies.parse(policy), Assumptions(), 3, has_bars=True)
    assert result.unfinished == 0
    assert {one.kind for one in result.outcomes} == {"done"}
    real = truth.realised(trace, Assumptions(), 3)
    done = {bar.task: bar for bar in result.bars if bar.outcome == "done"}
    for one in real.tasks:
        assert done[one.task].end_s - done[one.task].start_s >= one.work_s * 0.999
    assert result.make_span_s >= result.lower_bound_s * 0.9
    for gpu in range(trace.gpus):
        changes = []
        for bar in (one for one in result.bars if one.gpu == gpu):
            before = 0
            for time, mib in bar.memory[:-1]:
                changes.append((time, mib - before))
                before = mib
            changes.append((bar.end_s, -before))
        used = 0
        for _, mib in sorted(changes):
            used += mib
            assert used <= trace.gpu_mib


def test_a_task_that_outgrows_its_own_cap_ends_alone_and_runs_again():
    result = play([task(0, gpu_mem_mib=12_000), task(1, gpu_mem_mib=5_000)])
    lost = [bar for bar in result.bars if bar.outcome != "done"]
    assert {(bar.task, bar.outcome) for bar in lost} == {(1, "gpu memory")}
    assert 1 <= len(lost) <= 2
    assert (result.oom_own, result.oom_neighbour, result.unfinished) == (len(lost), 0, 0)
    assert result.wasted_s > 0.0


def test_a_gpu_that_is_full_ends_the_task_that_grows():
    """Round robin reads nothing: three tasks of 15 GB on a GPU of 40; the last one to grow finds it full."""
    result = play([task(number, memory_mib=15_000) for number in range(3)], "rr")
    lost = [bar for bar in result.bars if bar.outcome != "done"]
    assert [bar.task for bar in lost] == [2]
    assert result.oom_own + result.oom_neighbour == 1
    assert result.unfinished == 0


def test_a_task_larger_than_every_gpu_ends_and_others_go_on():
    result = play([task(0, memory_mib=50_000), task(1)], gpus=2)
    kinds = {one.task: one.kind for one in result.outcomes}
    assert kinds[0] in ("gpu memory", "not started")
    assert kinds[1] == "done"
    assert next(one.attempts for one in result.outcomes if one.task == 0) <= 4


def test_a_late_peak_comes_at_its_part_of_the_work():
    result = play([task(0, late_at_ratio=0.5, late_mib=14_000)], "exclusive")
    (bar,) = result.bars
    assert (500.0, 14_000) in bar.memory
    assert max(mib for _, mib in bar.memory) == 14_000


def test_a_task_of_two_gpus_has_both_to_itself():
    result = play([task(0, gpus=2), task(1, 10.0)], gpus=2)
    assert sorted(bar.gpu for bar in result.bars if bar.task == 0) == [0, 1]
    assert spans(result)[1][0] >= 1000.0


def test_a_seed_gives_the_same_result_each_time_and_seeds_differ():
    trace = traces.thesis("thesis90", 2)
    assumed = Assumptions(missing_ratio=0.2)
    first, again, other = (
        simulate(trace, policies.parse("booked"), assumed, seed, has_bars=True) for seed in (5, 5, 6)
    )
    assert first == again
    assert first.make_span_s != other.make_span_s


def test_samples_that_are_missing_stop_nothing():
    assumed = replace(EXACT, missing_ratio=0.5)
    for policy in ("lug", "booked"):
        result = simulate(traces.thesis("thesis60", 1), policies.parse(policy), assumed, 1)
        assert result.unfinished == 0


def test_after_a_missing_sample_the_memory_is_seen_a_second_later():
    for seed in range(1, 6):
        (run,) = play([task(0)], assumed=replace(EXACT, missing_ratio=0.5), seed=seed).runs
        assert dict(run.peak_at_mib)[60] == 10_000


def test_a_second_run_knows_the_sizes():
    trace = traces.thesis("thesis60", 4)
    first = simulate(trace, policies.parse("booked"), Assumptions(), 4)
    assert len(first.runs) == sum(one.attempts for one in first.outcomes)
    second = simulate(trace, policies.parse("booked,history,long"), Assumptions(), 4)
    assert second.oom_own == second.oom_neighbour == 0


def test_several_nodes_share_one_queue():
    trace = Trace(name="t", tasks=tuple(task(number) for number in range(8)), gpus=2, nodes=2)
    result = simulate(trace, policies.parse("exclusive"), EXACT, 1, has_bars=True)
    assert {bar.gpu for bar in result.bars} == {0, 1, 2, 3}
    assert result.make_span_s == 2000.0


def test_nodes_share_a_list_that_one_of_them_could_hold():
    """Two tasks fit on each GPU: four on each node, and none waits although one node has places for all."""
    tasks = tuple(task(number, memory_mib=15_000, gpu_mem_mib=16_000, sm_ratio=0.2) for number in range(8))
    result = simulate(Trace(name="t", tasks=tasks, gpus=2, nodes=2), policies.parse("booked"), EXACT, 1, has_bars=True)
    assert Counter(bar.gpu for bar in result.bars) == {0: 2, 1: 2, 2: 2, 3: 2}
    assert result.wait_s == 0.0


def test_a_large_task_that_no_node_can_start_lets_smaller_ones_go_on():
    large = [task(number, memory_mib=30_000, gpu_mem_mib=31_000) for number in range(3)]
    small = [task(3, memory_mib=2_000, gpu_mem_mib=3_000)]
    trace = Trace(name="t", tasks=(*large, *small), gpus=1, nodes=2)
    result = simulate(trace, policies.parse("booked"), EXACT, 1, has_bars=True)
    starts = {number: start for number, (start, _) in spans(result).items()}
    assert (starts[0], starts[1]) == (0.0, 0.0)
    assert LEFT_S <= starts[3] < starts[2]


def test_time_slicing_gives_no_cap_and_halves_the_speed():
    result = play(
        [task(0, gpu_mem_mib=12_000), task(1, gpu_mem_mib=12_000)], assumed=replace(EXACT, sharing="time-slicing")
    )
    assert result.make_span_s == pytest.approx(2000.0)


def test_nothing_to_do_takes_no_time():
    result = play([])
    assert (result.make_span_s, result.wait_s, result.energy_j) == (0.0, 0.0, ((1.0, 0.0),))


def test_a_gpu_that_breaks_ends_its_tasks_and_gets_no_others():
    tasks = tuple(task(number, gpu_mem_mib=12_000) for number in range(6))
    trace = Trace(name="t", tasks=tasks, gpus=2, breaks=((500.0, 1),))
    result = simulate(trace, policies.parse("booked"), EXACT, 1, has_bars=True)
    lost = [bar for bar in result.bars if bar.outcome == "device"]
    assert {(bar.gpu, bar.end_s) for bar in lost} == {(1, 500.0)}
    assert {bar.gpu for bar in result.bars if bar.start_s >= 500.0} == {0}
    assert result.unfinished == 0


def test_gpus_of_two_models_have_their_own_size_and_speed():
    tasks = (task(0, memory_mib=30_000, gpu_mem_mib=31_000), task(1, memory_mib=5_000, gpu_mem_mib=6_000))
    kinds = (GpuKind(model="T4", mib=15_360, speed=0.5), GpuKind())
    result = simulate(
        Trace(name="t", tasks=tasks, gpus=2, kinds=kinds), policies.parse("booked"), EXACT, 1, has_bars=True
    )
    assert {bar.task: (bar.gpu, bar.end_s) for bar in result.bars} == {0: (1, 1000.0), 1: (0, 2000.0)}
    assert result.lower_bound_s <= result.make_span_s


def test_tasks_without_work_end_at_once():
    result = play([task(number, work_s=0.0, gpu_mem_mib=12_000) for number in range(5)])
    assert (result.make_span_s, result.unfinished) == (0.0, 0)


def test_a_node_that_begins_first_takes_all_tasks_that_it_can_start():
    """As two launchers do that poll one list; the other node is idle."""
    tasks = tuple(task(number, memory_mib=8_000, gpu_mem_mib=9_000, sm_ratio=0.2) for number in range(4))
    result = simulate(Trace(name="t", tasks=tasks, gpus=1, nodes=2), policies.parse("booked"), EXACT, 1, has_bars=True)
    assert len({bar.gpu for bar in result.bars}) == 1
