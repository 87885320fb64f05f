"""Shares without PrologFlags=Alloc: a node learns of a job with the job's first step there."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hooked import Node, completed, until, why_not_idle

from localcluster import Cluster
from slurm_share.core import names

pytestmark = [pytest.mark.cluster, pytest.mark.release]

SLOT = "bash -c 'echo slot $SLURM_SHARE_SLOT of $SLURM_SHARE_SLOTS on $SLURMD_NODENAME; env | sed -n /SPANK_/p'"
"""Prints a task's slot and what is left of the option in its environment: nothing."""


@pytest.fixture
def nodes(cluster: Cluster) -> Iterator[tuple[Node, Node]]:
    """Yield the two nodes with two GPUs, which stay in service."""
    here = Node(cluster, "n2"), Node(cluster, "n3")
    for node in here:
        node.forget_log()
        node.forget_refusals()
    yield here
    assert not cluster.settle()
    assert all(cluster.status().nodes[node.name] == "idle" for node in here), why_not_idle(cluster)
    assert [node.remains() for node in here] == [[], []]


def slots(text: str) -> list[str]:
    return sorted(re.findall(r"^slot (\S+ of \d+ on \S+)$", text, re.MULTILINE))


ALL = [f"{slot} of 4 on {node}" for slot in range(4) for node in ("n2", "n3")]


@pytest.mark.parametrize(
    ("shell", "first"),
    [("sbatch", "srun --share-gpu=off -N1 -n1 -wn3 true"), ("salloc", "srun --gres=none -N1 -n1 -wn3 true")],
    ids=["sbatch", "salloc"],
)
def test_a_first_step_without_a_slot_leaves_the_next_one_its_slots(
    cluster: Cluster, nodes: tuple[Node, Node], shell: str, first: str
) -> None:
    """The Prolog on n3 is told of the share by that srun, which has none itself; the next one needs the plan."""
    script = f"{first}\nsrun {SLOT}\n"
    if shell == "sbatch":
        text = completed(cluster, script, "--share-gpu=2", "-N2", "-wn[2-3]")
    else:
        done = cluster.as_user(
            "alice", ["salloc", "--share-gpu=2", "-N2", "-wn[2-3]", "bash", "-c", script], check=True
        )
        text = done.stdout
    assert slots(text) == sorted(ALL), text
    assert "SPANK_" not in text


def test_sruns_at_once_are_one_prolog(cluster: Cluster, nodes: tuple[Node, Node]) -> None:
    script = f"for i in 1 2 3; do srun -N1 -n1 -wn3 {SLOT} & done; wait"
    job = cluster.sbatch("alice", script, "--share-gpu=2", "-N2", "-wn[2-3]")
    assert cluster.wait(job) == "COMPLETED", cluster.output(job)
    assert len(slots(cluster.output(job))) == 3
    assert nodes[1].log().count(f"job {job} of uid 2001: 4 slots") == 1


def test_a_step_after_slurmd_began_anew_has_the_plan_of_the_first(cluster: Cluster, nodes: tuple[Node, Node]) -> None:
    script = f"srun {SLOT}; touch first; until [ -e second ]; do sleep 0.05; done; srun {SLOT}"
    cluster.as_user("alice", "rm -f first second", check=True)
    job = cluster.sbatch("alice", script, "--share-gpu=2", "-wn2")
    home = cluster.home / "alice"
    until((home / "first").exists, "the first step")
    nodes[0].run("bash", "-c", "kill $(cat /run/slurmd.pid); while pgrep -x slurmd; do sleep 0.05; done; slurmd")
    cluster.as_user("alice", "touch second", check=True)
    assert cluster.wait(job) == "COMPLETED", cluster.output(job)
    assert len(slots(cluster.output(job))) == 8
    assert nodes[0].log().count(f"job {job} of uid 2001: 4 slots") == 1


def test_an_allocation_without_a_step_leaves_nothing(cluster: Cluster, nodes: tuple[Node, Node]) -> None:
    cluster.as_user("alice", ["salloc", "--share-gpu=2", "-N2", "-wn[2-3]", "true"], check=True)
    assert "slots" not in "".join(node.log() for node in nodes)


def test_gpus_of_another_node_are_never_taken_for_this_ones(cluster: Cluster, nodes: tuple[Node, Node]) -> None:
    """For a step on n3 alone slurmd gives n3 the GPU that the job has on n2: the hook refuses it."""
    other = cluster.sbatch("alice", "sleep 600", "-wn2", "--gres=gpu:1", "-n1")
    cluster.wait_running(other)
    options = ("--share-gpu=2", "--gres=gpu:1", "-N2", "-n4", "-wn[2-3]")
    task = "bash -c 'echo \"$SLURMD_NODENAME $SLURM_SHARE_GPU_INDEX\"'"
    job = cluster.sbatch("alice", f"srun -N1 -n1 -wn3 {task}", *options)
    assert cluster.wait(job) == "FAILED"
    text = cluster.output(job)
    assert f"job {job} has other GPUs on node n3 than its plan there" in text
    assert "n3 1" not in text
    assert "n3 0\n" in completed(cluster, f"srun -N2 -n2 true; srun -N1 -n1 -wn3 {task}", *options)
    cluster.cancel_all()


def test_a_share_that_only_srun_tells_of_concerns_nobody_else(cluster: Cluster, nodes: tuple[Node, Node]) -> None:
    """In an ordinary job a forged option brings no slot, and another user's job runs on."""
    forged = "export SLURM_SHARE_JOB_ID=$SLURM_JOB_ID SLURM_SHARE_REQUEST=2;"
    plain = ("-pplain", "-n2", "-wn2", "--gres=gpu:1")
    other = cluster.sbatch("bob", "until [ -e go ]; do sleep 0.1; done; rm go", *plain)
    cluster.wait_running(other)
    done = cluster.as_user("alice", ["salloc", *plain, "bash", "-c", f"{forged} srun {SLOT}"])
    cluster.as_user("bob", "touch go", check=True)
    assert cluster.wait(other) == "COMPLETED"
    assert slots(done.stdout) == []
    assert f"exit code {names.EXIT_REFUSED}" in done.stderr
