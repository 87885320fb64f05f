from __future__ import annotations

import random
from statistics import fmean

import pytest
from msgspec.structs import replace

from slurm_share.lab import policies, truth
from slurm_share.lab.records import Assumptions, SimTask, Trace
from slurm_share.lab.sim_node import STEP_S, TaskRates, report_times_s
from slurm_share.lab.world import Simulation
from slurm_share.packing.decision_records import Decision, Move, Pause, Resume
from slurm_share.packing.records import PackView
from slurm_share.packing.rules import place

QUIET = Assumptions(pair_sigma=0.0, run_sigma=0.0, sm_noise=0.0, rate_sigma=0.0)


def task(number, **changes):
    """Return a task that keeps half a GPU busy for 1000 s."""
    given = {"task": number, "name": f"t{number}", "submitted_s": 0.0, "work_s": 1000.0, "memory_mib": 4000}
    return SimTask(**(given | {"sm_ratio": 0.5} | changes))


def rates(assumed=QUIET, seed=1):
    return TaskRates(assumed, 30.0, random.Random(seed))


def test_a_rate_without_noise_is_the_true_speed():
    one = rates()
    one.restart(100.0, 0.8)
    assert one.rate(100.0 + STEP_S + 29.9) is None
    found = one.rate(report_times_s(100.0, 30.0)[0])
    assert found is not None
    assert found.per_s == pytest.approx(0.8)
    assert found.windows == 3


def test_a_change_of_neighbours_begins_new_windows():
    one = rates()
    one.restart(0.0, 1.0)
    assert one.rate(200.0).per_s == pytest.approx(1.0)
    one.restart(200.0, 0.5)
    assert one.rate(210.0) is None
    assert one.rate(500.0).per_s == pytest.approx(0.5)


def test_a_paused_task_has_no_rate():
    one = rates()
    one.restart(0.0, 1.0)
    one.restart(100.0, 0.0)
    assert one.rate(1000.0) is None
    one.restart(1000.0, 1.0)
    assert one.rate(1100.0).per_s == pytest.approx(1.0)


def test_the_error_of_a_rate_is_what_the_noise_makes_of_it():
    found = []
    for seed in range(200):
        one = rates(replace(QUIET, rate_sigma=0.10), seed)
        one.restart(0.0, 1.0)
        found.append(one.rate(report_times_s(0.0, 30.0)[2]))
    assert {rate.windows for rate in found} == {12}
    assert fmean(rate.error_per_s for rate in found) == pytest.approx(0.10 / 12**0.5, rel=0.15)
    spread = fmean((rate.per_s - 1.0) ** 2 for rate in found) ** 0.5
    assert spread == pytest.approx(0.10 / 12**0.5, rel=0.2)


def test_missing_windows_make_fewer_and_longer_ones():
    one = rates(replace(QUIET, missing_ratio=0.5))
    one.restart(0.0, 0.7)
    found = one.rate(STEP_S + 20 * 30.0)
    assert 2 <= found.windows < 20
    assert found.per_s == pytest.approx(0.7, rel=0.05)


def test_harmful_pairs_are_as_many_as_assumed_and_do_less_than_one_at_a_time():
    assumed = replace(QUIET, harmful_ratio=0.2)
    loads = [truth.TrueLoad(task(number), assumed) for number in range(60)]
    true, quiet = truth.Interference(assumed, 3), truth.Interference(QUIET, 3)
    stps = [sum(true.speeds([a, b])) for at, a in enumerate(loads) for b in loads[:at]]
    harmful = [stp for stp in stps if stp < 1.0]
    assert 0.17 < len(harmful) / len(stps) < 0.23
    assert min(harmful) >= 0.6
    assert max(harmful) <= 0.95
    normal = sum(quiet.speeds(loads[:2]))
    assert all(stp == pytest.approx(normal) for stp in stps if stp >= 1.0)
    assert sum(true.speeds([loads[0], loads[1]])) == pytest.approx(sum(true.speeds([loads[1], loads[0]])))


def play(monkeypatch, acts, tasks, assumed=QUIET, gpus=1):
    """Simulate under `booked` with further actions: `acts` gets a view and returns them."""
    decide = place.decide

    def more(view: PackView) -> Decision:
        found = decide(view)
        return replace(found, actions=(*found.actions, *acts(view)))

    monkeypatch.setattr(place, "decide", more)
    trace = Trace(name="test", tasks=tuple(tasks), gpus=gpus)
    return Simulation(trace, policies.parse("gain"), assumed, 1).run()


def once(at_s, *actions):
    """Return what gives actions at the first decision from a time on at which the tasks run."""
    left = list(actions)

    def acts(view):
        if view.now_s < at_s or len(view.running) < 2 or not left:
            return ()
        found, left[:] = tuple(left), []
        return found

    return acts


def test_a_paused_task_does_nothing_and_its_neighbour_is_as_fast_as_alone(monkeypatch):
    state = {"paused": False}

    def acts(view):
        both = {one.ask.task for one in view.running}
        if not state["paused"] and both == {0, 1}:
            state["paused"] = True
            return (Pause(task=1, gpu="GPU-0-0", why=""),)
        return (Resume(task=1, gpu="GPU-0-0", why=""),) if state["paused"] and both == {1} else ()

    result = play(monkeypatch, acts, [task(0, gpu_mem_mib=5000), task(1, gpu_mem_mib=5000)])
    assert result.unfinished == 0
    assert [one.end_s for one in result.outcomes] == pytest.approx([1000.0, 2000.0], abs=10.0)
    assert result.paused_s == pytest.approx(1000.0, abs=10.0)
    assert result.shared_s == pytest.approx(0.0, abs=10.0)


def test_time_in_harmful_pairs_is_counted(monkeypatch):
    assumed = replace(QUIET, harmful_ratio=1.0)
    tasks = [task(0, gpu_mem_mib=5000), task(1, gpu_mem_mib=5000)]
    result = play(monkeypatch, lambda view: (), tasks, assumed)
    assert result.shared_s > 1000.0
    assert result.harmful_s == pytest.approx(result.shared_s)
    assert result.make_span_s > 2000.0


@pytest.mark.parametrize("can_move", [True, False])
def test_a_moved_task_goes_on_elsewhere(monkeypatch, can_move):
    tasks = [task(0, gpu_mem_mib=5000), task(1, gpu_mem_mib=5000)]
    move = Move(task=1, gpu="GPU-0-0", why="")
    result = play(monkeypatch, once(300.0, move), tasks, replace(QUIET, can_move=can_move), gpus=1)
    assert result.unfinished == 0
    assert result.outcomes[1].attempts == 2
    assert (result.outcomes[1].end_s < 1900.0) == can_move
