"""Shares whose tasks have static partitions of their GPU's multiprocessors (SM), on a real Slurm; MPS is simulated."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Callable, Iterator

import pytest
from hooked import Node, check_empty, configured, end, output_of, slurm_conf, until

from localcluster import Cluster

pytestmark = pytest.mark.cluster

STATIC = "--share-gpu=4,sm=static"
SEEN = 'echo "task $SLURM_SHARE_SLOT ${CUDA_MPS_SM_PARTITION-none} ${SLURM_SHARE_SMS-none} $SLURM_SHARE_MPS"'
TASK = f"srun bash -c '{SEEN}; exec simgpu-task --seconds 1'"


@pytest.fixture(scope="module", autouse=True)
def patient(cluster: Cluster) -> Iterator[None]:
    """Give hooks and Slurm time for the daemons of two GPUs on a busy machine (maintain.md, section 3)."""
    with (
        slurm_conf(cluster, "BatchStartTimeout=60", "MessageTimeout=60"),
        configured(cluster, "hook_deadline_s = 40.0", "release_deadline_s = 40.0"),
    ):
        yield


@pytest.fixture
def node(cluster: Cluster) -> Iterator[Node]:
    found = Node(cluster, "n2")
    yield found
    cluster.cancel_all()
    check_empty(cluster, "n2")


Driver = Callable[[int], None]


@pytest.fixture
def driver(node: Node) -> Iterator[Driver]:
    """Give the node's simulated GPUs the driver of a release until the test ends."""
    with contextlib.ExitStack() as stack:
        yield lambda release: stack.enter_context(node.driver(release))


def finish(cluster: Cluster, script: str, *options: str) -> tuple[str, str]:
    job = cluster.sbatch("alice", script, "-wn2", *options)
    return cluster.wait(job), cluster.output(job)


def tasks(output: str) -> dict[int, tuple[str, str, str]]:
    """Return partition, SM and SLURM_SHARE_MPS of each task, by slot."""
    found = re.findall(r"^task (\d+) (\S+) (\S+) (\S+)$", output, re.MULTILINE)
    return {int(slot): (partition, sms, mps) for slot, partition, sms, mps in found}


@pytest.mark.weekly_on_v2
@pytest.mark.parametrize("release", [595, 610])
def test_each_task_has_a_partition_of_its_own(cluster: Cluster, node: Node, driver: Driver, release: int) -> None:
    """A user's own CUDA_MPS_SM_PARTITION is replaced, and named."""
    driver(release)
    state, output = finish(cluster, f"export CUDA_MPS_SM_PARTITION=GPU-1/a\n{TASK}", STATIC)
    assert state == "COMPLETED", output
    found = tasks(output)
    assert len({partition for partition, _, _ in found.values()}) == 8
    assert {(sms, mps) for _, sms, mps in found.values()} == {("24", "on")}
    assert {partition.partition("/")[0] for partition, _, _ in found.values()} == {node.uuid(0), node.uuid(1)}
    assert output.count("static partition of 24 SMs") == 8
    assert "CUDA_MPS_SM_PARTITION is removed from the tasks' environment" in output
    assert output.count("static: 4 tasks on GPU 0,1 with 24 SM each; 36 of 132 SM are in nobody's partition") == 1
    assert output.count("3 or 5 tasks on such a GPU would leave fewer of its SM idle") == 1
    assert ("a fault of a task ends only that task" in output) is (release == 610)


@pytest.mark.parametrize(
    ("release", "survive"), [pytest.param(595, set(), marks=pytest.mark.weekly), (610, {"0", "2", "3"})]
)
def test_a_fault_ends_only_its_own_partition_from_driver_610_on(
    cluster: Cluster, node: Node, driver: Driver, release: int, survive: set[str]
) -> None:
    driver(release)
    script = """srun -K0 bash -c '[ $SLURM_SHARE_SLOT = 1 ] && fault="--fault 3"
        simgpu-task $fault --seconds 8; echo slot $SLURM_SHARE_SLOT code $?'"""
    _, output = finish(cluster, script, STATIC, "--gres=gpu:1")
    codes = dict(re.findall(r"slot (\d) code (\d+)", output))
    assert {slot for slot, code in codes.items() if code == "0"} == survive
    assert len(codes) == 4


