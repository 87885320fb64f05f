"""The GPUs that Slurm gave the jobs of a node are in the agent's snapshot, and Slurm is asked once for each job."""

from __future__ import annotations

import threading

import pytest
from msgspec.structs import replace

from slurm_share.core.errors import CommandError
from slurm_share.load.agent.held import RETRY_S, HeldGpus
from slurm_share.load.snapshot import GpuLoad, JobLoad, Snapshot
from slurm_share.share.records import LedgerJob
from slurm_share.slurm.records import QueuedJob

GPUS = tuple(GpuLoad(uuid=f"GPU-{at}", index=at, name="A", minor=at) for at in range(4))
OLD_S = 60.0


def job(number=7, *, uid=2001, **more):
    return JobLoad(job=number, uid=uid, user="alice", **{"measured_s": OLD_S, **more})


def node(*jobs):
    return Snapshot(node="n1", taken=1.0, cpus=1, cores=1, gpus=GPUS, jobs=jobs)


def record(number=7, *, indexes=((1, 3),), **more):
    known = {"name": "a", "user": "alice", "uid": 2001, "partition": "p", "states": ("RUNNING",), "nodes": "n1"}
    return QueuedJob(job_id=number, gpu_indexes=indexes, **{**known, "node_count": 1, "gpus": 2, **more})


class Slurm:
    """A stand-in for squeue: it answers with given jobs, and keeps the numbers that it was asked for."""

    def __init__(self, *records):
        self.records = {one.job_id: one for one in records}
        self.asked = []
        self.is_silent = False
        self.now = 0.0
        self.held = HeldGpus(5.0, self.ask, lambda: self.now)

    def ask(self, number):
        self.asked.append(number)
        if self.is_silent:
            raise CommandError(("squeue",), 1, "no controller")
        return self.records.get(number)

    def look(self, *jobs, ledger=()):
        """Return the GPUs of each job after a sample, with every question before it answered."""
        for thread in threading.enumerate():
            if thread.name == "background call":
                thread.join(300)
        seen = self.held.filled(node(*jobs), {one.job_id: one for one in ledger})
        return [one.granted for one in seen.jobs]


def test_a_job_is_asked_about_once_when_it_has_been_here_for_a_minute():
    slurm = Slurm(record())
    assert (slurm.look(job(measured_s=59.0)), slurm.asked) == ([None], [])
    assert (slurm.look(job()), slurm.asked) == ([None], [7])
    assert [slurm.look(job()) for _ in range(3)] == [[("GPU-1", "GPU-3")]] * 3
    assert slurm.asked == [7]
    slurm.look()
    slurm.look(job())
    assert slurm.asked == [7, 7]  # it left, and the number came again


def test_one_question_at_a_time():
    slurm = Slurm(record(7), record(8, indexes=((0,),)))
    slurm.look(job(7), job(8))
    assert slurm.asked == [7]
    assert slurm.look(job(7), job(8)) == [("GPU-1", "GPU-3"), None]
    assert slurm.look(job(7), job(8)) == [("GPU-1", "GPU-3"), ("GPU-0",)]


def test_the_ledger_names_the_gpus_of_a_shared_job_at_once():
    slurm = Slurm(record())
    known = LedgerJob(job_id=7, uid=2001, share="2", gpus=("GPU-2",), slots=2, since=1.0)
    assert slurm.look(job(measured_s=0.0), ledger=[known]) == [("GPU-2",)]
    assert slurm.look(job(uid=2002, measured_s=0.0), ledger=[known]) == [None]
    assert slurm.look(job(), ledger=[replace(known, share="", gpus=())]) == [None]
    assert slurm.look(job(), ledger=[replace(known, share="", gpus=())]) == [("GPU-1", "GPU-3")]


@pytest.mark.parametrize(
    "told", [(), (record(uid=2002),), (record(indexes=None),), (record(indexes=None, has_shards=True),)]
)
def test_what_slurm_does_not_tell_is_not_known_and_not_asked_again(told):
    slurm = Slurm(*told)
    assert [slurm.look(job()) for _ in range(3)] == [[None]] * 3
    assert slurm.asked == [7]


def test_a_job_on_cpus_has_none():
    slurm = Slurm(record(indexes=(), gpus=0))
    slurm.look(job())
    assert slurm.look(job()) == [()]


def test_a_silent_controller_is_left_alone_for_ten_minutes(capfd):
    slurm = Slurm(record())
    slurm.is_silent = True
    for _ in range(3):
        assert slurm.look(job()) == [None]
    assert (slurm.asked, capfd.readouterr().err.count("which GPUs the jobs hold is not known")) == ([7], 1)
    slurm.is_silent, slurm.now = False, RETRY_S
    slurm.look(job())
    assert slurm.look(job()) == [("GPU-1", "GPU-3")]
