"""The examples for HealthCheckProgram and for NHC: what they drain, what they leave alone, what brings a node back."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hooked import Node, slurm_conf, until

from localcluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.release]

EXAMPLES = Path(__file__).resolve().parents[2] / "packaging/share/examples"
PROGRAM = "/usr/local/sbin/slurm-share-health"
LOCK = "/run/slurm-share-health.lock"
MARK = "slurm-share-health: "
LINES = (f"HealthCheckProgram={PROGRAM}", "HealthCheckInterval=2", "HealthCheckNodeState=CYCLE,ANY")
NHC = 'die() { echo "$@"; exit 1; }; . /tmp/slurm-share.nhc; check_slurm_share && echo passed'
"""Runs the check as NHC does: `die` with an exit code and a sentence drains the node."""


@pytest.fixture
def nodes(cluster: Cluster) -> Iterator[list[Node]]:
    """Yield nodes with the programs; return all of them to service afterwards."""
    made = [Node(cluster, name) for name in ("n1", "n2", "n3")]
    for node in made:
        put(node, "slurm-share-health", PROGRAM)
        put(node, "slurm-share.nhc", "/tmp/slurm-share.nhc")
    yield made
    for node in made:
        node.run("rm", "-f", PROGRAM, "/tmp/slurm-share.nhc", "/tmp/doctor")
        node.run("flock", LOCK, "true")  # until one that slurmd has started is at its end
        if "DRAIN" in state(node)[0]:
            node.run("scontrol", "update", f"nodename={node.name}", "state=resume")
        until(lambda node=node: not re.search("DRAIN|RESPOND", state(node)[0]), f"{node.name} in service")


def put(node: Node, example: str, path: str) -> None:
    (node.cluster.root(node.name) / path[1:]).write_text((EXAMPLES / example).read_text())
    node.run("chmod", "755", path)


def state(node: Node) -> tuple[str, str]:
    """Return a node's state and reason from slurmctld."""
    said = node.run("scontrol", "-o", "show", "node", node.name).stdout
    found = re.search(r" State=(\S+)", said)
    reason = re.search(r" Reason=(.*?)(?: \[\w+@\S+\])?$", said.strip())
    assert found, said
    return found[1], reason[1] if reason else ""


def drained(node: Node) -> bool:
    return "DRAIN" in state(node)[0]


@contextlib.contextmanager
def doctor(node: Node, code: int, *lines: str) -> Iterator[None]:
    """Replace doctor with one that prints this."""
    text = "".join(f"echo '{line}'\n" for line in lines)
    (node.cluster.root(node.name) / "tmp/doctor").write_text(f"#!/bin/sh\n{text}exit {code}\n")
    node.run("chmod", "755", "/tmp/doctor")
    node.run("sed", "-i", "s|^DOCTOR=.*|DOCTOR=/tmp/doctor|", PROGRAM)
    try:
        yield
    finally:
        put(node, "slurm-share-health", PROGRAM)


def health(node: Node, *words: str) -> tuple[int, str]:
    """Run the program as slurmd starts it; return exit code and output."""
    done = node.run("env", "-i", f"SLURMD_NODENAME={node.name}", PROGRAM, *words)
    return done.returncode, (done.stdout + done.stderr).strip()


