"""`slurm-share prove` and `slurm-share methods` on nodes with simulated drivers of several releases."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from clusters import ON_V2, cluster_of
from hooked import Node, configured, output_of, until

from localcluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("prove")]
ESCAPES = {"unset", "mangled", "wrong-pipe", "unseen-gpu", "fork", "vmm", "managed"}
"""The probes by which a task gets around the cap of MPS."""
LEFT = (
    "ls -d /run/slurm-share.prove /sys/fs/cgroup/slurm-share/uid_*/prove-* /sys/fs/cgroup/*/slurm-share/uid_*/prove-*"
)
"""Prints what a proof leaves, with exit code 0 if it leaves anything of all that."""


@pytest.fixture(scope="module", params=[620] if ON_V2 else [pytest.param(580, marks=pytest.mark.weekly), 615])
def cluster(request: pytest.FixtureRequest, can_make_clusters: None) -> Iterator[Cluster]:
    """Yield a cluster of one node whose simulated driver is of that release."""
    with cluster_of("prove", nodes=1, driver=request.param) as made:
        yield made


@pytest.fixture
def node(cluster: Cluster) -> Iterator[Node]:
    """Yield the node; check that nothing of a proof is left on it."""
    found = Node(cluster, "n1")
    yield found
    assert left(found) == ""


def left(node: Node) -> str:
    processes = node.run("pgrep", "-af", "simgpu-task --steps|prove/m/").stdout
    return node.run("bash", "-c", f"{LEFT} 2>/dev/null").stdout + processes


def proof(node: Node, *words: str, code: int = 0) -> dict[str, Any]:
    done = node.cluster.exec(node.name, ["slurm-share", "prove", "--yes", "--json", "-", *words])
    assert done.returncode == code, done.stdout + done.stderr
    assert "SIMULATED" in done.stderr
    return {one["promise"]: one for one in json.loads(done.stdout)["verdicts"]}


@pytest.mark.on_v2
def test_a_node_proves_what_its_driver_promises_and_shows_what_escapes_the_cap_of_mps(node: Node) -> None:
    found = proof(node)
    release = int(node.cluster.exec("n1", ["slurm-share", "methods", "--json"]).stdout.split('"driver": "')[1][:3])
    outcomes = {name: one["outcome"] for name, one in found.items()}
    for name in ("cap-under-mps", "sm-percentage", "fault-alone", "kill-alone", "daemon-gone"):
        assert outcomes[name] == "holds", found[name]
    for name in ("partition-needed", "partition-known", "partition-fault"):
        assert outcomes[name] == ("holds" if release >= 610 else "not on this driver"), found[name]
    memory = {name.removeprefix("memory-"): one for name, one in found.items() if name.startswith("memory-")}
    if release >= 615 and ON_V2:
        assert {name for name, one in memory.items() if one["outcome"] != "holds"} == {"managed"}
        assert outcomes["total"] == outcomes["elastic"] == "holds", (found["total"], found["elastic"])
        most = max(one["measured"]["got_mib"] / one["measured"]["cap_mib"] for name, one in memory.items()
                   if name != "managed")  # fmt: skip
        assert most <= 1.02
    else:
        assert {one["outcome"] for one in memory.values()} == {f"not on this {'node' if release >= 615 else 'driver'}"}
        escaped = {name for name, one in memory.items() if "here got" in one["why"]}
        assert escaped >= ESCAPES
    assert not any(one["outcome"] == "does not hold here" and one["is_promised"] for one in found.values())


@pytest.mark.weekly_on_v2
def test_a_namespace_of_protocol_3_keeps_its_caps_whatever_the_task_writes(cluster: Cluster, node: Node) -> None:
    with configured(cluster, "mps_protocol = 3"):
        found = proof(node, "--only", "namespace-memory,namespace-sm")
    outcomes = {one["outcome"] for one in found.values()}
    is_there = '"driver": "6' in cluster.exec("n1", ["slurm-share", "methods", "--json"]).stdout
    assert outcomes == ({"holds"} if is_there else {"not on this driver"}), found


@pytest.mark.weekly_on_v2
def test_a_node_in_use_is_refused_and_its_job_goes_on(cluster: Cluster, node: Node) -> None:
    job = cluster.sbatch("alice", "echo up; sleep 600", "-wn1", "--share-gpu=2", "--gres=gpu:1")
    until(lambda: "up" in output_of(cluster, job), "the job's first word")
    done = cluster.exec("n1", ["slurm-share", "prove", "--yes"])
    assert done.returncode == 2
    assert f"job {job} runs here; a proof needs an idle node" in done.stderr
    cluster.exec("ctl", ["scancel", str(job)])
    cluster.wait(job)


@pytest.mark.weekly_on_v2
@pytest.mark.parametrize("how", ["INT", "KILL"])
def test_a_proof_that_is_interrupted_leaves_nothing_for_long(node: Node, how: str) -> None:
    script = f"slurm-share prove --yes --only daemon-gone,kill-alone & sleep 2.5; kill -{how} $!; wait $!; echo over"
    assert "over" in node.run("bash", "-c", script).stdout
    until(lambda: "--steps" not in left(node), "the end of its programs", lambda: left(node))
    if how == "KILL":
        assert left(node) != ""
    assert proof(node, "--only", "total")["total"]["outcome"] != "does not hold here"


@pytest.mark.weekly_on_v2
def test_a_user_may_ask_for_the_methods_in_a_job_and_not_for_a_proof(cluster: Cluster, node: Node) -> None:
    job = cluster.sbatch("alice", "slurm-share methods; slurm-share prove --yes; echo code $?", "-wn1", "--gres=gpu:1")
    assert cluster.wait(job) == "COMPLETED"
    said = output_of(cluster, job)
    assert "MPS, sm=static" in said
    assert "prove is for root" in said
    assert "code 2" in said
