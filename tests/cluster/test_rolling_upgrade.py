"""A rolling upgrade of Slurm under shared jobs: the controller first, then node after node, then the login host.

Both plugin objects are on every host; the line in plugstack.conf leads to the one for the host's release, as with the
packages. No job is lost or run twice, no node is drained, nothing of a share is left.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from clusters import WANTED, name_for
from hooked import Node, until, why_not_idle

from localcluster import Cluster
from localcluster.records import CURRENT, STABLE

pytestmark = pytest.mark.cluster

OLDER, NEWER = STABLE, CURRENT
SLOT = "$SLURM_SHARE_SLOT/$SLURM_SHARE_SLOTS $SLURM_SHARE_MPS"
STAY = "until [ -e ~/go ]; do sleep 0.1; done"
SHARED = "env | grep -E '^(CUDA|SLURM_SHARE|XLA|TF)_' | sort | tr '\\n' ' '"
"""Prints the variables that a share sets for a task."""
TASK = f"""\
echo "before {SLOT}"
echo "first: $({SHARED})"
simgpu-task --memory 100M --seconds 600 & task=$!
{STAY}
kill -0 $task && kill $task && echo "after {SLOT}"
"""
SHARED_IN_QUOTES = SHARED.replace("'", "'\\''")
JOB = f"""\
#!/bin/bash
srun bash task.sh
srun bash -c 'echo "new step {SLOT}"; echo "second: $({SHARED_IN_QUOTES})"; simgpu-task --memory 100M --seconds 0.1'
"""
TRIPLE = f"#!/bin/bash\necho before; {STAY}; echo after\n"


@pytest.fixture(scope="module")
def rolling(can_make_clusters: None) -> Iterator[Cluster]:
    """Yield a cluster that starts with the older release."""
    if WANTED not in ("all", "usual"):
        pytest.skip("one release was asked for, and an upgrade takes two")
    with Cluster.up(name_for("rolling"), OLDER, upgrade_to=NEWER, nodes=4) as made:
        if made.ahead is None or made.ahead.release != NEWER:
            pytest.skip(f"NOT TESTED: Slurm {NEWER} cannot be made on this machine today")
        yield made


def output_of(cluster: Cluster, pattern: str) -> str:
    return cluster.as_user("alice", f"cat {pattern} 2>/dev/null").stdout


def versions(cluster: Cluster) -> dict[str, str]:
    """Return the version of each node's slurmd from the controller."""
    text = cluster.exec("ctl", ["sinfo", "-h", "-N", "-p", "gpu", "-o", "%N %v"], check=True).stdout
    return {node: version.rpartition(".")[0] for node, version in (line.split() for line in text.splitlines())}


def plugin(cluster: Cluster, host: str) -> str:
    """Return the object that plugstack.conf names."""
    return cluster.exec(host, ["readlink", "-f", "/usr/lib/slurm-share/share_gpu.so"], check=True).stdout.strip()


def environments(text: str, word: str) -> list[str]:
    """Return each task's environment without its rank, which follows Slurm's order of tasks and not the slot."""
    found = re.findall(rf"^{word} (CUDA_.*)$", text, re.MULTILINE)
    return sorted(re.sub(r"SLURM_SHARE_RANK=\S+ ", "", one) for one in found)


