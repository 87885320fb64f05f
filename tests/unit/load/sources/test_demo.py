"""The simulated cluster of --demo."""

from __future__ import annotations

import pytest

from slurm_share.core.errors import UsageError
from slurm_share.load import snapshot
from slurm_share.load.sources.demo import Demo

NOW = 1_800_000_000.0


def at(seconds, **more):
    """The cluster so many seconds after NOW, everybody's unless asked for less."""
    return Demo(**{"everybody": True, **more}, clock=lambda: NOW + seconds).read()


def test_the_same_time_gives_the_same_survey():
    assert at(0) == at(0)
    assert at(0) != at(5)
    one = at(0)
    assert snapshot.parse_survey(snapshot.render(one), "x") == one


def test_every_record_says_that_it_is_simulated():
    one = at(0)
    seen = [node.snapshot for node in one.nodes if node.snapshot]
    assert {one.source, *(snapshot.source for snapshot in seen)} == {"demo"}
    assert all(gpu.simulated for snapshot in seen for gpu in snapshot.gpus)
    assert any("simulated" in note for note in one.notes)


def test_it_lives():
    """Within three hours: loads differ, memory rises, tasks die of it, nodes are silent and come back, users change."""
    looks = [at(60 * minute) for minute in range(180)]
    loads = {node.snapshot.load for look in looks for node in look.nodes if node.snapshot}
    assert len(loads) > 300
    assert {
        job.memory_kills > 0 for look in looks for node in look.nodes if node.snapshot for job in node.snapshot.jobs
    } == {True, False}
    answered = {look.answered for look in looks}
    assert answered == {10, 11}
    assert {job.user for look in looks for job in look.jobs} == {"alice", "bob", "carol", "dave"}
    peaks = {}
    for look in looks:
        for node in look.nodes:
            for job in node.snapshot.jobs if node.snapshot else ():
                peaks.setdefault((node.name, job.job), []).append(job.task_peak_mib or 0)
    assert all(list(rising) == sorted(rising) for rising in peaks.values())


def test_figures_are_such_as_can_be():
    for minute in range(0, 300, 7):
        for node in at(60 * minute).nodes:
            one = node.snapshot
            if one is None:
                continue
            assert 0 <= one.memory_used_mib <= one.memory_total_mib
            for gpu in one.gpus:
                assert 0 <= gpu.memory_used_mib <= gpu.memory_total_mib
                assert 0 <= gpu.utilization_percent <= 100
                assert 0 <= gpu.load_percent_windows.m5 <= 100
            assert all(0 <= on.sm_time_percent <= 100 for process in one.processes for on in process.gpus)


def test_a_user_sees_his_own_nodes():
    mine = Demo(user="bob", clock=lambda: NOW).read()
    assert {job.user for job in mine.jobs} <= {"bob"}
    assert {user.user for node in mine.nodes if node.snapshot for user in node.snapshot.users} <= {"bob"}
    everybody = at(0)
    assert len(mine.nodes) < len(everybody.nodes) == 12


def test_some_nodes_or_some_jobs():
    job = at(0).jobs[0]
    found = Demo(everybody=True, jobs=(job.job_id,), clock=lambda: NOW).read()
    assert {one.job_id for one in found.jobs} == {job.job_id}
    assert [node.name for node in at(0, nodes=("v-1",)).nodes] == ["v-1"]
    with pytest.raises(UsageError, match="has no node v-99"):
        Demo(nodes=("v-99",))
    with pytest.raises(UsageError, match="has no user eve"):
        Demo(user="eve")
    with pytest.raises(UsageError, match="has no user ''"):
        Demo(user="")


def test_a_job_that_is_not_there_is_said_once():
    with pytest.raises(UsageError, match=r"the demonstration has no job 999999 of alice; there are [0-9]"):
        Demo(jobs=("999999",), clock=lambda: NOW).read()
    others = next(str(job.job_id) for job in at(0).jobs if job.user != "alice")
    with pytest.raises(UsageError, match=f"has no job {others} of alice"):
        Demo(jobs=(others,), clock=lambda: NOW).read()
    times = [NOW, NOW + 1e6]
    demo = Demo(everybody=True, jobs=(at(0).jobs[0].job_id,), clock=lambda: times.pop(0))
    assert demo.read().nodes
    assert demo.read().jobs == ()


@pytest.mark.parametrize("count", [1, 2, 5, 1000])
def test_as_many_nodes_as_are_wanted(count):
    assert len({node.name for node in at(0, count=count).nodes}) == count


def test_a_job_has_the_gpu_figure_of_its_gpus():
    seen = [node.snapshot for node in Demo(user="alice", everybody=True).read().nodes if node.snapshot is not None]
    for one_node in seen:
        for one in (*one_node.jobs, *one_node.users):
            assert one.gpu_load == pytest.approx(one_node.sums.gpu_load, abs=1e-3)
    assert {one_node.sums.gpu_load_by for one_node in seen} >= {"sm", "util"}


def test_some_runs_have_booked_memory_and_hold_a_gpu_now_and_then():
    looks = [at(60 * minute) for minute in range(0, 180, 2)]
    gpus = [gpu for look in looks for node in look.nodes if node.snapshot for gpu in node.snapshot.gpus]
    booked = [gpu for gpu in gpus if gpu.booked_mib is not None]
    assert booked
    assert len(booked) < len(gpus)
    assert all(gpu.booked_mib == sum(one.booked_mib for one in gpu.bookings) for gpu in booked)
    assert all(gpu.booked_mib >= gpu.memory_used_mib - 420 for gpu in booked)
    held = [one for gpu in booked for one in gpu.bookings if one.held_for is not None]
    assert held
    assert len(held) < len(booked)


def test_some_tasks_are_measured_some_are_paused_and_some_report_nothing():
    found = [node for minute in range(11) for node in at(60 * minute).nodes if node.snapshot]
    told = {(one.progress is None, bool(one.progress and one.progress.is_paused))
            for node in found for one in node.snapshot.processes}  # fmt: skip
    assert told == {(True, False), (False, False), (False, True)}
    for node in found:
        progress = [one.progress for one in node.snapshot.processes if one.progress]
        assert not progress or all(gpu.simulated for gpu in node.snapshot.gpus)
        assert all(0 < one.speed_ratio <= 1 and one.rate_per_s > 0 for one in progress if one.rate_windows)
        assert all(job.progress is None or job.progress.tasks == len(progress) for job in node.snapshot.jobs)
