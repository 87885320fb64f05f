"""The command that llload's advice prints, run as it stands, makes the advised job."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from localcluster import Cluster

pytestmark = pytest.mark.cluster

FOLDER = "/home/alice/my runs"
WORK = "simgpu-task --memory 500M --load 2 --seconds 600 >/dev/null"
OTHERS = {
    "sbatch": f"#!/bin/bash\n#SBATCH --share-gpu=1\nsrun {WORK}\n",
    "llsub": f"#!/bin/bash\nexec {WORK} --processes 2\n",
}
CALLS = {
    "sbatch": ("sbatch -J wide -wn2 --share-gpu=8 task.sh 1 two", "sbatch -J wide -wn2 --share-gpu=4 task.sh 1 two"),
    "llsub": (
        "llsub ./task.sh '[1,16,1]' --options=-wn2 -- 'a b'",
        "llsub ./task.sh '[1,8,1]' --options=-wn2 -- 'a b'",
    ),
}


@pytest.fixture(autouse=True)
def empty_queue(cluster: Cluster) -> Iterator[None]:
    """End the jobs of each test and remove its folder."""
    yield
    cluster.cancel_all()
    cluster.as_user("alice", ["rm", "-rf", FOLDER])


def advice(cluster: Cluster, tasks: int) -> Any:
    for _ in range(100):
        told = cluster.as_user("alice", ["llload", "--advise", "--json"])
        found = json.loads(told.stdout)["advice"] if told.returncode == 0 else []
        if found and found[0]["now"] == tasks:
            return found[0]
        time.sleep(0.2)
    raise AssertionError(told.stdout + told.stderr)


@pytest.mark.parametrize("program", CALLS)
def test_the_line_to_submit_again_makes_the_job_that_was_advised(cluster: Cluster, program: str) -> None:
    """16 tasks on 8 cores are too many: half of them, with the job's own script, options and arguments."""
    called, wanted = CALLS[program]
    write = f"mkdir '{FOLDER}' && cd '{FOLDER}' && cat >task.sh && chmod +x task.sh && {called}"
    cluster.as_user("alice", write, input=OTHERS[program], check=True)
    first = advice(cluster, 16)
    assert (first["verdict"], first["next"], first["decided_by"]) == ("fewer", 8, "cores")
    clients = {bound["resource"]: bound for bound in first["bounds"]}["MPS clients"]
    assert clients["nppn"] == (48 if program == "llsub" else 96)  # two processes of a task are two clients
    if program == "sbatch" and cluster.slurm_version.startswith("24.11"):
        # slurmctld does not keep the line yet, and this cluster has no accounting: no half line, but what to change.
        assert (first["resubmit"], first["change"][0]) == ([], "--share-gpu=4")
        said = cluster.as_user("alice", ["llload", "--advise"], check=True).stdout
        assert "submit it as before, but with --share-gpu=4" in " ".join(said.split())
        return
    assert first["resubmit"] == [f"cd '{FOLDER}' && {wanted}"]
    cluster.cancel_all()
    cluster.as_user("alice", first["resubmit"][0], check=True)
    again = advice(cluster, 8)
    assert again["job"] != first["job"]
    assert again["verdict"] != "fewer"