def test_a_node_with_a_broken_gpu_is_drained_and_comes_back(cluster: Cluster, nodes: list[Node]) -> None:
    """n2, of which doctor warns, runs a job; n3, which an administrator drained, stays so."""
    n1, n2, n3 = nodes
    n3.run("scontrol", "update", "nodename=n3", "state=drain", "reason=a new fan")
    assert n2.run("slurm-share", "doctor", "--quiet", "--role", "compute").returncode == 1
    with slurm_conf(cluster, *LINES):
        with n1.gpu_file(3, "lost=1"):
            until(lambda: drained(n1), "n1 being drained")
            assert state(n1)[1].startswith(f"{MARK}gpu-health: GPU 3 ")
            assert "GPU is lost" in state(n1)[1]
            until(lambda: "health_check failed" in n1.run("cat", "/var/log/slurm/slurmd.log").stdout, "slurmd's log")
            assert cluster.wait(cluster.sbatch("bob", "sleep 2", "-p", "plain", "-w", "n2")) == "COMPLETED"
            assert not drained(n2)
        until(lambda: not drained(n1), "n1 back in service")
        # a reason of ours that stayed would be taken for that of a later drain, which then would be undone as well
        assert not state(n1)[1].startswith(MARK)
        assert state(n3)[1] == "a new fan"
        assert drained(n3)
    assert cluster.wait(cluster.sbatch("alice", "true", "--share-gpu=1", "-w", "n1")) == "COMPLETED"


def test_an_administrators_drain_outlives_the_check(nodes: list[Node]) -> None:
    n1 = nodes[0]
    n1.run("scontrol", "update", "nodename=n1", "state=drain", "reason=mine")
    with n1.gpu_file(3, "lost=1"):
        assert health(n1)[0] == 1
        assert (drained(n1), state(n1)[1]) == (True, "mine")
    assert health(n1) == (0, "")
    assert (drained(n1), state(n1)[1]) == (True, "mine")


def test_one_check_at_a_time(nodes: list[Node]) -> None:
    """slurmd starts the next while one still runs: they would pile up on a busy node. --check answers all the same."""
    n1 = nodes[0]
    with n1.gpu_file(3, "lost=1"):
        done = n1.run("flock", LOCK, "env", "-i", f"SLURMD_NODENAME={n1.name}", PROGRAM)
        assert (done.returncode, done.stdout) == (0, "")
        assert not drained(n1)
        assert n1.run("flock", LOCK, PROGRAM, "--check").returncode == 2
    assert health(n1) == (0, "")


ANSWERS = [
    (0, (), (0, "")),
    (1, ("WARN gpu-health: a little", "WARN driver: a little"), (0, "")),
    (2, ("FAIL config: everybody has it", "WARN driver: a little"), (0, "")),
    (2, ("FAIL gpu-health-of-others: no", "FAIL mps-daemons: a user can do that"), (0, "")),
    (2, ("FAIL log: full", "FAIL driver: it is gone; reboot"), (2, "driver: it is gone; reboot")),
    (2, ("slurm-share doctor: there is no slurm.conf",), (0, "")),
]
"""Exit code and lines of doctor, and what the check makes of them."""


def test_only_what_fails_and_is_the_nodes_own_counts(nodes: list[Node]) -> None:
    """No warning, no other check, and not doctor's complaint about its command line, which ends with 2 as well."""
    for code, said, answer in ANSWERS:
        with doctor(nodes[0], code, *said):
            assert health(nodes[0], "--check") == answer
            passed = nodes[0].run("bash", "-c", NHC)
            assert (passed.stdout == "passed\n") == (answer[0] == 0), said
            assert answer[1] in passed.stdout


def test_where_nothing_is_known_nothing_is_done(cluster: Cluster, nodes: list[Node]) -> None:
    n1 = nodes[0]
    with doctor(n1, 3, "a defect"):
        code, said = health(n1)
        assert (code, said) == (1, "slurm-share-health: doctor ended with 3, so the state is unknown: a defect")
        assert n1.run("bash", "-c", NHC).stdout == "passed\n"
    with n1.gpu_file(3, "lost=1"):
        n1.run("sed", "-i", "s|^DOCTOR=.*|DOCTOR=/nowhere/slurm-share|", PROGRAM)
        assert health(n1) == (0, "")
        put(n1, "slurm-share-health", PROGRAM)
        done = cluster.as_user("alice", [PROGRAM], node="n1")
        assert (done.returncode, done.stdout) == (1, "")
        assert "only root" in done.stderr
    assert not drained(n1)
