from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from slurm_share.lab import policies, traces, truth
from slurm_share.lab.records import Assumptions, SimTask, Trace
from slurm_share.lab.world import simulate

QUIET = Assumptions(pair_sigma=0.0, run_sigma=0.0, sm_noise=0.0)


def task(**changes):
    """Return a task that keeps half a GPU busy for 100 s."""
    given = {"task": 0, "name": "a", "submitted_s": 0.0, "work_s": 100.0, "memory_mib": 4000, "sm_ratio": 0.5}
    return SimTask(**(given | changes))


def speeds(tasks, assumed=QUIET, **more):
    return truth.Interference(assumed, 1, **more).speeds([truth.TrueLoad(one, assumed) for one in tasks])


def test_a_task_alone_has_its_own_speed():
    assert speeds([task(sm_ratio=1.0)]) == [1.0]


@pytest.mark.parametrize(("count", "measured"), [(2, 1.132), (3, 1.453), (4, 1.811), (7, 2.830)])
def test_equal_tasks_slow_each_other_as_pan_measured(count, measured):
    """Pan 2021, Table 4: N times ResNet-18, which uses 0.4026 of the FP32 units alone."""
    slowdown = 1.0 / speeds([task(sm_ratio=0.4026)] * count)[0]
    assert slowdown == pytest.approx(measured, abs=0.1)


def test_a_task_that_is_mostly_on_the_host_hardly_slows():
    """Yousefzadeh 2025, Table 4.2: a recommender (5 %) beside ResNet152 (82 %) under MPS, 1.04 and 1.05 measured."""
    recommender = task(name="recommender", sm_ratio=0.05, busy_ratio=0.05)
    resnet = task(name="resnet152", sm_ratio=0.82, busy_ratio=0.82)
    for speed in speeds([recommender, resnet]):
        assert 1.0 / speed == pytest.approx(1.045, abs=0.03)


def test_time_sliced_tasks_share_the_time():
    assumed = replace(QUIET, sharing="time-slicing")
    assert speeds([task(), task()], assumed) == pytest.approx([0.5, 0.5])


def test_the_noise_of_a_pair_is_the_same_each_time_and_another_for_another_seed():
    assumed = Assumptions(pair_sigma=0.3)
    loads = [truth.TrueLoad(task(name=name, sm_ratio=0.6), assumed) for name in ("a", "b")]
    first = truth.Interference(assumed, 1).speeds(loads)
    assert truth.Interference(assumed, 1).speeds(loads) == first
    assert truth.Interference(assumed, 2).speeds(loads) != first


def test_measured_pairs_replace_the_model():
    measured = {("a", "a"): 0.7}
    assert speeds([task()] * 2, measured=measured) == pytest.approx([0.7, 0.7])
    assert speeds([task()] * 3, measured=measured) == pytest.approx([1.4 / 3] * 3)  # as much as two of them
    assert speeds([task(), task(name="b")], measured=measured) == speeds([task(), task(name="b")])


@pytest.mark.parametrize(("count", "slowdown"), [(3, 1.453), (4, 1.811), (7, 2.830)])
def test_measured_pairs_of_more_tasks_slow_as_pan_measured(count, slowdown):
    """Pan 2021, Table 4: from the pair of ResNet-18 alone."""
    (speed, *_) = speeds([task()] * count, measured={("a", "a"): 1 / 1.132})
    assert 1.0 / speed == pytest.approx(slowdown, abs=0.1)


def test_many_tasks_of_a_harmful_kind_do_as_much_as_two():
    """The resource that they all fill saturates; tasks that do not use it are not slowed by it."""
    harmful = replace(QUIET, harmful_ratio=1.0)
    pair = sum(speeds([task()] * 2, harmful))
    assert pair < 1.0
    for count in (3, 16):
        assert sum(speeds([task()] * count, harmful)) == pytest.approx(pair)
        assert sum(speeds([task()] * count, measured={("a", "a"): pair / 2})) == pytest.approx(pair)


def test_memory_rises_in_steps_to_the_size():
    steps = truth.steps(task(), QUIET)
    assert steps[0] == (5.0, 400)
    assert steps[-1] == (40.0, 4000)
    assert [mib for _, mib in steps] == sorted({mib for _, mib in steps})
    assert truth.steps(task(memory_mib=200), QUIET) == ((5.0, 200),)


def test_power_is_between_idle_and_full():
    assert truth.watts(0.0, 0.35, QUIET) == 52.0
    assert truth.watts(1.0, 0.8, QUIET) == 275.0
    assert 52.0 < truth.watts(0.5, 0.8, QUIET) < truth.watts(0.5, 0.35, QUIET) < 275.0


def test_the_bound_is_the_longest_task_or_all_work():
    longest = Trace(name="t", tasks=(task(submitted_s=0.0), task(task=1, submitted_s=500.0)), gpus=4)
    assert truth.lower_bound_s(longest, QUIET) == 600.0
    many = Trace(name="t", tasks=tuple(task(task=number, sm_ratio=1.0) for number in range(40)), gpus=2)
    capacity = 2.0 ** (1 / 2.5)
    assert truth.lower_bound_s(many, QUIET) == pytest.approx(40 * 100.0 / capacity / 2)


def test_no_number_of_tasks_together_does_more_than_the_bound_allows():
    mix = [task(sm_ratio=ratio, busy_ratio=busy) for ratio, busy in ((1.0, 1.0), (0.8, 0.7), (0.3, 0.2), (0.1, 0.9))]
    for count in range(2, 40):
        tasks = [mix[number % 4] for number in range(count)]
        loads = [truth.TrueLoad(one, QUIET) for one in tasks]
        used = sum(
            load.of_soft * speed for load, speed in zip(loads, truth.Interference(QUIET, 1).speeds(loads), strict=True)
        )
        assert used <= 1.0 + 1e-9


@pytest.mark.parametrize("most", [2, 3, 8])
def test_no_measured_tasks_together_do_more_than_the_bound_allows(most):
    """Twelve tasks on one GPU, two or more at once, that hardly slow each other down; pairs of others do not count."""
    tasks = tuple(task(task=number, submitted_s=0.0, memory_mib=100) for number in range(12))
    trace = Trace(name="t", tasks=tasks, gpus=1, speeds={("a", "a"): 0.95, ("b", "b"): 1.0})
    policy = policies.settled(policies.parse(f"booked,oracle,max_per_gpu={most}"), 1.0)
    result = simulate(trace, policy, QUIET, 1)
    assert result.make_span_s >= result.lower_bound_s
    if most == 2:
        assert result.lower_bound_s == pytest.approx(12 * 100.0 / 1.9)


def test_durations_of_a_run_are_noisy_and_the_same_for_every_policy():
    trace = traces.thesis("thesis60", 1)
    once, again = (truth.realised(trace, Assumptions(), 5) for _ in range(2))
    assert once == again
    logs = [math.log(one.work_s / was.work_s) for one, was in zip(once.tasks, trace.tasks, strict=True)]
    assert 0.015 < (sum(log * log for log in logs) / len(logs)) ** 0.5 < 0.045
