"""Slurm's accounts: sacct's text of 26.05, and text that users wrote to mislead."""

from __future__ import annotations

import pytest

from slurm_share.slurm import accounts

D = "XX9"
SHARE = (
    "1XX91XX9aliceXX92001XX9COMPLETEDXX90:0XX91795971639XX91795971640XX91795971649XX99XX95XX916XX91XX9XX9n1XX9"
    "00:00.266XX916000MXX9XX9billing=1,cpu=1,mem=16000M,node=1XX9"
    "billing=16,cpu=16,gres/gpu:simulated=4,gres/gpu=4,mem=16000M,node=1XX90XX90XX9gpuXX9/home/aliceXX9"
    "sbatch --share-gpu=2 s.shXX9we|rd\nna<script>XX9share-gpu=2XX9XX9XX9\n"
)
STEPS = (
    "1.batchXX91.batchXX9XX9XX9COMPLETEDXX90:0XX91795971640XX91795971640XX91795971649XX99XX9XX916XX91XX91XX9n1XX9"
    "00:00.017XX9XX914516KXX9XX9cpu=16,gres/gpu=4,mem=16000M,node=1XX90XX9XX9XX9XX9XX9batchXX9XX9XX9XX9\n"
    "1.0XX91.0XX9XX9XX9COMPLETEDXX90:0XX91795971641XX91795971641XX91795971649XX98XX9XX916XX91XX98XX9n1XX9"
    "1-00:00:01XX9XX92.50GXX9XX9cpu=16XX90XX9XX9XX9XX9srun simgpu-taskXX9simgpu-taskXX9XX9XX9XX9\n"
)
ELEMENT = (
    "2_1XX93XX9bobXX92002XX9CANCELLED by 0XX91:9XX91795971639XX91795971640XX9UnknownXX92XX9UNLIMITEDXX91XX92XX9XX9"
    "n[2-3]XX9XX9500MXX9XX9billing=1,cpu=1,mem=1000M,node=2XX9billing=1,cpu=1,mem=1000M,node=2,energy=7XX9XX91XX9gpuXX9/XX9"
    "sbatch xXX9wrapXX9XX9XX9XX9\n"
)
WAITING = ELEMENT.replace("2_1XX93XX9", "2_[4-9]XX92_[4-9]XX9")


def test_a_job_has_the_sums_of_its_steps() -> None:
    (job,) = accounts.parse(SHARE + STEPS, D)
    assert (job.job, job.id, job.user, job.uid, job.state) == (1, "1", "alice", 2001, "COMPLETED")
    assert job.name == "we|rd\nna<script>"
    assert (job.start, job.end, job.elapsed_s, job.limit_s) == (1795971640, 1795971649, 9, 300)
    assert (job.cpus, job.gpus, job.asked_gpus, job.shards, job.tasks) == (16, 4, 0, 0, 8)
    assert job.cpu_s == pytest.approx(86401.017)
    assert (job.memory_asked_mib, job.memory_peak_mib) == (16000, 2560)
    assert (job.submit_line, job.admin_comment) == ("sbatch --share-gpu=2 s.sh", "share-gpu=2")
    assert job.energy_j is None


def test_an_element_that_runs_has_no_end_and_no_limit() -> None:
    (job,) = accounts.parse(ELEMENT, D)
    assert (job.job, job.id, job.array, job.state, job.signal) == (3, "2_1", "2", "CANCELLED", 9)
    assert (job.end, job.limit_s, job.nodes, job.runs) == (None, None, ("n2", "n3"), True)
    assert (job.memory_asked_mib, job.energy_j, job.restarts) == (500, 7.0, 1)


def test_elements_that_wait_are_left_out() -> None:
    assert accounts.parse(WAITING, D) == ()


def test_a_name_cannot_forge_a_record() -> None:
    """The word between fields is random, so that a name has no more than the delimiters of others."""
    forged = SHARE.replace("we|rd\nna<script>", "x|\n9|9|bob|2002|COMPLETED|")
    (job,) = accounts.parse(forged, D)
    assert (job.user, job.name) == ("alice", "x|\n9|9|bob|2002|COMPLETED|")
    assert accounts.parse("", D) == ()
    assert accounts.parse(SHARE[:40], D) == ()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("03:04.567", 184.567), ("02:03:04", 7384), ("1-02:03:04", 93784), ("", None), ("Unknown", None)],
)
def test_cpu_time_is_read(text: str, seconds: float | None) -> None:
    assert accounts.cpu_seconds(text) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(("text", "mib"), [("1K", 1), ("2.50G", 2560), ("500Mn", 500), ("1048577", 2), ("", None)])
def test_sizes_are_rounded_up_to_mib(text: str, mib: int | None) -> None:
    assert accounts.mib(text) == mib


def test_the_jobs_of_a_user_between_two_moments_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    import time

    time.tzset()
    words = accounts.argv(D, user="alice", since=1795971640, until=1795971649, steps=False)
    assert words[-4:] == [
        "--user=alice", "--starttime=2026-11-29T17:00:40", "--endtime=2026-11-29T17:00:49", "--allocations",
    ]  # fmt: skip
    assert accounts.argv(D, jobs=["4", "5_1"])[-1] == "--jobs=4,5_1"
