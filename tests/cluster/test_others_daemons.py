"""MPS daemons of others on a node, programs that only look like one, and tasks that must have none."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator

import pytest
from hooked import LOG, Node, bobs_daemon, check_empty, configured, until

from localcluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.parametrize("cluster", ["26.05"], indirect=True)]

FIRST = 9301


@pytest.fixture
def node(cluster: Cluster) -> Iterator[Node]:
    """Yield n2, whose hooks the test calls; check afterwards that nothing is left on it."""
    node = Node(cluster, "n2")
    node.run("rm", "-f", LOG)
    yield node
    node.run("pkill", "-9", "-u", "alice,bob")
    node.run("pkill", "-9", "-f", "nvidia-cuda-mps")
    for job in node.jobs():
        node.epilog(job)
    check_empty(cluster, "n2")


@contextlib.contextmanager
def program_of_that_name(node: Node, target: str, words: str) -> Iterator[int]:
    """Start a program of bob's under the name of NVIDIA's control program; return its PID."""
    link = "/tmp/nvidia-cuda-mps-control"
    node.background(["bash", "-c", f"ln -s {target} {link}; sleep 600 | {link} {words}"], "bob")
    try:
        until(lambda: named(node), "a program of that name")
        (pid,) = named(node)
        yield pid
    finally:
        node.run("pkill", "-9", "-x", "nvidia-cuda-mps")
        node.run("rm", "-f", link)


def named(node: Node) -> list[int]:
    """Return processes whose kernel names are those of MPS."""
    return [int(word) for word in node.run("pgrep", "-x", "nvidia-cuda-mps").stdout.split()]


def test_su_under_the_name_of_mps_is_no_daemon_of_the_operators(node: Node) -> None:
    """Its effective uid is root's: alice has her MPS, and doctor sees no daemon."""
    with program_of_that_name(node, "/usr/bin/su", "-f alice") as pid:
        uids = node.run("grep", "^Uid:", f"/proc/{pid}/status").stdout.split()[1:]
        assert set(uids) == {"2002", "0"}, "not what this test is about"
        with node.job(FIRST):
            plan = node.plan(FIRST)
            said = node.run("slurm-share", "doctor", "--explain", "foreign-mps").stdout
            seen = node.run("slurm-share", "doctor").stdout
    assert "operators" not in plan
    assert node_slots(plan) == ["on", "on"]
    assert said
    assert f"MPS daemon {pid}" not in seen


def node_slots(plan: str) -> list[str]:
    words = [line.split() for line in plan.splitlines() if line.startswith("environment ")]
    return [
        word.removeprefix("SLURM_SHARE_MPS=") for line in words for word in line if word.startswith("SLURM_SHARE_MPS=")
    ]


def test_a_daemon_with_protocol_3_is_the_operators_and_doctor_says_how_to_end_it(node: Node) -> None:
    driver = ["env", "SIMMPS_DRIVER=615", "CUDA_MPS_LOG_DIRECTORY=/tmp"]
    done = node.run(*driver, "nvidia-cuda-mps-control", "-p", "3", "-d")
    assert done.returncode == 0, done.stdout
    try:
        (pid,) = named(node)
        with node.job(FIRST):
            plan = node.plan(FIRST)
            seen = node.run("slurm-share", "doctor").stdout
        assert node.run(*driver, "CUDA_MPS_PROTOCOL_VERSION=3", "nvidia-cuda-mps-control", "-q").returncode == 0
        until(lambda: not named(node), "its end")
    finally:
        node.run("pkill", "-9", "-x", "nvidia-cuda-mps")
        node.run("rm", "-rf", "/run/nvidia-mps", "/tmp/control.log", "/tmp/server.log")
    assert f"administrators runs already (process {pid}, /run/nvidia-mps)" in plan
    words = " ".join(seen.split())
    assert f"MPS daemon (protocol 3) {pid} of uid 0 in /run/nvidia-mps is not ours" in words
    assert "CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps nvidia-cuda-mps-control -q" in words


TASK = "echo partition ${CUDA_MPS_SM_PARTITION-none}; exec simgpu-task --seconds 0.1"


@pytest.mark.parametrize("way", ["mps=off", "without a server", "llsub", "llsub --local"])
def test_a_task_without_mps_is_no_client_of_bobs_daemon(cluster: Cluster, node: Node, way: str) -> None:
    """A partition that she names belongs to another daemon and is removed."""
    export = "export CUDA_MPS_SM_PARTITION=GPU-1/abc"
    with bobs_daemon(node), contextlib.ExitStack() as stack:
        if way.startswith("llsub"):
            more = "--local" if way == "llsub --local" else "-p plain --wait --options '-w n2 --gres=gpu:2'"
            line = f"mkdir run; cd run; printf '#!/bin/bash\\n%s\\n' {shlex.quote(TASK)} >task.sh; chmod +x task.sh"
            line += f"; {export}; llsub ./task.sh [1,2] {more}; cat LLSUB.1/p*/*.log.*; cd; rm -rf run"
            where = node.name if way == "llsub --local" else "login"
            done = cluster.as_user("alice", line, node=where)
            said = done.stdout + done.stderr
        else:
            if way == "without a server":
                stack.enter_context(node.fault("mps_fail"))
            share = "--share-gpu=2" + (",mps=off" if way == "mps=off" else "")
            job = cluster.sbatch(
                "alice", f"{export}\nsrun -n2 bash -c {shlex.quote(TASK)}", "-wn2", share, "--gres=gpu:1"
            )
            cluster.wait(job)
            said = cluster.output(job)
    assert said.count("mps off") == 2, said
    assert said.count("partition none") == 2, said
    if way in ("mps=off", "without a server"):
        assert said.count("CUDA_MPS_SM_PARTITION is removed from the tasks' environment") == 1


def test_what_is_done_in_a_users_name_has_his_primary_group(cluster: Cluster, node: Node) -> None:
    """The group with the number of her user id is not used, for the daemon or in the Epilog."""
    seen, program = "/tmp/groups", "/usr/local/bin/nvidia-cuda-mps-control"
    wrapper = f'#!/bin/bash\nid -G >>{seen}\nexec {program} "$@"\n'
    (cluster.root("n2") / "usr/local/bin/mps-with-groups").write_text(wrapper)
    node.run("chmod", "755", "/usr/local/bin/mps-with-groups")
    node.run("install", "-m", "666", "/dev/null", seen)
    node.run("cp", "-p", "/etc/passwd", "/root/passwd")
    node.run("sed", "-i", r"s/^\(alice:[^:]*:[0-9]*\):[0-9]*:/\1:100:/", "/etc/passwd")
    try:
        with configured(cluster, 'mps_control = "/usr/local/bin/mps-with-groups"'):
            with node.job(FIRST, SLURM_JOB_GID="100"):
                begun = node.run("cat", seen).stdout
                node.run("truncate", "-s0", seen)
            ended = node.run("cat", seen).stdout
    finally:
        node.run("cp", "-p", "/root/passwd", "/etc/passwd")
        node.run("rm", "-f", "/root/passwd", "/usr/local/bin/mps-with-groups", seen)
    assert set(begun.split()) == {"100"}
    assert set(ended.split()) == {"100"}
