"""The hooks' helper on a real cluster: it serves shared jobs, and its failures cost no job and no node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hooked import Node, configured, resume, slurm_conf, until, why_not_idle

from localcluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.parametrize("cluster", ["26.05"], indirect=True)]

FOLDER = "/run/slurm-share.hooks"
SHARED = ("--share-gpu=2", "--gres=gpu:1", "--mem=200", "-wn1")


@pytest.fixture
def node(cluster: Cluster) -> Node:
    """Yield n1 with a helper that has read the current configuration."""
    found = Node(cluster, "n1")
    share(cluster)
    until(lambda: has_helper(found) and len(helpers(found)) == 1, "a helper")
    return found


@pytest.fixture(autouse=True)
def all_is_well(cluster: Cluster) -> Iterator[None]:
    """Check after each test that no node is drained and nothing is left."""
    yield
    cluster.settle()
    assert "n1" not in why_not_idle(cluster)
    assert Node(cluster, "n1").remains() == []


def helpers(node: Node) -> list[int]:
    return [int(word) for word in node.run("pgrep", "-x", "slurm-share-hoo").stdout.split()]


def has_helper(node: Node) -> bool:
    return node.run("test", "-S", f"{FOLDER}/socket").returncode == 0


def hooks_of(helper: int, node: Node) -> list[int]:
    """Return the processes that the helper has forked for hooks."""
    return [int(word) for word in node.run("pgrep", "-P", str(helper)).stdout.split()]


def doctor(node: Node) -> str:
    return node.run("slurm-share", "doctor", "--quiet", "--except", "modules").stdout


def ended_hooks(helper: int, node: Node) -> int:
    """Return the page faults of the helper's ended processes (cminflt, proc(5)): the number grows with each hook."""
    return int(node.run("cat", f"/proc/{helper}/stat").stdout.rpartition(")")[2].split()[8])


def start(cluster: Cluster) -> int:
    return cluster.sbatch("alice", "srun simgpu-task --seconds 1", *SHARED)


def is_shared(cluster: Cluster, job: int) -> None:
    """Check that the job was shared with MPS and has left nothing on the node."""
    assert cluster.wait(job) == "COMPLETED"
    assert "mps server" in cluster.output(job)
    until(lambda: cluster.exec("ctl", ["squeue", "-h"]).stdout == "", "the end of its Epilog")


def share(cluster: Cluster) -> None:
    is_shared(cluster, start(cluster))


def test_the_helper_runs_the_hooks_of_shared_jobs(cluster: Cluster, node: Node) -> None:
    """Prolog and Epilog; the same helper for one job after the other. It is root's, with no file of a job's."""
    (helper,) = helpers(node)
    before = ended_hooks(helper, node)
    node.forget_log()
    share(cluster)
    assert helpers(node) == [helper]
    assert ended_hooks(helper, node) > before
    assert [word in node.log() for word in ("under MPS", "its share is removed", "helper")] == [True, True, False]
    assert "hook-helper" not in doctor(node)
    files = node.run("bash", "-c", f"readlink /proc/{helper}/fd/*; stat -c %U /proc/{helper}").stdout.split()
    assert {file for file in files if file.startswith("/")} == {"/dev/null", f"{FOLDER}/lock"}
    assert files[-1] == "root"


@pytest.mark.weekly_on_v2
def test_a_helper_that_is_killed_costs_no_job(cluster: Cluster, node: Node) -> None:
    (first,) = helpers(node)
    node.run("kill", "-9", str(first))
    share(cluster)
    until(lambda: has_helper(node) and helpers(node) != [], "another helper")
    (second,) = helpers(node)
    assert second != first
    with node.fault("mps_slow", "2"):
        job = start(cluster)
        until(lambda: hooks_of(second, node), "a Prolog at work")
        node.run("kill", "-9", str(second))
        is_shared(cluster, job)
    until(lambda: has_helper(node) and helpers(node) not in ([], [second]), "a third one")


def test_a_stopped_helper_costs_a_second(cluster: Cluster, node: Node) -> None:
    (stopped,) = helpers(node)
    node.run("kill", "-STOP", str(stopped))
    share(cluster)
    assert not has_helper(node)
    assert f"WARN hook-helper: process {stopped} (slurm-share-hoo, uid 0, stopped) does not answer" in doctor(node)
    node.run("kill", "-CONT", str(stopped))
    until(lambda: stopped not in helpers(node), "its end")


def test_a_site_can_do_without(cluster: Cluster, node: Node) -> None:
    """The helper sees that the configuration is another one, and no hook starts the next."""
    with configured(cluster, "hook_helper = false"):
        share(cluster)
        until(lambda: helpers(node) == [], "its end")
        share(cluster)
        assert (helpers(node), has_helper(node)) == ([], False)
    share(cluster)
    until(lambda: has_helper(node), "a helper")


def test_a_prolog_that_slurmd_cuts_off_ends_in_the_helper(cluster: Cluster, node: Node) -> None:
    """Slurm drains the node, as for a Prolog that is its own program, and nothing runs on there."""
    (helper,) = helpers(node)
    with slurm_conf(cluster, "PrologEpilogTimeout=2"), node.fault("mps_slow", "600"):
        job = start(cluster)
        until(lambda: hooks_of(helper, node), "a Prolog at work")
        (prolog,) = hooks_of(helper, node)
        until(lambda: "Prolog error" in why_not_idle(cluster), "a node that Slurm has drained")
        until(lambda: not node.alive(prolog), "the end of the Prolog")
        cluster.exec("ctl", ["scancel", str(job)])
        until(lambda: cluster.exec("ctl", ["squeue", "-h"]).stdout == "", "the end of the job")
    resume(cluster, "n1")
    assert helpers(node) == [helper]
    share(cluster)
