"""The history of load on a real cluster: archived where a shared job runs, and reported."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from subprocess import CompletedProcess

import pytest
from hooked import until

from localcluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.weekly, pytest.mark.weekly]

FOLDER = "/var/lib/slurm-share/archive"
WORK = "srun simgpu-task --memory 2G --load 30 --seconds 600"


@pytest.fixture
def sharing(cluster: Cluster) -> Iterator[int]:
    """Start four tasks of alice's, two on each GPU of n2."""
    cluster.exec("n2", ["rm", "-rf", FOLDER])  # others archive as well, and a quarter of an hour has one line of hers
    job = cluster.sbatch("alice", WORK, "--share-gpu=2", "-wn2")
    cluster.wait_running(job)
    until(lambda: _memory(cluster) >= 4 * 2048, "four tasks on the GPUs")
    yield job
    cluster.cancel_all()
    cluster.exec("n2", ["rm", "-rf", FOLDER])


def _memory(cluster: Cluster) -> int:
    seen = cluster.exec("n2", ["slurm-share", "sample", "--all"], check=True).stdout
    return sum(gpu["memory_used_mib"] for gpu in json.loads(seen)["gpus"])


def ran(cluster: Cluster, *words: str) -> CompletedProcess[str]:
    return cluster.exec("n2", ["slurm-share", *words])


def test_what_a_shared_job_does_is_archived_once_and_reported(cluster: Cluster, sharing: int) -> None:
    """One line of alice's however often the timer runs; hours, and nothing for others to read."""
    first = ran(cluster, "archive", "--source", "local")
    assert first.returncode == 0, first.stderr
    file = re.match(r"(\S+\.tsv): ", first.stdout)
    assert file, first.stdout
    lines = cluster.exec("n2", ["cat", file[1]], check=True).stdout.splitlines()
    found = dict(zip(lines[1].split("\t"), lines[-1].split("\t"), strict=True))
    assert (found["node"], found["user"], found["jobs"], found["cpus"], found["gpus"]) == ("n2", "alice", "1", "8", "2")
    assert int(found["gpu_memory_mib"]) >= 4 * 2048
    assert float(found["gpu_load"]) > 0

    # A quarter of an hour may have ended between the two; a third one then is in the same as the second.
    again = [ran(cluster, "archive", "--source", "local").stdout for _ in range(2)]
    assert any("0 lines added, 2 there already" in said for said in again), again

    told = ran(cluster, "report", "--all", "--from", lines[-1][:10], "--json")
    assert told.returncode == 0, told.stderr
    report = json.loads(told.stdout)
    (alice,) = report["users"]
    assert (alice["user"], report["skipped_lines"]) == ("alice", 0)
    assert 0 < alice["gpu_hours"] <= 0.75
    closed = cluster.as_user("alice", ["slurm-share", "report", "--all"], node="n2")
    assert (closed.returncode, closed.stdout) == (1, "")
    assert "root and the operators' group" in closed.stderr


def test_a_task_that_died_of_gpu_memory_counts_in_the_advice(cluster: Cluster) -> None:
    """Its own user's, by the results of the run; llload finds the folder by the job's script."""
    script = "#!/bin/bash\n[ $LLSUB_RANK = 0 ] && { echo CUDA out of memory; exit 1; }\n" + WORK.removeprefix("srun ")
    cluster.as_user("alice", "mkdir -p ~/died && cat > ~/died/task.sh && chmod +x ~/died/task.sh", input=script)
    try:
        cluster.as_user("alice", "cd ~/died && llsub ./task.sh '[1,4]' --options='-w n2'", check=True)
        results = "cat ~/died/LLSUB.1/p*/results.jsonl"
        until(lambda: "gpu memory" in cluster.as_user("alice", results).stdout, "a task's death in the results")
        told = cluster.as_user("alice", "llload --advise --json", check=True)
        (advice,) = json.loads(told.stdout)["advice"]
        assert any(line.startswith("1 task of it ran out of GPU memory") for line in advice["evidence"]), advice
    finally:
        cluster.cancel_all()
        cluster.as_user("alice", "rm -rf ~/died")
