"""Shares under MPS on a real Slurm: daemons, caps, what tasks see, and that nothing is left.

MPS is simulated; tests/gpu/ tests what only a real server can show (how a task dies at its cap, what an exclusive GPU
tells a program without MPS).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hooked import Node, configured, output_of, until

from localcluster import Cluster

pytestmark = pytest.mark.cluster

ENV = "srun bash -c 'env | grep -E \"^(CUDA_|SLURM_SHARE_)\" | sort | xargs echo task; exec simgpu-task --seconds 1'"
HOLD = "srun bash -c 'exec simgpu-task --memory 1G --seconds 600'"


@pytest.fixture
def node(cluster: Cluster) -> Node:
    return Node(cluster, "n2")


@pytest.fixture(autouse=True)
def nothing_remains(node: Node, cluster: Cluster) -> Iterator[None]:
    """Check after every test that no process, socket, file or compute mode of a job is left, and no node is drained."""
    yield
    cluster.cancel_all()
    assert node.remains() == []
    until(lambda: set(cluster.status().nodes.values()) == {"idle"}, "idle nodes")


def finish(cluster: Cluster, script: str, *options: str) -> tuple[str, str]:
    """Run a job of alice's on n2; return its last state and output."""
    job = cluster.sbatch("alice", script, "-wn2", *options)
    return cluster.wait(job), cluster.output(job)


def hold(cluster: Cluster, *options: str, tasks: int) -> int:
    """Start a job of alice's on n2 whose tasks stay on their GPUs until it is cancelled."""
    job = cluster.sbatch("alice", HOLD, "-wn2", *options)
    until(lambda: output_of(cluster, job).count("simgpu-task: host") >= tasks, f"{tasks} tasks on their GPUs")
    return job


def tasks(output: str) -> list[dict[str, str]]:
    """Return the environment of each task that ran `ENV`."""
    return [
        dict(word.split("=", 1) for word in line[5:].split()) for line in output.splitlines() if line[:5] == "task "
    ]


