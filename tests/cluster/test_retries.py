"""Attempts after a failed one: their own rank, and memory that it can use."""

from __future__ import annotations

import re

import pytest
from test_packing import USABLE_MIB, most_booked_mib
from test_triples_mode import Submitted

from localcluster import Cluster

pytestmark = pytest.mark.cluster


def test_a_retry_runs_as_its_own_rank_and_not_on_the_gpu_that_failed(cluster: Cluster) -> None:
    """Rank 3 reports an ECC error while the others run, and is tried again where the other GPU is free: out.3 is there,
    and each of the others once. With --local, where there is no GPU, it is an ordinary failure."""
    text = """#!/bin/bash
    if [ $LLSUB_TASK = 3 ] && [ $LLSUB_ATTEMPT = 1 ]; then
        echo "CUDA error: uncorrectable ECC error encountered"; exit 1
    fi
    sleep 1
    echo x >>out.$LLSUB_RANK
    """
    made = Submitted(cluster, text, "[1,4]", "--retries", "1")
    assert made.wait() == "COMPLETED", made.log()
    assert made.read("../out.*").split() == ["x"] * 4
    attempts = made.attempts()
    assert [len(tried) for _, tried in sorted(attempts.items())] == [1, 1, 1, 2]
    first, second = attempts[3]
    assert (first.outcome, second.outcome) == ("disturbed", "done")
    assert second.gpu != first.gpu
    assert re.search(r'task 3: its log says "uncorrectable ECC .*; no further task starts on GPU \d', made.log())
    local = f"mkdir {made.home}/local && cd {made.home}/local && llsub ../task.sh [1,4] --retries 1 --local"
    cluster.as_user("alice", local, check=True)
    for folder in ("..", "../local"):
        assert cluster.as_user("alice", f"cd {made.folder}/{folder} && cat out.[0-3]").stdout.split() == ["x"] * 4


NEEDS_6000_MIB = """#!/bin/bash
simgpu-task --memory 6000M --load 5 --seconds 3 && exit 0
echo "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 5.86 GiB."
exit 1
"""


def test_48_tasks_that_need_more_than_their_cap_are_all_done_with_retries(cluster: Cluster) -> None:
    """6,000 MiB each under caps of 3,323: with retries all are done, and no sum of caps exceeds a GPU."""
    words = ("[1,48,1]", "--options=-w n2")
    lost = Submitted(cluster, NEEDS_6000_MIB, *words)
    assert lost.wait() == "FAILED"
    first = [tried[-1] for tried in lost.attempts().values()]
    assert {(one.outcome, one.gpu_cap_mib) for one in first} == {("gpu memory", 3323)}, lost.log()
    reasons = {re.sub(", it used up to [0-9]+ MiB|( more)$", "", one.why.partition("; ")[2]) for one in first}
    assert reasons == {"its memory cap was 3323 MiB, it asked for 6001 MiB"}
    assert "write --share-gpu=mem=6G and at most 24 processes on a node, or --retries 2" in lost.log()

    made = Submitted(cluster, NEEDS_6000_MIB, *words, "--retries", "2")
    assert made.wait() == "COMPLETED", made.log()
    assert made.summary()["done"] == 48
    attempts = made.attempts()
    assert all([one.gpu_cap_mib for one in tried] == [3323, 6646] for tried in attempts.values()), made.log()
    assert all(booked <= USABLE_MIB for booked in most_booked_mib(made).values())


def test_a_cap_that_is_too_small_twice_is_none_the_third_time(cluster: Cluster) -> None:
    """60,000 MiB: twice its cap is not enough, a GPU alone is. For the others nothing changes."""
    text = """#!/bin/bash
    [ $LLSUB_TASK = 0 ] && exec simgpu-task --memory 60000M --seconds 1
    exec simgpu-task --memory 1000M --seconds 1
    """
    made = Submitted(cluster, text, "[1,6,1]", "--options=-w n2", "--retries", "2")
    assert made.wait() == "COMPLETED", made.log()
    attempts = made.attempts()
    assert [one.gpu_cap_mib for one in attempts[0]] == [26589, 53178, None]
    assert [one.outcome for one in attempts[0]] == ["gpu memory", "gpu memory", "done"]
    assert {(len(tried), tried[0].gpu_cap_mib) for task, tried in attempts.items() if task} == {(1, 26589)}


def test_slots_that_no_process_has_are_memory_for_retries(cluster: Cluster) -> None:
    """--share-gpu=2 and one process on each GPU: a retry has both slots of its GPU, and is the last."""
    text = """#!/bin/bash
    [ $LLSUB_TASK = 0 ] && exec simgpu-task --memory 60000M --seconds 0.5
    exec simgpu-task --memory 90000M --seconds 0.5
    """
    made = Submitted(cluster, text, "[1,2,1]", "--share-gpu=2", "--options=-w n2", "--retries", "3")
    assert made.wait() == "FAILED"
    attempts = made.attempts()
    assert [(one.outcome, one.gpu_cap_mib) for one in attempts[0]] == [("gpu memory", 39884), ("done", None)], (
        made.log()
    )
    assert [one.gpu_cap_mib for one in attempts[1]] == [39884, None]
    assert "alone on a GPU, where tasks can have 79769 MiB; make tasks smaller" in made.log()
    assert "--retries" not in made.log()


def test_when_the_first_ones_die_of_their_cap_the_others_start_with_a_larger_one(cluster: Cluster) -> None:
    """At most the eight of the first time die, and two more. Resumed, all have the larger cap at once."""
    text = "#!/bin/bash\nexec simgpu-task --memory 25000M --seconds 0.5\n"
    made = Submitted(cluster, text, "[1,8,1]", "--ntasks", "24", "--options=-w n2")
    assert made.wait() == "FAILED"
    attempts = made.attempts()
    assert {(one.outcome, one.gpu_cap_mib) for tried in attempts.values() for one in tried} == {
        ("gpu memory", 19942), ("done", 39884),
    }  # fmt: skip
    assert 14 <= made.summary()["done"] < 24
    assert "more than were done; tasks start with 39884 MiB, fewer at a time, until that changes" in made.log()
    made.resume()
    assert made.wait() == "COMPLETED", made.log()
    assert all(tried[-1].gpu_cap_mib == 39884 and len(tried) <= 2 for tried in made.attempts().values())


def test_the_sentence_counts_tasks_that_ran_alone_from_the_first(cluster: Cluster) -> None:
    """Eight tasks that need more than a GPU has: those that start after the first have failed have a GPU alone."""
    made = Submitted(
        cluster,
        "#!/bin/bash\nexec simgpu-task --memory 90G --seconds 0.1\n",
        "[1,4]",
        "--ntasks",
        "8",
        "--options=-w n2",
    )
    assert made.wait() == "FAILED"
    capped, alone = re.search(
        r"n2: (\d+) tasks ran out of GPU memory under a cap of 39884 MiB; .*; "
        r"(\d+) more ran out of GPU memory alone on a GPU",
        made.log(),
    ).groups()
    assert int(capped) + int(alone) == 8
    assert int(alone) > 0
