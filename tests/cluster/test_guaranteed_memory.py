"""`mem=8G:20G`, guaranteed memory and the most, through real Slurm where the driver is older than 615."""

from __future__ import annotations

import re

import pytest
from test_triples_mode import Submitted

from localcluster import Cluster

pytestmark = pytest.mark.cluster

NEEDS = r"mem=8192M:20480M needs driver 615 or newer, and this node has \d+"
"""The driver of the shared cluster."""
HOLDS_10_GIB = "#!/bin/bash\nexec simgpu-task --memory 10G --seconds 1\n"


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        ("20G:8G", "mem=8G:20G"),
        ("8G:8G", "mem=8G"),
        ("0:8G", "is not a size like 8G or 800M, at most 16T"),
        ("8:20G", "mem=8 would be 8 MiB, and a size below 512 needs its unit"),
        ("8G:99999999999T", "is not a size like 8G or 800M, at most 16T"),
        ("8G:", "is not a size like 8G or 800M, at most 16T"),
        ("1G:2G:3G", "is not a size like 8G or 800M, at most 16T"),
    ],
)
def test_sizes_that_cannot_be_are_refused_at_submission_with_a_sentence(cluster: Cluster, sizes: str, why: str) -> None:
    done = cluster.as_user("alice", f"sbatch --share-gpu=4,mem={sizes} --wrap true")
    assert done.returncode != 0
    assert why in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_tasks_of_srun_end_with_69_and_say_what_is_needed_and_what_to_write(cluster: Cluster) -> None:
    script = "srun -n2 touch ran; echo code $?; srun --share-gpu=off -n1 echo free"
    line = f"sbatch --parsable -o out -w n2 --share-gpu=4,mem=8G:20G --wrap '{script}'"
    job = int(cluster.as_user("alice", f"rm -rf range; mkdir range; cd range; {line}", check=True).stdout.split()[-1])
    assert cluster.wait(job) == "FAILED"
    out = cluster.as_user("alice", "cat range/out; ls range").stdout
    refused = (
        rf"job {job} cannot have its share on node n2: {NEEDS}: .*are refused, and run with mem=20480M or mem=8192M"
    )
    assert re.search(refused, out), out
    assert "code 69" in out
    assert "free" in out
    assert not re.search("^ran$", out, re.MULTILINE)


def test_more_guaranteed_memory_than_a_gpu_has_is_refused_with_what_fits(cluster: Cluster) -> None:
    line = "sbatch --parsable -o big.out -w n2 --share-gpu=8,mem=30G:40G --wrap 'srun -n1 true; echo code $?'"
    job = int(cluster.as_user("alice", line, check=True).stdout.split()[-1])
    assert cluster.wait(job) == "FAILED"
    out = cluster.as_user("alice", "cat big.out").stdout
    assert re.search(
        r"8 x 30720 MiB guaranteed is more than the \d+ MiB .*; ask for mem=\d+M:40960M or --share-gpu=2", out
    ), out
    assert "code 0" not in out


def test_llsub_books_the_first_number_and_caps_at_the_second(cluster: Cluster) -> None:
    made = Submitted(cluster, HOLDS_10_GIB, "[1,8,1]", "--options=-w n2", "--share-gpu=4,mem=8G:20G")
    assert made.wait() == "COMPLETED", made.log()
    assert {(one.outcome, one.gpu_cap_mib) for tried in made.attempts().values() for one in tried} == {("done", 20480)}
    said = f"{NEEDS}: llsub books 8192M of GPU memory for each task and takes 20480M as its cap"
    assert re.search(said, made.log()), made.log()


def test_llsub_local_says_once_that_the_first_number_is_a_booking(cluster: Cluster) -> None:
    line = "llsub ./task.sh [1,4,1] --local --share-gpu=4,mem=8G:20G"
    put = "rm -rf near; mkdir near; cd near; cat >task.sh; chmod 755 task.sh"
    cluster.as_user("alice", put, input=HOLDS_10_GIB, check=True)
    step = f"cd near; srun --immediate=60 -w n2 -N1 --exclusive --gres=gpu:1 bash -c '{line}'"
    done = cluster.as_user("alice", step)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert len(re.findall("8192M of GPU memory are booked for each task and 20480M are its cap", said)) == 1, said


def test_a_packed_run_books_the_guaranteed_part_of_each_task(cluster: Cluster) -> None:
    made = Submitted(cluster, HOLDS_10_GIB, "[1,8,1]", "--options=-w n2", "--pack", "--gpu-mem=8G:20G")
    assert made.wait() == "COMPLETED", made.log()
    ended = [one for tried in made.attempts().values() for one in tried]
    assert {(one.outcome, one.gpu_booked_mib, one.gpu_cap_mib) for one in ended} == {("done", 8192, 20480)}
    assert made.log().count("the driver guarantees tasks no memory on GPU") == 1
    explained = cluster.as_user("alice", f"slurm-share pack explain {made.folder} 0").stdout
    assert "8.0 GiB reserved, a cap of 20.0 GiB for each process" in explained