def test_each_task_goes_through_the_daemon_of_its_own_gpu(cluster: Cluster, node: Node) -> None:
    """Four tasks, two GPUs, two pipe directories; the server each task reached is its GPU's."""
    state, output = finish(cluster, ENV, "--share-gpu=2")
    found = tasks(output)
    assert state == "COMPLETED"
    assert len(found) == 4
    for task in found:
        short = task["CUDA_VISIBLE_DEVICES"].removeprefix("GPU-")
        assert task["CUDA_MPS_PIPE_DIRECTORY"].endswith(f"/mps/2001/{short[:8]}-{short[-6:]}")
        assert task["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=39884M"
        assert task["SLURM_SHARE_MPS"] == "on"
        assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in task
    assert {task["CUDA_VISIBLE_DEVICES"] for task in found} == {node.uuid(0), node.uuid(1)}
    servers = re.findall(r"gpu (\S+), .* mps server (\d+)", output)
    assert len(set(servers)) == 2 == len({server for _, server in servers})


@pytest.mark.weekly_on_v2
def test_daemons_and_servers_run_as_the_user_and_name_their_gpu_by_uuid(cluster: Cluster, node: Node) -> None:
    hold(cluster, "--share-gpu=2", tasks=4)
    for role in ("daemon", "server"):
        found = node.mps(role)
        assert {one.user for one in found} == {"alice"}
        assert sorted(one.gpu for one in found) == sorted([node.uuid(0), node.uuid(1)])


@pytest.mark.parametrize("share", ["2,mps=off", "1"])
def test_a_share_that_wants_no_mps_starts_none(cluster: Cluster, node: Node, share: str) -> None:
    """Where CUDA looks for a daemon there is an empty folder of root's."""
    node.forget_log()
    _, output = finish(cluster, ENV, f"--share-gpu={share}", "--gres=gpu:1")
    assert {task["SLURM_SHARE_MPS"] for task in tasks(output)} == {"off"}
    assert {task["CUDA_MPS_PIPE_DIRECTORY"] for task in tasks(output)} == {"/run/slurm-share/no-mps"}
    assert "CUDA_MPS_PINNED" not in output
    assert node.run("stat", "-c", "%U %a", "/run/slurm-share/no-mps").stdout == "root 711\n"
    assert "without MPS" not in output
    assert "MPS daemon" not in node.log()


@pytest.mark.weekly_on_v2
def test_a_task_that_takes_more_than_its_cap_ends_alone(cluster: Cluster, node: Node) -> None:
    """Slot 1 asks for 30 GiB of its 19: CUDA's out-of-memory for it, its siblings finish, the job says so."""
    script = """srun bash -c '[ $SLURM_SHARE_SLOT = 1 ] && size=30G || size=1G
        simgpu-task --memory $size --seconds 2; code=$?; echo slot $SLURM_SHARE_SLOT code $code; exit $code'"""
    job = cluster.sbatch("alice", script, "-wn2", "--share-gpu=4", "--gres=gpu:1")
    assert cluster.wait(job) == "FAILED"
    output = cluster.output(job)
    assert dict(re.findall(r"slot (\d) code (\d+)", output)) == {"0": "0", "1": "1", "2": "0", "3": "0"}
    assert output.count("CUDA_ERROR_OUT_OF_MEMORY (simulated): 30720 MiB is above the MPS limit of 19942 MiB") == 1
    assert "ExitCode=1:0" in cluster.job(job)


def test_where_mps_is_not_installed_a_share_goes_on_without_and_says_so_once(cluster: Cluster, node: Node) -> None:
    with configured(cluster, 'mps_control = "/usr/bin/nvidia-cuda-mps-control"'):
        state, output = finish(cluster, ENV, "--share-gpu=2", "--gres=gpu:1")
        assert state == "COMPLETED"
        assert output.count("shared without MPS: there is no /usr/bin/nvidia-cuda-mps-control on this node") == 1
        assert {task["SLURM_SHARE_MPS"] for task in tasks(output)} == {"off"}
        state, output = finish(cluster, ENV, "--share-gpu=2,mps=on", "--gres=gpu:1")
    assert state == "FAILED"
    assert "it asked for sharing=mps, and there is no /usr/bin/nvidia-cuda-mps-control on this node" in output


def test_mps_that_does_not_come_up_is_said_with_its_own_last_words(cluster: Cluster, node: Node) -> None:
    """Servers that end while they start: the share goes on without, mps=on is refused; no node is drained."""
    with node.fault("mps_fail"):
        state, output = finish(cluster, ENV, "--share-gpu=2", "--gres=gpu:1")
        assert state == "COMPLETED"
        assert output.count("is shared without MPS") == 1
        assert "no CUDA-capable device is detected" in output
        state, output = finish(cluster, ENV, "--share-gpu=2,mps=on", "--gres=gpu:1")
    assert state == "FAILED"
    assert "it asked for sharing=mps, and MPS did not start on GPU-5131" in output


@pytest.mark.weekly_on_v2
def test_each_gpus_daemon_ends_with_its_own_job(cluster: Cluster, node: Node) -> None:
    """Two jobs of alice on one node and different GPUs: the one that stays notices nothing."""
    jobs = [hold(cluster, "--share-gpu=2", "--gres=gpu:1", tasks=2) for _ in range(2)]
    before = {one.pid for role in ("daemon", "server") for one in node.mps(role)}
    assert len(before) == 4
    cluster.as_user("alice", ["scancel", str(jobs[0])], check=True)
    cluster.wait(jobs[0])
    after = {one.pid for role in ("daemon", "server") for one in node.mps(role)}
    files = (cluster.root("n2") / "run/simgpu/clients").iterdir()
    on_gpus = [file.name for file in files if node.alive(int(file.name.split(".")[0]))]
    assert len(after) == 2
    assert after < before
    assert len(on_gpus) == 3  # its two tasks and its server
    assert "CUDA_ERROR" not in output_of(cluster, jobs[1])


def test_an_exclusive_gpu_is_set_for_the_share_and_put_back_after_it(cluster: Cluster, node: Node) -> None:
    with configured(cluster, 'compute_mode = "exclusive_process"'):
        hold(cluster, "--share-gpu=2", "--gres=gpu:1", tasks=2)
        modes = [node.compute_mode(0), node.compute_mode(1)]
        remembered = [before["mode"] for before in node.ledger()["modes"]]
        cluster.cancel_all()
    assert sorted(modes) == ["0", "3"]
    assert remembered == [0]
    assert node.compute_mode(0) == node.compute_mode(1) == "0"


def test_a_program_that_goes_round_mps_fails_on_an_exclusive_gpu(cluster: Cluster, node: Node) -> None:
    """Without the pipe directory it would be alone with the server's GPU: CUDA says the device is not available."""
    script = "srun -n1 env -u CUDA_MPS_PIPE_DIRECTORY simgpu-task --seconds 1; echo code $?"
    with configured(cluster, 'compute_mode = "exclusive_process"'):
        _, output = finish(cluster, script, "--share-gpu=2", "--gres=gpu:1")
    assert "CUDA_ERROR_DEVICE_UNAVAILABLE" in output
    assert "code 1" in output


def test_a_gpu_whose_mps_failed_is_not_left_exclusive(cluster: Cluster, node: Node) -> None:
    """Its tasks share it as so many processes, which the exclusive mode would not let in."""
    with configured(cluster, 'compute_mode = "exclusive_process"'), node.fault("mps_fail"):
        state, output = finish(cluster, ENV, "--share-gpu=2", "--gres=gpu:1")
    assert state == "COMPLETED"
    assert output.count("mps off (simulated)") == 2
    assert node.ledger()["modes"] == []