@pytest.mark.parametrize(
    ("release", "share", "why"),
    [
        (580, "4,sm=static", "sm=static needs driver 590 or newer, and this node has 580; ask for sm=even"),
        (595, "16,sm=static", "GPU 0 has none: it can have 15 at most (--share-gpu=15 or less); ask for sm=even"),
    ],
)
def test_a_user_who_asks_for_what_the_node_cannot_give_is_refused(
    cluster: Cluster, node: Node, driver: Driver, release: int, share: str, why: str
) -> None:
    driver(release)
    job = cluster.sbatch("alice", TASK, "-wn2", f"--share-gpu={share}", "--gres=gpu:1", "-n4")
    cluster.wait(job)
    output = cluster.output(job)
    assert "ExitCode=69:0" in cluster.job(job)
    assert f"cannot have --share-gpu={share} on n2: " in output
    assert why in output
    assert tasks(output) == {}


def test_the_sites_default_gives_partitions_and_falls_back_on_an_old_driver_with_one_line(
    cluster: Cluster, node: Node, driver: Driver
) -> None:
    script = f"srun bash -c '{SEEN}; echo percent $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE'"
    with configured(cluster, 'sm = "static"'):
        driver(580)
        state, output = finish(cluster, script, "--share-gpu=4", "--gres=gpu:1")
        assert state == "COMPLETED", output
        assert {seen[:2] for seen in tasks(output).values()} == {("none", "none")}
        assert output.count("percent 25\n") == 4
        assert output.count("the default of this site (sm=static): sm=static needs driver 590 or newer") == 1
        driver(595)
        state, output = finish(cluster, script, "--share-gpu=4", "--gres=gpu:1")
        assert state == "COMPLETED", output
        assert {seen[1:] for seen in tasks(output).values()} == {("24", "on")}
        assert len(re.findall(r"^percent$", output, re.MULTILINE)) == 4
        state, output = finish(cluster, script, "--share-gpu=16", "--gres=gpu:1", "-n4")
        assert state == "COMPLETED", output
        assert {seen[:2] for seen in tasks(output).values()} == {("none", "none")}
        assert output.count("it can have 15 at most") == 1


def test_jobs_with_parts_of_one_gpu_join_its_partitions_and_another_choice_is_said(
    cluster: Cluster, node: Node, driver: Driver
) -> None:
    driver(595)
    part = ("-wn2", "--gres=gpu:1", "-n1")
    hold = f"srun bash -c '{SEEN}; exec simgpu-task --seconds 600'"
    jobs = [cluster.sbatch("alice", hold, *part, STATIC) for _ in range(2)]
    for job in jobs:
        until(lambda job=job: "simgpu-task: host" in output_of(cluster, job), f"job {job} on its GPU")
    seen = [next(iter(tasks(output_of(cluster, job)).values())) for job in jobs]
    assert len({partition for partition, _, _ in seen}) == 2
    assert len(node.mps("daemon")) == 1
    state, output = finish(cluster, TASK, *part[1:], "--share-gpu=4,sm=even,mps=on")
    assert state == "FAILED"
    assert "serves only tasks with a static partition (sm=static)" in output
    state, output = finish(cluster, TASK, *part[1:], "--share-gpu=4")
    assert state == "COMPLETED", output
    assert "serves only tasks with a static partition (sm=static)" in output
    assert {seen[2] for seen in tasks(output).values()} == {"off"}
    for job in jobs:
        end(cluster, job)
    state, output = finish(cluster, TASK, *part[1:], "--share-gpu=4")
    assert state == "COMPLETED", output


