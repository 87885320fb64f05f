"""Idle GPU-hours of everybody's jobs."""

from __future__ import annotations

import pytest

from slurm_share.report import weeks
from slurm_share.report.records import JobReport
from slurm_share.report.rules.site_week import site_idle
from slurm_share.slurm.accounts import AccountedJob
from slurm_share.usage import EnergyUse, GpuUse, JobUse

HOUR = 3600.0


def job(number, user, *, hours=2.0, idle_h=None, joules=None, start=0.0):
    gpu = GpuUse(
        uuid="GPU-a",
        held_s=hours * HOUR,
        measured_s=None if idle_h is None else hours * HOUR,
        idle_s=None if idle_h is None else idle_h * HOUR,
        energy=None if joules is None else EnergyUse(joules=joules),
    )
    end = start + hours * HOUR
    use = JobUse(job=number, uid=1, node="n1", began=start, ended=end, gpus=(gpu,))
    account = AccountedJob(
        job=number, id=str(number), user=user, name="a|b", start=start, end=end, elapsed_s=hours * HOUR, gpus=1
    )
    return JobReport(title=str(number), starts=(account,), uses=(use,), now=1e6)


JOBS = [
    job(1, "alice", idle_h=0.5, joules=7200.0),
    job(2, "alice"),
    job(3, "bob", idle_h=1.5),
    job(4, "bob", hours=4.0, idle_h=4.0, start=8 * HOUR),
]


def test_the_user_and_the_job_with_the_most_idle_hours_come_first():
    found = site_idle(JOBS, 0.0, 12 * HOUR)
    assert [(one.user, one.jobs, one.gpu_h, one.idle_h) for one in found.users] == [
        ("bob", 2, 6.0, 5.5),
        ("alice", 2, 4.0, 0.5),
    ]
    assert [one.job for one in found.jobs] == ["4", "3", "1"]
    assert (found.gpu_h, found.measured_h, found.idle_h) == (10.0, 8.0, 6.0)
    assert [one.energy_j for one in found.users] == [None, 7200.0]


def test_the_part_of_a_job_in_the_period_counts():
    (bob,) = site_idle(JOBS, 10 * HOUR, 20 * HOUR).users
    assert (bob.user, bob.gpu_h, bob.idle_h) == ("bob", 2.0, pytest.approx(2.0))


def test_one_user_alone_and_what_is_unknown_are_said():
    found = site_idle(JOBS, 0.0, 12 * HOUR, "alice")
    assert [one.user for one in found.users] == ["alice"]
    lines = weeks.site_lines(found, 80)
    assert lines[0] == "GPU-hours by Slurm's accounts: 4.0 had, 0.50 idle, 2.0 unknown"
    assert weeks.site_lines(site_idle([], 0.0, 1.0), 80) == ["no job with GPUs ran in this time by Slurm's accounts"]
