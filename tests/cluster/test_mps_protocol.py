"""Shares with `mps_protocol = 3` on a real Slurm: a namespace for each task. MPS is simulated."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import pytest
from hooked import Node, check_empty, configured, output_of, until

from localcluster import Cluster

pytestmark = pytest.mark.cluster

PROTOCOL_3 = "mps_protocol = 3"
MORE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=70G CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100"
SEEN = 'echo "task $SLURM_SHARE_SLOT $CUDA_MPS_PROTOCOL_VERSION $CUDA_MPS_PIPE_DIRECTORY"'
TASK = f"srun bash -c '{SEEN}; exec simgpu-task --seconds 1'"


@pytest.fixture
def node(cluster: Cluster) -> Iterator[Node]:
    """Return a node with driver 615 whose site has chosen protocol 3; check that nothing of a job remains."""
    found = Node(cluster, "n2")
    with contextlib.ExitStack() as stack:
        stack.enter_context(found.driver(615))
        stack.enter_context(configured(cluster, PROTOCOL_3))
        found.forget_log()
        yield found
        cluster.cancel_all()
        check_empty(cluster, "n2")
        assert found.mps() == found.mps("server") == []


def finish(cluster: Cluster, script: str, *options: str) -> tuple[str, str]:
    job = cluster.sbatch("alice", script, "-wn2", *options)
    return cluster.wait(job), cluster.output(job)


def tasks(output: str) -> dict[int, tuple[str, str]]:
    """Return protocol and pipe directory of each task, by slot."""
    found = re.findall(r"^task (\d+) (\S*) (\S+)$", output, re.MULTILINE)
    return {int(slot): (protocol, pipe) for slot, protocol, pipe in found}


def test_each_task_is_a_client_of_its_own_namespace(cluster: Cluster, node: Node) -> None:
    state, output = finish(cluster, TASK, "--share-gpu=2")
    assert state == "COMPLETED", output
    found = tasks(output)
    assert {protocol for protocol, _ in found.values()} == {"3"}
    assert len({pipe for _, pipe in found.values()}) == 4
    assert sorted(pipe.rpartition("/s/")[2] for _, pipe in found.values()) == ["slot_0", "slot_0", "slot_1", "slot_1"]
    assert len(set(re.findall(r"mps server (\d+)", output))) == 2
    assert node.log().count("started in") == 2
    assert node.log().count("with protocol 3") == 2


def test_a_task_cannot_raise_its_cap_by_its_environment(cluster: Cluster, node: Node) -> None:
    """The same with protocol 2 succeeds: its caps are nowhere else than in the task's environment."""
    script = f"srun -n1 env {MORE} simgpu-task --memory 20G --seconds 1; echo code $?"
    _, output = finish(cluster, script, "--share-gpu=4,mem=8G", "--gres=gpu:1")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in output
    assert "code 1" in output
    with configured(cluster, "mps_protocol = 2"):
        _, output = finish(cluster, script, "--share-gpu=4,mem=8G", "--gres=gpu:1")
    assert "code 0" in output, output


def test_a_fault_is_reported_and_the_next_job_gets_a_new_daemon(cluster: Cluster, node: Node) -> None:
    """One task's fault ends the others of its GPU, as with protocol 2."""
    script = """srun bash -c '[ $SLURM_SHARE_SLOT = 0 ] && fault="--fault 1"; simgpu-task $fault --seconds 20'"""
    state, output = finish(cluster, script, "--share-gpu=2", "--gres=gpu:1")
    assert state == "FAILED"
    assert "CUDA_ERROR" in output
    state, output = finish(cluster, TASK, "--share-gpu=2", "--gres=gpu:1")
    assert state == "COMPLETED", output
    assert {protocol for protocol, _ in tasks(output).values()} == {"3"}


def test_a_task_whose_daemon_was_killed_does_not_start_without_it(cluster: Cluster, node: Node) -> None:
    script = "srun -n1 simgpu-task --seconds 1; touch began; while [ ! -e go ]; do sleep 0.1; done; srun -n1 hostname"
    job = cluster.sbatch(
        "alice", f"cd $(mktemp -d /tmp/v3.XXXX); pwd; {script}", "-wn2", "--share-gpu=2", "--gres=gpu:1"
    )
    until(lambda: "simgpu-task: host" in output_of(cluster, job), "the first task")
    folder = next(line for line in output_of(cluster, job).splitlines() if line.startswith("/tmp/v3."))
    until(lambda: node.run("test", "-e", f"{folder}/began").returncode == 0, "the end of the first task")
    for one in node.mps():
        node.run("kill", "-KILL", str(one.pid))
    until(lambda: node.mps() == [], "the end of the daemon")
    node.run("touch", f"{folder}/go")
    assert cluster.wait(job) == "FAILED"
    assert "ExitCode=69:0" in cluster.job(job)
    node.run("rm", "-r", folder)


def test_a_second_job_on_the_gpu_gets_its_own_caps_beside_the_first(cluster: Cluster, node: Node) -> None:
    """Parts of a GPU: the daemon of the first job's task goes on, and has one namespace more."""
    hold = "srun bash -c 'exec simgpu-task --memory 1G --seconds 600'"
    parts = ("--gres=gpu:1", "-n1")
    first = cluster.sbatch("alice", hold, "-wn2", "--share-gpu=4,mem=8G", *parts)
    until(lambda: "simgpu-task: host" in output_of(cluster, first), "the first job's task")
    (daemon,) = node.mps()
    state, output = finish(cluster, TASK, "--share-gpu=4,mem=4G", *parts)
    assert state == "COMPLETED", output
    if "joined" not in node.log():
        pytest.skip("NOT TESTED: Slurm gave the second job another GPU")
    assert "namespace slot_1 was made" in node.log()
    assert [pipe.rpartition("/")[2] for _, pipe in tasks(output).values()] == ["slot_1"]
    assert daemon in node.mps()
    assert "CUDA_ERROR" not in output_of(cluster, first)


def test_a_node_with_an_older_driver_falls_back_and_says_so(cluster: Cluster, node: Node) -> None:
    with node.driver(580):
        state, output = finish(cluster, TASK, "--share-gpu=2", "--gres=gpu:1")
        said = node.run("slurm-share", "doctor").stdout
    assert state == "COMPLETED", output
    assert {protocol for protocol, _ in tasks(output).values()} == {"2"}
    why = "mps_protocol = 3 needs driver 615 or newer, and this node has 580: its daemons have 2"
    assert node.log().count(why) == 1
    assert f"mps-protocol: {why}" in said


def test_packed_tasks_have_the_caps_of_their_own_environment(cluster: Cluster, node: Node) -> None:
    script = f"""cd $(mktemp -d /tmp/v3.XXXX)
        printf '%s\\n' '#!/bin/sh' '{SEEN}' 'exec simgpu-task --memory 1G --seconds 1' > task.sh; chmod +x task.sh
        llsub --pack ./task.sh [1,2,1]; echo code $?; cat LLSUB.*/*.log* LLSUB.*/*/*.log*; rm -r $PWD"""
    state, output = finish(cluster, script, "--share-gpu=2", "--gres=gpu:1")
    assert "code 0" in output, (state, output)
