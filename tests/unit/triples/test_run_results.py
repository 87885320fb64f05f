"""Counting the tasks of running triples that ran out of GPU memory."""

from __future__ import annotations

import os

import pytest

from slurm_share.slurm.records import QueuedJob
from slurm_share.triples import result_files, run_folder
from slurm_share.triples.records import Ended, Run, Triple

RUN = Run(
    name="train.sh", command=("/bin/true",), cwd="/", triple=Triple(2, 8, 1), processes=16, tasks=16, log_folder="logs"
)


def ended(task, outcome, job="4711", **more):
    one = Ended(task=task, rank=task, attempt=1, outcome=outcome, node="n1", job=job, started=1.0, seconds=2.0, **more)
    return run_folder.render_ended(one)


@pytest.fixture
def folder(tmp_path):
    """A run on two nodes: three died in this job, one of them after a requeue; one in the job before."""
    (tmp_path / "run.json").write_bytes(run_folder.render_run(RUN))
    for node, lines in (
        ("p0-p7_n1", [ended(0, "gpu memory", "4000"), ended(0, "gpu memory"), ended(1, "done"), ended(2, "failed")]),
        ("p8-p15_n2", [ended(8, "gpu memory"), ended(9, "host memory"), ended(10, "gpu memory", "4711.1")]),
    ):
        (tmp_path / "logs" / node).mkdir(parents=True)
        (tmp_path / "logs" / node / "results.jsonl").write_bytes(b"".join(lines) + b'{"task": 3, "ra')
    return tmp_path


def job(folder, **more):
    """A running job of ours whose script is in that folder."""
    values = {"job_id": 4711, "name": "train.sh", "user": "alice", "uid": os.geteuid(), "partition": "gpu"}
    return QueuedJob(**{**values, "states": ("RUNNING",), "script": f"{folder}/launch.sh", **more})


def test_deaths_of_this_job_are_counted_over_its_nodes(folder):
    assert result_files.read_memory_failures([job(folder)], os.geteuid()) == {4711: 3}


def test_packed_tasks_that_get_more_memory_are_not_counted(folder):
    with open(folder / "logs" / "p8-p15_n2" / "results.jsonl", "wb") as file:
        file.write(ended(8, "gpu memory", gpu_booked_mib=768, again=True))
        file.write(ended(9, "gpu memory", gpu_booked_mib=768, again=False) + ended(10, "gpu memory", again=True))
    assert result_files.read_memory_failures([job(folder)], os.geteuid()) == {4711: 3}


def test_only_the_end_of_long_results_is_read(folder):
    with open(folder / "logs" / "p0-p7_n1" / "results.jsonl", "ab") as file:
        file.write(b"\n" + ended(1, "done") * 3000)
    assert result_files.read_memory_failures([job(folder)], os.geteuid()) == {4711: 2}


@pytest.mark.parametrize(
    "more",
    [{"uid": os.geteuid() + 1}, {"states": ("PENDING",)}, {"script": ""}, {"script": "launch.sh"}, {"job_id": 12}],
)
def test_what_is_not_ours_or_no_run_is_left_out(folder, more):
    assert result_files.read_memory_failures([job(folder, **more)], os.geteuid()) == {}


def test_a_folder_that_cannot_be_read_is_left_out(folder):
    assert result_files.read_memory_failures([job(folder / "gone")], os.geteuid()) == {}
    place = folder / "logs" / "p0-p7_n1" / "results.jsonl"
    place.unlink()
    os.mkfifo(place)
    assert result_files.read_memory_failures([job(folder)], os.geteuid()) == {}
    if os.geteuid() == 0:
        os.chown(folder / "run.json", 12345, -1)
        place.unlink()
        assert result_files.read_memory_failures([job(folder)], os.geteuid()) == {}
