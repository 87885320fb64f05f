"""`mem=18G:70G` where the driver holds the guaranteed part: real Slurm in cgroup v2, simulated driver 615.

Needs a kernel whose cgroup v2 has controllers (tests/kernel.sh).
"""

from __future__ import annotations

import pytest
from hooked import completed
from test_triples_mode import Submitted

from localcluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.release, pytest.mark.on_v2, pytest.mark.xdist_group("driver-caps")]

SHARE = "--share-gpu=4,mem=18G:70G"
LEAST_MIB, MOST_MIB, TAKEN_MIB = 18 * 1024, 70 * 1024, 60 * 1024
TERMINATED = "CUDA_ERROR_MPS_CLIENT_TERMINATED"
WORK = """#!/bin/bash
# the first task takes what is free, the others their guaranteed part after it
number=${LLSUB_TASK:-$SLURM_PROCID}
[ $number != 0 ] || exec simgpu-task --memory 60G --seconds 12
sleep 3
exec simgpu-task --memory 17G --seconds 3
"""
ONE = ("--gres=gpu:1", "--mem=2000")


@pytest.fixture(scope="module")
def made(capped: Cluster) -> Cluster:
    return capped


def test_tasks_within_their_guaranteed_part_go_on_and_the_one_above_ends(made: Cluster) -> None:
    made.as_user("alice", "cat > ~/work.sh; chmod +x ~/work.sh", input=WORK, check=True)
    said = completed(made, "srun -n4 ./work.sh 2>&1; true", SHARE, *ONE)
    assert said.count("memory 17408 MiB") == 3, said
    assert said.count(TERMINATED) == 1, said


@pytest.mark.parametrize(
    "words",
    [
        pytest.param((SHARE,), id="plain", marks=pytest.mark.weekly),
        pytest.param(("--pack", "--gpu-mem=18G:70G"), id="packed"),
    ],
)
def test_llsub_runs_the_task_above_its_guaranteed_part_again_free_with_more(
    made: Cluster, words: tuple[str, ...]
) -> None:
    run = Submitted(made, WORK, "[1,4,1]", "--options=--gres=gpu:1 --mem=2000", *words)
    assert run.wait() == "COMPLETED", run.log()
    attempts = run.attempts()
    assert [[one.outcome for one in attempts[task]] for task in (1, 2, 3)] == [["done"]] * 3, run.log()
    first, second = attempts[0]
    assert (first.outcome, first.gpu_guaranteed_mib, first.gpu_cap_mib) == ("disturbed", LEAST_MIB, MOST_MIB)
    assert "above its guaranteed 18.0 GiB when a neighbour needed its own" in first.why
    assert first.why.endswith("GiB guaranteed")
    assert (second.outcome, second.gpu_cap_mib) == ("done", MOST_MIB)
    assert TAKEN_MIB < second.gpu_guaranteed_mib < MOST_MIB
    assert "the driver guarantees tasks no memory" not in run.log()