@pytest.mark.weekly
@pytest.mark.slow
def test_a_rolling_upgrade_loses_no_job_and_drains_no_node(rolling: Cluster) -> None:
    """Batch job, array of parts of GPUs, salloc and a triple run through it, and start steps after it."""
    for name, text in (("task.sh", TASK), ("job.sh", JOB), ("triple.sh", TRIPLE)):
        rolling.as_user("alice", f"cat >{name}; chmod +x {name}", input=text, check=True)
    whole = rolling.sbatch("alice", JOB, "-wn1", "--share-gpu=2", "-owhole.out")
    array = rolling.sbatch("alice", JOB, "-wn2", "--array=1-4", "--share-gpu=2", "--gres=gpu:1", "-n1", "-opart%a.out")
    rolling.as_user("alice", "setsid -f salloc -wn3 --share-gpu=2 ./job.sh >salloc.out 2>&1 </dev/null", check=True)
    rolling.as_user("alice", ["llsub", "./triple.sh", "[1,4,1]", "--options", "-w n4"], check=True)
    until(lambda: output_of(rolling, "whole.out").count("before ") == 8, "the batch job's tasks")
    until(lambda: output_of(rolling, "part?.out").count("before ") == 4, "the array's tasks")
    until(lambda: output_of(rolling, "salloc.out").count("before ") == 4, "the tasks of salloc")
    until(lambda: output_of(rolling, "LLSUB.1/p*/triple.sh.log.*").count("before") == 4, "the triple's processes")
    jobs = set(rolling.jobs())
    held = {node: [one.pid for one in Node(rolling, node).mps()] for node in rolling.compute_nodes}
    assert all(held[node] for node in ("n1", "n2", "n3", "n4"))

    rolling.upgrade("ctl")
    until(lambda: set(versions(rolling).values()) == {OLDER}, "the older slurmds' word to the newer slurmctld")
    for done, node in enumerate(rolling.compute_nodes, 1):
        assert plugin(rolling, node) == f"/usr/lib/slurm-share/{OLDER}/share_gpu.so"
        rolling.upgrade(node)
        assert plugin(rolling, node) == f"/usr/lib/slurm-share/{NEWER}/share_gpu.so"
        until(lambda done=done: list(versions(rolling).values()).count(NEWER) == done, f"{node}'s new version")
    # the older release's commands still ask for a share
    last = rolling.sbatch("alice", JOB, "-wn1", "--share-gpu=2", "-olast.out")
    rolling.upgrade("login")

    assert jobs <= set(rolling.jobs()), "a job was lost"
    assert {node: [one.pid for one in Node(rolling, node).mps()] for node in held} == held, "an MPS daemon was lost"
    assert set(rolling.status().nodes.values()) <= {"allocated", "mixed"}, why_not_idle(rolling)
    rolling.as_user("alice", ["touch", "go"], check=True)
    newest = rolling.sbatch("alice", JOB, "-wn2", "--share-gpu=2", "-onewest.out")
    for job in (whole, array, last, newest, *(int(one) for one in jobs if one.isdecimal())):
        assert rolling.wait(job) == "COMPLETED", f"{job}: {output_of(rolling, '*.out')}"
        assert set(re.findall(r" Restarts=(\d+)", rolling.job(job))) == {"0"}

    for file, slots, gpus in (("whole.out", 8, 4), ("salloc.out", 4, 2)):
        for word in ("before", "after", "new step"):
            found = re.findall(rf"^{word} (\d+)/{slots} on$", output_of(rolling, file), re.MULTILINE)
            assert sorted(map(int, found)) == list(range(slots)), f"{word}: {output_of(rolling, file)}"
        assert len(set(re.findall(r"gpu (GPU-\S+),", output_of(rolling, file)))) == gpus
        first = environments(output_of(rolling, file), "first:")
        assert len(first) == slots
        assert environments(output_of(rolling, file), "second:") == first, "a new step finds what the first one found"
    for word in ("before", "after", "new step"):
        assert len(re.findall(rf"^{word} [01]/\d+ on$", output_of(rolling, "part?.out"), re.MULTILINE)) == 4, word
    assert output_of(rolling, "LLSUB.1/p*/triple.sh.log.*").count("after") == 4
    assert output_of(rolling, "last.out").count("new step") == 8
    assert output_of(rolling, "newest.out").count("new step") == 4
    assert [left for node in rolling.compute_nodes for left in Node(rolling, node).remains()] == []
    assert set(rolling.status().nodes.values()) == {"idle"}, why_not_idle(rolling)
    assert "drain" not in rolling.exec("ctl", ["cat", "/var/log/slurm/slurmctld.log"]).stdout.lower()