def test_a_static_share_beside_a_job_without_partitions_is_refused_with_the_reason(
    cluster: Cluster, node: Node, driver: Driver
) -> None:
    driver(595)
    part = ("-wn2", "--gres=gpu:1", "-n1")
    job = cluster.sbatch("alice", "srun simgpu-task --seconds 600", *part, "--share-gpu=4")
    until(lambda: "simgpu-task: host" in output_of(cluster, job), "a job on its GPU")
    state, output = finish(cluster, TASK, *part[1:], STATIC)
    assert state == "FAILED"
    assert "was started without static partitions; ask for sm=even" in output


def test_a_step_without_a_share_runs_beside_the_partitions(cluster: Cluster, node: Node, driver: Driver) -> None:
    driver(595)
    script = f"srun -n1 --share-gpu=off --overlap bash -c '{SEEN}; simgpu-task --seconds 1'"
    state, output = finish(cluster, script, STATIC, "--gres=gpu:1")
    assert state == "COMPLETED", output
    assert re.search(r"^task  none none", output, re.MULTILINE), output
    assert "915" not in output


def test_a_task_whose_environment_was_cleared_gets_error_915(cluster: Cluster, node: Node, driver: Driver) -> None:
    driver(595)
    script = "srun -n1 env -u CUDA_MPS_SM_PARTITION simgpu-task --seconds 1"
    state, output = finish(cluster, script, STATIC, "--gres=gpu:1")
    assert state == "FAILED"
    assert "915" in output


def test_after_a_crash_of_the_daemon_the_next_job_has_new_partitions(
    cluster: Cluster, node: Node, driver: Driver
) -> None:
    driver(595)
    job = cluster.sbatch("alice", "srun -n4 simgpu-task --seconds 600", "-wn2", STATIC, "--gres=gpu:1")
    until(lambda: output_of(cluster, job).count("simgpu-task: host") == 4, "four tasks")
    (daemon,) = node.mps("daemon")
    node.run("kill", "-9", str(daemon.pid))
    end(cluster, job)
    state, output = finish(cluster, TASK, STATIC, "--gres=gpu:1")
    assert state == "COMPLETED", output
    assert len({partition for partition, _, _ in tasks(output).values()}) == 4


def test_a_prolog_that_is_killed_half_way_leaves_nothing_in_the_way(
    cluster: Cluster, node: Node, driver: Driver
) -> None:
    driver(595)
    with node.fault("mps_hang", "lspart"):
        pid = node.background(node.hook_argv("prolog", 4711, share="4,sm=static"))
        until(lambda: node.mps("daemon"), "a daemon of the Prolog")
        node.run("kill", f"-{signal.SIGKILL}", str(pid))
    node.epilog(4711, share="4,sm=static")
    assert node.mps("daemon") == []
    state, output = finish(cluster, TASK, STATIC, "--gres=gpu:1")
    assert state == "COMPLETED", output
    assert len(tasks(output)) == 4


def test_llsub_gives_each_process_the_partition_of_its_slot(cluster: Cluster, node: Node, driver: Driver) -> None:
    driver(610)
    cluster.as_user("alice", "rm -rf static; mkdir static", check=True)
    task = f"#!/bin/bash\n{SEEN}\nexec simgpu-task --seconds 1\n"
    cluster.as_user("alice", "cat > static/task.sh; chmod +x static/task.sh", input=task, check=True)
    words = "--share-gpu=sm=static --wait --options=-wn2 -g 1 ./task.sh '[1,3,1]'"
    done = cluster.as_user("alice", f"cd static; llsub {words}")
    assert done.returncode == 0, done.stdout + done.stderr
    logs = cluster.as_user("alice", "cat static/LLSUB.1/*/*.log* static/LLSUB.1/*log*").stdout
    found = tasks(logs)
    assert len({partition for partition, _, _ in found.values()}) == 3, logs
    assert {sms for _, sms, _ in found.values()} == {"40"}
