"""The failures that a node must survive: a test for each row of the table that can be shown with a hook.

Where slurmd cannot be made to do it (an Epilog twice, two hooks at once, a killed hook), the tests run the installed
hooks on n3 as slurmd does; everything else is a real job. A row whose docstring ends with "GPU." shows the stand-in's
behaviour; tests/gpu/ tests it on a real GPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from clusters import name_for
from hooked import (
    ALICE,
    BIN,
    BOB,
    PART,
    STATE,
    USER,
    Node,
    check_empty,
    completed,
    configured,
    end,
    of_release,
    output_of,
    requeue,
    resume,
    rewritten,
    until,
)

from localcluster import Cluster
from slurm_share.core import names

pytestmark = pytest.mark.cluster

FIRST, SECOND, THIRD, OTHER = 9001, 9002, 9003, 9004
"""Job numbers that Slurm does not reach here."""
ONE_GPU = ("--share-gpu=2", "--gres=gpu:1")


@pytest.fixture
def node(cluster: Cluster) -> Node:
    """Return n3, with two GPUs, whose hooks the tests call themselves."""
    return Node(cluster, "n3")


@pytest.fixture(autouse=True)
def nothing_remains(cluster: Cluster) -> Iterator[None]:
    """Check after every test that no job is left on n2 or n3, and that no node is drained."""
    for name in ("n2", "n3"):
        Node(cluster, name).forget_log()
    yield
    cluster.cancel_all()
    for name in ("n2", "n3"):
        Node(cluster, name).forget_refusals()
    states = cluster.status().nodes
    check_empty(cluster, "n2", "n3")
    assert set(states.values()) == {"idle"}


def start(cluster: Cluster, script: str, *options: str, user: str = "alice", say: str = "up", times: int = 1) -> int:
    """Start a job on n2 and wait until it has printed `say` so many times.

    Before that it removes the files for which such scripts wait: those of another test would let it run at once.
    """
    job = cluster.sbatch(user, f"rm -f go gone\n{script}", "-wn2", *options)
    until(lambda: output_of(cluster, job, user).count(say) >= times, f"{times} x {say!r} in job {job}'s output")
    return job


@contextlib.contextmanager
def killed(node: Node, which: str, job: int, when: str, **options: str | int | None) -> Iterator[None]:
    """Kill a hook once it has sent `when` to the simulated MPS, which does not answer."""
    with node.fault("mps_hang", when):
        pid = node.background(node.hook_argv(which, job, **options))  # type: ignore[arg-type]
        until(lambda: f"Cmd:{when}" in node.run("bash", "-c", f"cat {USER}/mps/*/*/logs/control.log").stdout, when)
        node.run("kill", "-9", str(pid))
        until(lambda: not node.alive(pid), "the hook's end")
    yield


# --- rows 1 to 5: hooks at once, twice, alone ----------------------------------------------------------------------


def test_row_01_prologs_at_once_share_one_daemon(node: Node) -> None:
    """A Prolog runs twice, and at once with that of another job of the user on the same GPU: one daemon, both jobs."""
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda job: node.prolog(job, **PART), [FIRST, SECOND, FIRST]))
    assert node.jobs() in ([FIRST, SECOND], [SECOND, FIRST])
    assert len(node.mps()) == len(node.mps("server")) == 1
    assert node.slot(FIRST, 0)["CUDA_MPS_PIPE_DIRECTORY"] == node.slot(SECOND, 0)["CUDA_MPS_PIPE_DIRECTORY"]
    assert node.log().count(" started in ") == 1
    assert node.log().count(" joined in ") == 2
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(node.epilog, [FIRST, SECOND]))


def test_row_02_an_epilog_without_a_prolog_does_nothing(node: Node) -> None:
    """After salloc and exit, or if another script kept our Prolog from running: exit 0, no state, no line."""
    node.epilog(FIRST)
    assert node.log() == ""
    assert node.jobs() == []


def test_row_03_a_second_epilog_takes_nothing_from_a_sibling(node: Node) -> None:
    """Before 26.05 an Epilog may run twice for a job: the second one finds nothing to do."""
    node.prolog(FIRST, **PART)
    node.prolog(SECOND, **PART)
    before = node.mps()
    for _ in range(3):
        node.epilog(FIRST)
    assert node.jobs() == [SECOND]
    assert node.mps() == before
    node.epilog(SECOND)


def test_row_04_the_first_of_two_jobs_ends_and_the_other_notices_nothing(node: Node) -> None:
    """Same user, same GPU: daemon, server, folder and the other job's client are untouched."""
    node.prolog(FIRST, **PART)
    node.prolog(SECOND, **PART)
    before = node.mps() + node.mps("server")
    task = node.task(SECOND)
    node.epilog(FIRST)
    assert node.mps() + node.mps("server") == before
    assert node.alive(task)
    node.epilog(SECOND)
    assert not node.alive(task)


def test_row_05_clients_that_are_still_there_are_told_before_the_daemon_ends(node: Node) -> None:
    """The last job's Epilog finds a client at work: it is terminated, so that quit does not wait for it. GPU."""
    with node.job(FIRST):
        node.task(FIRST)
    assert "quit in" in node.log()
    assert "1 clients ended" in node.log()
    assert "CUDA_ERROR_MPS_CLIENT_TERMINATED" in node.run("cat", "/tmp/out").stdout


def test_row_05_a_client_killed_in_flight_does_not_keep_the_daemon(node: Node) -> None:
    """Slurm killed the tasks before the Epilog, as it does; one is merely stopped, and takes no SIGTERM. GPU."""
    with node.job(FIRST):
        node.run("kill", "-9", str(node.task(FIRST)))
        node.run("kill", "-STOP", str(node.task(FIRST, 1)))


# --- rows 6 to 11: what stands in the way --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "commands", [pytest.param("quit", id="quit", marks=pytest.mark.weekly), pytest.param("", id="every command")]
)
@pytest.mark.parametrize("stubborn", [False, True], ids=["takes SIGTERM", "takes only SIGKILL"])
def test_row_06_a_daemon_that_never_answers_ends_by_signals(
    cluster: Cluster, node: Node, commands: str, stubborn: bool
) -> None:
    """`quit`, or every command, hangs for ever: the Epilog is over in its time, and the node is well."""
    with contextlib.ExitStack() as stack:
        if stubborn:
            stack.enter_context(node.fault("mps_stubborn"))
        with node.job(FIRST):
            stack.enter_context(node.fault("mps_hang", commands))
            stack.enter_context(configured(cluster, "release_deadline_s = 6.0"))
    assert ("SIGKILL in" if stubborn else "SIGTERM in") in node.log()


def test_row_07_state_of_an_earlier_boot_is_void(node: Node) -> None:
    """Jobs of before the restart are no longer here, and a daemon's leftovers of then are made anew."""
    node.prolog(FIRST)
    daemon, server = node.mps()[0], node.mps("server")[0]
    node.run("kill", "-9", str(daemon.pid), str(server.pid))
    node.run("sed", "-i", 's/"boot_id":"[^"]*"/"boot_id":"another"/', f"{STATE}/ledger")
    node.prolog(SECOND)
    assert node.jobs() == [SECOND]
    assert node.mps()[0].pid != daemon.pid
    node.hook("epilog", FIRST)
    node.epilog(SECOND)


def test_row_07_a_dead_daemons_folder_is_remade(node: Node) -> None:
    """Its sockets and pid file are there, nobody holds its lock: a fresh daemon in a fresh folder."""
    node.prolog(FIRST)
    pipe = node.mps()[0].pipe
    for one in node.mps() + node.mps("server"):
        node.run("kill", "-9", str(one.pid))
    node.run("touch", f"{pipe}/from-before")
    node.prolog(SECOND)
    assert node.run("ls", pipe).stdout.split().count("from-before") == 0
    assert len(node.mps()) == 1
    node.epilog(FIRST)
    node.epilog(SECOND)


def test_row_08_a_pid_that_means_another_process_is_never_signalled(node: Node) -> None:
    """The daemon is dead; its pid file, and the lock it held, name another program of the user."""
    with node.job(FIRST):
        pipe = node.mps()[0].pipe
        for one in node.mps() + node.mps("server"):
            node.run("kill", "-9", str(one.pid))
        holder = (
            f"import fcntl, time; f = open('{pipe}/control_lock', 'r+'); fcntl.lockf(f, fcntl.LOCK_EX); time.sleep(600)"
        )
        other = node.background(["python3", "-c", holder], "alice")
        node.run("bash", "-c", f"echo {other} > {pipe}/nvidia-cuda-mps-control.pid")
        until(lambda: f" {other} " in node.run("cat", "/proc/locks").stdout, "the other program's lock")
    alive = node.alive(other)
    node.run("kill", "-9", str(other))
    assert alive
    assert "was not ended" in node.log()
    with node.job(SECOND):
        pass  # her file system, which the other program held, goes with the next hook


def test_row_08_a_hook_is_known_by_its_start_and_not_by_its_number(node: Node) -> None:
    """A killed Epilog's pid now is that of another process: the next hook takes up what it left."""
    node.prolog(FIRST)
    with killed(node, "epilog", FIRST, "quit"):
        ledger = node.ledger()
        assert [one["job"]["job_id"] for one in ledger["leaving"]] == [FIRST]  # type: ignore[index]
        node.run("sed", "-i", 's/"hook":{"pid":[0-9]*,/"hook":{"pid":1,/', f"{STATE}/ledger")
        node.epilog(FIRST)


def plant_link(node: Node, pipe: str) -> None:
    node.run("mkdir", "-p", "-m711", os.path.dirname(pipe))  # noqa: PTH120
    node.run("ln", "-s", "/tmp/elsewhere", pipe)


def plant_parent_link(node: Node, pipe: str) -> None:
    node.run("mkdir", "-p", "-m711", f"{USER}/mps")
    node.run("ln", "-s", "/tmp/elsewhere", f"{USER}/mps/{ALICE}")


def plant_owner(node: Node, pipe: str) -> None:
    node.run("mkdir", "-p", "-m711", f"{USER}/mps/{ALICE}/x")
    node.run("chown", str(ALICE), f"{USER}/mps/{ALICE}")


@pytest.mark.parametrize("plant", [plant_link, plant_parent_link, plant_owner], ids=["link", "parent link", "owner"])
def test_row_09_nothing_is_written_through_a_planted_folder(node: Node, plant: object) -> None:
    """A link or a folder of another user is in the way: it is removed or taken, never followed."""
    short = node.uuid(0).removeprefix("GPU-")
    pipe = f"{USER}/mps/{ALICE}/{short[:8]}-{short[-6:]}"
    node.run("mkdir", "-p", "-m755", STATE)
    node.run("install", "-d", "-o", "bob", "-m755", "/tmp/elsewhere")
    try:
        plant(node, pipe)  # type: ignore[operator]
        with node.job(FIRST):
            target = node.run("find", "/tmp/elsewhere", "-mindepth", "1").stdout
            owner = node.run("stat", "-c", "%U %a", "/tmp/elsewhere").stdout
            task = node.slot(FIRST, 0)
    finally:
        node.run("rm", "-rf", f"{USER}/mps", "/tmp/elsewhere")
    assert target == ""
    assert owner == "bob 755\n"
    assert task["SLURM_SHARE_MPS"] == "on"


def test_row_09_what_a_user_does_to_his_own_folder_harms_nobody(node: Node) -> None:
    """Sockets removed, links and a thousand folders planted: the Epilog removes them and follows nothing."""
    node.prolog(FIRST)
    pipe = node.mps()[0].pipe
    mischief = f"""cd {pipe} && rm -f control* && ln -s /etc/passwd control && ln -s /etc etc
        ln -sf /etc/shadow logs/server.log
        python3 -c 'import os
for _ in range(1000): os.mkdir("d"); os.chdir("d")'"""
    node.cluster.as_user("alice", mischief, node=node.name, check=True)
    before = node.run("stat", "-c", "%a %U %s", "/etc", "/etc/passwd", "/etc/shadow").stdout
    node.epilog(FIRST)
    assert node.run("stat", "-c", "%a %U %s", "/etc", "/etc/passwd", "/etc/shadow").stdout == before


@pytest.mark.parametrize("silent", [False, True], ids=["well", "silent and stubborn"])
def test_row_10_a_previous_users_daemon_makes_way(node: Node, silent: bool) -> None:
    """bob's Epilog never came; alice's Prolog on the same GPU ends his daemon, by signals if need be, and client."""
    with contextlib.ExitStack() as stack:
        if silent:
            stack.enter_context(node.fault("mps_stubborn"))
        node.prolog(FIRST, uid=BOB)
        client = node.task(FIRST, user="bob")
    if silent:
        node.run("kill", "-STOP", str(node.mps()[0].pid))
    with node.job(SECOND):
        assert [one.user for one in node.mps() + node.mps("server")] == ["alice", "alice"]
        assert not node.alive(client)
        assert "job 9001 of uid 2002 ended without an Epilog" in node.log()


def test_row_11_an_operators_own_daemon_is_named_and_left_alone(node: Node) -> None:
    """Root runs an MPS daemon by hand: the share goes on without ours, mps=on is refused, theirs lives on."""
    environ = ["env", "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps", "CUDA_MPS_LOG_DIRECTORY=/tmp/nvidia-mps/logs"]
    node.run("install", "-d", "/tmp/nvidia-mps", "/tmp/nvidia-mps/logs")
    node.run(*environ, "nvidia-cuda-mps-control", "-d")
    theirs = node.mps()
    try:
        node.prolog(FIRST)
        node.prolog(SECOND, share="2,mps=on", gpus="1")
        plans = node.plan(FIRST), node.plan(SECOND)
        node.epilog(FIRST)
        node.epilog(SECOND)
        after = node.mps()
    finally:
        node.run("kill", "-9", *(str(one.pid) for one in node.mps()))
        node.run("rm", "-rf", "/tmp/nvidia-mps")
    sentence = f"an MPS daemon of this node's administrators runs already (process {theirs[0].pid}, /tmp/nvidia-mps)"
    assert f"note the GPUs are shared without MPS: {sentence}" in plans[0]
    assert f"it asked for sharing=mps, and {sentence}" in plans[1]
    assert after == theirs


# --- rows 12 to 16: in mid-job -------------------------------------------------------------------------------------


def test_row_12_a_server_in_fault_costs_its_own_gpu_only(node: Node) -> None:
    """A further job there goes without MPS and is told; when the fault is over, the next one has MPS. GPU."""
    node.prolog(FIRST)
    node.prolog(OTHER, gpus="1")
    before = {one.gpu: one.pid for one in node.mps()}
    with node.fault("mps_fault", node.uuid(0)):
        node.prolog(SECOND)
        assert "GPU 0 is shared without MPS" in node.plan(SECOND)
    node.prolog(THIRD)
    assert node.slot(THIRD, 0)["SLURM_SHARE_MPS"] == "on"
    assert {one.gpu: one.pid for one in node.mps()}[node.uuid(1)] == before[node.uuid(1)]
    for job in (FIRST, SECOND, THIRD, OTHER):
        node.epilog(job)


def test_row_12_a_server_in_fault_with_clients_is_not_restarted(cluster: Cluster, node: Node) -> None:
    """They may yet end by themselves: the coming job of the same user is told, and nobody is killed. GPU."""
    node.prolog(FIRST, **PART)
    task = node.task(FIRST)
    node.run("kill", "-STOP", str(task))  # it has not noticed yet
    node.run("kill", "-STOP", str(node.mps("server")[0].pid))
    before = node.mps() + node.mps("server")
    with node.fault("mps_fault"):
        node.prolog(SECOND, **PART)
        assert node.mps() + node.mps("server") == before
        assert node.alive(task)
    assert "is in FAULT" in node.plan(SECOND)
    node.epilog(SECOND)
    with configured(cluster, "release_deadline_s = 6.0"):
        node.epilog(FIRST)


def test_row_13_a_fatal_fault_of_one_task_stays_on_its_gpu(cluster: Cluster) -> None:
    """One daemon for each GPU: the tasks of GPU 0 fail together, those of GPU 1 finish. GPU."""
    script = """srun bash -c '[ $SLURM_SHARE_GPU_INDEX = 0 ] && seconds=600 || seconds=4
        simgpu-task --seconds $seconds; echo gpu $SLURM_SHARE_GPU_INDEX code $?'"""
    job = start(cluster, script, "--share-gpu=2", say="simgpu-task: host", times=4)
    node = Node(cluster, "n2")
    with node.fault("mps_fault", node.uuid(0)):
        cluster.wait(job)
    assert sorted(re.findall(r"gpu (\d) code (\d)", cluster.output(job))) == [("0", "1")] * 2 + [("1", "0")] * 2


@pytest.mark.weekly_on_v2
def test_rows_14_and_15_a_daemon_that_dies_in_mid_job_is_no_silent_loss(cluster: Cluster) -> None:
    """Later tasks are refused before their program runs: CUDA would go on without MPS. GPU."""
    script = """srun -n1 true && echo before
        until [ -e go ]; do sleep 0.1; done; rm go
        srun -n1 echo IT RAN; echo code $?"""
    job = start(cluster, script, "--share-gpu=2", "--gres=gpu:1", say="before")
    node = Node(cluster, "n2")
    # The daemon of the job before, of another test, may still be ending.
    until(lambda: len(node.mps()) == len(node.mps("server")) == 1, "this job's MPS alone", lambda: str(node.mps()))
    (daemon,) = node.mps()
    assert node.run("kill", "-9", str(daemon.pid)).returncode == 0
    assert len(node.mps("server")) == 1
    cluster.as_user("alice", ["touch", "go"], check=True)
    cluster.wait(job)
    output = cluster.output(job)
    assert "IT RAN" not in output
    assert f"code {names.EXIT_REFUSED}" in output
    assert "MPS" in output


def test_row_15_a_pipe_folder_of_the_users_own_is_not_believed(cluster: Cluster) -> None:
    """The script exports another one, without a daemon: the tasks are on MPS all the same."""
    script = (
        "export CUDA_MPS_PIPE_DIRECTORY=/tmp/nowhere CUDA_MPS_LOG_DIRECTORY=/tmp/nowhere\nsrun simgpu-task --seconds 1"
    )
    assert completed(cluster, script, "-wn2", *ONE_GPU).count("mps server") == 2


def test_row_15_a_task_that_cannot_see_the_pipe_does_not_begin(cluster: Cluster) -> None:
    """Another file system lies over her folder of MPS, as in a container or with private folders."""
    node = Node(cluster, "n2")
    script = "until [ -e go ]; do sleep 0.1; done; rm go; srun -n1 echo IT RAN; echo code $?"
    script += "; until [ -e gone ]; do sleep 0.1; done; rm gone"  # or its Epilog would not see the daemon either
    job = start(cluster, f"echo up\n{script}", *ONE_GPU)
    (daemon,) = node.mps()
    node.run("mount", "-t", "tmpfs", "tmpfs", daemon.pipe)
    try:
        cluster.as_user("alice", ["touch", "go"], check=True)
        until(lambda: "code" in output_of(cluster, job), "the step's end")
    finally:
        node.run("umount", daemon.pipe)
        cluster.as_user("alice", ["touch", "gone"], check=True)
    cluster.wait(job)
    output = cluster.output(job)
    assert f"code {names.EXIT_REFUSED}" in output
    assert "IT RAN" not in output
    assert "MPS" in output


def test_row_16_an_exclusive_gpu_outlives_no_killed_epilog(cluster: Cluster, node: Node) -> None:
    """The next hook of any job, here an ordinary one of bob's, ends the daemon and restores the mode."""
    with configured(cluster, 'compute_mode = "exclusive_process"'):
        node.prolog(FIRST)
        assert node.compute_mode() == "3"
        with killed(node, "epilog", FIRST, "quit"):
            assert node.compute_mode() == "3"
            node.prolog(SECOND, uid=BOB, share=None)
    assert node.compute_mode() == "0"
    assert "job 9001 of uid 2001: its clean-up is not finished: continuing it" in node.log()
    assert node.remains() == []


# --- rows 17 to 24: numbers, limits, requests, other scripts -------------------------------------------------------


@pytest.fixture
def twelve(node: Node) -> Iterator[list[str]]:
    """Give n3 twelve GPUs for the test; yield their UUIDs."""
    node.run("simgpu-init", "12", "--replace")
    yield [node.uuid(gpu) for gpu in range(12)]
    node.run("simgpu-init", "2", "--replace")


def test_row_17_gpus_are_known_by_number_and_by_uuid_however_many(node: Node, twelve: list[str]) -> None:
    """The plan names them by UUID, in Slurm's order, whatever CUDA_VISIBLE_DEVICES has."""
    for granted, gpus in (
        ("1", twelve[1:2]),
        ("11,3", [twelve[11], twelve[3]]),
        (",".join(map(str, range(12))), twelve),
        (twelve[1], twelve[1:2]),
        (",".join(reversed(twelve)), twelve[::-1]),
    ):
        with node.job(FIRST, gpus=granted, share="2,mps=off"):
            assert [node.slot(FIRST, slot)["CUDA_VISIBLE_DEVICES"] for slot in range(2 * len(gpus))] == gpus * 2


NOTHING = "Slurm granted the job no GPU here"
NOT_LISTED = "but the driver lists only 0, 1; an administrator must compare gres.conf with nvidia-smi -L"
UNLIKE_SLURM = "is not what slurmd writes there"


WRONG_GPUS = {
    NOTHING: ("", "NoDevFiles"),
    NOT_LISTED: ("2", "0,0", "GPU-00000000", "MIG-51313669-35eb-4d0f-8020-d08c2c3dd3d1", "MIG-GPU-5131/1/0"),
    UNLIKE_SLURM: ("-1", "gpu0", "0 1", "0,", "0,$(id)", "0," * 40_000 + "1"),
}


def test_row_17_what_names_no_gpu_of_the_node_is_said(node: Node) -> None:
    """A sentence for the job or for the log, no slot, no daemon."""
    for why, granted in [(why, granted) for why, words in WRONG_GPUS.items() for granted in words]:
        node.forget_log()
        with node.job(FIRST, gpus=granted):
            assert why in node.log(), granted[:20]
            assert (why in node.plan(FIRST)) == (why != UNLIKE_SLURM), granted[:20]
            assert "slot " not in node.plan(FIRST)
            assert node.mps() == []


def test_row_17_a_card_in_mig_mode_is_refused_with_a_way_out(node: Node) -> None:
    with node.gpu_file(1, "mig=1"):
        for granted in ("0,1", node.uuid(1)):
            with node.job(FIRST, gpus=granted):
                assert (
                    "GPU 1 is in MIG mode: work runs on its instances, which gres.conf lists; ask for those"
                    in node.plan(FIRST)
                )


def test_row_18_numbers_are_counted_once(cluster: Cluster) -> None:
    """A share of GPUs 2 and 3: daemon and task name them by UUID, and the task is on the GPU that its plan says."""
    node = Node(cluster, "n1")
    with node.job(FIRST, gpus="2,3"):
        assert sorted(one.gpu for one in node.mps()) == sorted([node.uuid(2), node.uuid(3)])
        for slot, gpu in ((0, 2), (1, 3)):
            node.task(FIRST, slot)
            assert f"gpu {node.uuid(gpu)}," in node.run("cat", "/tmp/out").stdout
    assert node.remains() == []


def test_row_19_more_clients_than_mps_takes_are_refused_with_the_arithmetic(node: Node) -> None:
    with node.job(FIRST, share="49"):
        assert "49 tasks on a GPU are more than the 48 clients that MPS supports with this driver" in node.plan(FIRST)
    for share, slots in (("48", 48), ("60,mps=off", 60)):
        with node.job(SECOND, share=share):
            assert f"slots {slots}" in node.plan(SECOND)


@pytest.fixture(scope="module")
def mixed(can_make_clusters: None) -> Iterator[Cluster]:
    """Yield a cluster whose node n2 has no GPUs, in the same partition as n1."""
    line = "NodeName=n2 CPUs=8 Boards=1 SocketsPerBoard=2 CoresPerSocket=4 ThreadsPerCore=1 RealMemory=8000"
    with Cluster.up(name_for("mixed"), nodes=2, slurm_conf_extra=line) as made:
        yield made


@pytest.mark.xdist_group("mixed")
@pytest.mark.parametrize("options", [["-wn2"], ["-wn2", "-n1"]], ids=" ".join)
def test_row_20_a_share_without_gpus_is_a_sentence_and_no_drain(mixed: Cluster, options: list[str]) -> None:
    """A node that has none: the job ends with the way out in its output, and nothing of it runs."""
    job = mixed.sbatch("alice", "echo begun; srun echo begun", "--share-gpu=2", *options)
    assert mixed.wait(job) == "FAILED"
    assert "Slurm granted the job no GPU here; ask for GPUs (--gres=gpu:1)" in mixed.output(job)
    assert "begun" not in mixed.output(job)
    assert f"ExitCode={names.EXIT_REFUSED}:0" in mixed.job(job)
    assert mixed.status().nodes == {"n1": "idle", "n2": "idle"}


@pytest.mark.xdist_group("mixed")
@pytest.mark.parametrize(
    ("form", "why"),
    [
        ("--gres=gpu:0", "--share-gpu=2 with no GPU shares nothing; ask for some, for example"),
        ("--gpus-per-node=0", "--share-gpu=2 with no GPU shares nothing; ask for some, for example"),
        ("--gres=gpu:1", "Requested node configuration is not available"),
    ],
)
def test_row_20_a_share_of_no_gpu_is_refused_at_once(mixed: Cluster, form: str, why: str) -> None:
    done = mixed.as_user("alice", ["sbatch", "-wn2", "--share-gpu=2", form, "--wrap=true"])
    assert done.returncode != 0
    assert why in done.stderr


HOSTILE = [
    "4;touch /tmp/hacked", "$(touch /tmp/hacked)", "4\ntouch /tmp/hacked", "-4", "%s%n", "../4", "4\u0660",
    "9" * 9999,
]  # fmt: skip


def test_row_21_a_hostile_value_reaches_no_shell_and_no_more_than_a_line(cluster: Cluster, node: Node) -> None:
    """Refused at submission, as option and as variable; the hook exits 0 and logs one bounded line."""
    for value in HOSTILE:
        for options, env in (
            ([f"--share-gpu={value}"], {}),
            ([], {"SLURM_SPANK__SLURM_SPANK_OPTION_share_gpu_share_gpu": value}),
        ):
            done = cluster.as_user("alice", ["sbatch", "--wrap=true", *options], env=env)
            assert (done.returncode, done.stdout) == (1, "") or (done.returncode, done.stdout) == (255, "")
            assert names.OPTION_FORM in done.stderr
            assert len(done.stderr) < 12_000
        node.forget_log()
        with node.job(FIRST, share=value):
            assert node.plan(FIRST) == ""
            assert re.fullmatch(r"\S+ prolog: job 9001 of uid 2001: not shared: .{1,400}\n", node.log())
    for host in ("ctl", "login", "n3"):
        assert cluster.exec(host, ["ls", "/tmp/hacked"]).returncode != 0


def test_row_22_srun_cannot_change_the_share_of_its_job(cluster: Cluster) -> None:
    """The Prolog has long decided: srun says so and what to do instead, no step begins, and the job goes on."""
    script = """srun -n1 --share-gpu=8 echo began; echo code $?
        srun bash -c 'echo slot $SLURM_SHARE_SLOT'"""
    job = cluster.sbatch("alice", script, "-wn2", "--share-gpu=2", "--gres=gpu:1")
    assert cluster.wait(job) == "COMPLETED"
    output = cluster.output(job)
    assert f"srun --share-gpu=8 cannot change job {job}: the share is fixed when the job is submitted" in output
    assert "--share-gpu=off runs this step without a slot" in output
    assert re.findall(r"code (\d+)|(began)", output) == [("255", "")]
    assert sorted(re.findall(r"slot \d", output)) == ["slot 0", "slot 1"]


@pytest.fixture
def other_epilog(cluster: Cluster) -> Iterator[None]:
    """Configure a folder of Epilogs in which another script fails before ours."""
    slurm_conf = cluster.conf / "slurm.conf"
    folder = cluster.conf / "epilog.d"
    folder.mkdir()
    (folder / "10-slurm-share").write_text(f"#!/bin/sh\nexec {BIN}epilog\n")
    (folder / "90-site").write_text("#!/bin/sh\necho the site script fails\nexit 1\n")
    for file in folder.iterdir():
        file.chmod(0o755)
    text = re.sub("^Epilog=.*$", "Epilog=/etc/slurm/epilog.d/*", slurm_conf.read_text(), flags=re.MULTILINE)
    with rewritten(slurm_conf, text):
        reconfigure(cluster)
        yield
    shutil.rmtree(folder)
    reconfigure(cluster)
    resume(cluster, "n2")


def reconfigure(cluster: Cluster) -> None:
    """Make the daemons read their configuration again."""
    cluster.exec("ctl", ["scontrol", "reconfigure"], check=True)
    until(lambda: "idle" in cluster.status().nodes["n1"], "nodes that answer")


@pytest.mark.weekly_on_v2
def test_row_23_an_epilog_that_never_ran_is_made_up_for_by_the_next_prolog(
    cluster: Cluster, other_epilog: None
) -> None:
    """Another script fails first and drains the node; then bob's Prolog ends alice's daemon."""
    node = Node(cluster, "n2")
    job = cluster.sbatch("alice", "srun true", "-wn2", "--share-gpu=2")
    assert cluster.wait(job) == "COMPLETED"
    until(lambda: "drain" in cluster.status().nodes["n2"], "the site script's drain")
    assert [one.user for one in node.mps()] == ["alice", "alice"]
    (cluster.conf / "epilog.d/90-site").unlink()
    resume(cluster, "n2")
    assert cluster.wait(cluster.sbatch("bob", "true", "-wn2", "-pplain", "--gres=gpu:2")) == "COMPLETED"
    assert f"job {job} of uid 2001 ended without an Epilog" in node.log()
    until(lambda: node.remains() == [], "a clean node, after the Epilog as well", node.log)


@pytest.fixture
def hook_folders(cluster: Cluster) -> Iterator[dict[str, Path]]:
    """Configure folders of Prologs and Epilogs, each with a link to our hook, as a package installs it."""
    slurm_conf = cluster.conf / "slurm.conf"
    folders = {which: cluster.conf / f"{which}.d" for which in ("prolog", "epilog")}
    for which, folder in folders.items():
        folder.mkdir()
        (folder / "zz-slurm-share").symlink_to(BIN + which)
    in_folders = "".join(f"{which.capitalize()}=/etc/slurm/{which}.d/*\n" for which in folders)
    with rewritten(slurm_conf, re.sub("(?m)^(Prolog|Epilog)=.*\n", "", slurm_conf.read_text()) + in_folders):
        reconfigure(cluster)
        yield folders
    for folder in folders.values():
        shutil.rmtree(folder)
    reconfigure(cluster)


def test_row_24_hooks_are_found_in_a_folder_of_hooks(cluster: Cluster, hook_folders: dict[str, Path]) -> None:
    for folder in hook_folders.values():
        (folder / "10-site").write_text("#!/bin/sh\n")
        (folder / "10-site").chmod(0o755)
    output = completed(cluster, "srun bash -c 'echo slot $SLURM_SHARE_SLOT'", "-wn2", *ONE_GPU)
    assert sorted(re.findall(r"slot \d", output)) == ["slot 0", "slot 1"]
    assert Node(cluster, "n2").remains() == []


@pytest.mark.parametrize(
    ("which", "spoilt"),
    [
        ("prolog", "empty"),
        pytest.param("prolog", "README", marks=pytest.mark.weekly),
        pytest.param("epilog", "empty", marks=pytest.mark.weekly),
        ("epilog", "zz-slurm-share"),
    ],
)
def test_row_24_slurmd_drains_a_node_whose_hooks_it_cannot_run(
    cluster: Cluster, hook_folders: dict[str, Path], which: str, spoilt: str
) -> None:
    """No hook can prevent that. With the folder in order, the next job runs."""
    node = Node(cluster, "n2")
    node.run("truncate", "-s0", "/var/log/slurm/slurmd.log")
    if spoilt != "README":
        (hook_folders[which] / "zz-slurm-share").unlink()
    if spoilt != "empty":  # a file that is not executable
        (hook_folders[which] / spoilt).write_text("#!/bin/sh\n")
    job = cluster.sbatch("alice", "srun true", "-wn2", *ONE_GPU)
    until(lambda: cluster.status().nodes["n2"].startswith("drain"), "slurmd's drain")
    reason = cluster.exec("ctl", ["scontrol", "-o", "show", "node", "n2"]).stdout
    assert f"Reason={which.capitalize()} error" in reason
    says = ": Unable to create list of paths" if spoilt == "empty" else " can not be executed"
    assert which + says in node.run("cat", "/var/log/slurm/slurmd.log").stdout
    cluster.exec("ctl", ["scancel", str(job)])
    cluster.settle()
    for file in hook_folders[which].iterdir():
        file.unlink()
    (hook_folders[which] / "zz-slurm-share").symlink_to(BIN + which)
    resume(cluster, "n2")
    assert completed(cluster, "srun simgpu-task --seconds 1", "-wn2", *ONE_GPU).count("mps server") == 2


# --- rows 25 to 28: slurmd and its ways ----------------------------------------------------------------------------


def test_row_25_daemons_hold_no_pipe_and_outlive_the_hooks_process_group(node: Node) -> None:
    """slurmd reads a hook's output to its end and then kills its process group."""
    script = """import os, signal, subprocess, sys
hook = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
hook.communicate(timeout=300)
for number in (signal.SIGTERM, signal.SIGKILL):
    try: os.killpg(hook.pid, number)
    except ProcessLookupError: pass
sys.exit(hook.returncode)"""
    done = node.run("python3", "-c", script, *node.hook_argv("prolog", FIRST))
    assert done.returncode == 0, done.stderr
    assert len(node.mps()) == len(node.mps("server")) == 1
    assert node.alive(node.task(FIRST))
    node.epilog(FIRST)


@pytest.fixture(scope="module")
def run_in_job(can_make_clusters: None) -> Iterator[Cluster]:
    """Yield a cluster whose Prolog runs inside the job."""
    with Cluster.up(name_for("runinjob"), nodes=1, slurm_conf_extra="PrologFlags=Alloc,Contain,RunInJob") as made:
        yield made


def test_row_26_prologflags_runinjob_is_recognised_by_name(run_in_job: Cluster) -> None:
    """The Prolog's daemons would be killed with the job's first step: none is started, and the job is told why."""
    output = completed(run_in_job, "srun -n2 bash -c 'echo mps $SLURM_SHARE_MPS'", "--share-gpu=2", "--gres=gpu:1")
    assert output.count("mps off") == 2
    assert output.count("PrologFlags=RunInJob") == 1
    assert Node(run_in_job, "n1").remains() == []
    assert run_in_job.status().nodes == {"n1": "idle"}


def test_row_27_a_slow_server_costs_mps_and_not_the_node(cluster: Cluster, node: Node) -> None:
    """The share goes on without MPS, nothing half-started stays, and the next job has MPS again."""
    with configured(cluster, "hook_deadline_s = 1.0"), node.fault("mps_slow", "30"):
        node.prolog(FIRST, gpus="0,1")
        assert node.plan(FIRST).count("is shared without MPS") == 2
        assert node.mps() + node.mps("server") == []
    node.epilog(FIRST)
    with node.job(SECOND):
        assert node.slot(SECOND, 0)["SLURM_SHARE_MPS"] == "on"


@pytest.mark.weekly_on_v2
def test_row_28_slurmd_restarts_in_mid_job(cluster: Cluster) -> None:
    """The daemon and the tasks live on; later steps find them; the Epilog of the new slurmd clears up."""
    script = """srun -n1 simgpu-task --seconds 1
        until [ -e go ]; do sleep 0.1; done; rm go
        srun simgpu-task --seconds 1"""
    job = start(cluster, script, "--share-gpu=2", "--gres=gpu:1", say="simgpu-task: host")
    node = Node(cluster, "n2")
    before = node.mps() + node.mps("server")
    node.run("bash", "-c", "pkill -x 'slurmd(-wlm)?'; while pgrep -x 'slurmd(-wlm)?'; do sleep 0.05; done; slurmd")
    cluster.as_user("alice", ["touch", "go"], check=True)
    assert cluster.wait(job) == "COMPLETED"
    assert cluster.output(job).count(f"mps server {before[-1].pid}") == 3
    until(lambda: cluster.status().nodes["n2"] == "idle", "n2 in service")


def test_row_28_a_job_whose_slurmd_died_before_its_step_goes_with_the_users_next_job(cluster: Cluster) -> None:
    """alice's parts leave room for each other: the missing step of the first shows that it is over. A job of salloc's
    may have none for hours, and stays until its own Epilog."""
    node = Node(cluster, "n2")
    with configured(cluster, "hook_deadline_s = 4.0"), node.fault("mps_hang", "start_server"):
        lost = cluster.sbatch("alice", "srun true", "-wn2", "--share-gpu=4", "--gres=gpu:1", "-n1", "--no-requeue")
        until(
            lambda: "Cmd:start_server" in node.run("bash", "-c", f"cat {USER}/mps/*/*/logs/control.log").stdout, "MPS"
        )
        node.run("bash", "-c", "kill -9 $(cat /run/slurmd.pid)")
        until(lambda: node.plan(lost), "the end of the Prolog")
    node.run("slurmd")
    node.prolog(FIRST, share="4", **PART)
    node.run("sed", "-i", 's/"since":[0-9.]*/"since":1.0/g', f"{STATE}/ledger")
    assert sorted(node.jobs()) == [lost, FIRST]
    completed(cluster, "srun true", "-wn2", "--share-gpu=4", "--gres=gpu:1", "-n1")
    assert node.jobs() == [FIRST]
    assert f"job {lost} of uid {ALICE} ended without an Epilog" in node.log()
    assert node.plan(lost) == ""
    node.epilog(FIRST)
    end(cluster, lost)


@pytest.mark.weekly_on_v2
def test_row_28_a_node_that_loses_power_in_mid_job_takes_the_job_again(cluster: Cluster) -> None:
    job = start(cluster, "srun simgpu-task --seconds 2", "--share-gpu=2", "--requeue", say="simgpu-task: host")
    cluster.kill("n2")
    cluster.reboot("n2")
    requeue(cluster, job)
    assert cluster.wait(job) == "COMPLETED"
    assert cluster.output(job).count("mps server") == 4


def test_row_28_a_daemon_that_survived_its_job_is_adopted(node: Node) -> None:
    """The user's first job is over and had no Epilog; the second one joins the daemon, which is well."""
    node.prolog(FIRST, gpus="0,1")
    before = node.mps() + node.mps("server")
    with node.job(SECOND, gpus="0,1"):
        assert node.mps() + node.mps("server") == before
        assert node.jobs() == [SECOND]
        assert node.log().count(" joined in ") == 2


def test_row_28_a_ledger_of_another_release_is_made_anew_from_the_plans(node: Node) -> None:
    """The package was upgraded in mid-job: the running job keeps its daemon, and its Epilog ends it."""
    node.prolog(FIRST)
    before = node.mps()
    node.run("sed", "-i", 's/"version":1/"version":99/', f"{STATE}/ledger")
    node.prolog(SECOND, gpus="1")
    assert node.jobs() == [FIRST, SECOND]
    assert before[0] in node.mps()
    node.epilog(FIRST)
    assert len(node.mps()) == 1
    node.epilog(SECOND)


# --- rows 29 and 30: limits, and a plugin of another release -------------------------------------------------------


def test_row_29_a_limit_names_the_tasks_one_gpu_and_is_in_force(cluster: Cluster) -> None:
    """The limit names device 0, the task's GPU by UUID, and MPS enforces it (GPUs 2 and 3 of four). GPU."""
    node = Node(cluster, "n1")
    with node.job(FIRST, gpus="2,3", share="4,mem=4G"):
        for slot, gpu in ((0, 2), (1, 3), (2, 2)):
            found = node.slot(FIRST, slot)
            assert found["CUDA_VISIBLE_DEVICES"] == node.uuid(gpu)
            assert found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=4096M"
            assert node.alive(node.task(FIRST, slot, memory="3000M"))
            words = [f"{name}={value}" for name, value in found.items()]
            greedy = node.cluster.as_user(
                "alice", ["env", *words, "simgpu-task", "--memory", "5000M", "--seconds", "1"], node="n1"
            )
            assert (greedy.returncode, "CUDA_ERROR_OUT_OF_MEMORY" in greedy.stderr + greedy.stdout) == (1, True)
    assert node.remains() == []


def test_row_29_the_screen_shows_the_limit_that_the_task_has(cluster: Cluster) -> None:
    """One task has the share's, one a smaller one that its user set for it: each is shown with its own."""
    script = """srun bash -c '[ $SLURM_SHARE_SLOT = 0 ] || export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1000M
        exec simgpu-task --memory 500M --seconds 600'"""
    start(cluster, script, "--share-gpu=2,mem=8G", "--gres=gpu:1", say="simgpu-task: host", times=2)
    done = cluster.as_user("alice", ["llload", "--json", "--processes"], check=True)
    nodes = json.loads(done.stdout)["nodes"]
    caps = [one.get("cap_mib") for node in nodes for one in node["snapshot"]["processes"]]
    assert sorted(cap for cap in caps if cap is not None) == [1000, 8192]


@contextlib.contextmanager
def plugin_of_another_release(cluster: Cluster) -> Iterator[None]:
    """Replace our plugin on every host with an object for a release that no cluster here runs."""
    ours = cluster.root("n2") / "usr/lib/slurm-share/share_gpu.so"
    file = cluster.conf / "other.so"
    file.write_bytes(of_release(ours.read_bytes(), cluster.slurm_version, "21.08.0"))
    try:
        with rewritten(cluster.conf / "plugstack.conf", "optional /etc/slurm/other.so\n"):
            yield
    finally:
        file.unlink()


def test_row_30_with_a_plugin_of_another_release_jobs_run_and_nothing_is_drained(cluster: Cluster) -> None:
    """Slurm leaves the object out with a line in its log; sbatch does not know the option. A shared job survives: its
    later steps run with the job's GPU and no slot, and the Epilog removes the share."""
    script = """srun bash -c 'echo slot $SLURM_SHARE_SLOT'
        until [ -e go ]; do sleep 0.1; done; rm go
        srun -n1 bash -c 'echo later slot ${SLURM_SHARE_SLOT-none} of $CUDA_VISIBLE_DEVICES'"""
    node = Node(cluster, "n2")
    shared = start(cluster, script, *ONE_GPU, say="slot", times=2)
    node.run("truncate", "-s0", "/var/log/slurm/slurmd.log")
    with plugin_of_another_release(cluster):
        cluster.as_user("alice", ["touch", "go"], check=True)
        assert cluster.wait(shared) == "COMPLETED"
        assert "it ran" in completed(cluster, "srun --gpus=1 echo it ran", "-wn2", "-pplain", "--gres=gpu:1")
        refused = cluster.as_user("alice", ["sbatch", *ONE_GPU, "--wrap=true"])
    assert re.search(r"later slot none of \S", cluster.output(shared))
    assert f"job {shared} of uid 2001: its share is removed" in node.log()
    assert (refused.returncode != 0, "unrecognized option '--share-gpu" in refused.stderr) == (True, True)
    assert re.search(
        r"other\.so.*[Ii]ncompatible|[Ii]ncompatible.*", node.run("cat", "/var/log/slurm/slurmd.log").stdout
    )
    assert cluster.status().nodes["n2"] == "idle"


# --- beside the table ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("which", "when"), [("prolog", "start_server"), ("epilog", "quit")])
def test_a_hook_killed_half_way_is_taken_up_by_the_next_one(node: Node, which: str, when: str) -> None:
    """A Prolog that waits for a server, an Epilog that waits for the daemon: killed, and nothing is left in the end."""
    if which == "epilog":
        node.prolog(FIRST)
    with killed(node, which, FIRST, when):
        node.epilog(FIRST)


def test_a_requeued_job_keeps_what_its_second_run_made_while_the_first_runs_epilog_is_at_work(
    cluster: Cluster, node: Node
) -> None:
    """The old Epilog waits for a silent daemon and takes nothing of the new run."""
    node.prolog(FIRST, SLURM_JOB_RESTART_COUNT="0")
    with configured(cluster, "release_deadline_s = 4.0"):
        with node.fault("mps_hang", "quit"):
            old = node.background(node.hook_argv("epilog", FIRST, SLURM_JOB_RESTART_COUNT="0"))
            until(lambda: node.ledger()["leaving"], "the Epilog at work")
            node.prolog(FIRST, SLURM_JOB_RESTART_COUNT="1")
            until(lambda: not node.alive(old), "the Epilog's end")
        assert node.jobs() == [FIRST]
        assert node.slot(FIRST, 0)["SLURM_SHARE_MPS"] == "on"
        task = node.task(FIRST)
        node.epilog(FIRST, SLURM_JOB_RESTART_COUNT="0")  # and once more, late
        assert node.alive(task)
        node.epilog(FIRST, SLURM_JOB_RESTART_COUNT="1")


def test_jobs_that_get_parts_of_a_gpu_do_not_take_each_other_for_over(node: Node) -> None:
    """Four jobs of one user at once on one GPU, no step of any of them begun: each keeps its line, and its own slot."""
    jobs = [FIRST, SECOND, THIRD, OTHER]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda job: node.prolog(job, share="4", **PART), jobs))
    assert sorted(node.jobs()) == jobs
    assert sorted(node.slot(job, 0)["SLURM_SHARE_SLOT"] for job in jobs) == ["0", "1", "2", "3"]
    for job in jobs:
        node.epilog(job)


def test_a_job_that_slurmctld_forgot_keeps_no_part_of_its_gpu_from_the_users_next_jobs(node: Node) -> None:
    """It had the whole GPU until a moment ago, and no Epilog."""
    node.prolog(FIRST, SLURM_JOB_EXCLUSIVE="USER")
    with node.job(SECOND, share="4", **PART):
        assert node.jobs() == [SECOND]
        assert node.slot(SECOND, 0)["SLURM_SHARE_SLOT"] == "0"


@pytest.mark.weekly_on_v2
def test_a_suspended_jobs_stopped_tasks_end_with_the_job(cluster: Cluster) -> None:
    """scontrol suspend, then scancel of what is stopped: the Epilog waits for no client that cannot answer."""
    job = start(cluster, "srun simgpu-task --seconds 600", "--share-gpu=2", say="simgpu-task: host", times=4)
    cluster.exec("ctl", ["scontrol", "suspend", str(job)], check=True)
    node = Node(cluster, "n2")
    assert len(node.mps()) == 2
    cluster.exec("ctl", ["scontrol", "resume", str(job)], check=True)
    cluster.as_user("alice", ["scancel", "-s", "STOP", str(job)], check=True)
    cluster.cancel_all()
    assert node.remains() == []


def test_a_process_that_escaped_its_job_is_ended_on_its_gpu(cluster: Cluster) -> None:
    """A double fork out of the step (where no cgroup holds it): the Epilog ends it, and the log names it."""
    script = """srun -n1 bash -c '(setsid -f simgpu-task --seconds 600 >escaped 2>&1 </dev/null)
        until grep -q host escaped; do sleep 0.1; done'"""
    job = cluster.sbatch("alice", script, "-wn2", "--share-gpu=2,mps=off", "--gres=gpu:1")
    assert cluster.wait(job) == "COMPLETED"
    node = Node(cluster, "n2")
    assert re.search(rf"job {job}: leftover process \d+ \(simgpu-task\) of uid 2001 on a GPU: ended", node.log())
    assert node.remains() == []


def test_a_process_that_names_a_living_job_to_be_spared_ends_with_that_job(node: Node) -> None:
    """It says that it is of the user's other job, and sits on a GPU which that job does not have."""
    node.prolog(FIRST)
    node.prolog(SECOND, gpus="1")
    hidden = node.task(FIRST, SLURM_JOB_ID=str(SECOND))
    node.epilog(FIRST)
    node.epilog(SECOND)
    assert not node.alive(hidden)


def test_a_process_of_roots_on_the_gpu_is_named_and_the_node_serves_on(cluster: Cluster) -> None:
    """It sits on the GPU that alice's job leaves (one of another user's: test_second_user.py)."""
    node = Node(cluster, "n2")
    job = start(cluster, "srun -n1 simgpu-task --seconds 2", "--share-gpu=2,mps=off", say="simgpu-task: host")
    other = node.on_gpu(None, {"CUDA_VISIBLE_DEVICES": node.uuid(0)})
    cluster.wait(job)
    completed(cluster, "srun -n1 simgpu-task --seconds 0.1", "-wn2", *ONE_GPU, user="bob")
    alive = node.alive(other)
    node.run("kill", "-9", str(other))
    assert alive
    assert f"process {other} (simgpu-task) of uid 0 is on a GPU that no job has; it is not" in node.log()


def test_a_system_program_on_the_gpu_is_left_alone(node: Node) -> None:
    node.run("ln", "-sf", "/usr/local/bin/simgpu-task", "/tmp/Xorg")
    screen = node.background(["/tmp/Xorg", "--seconds", "600"])
    until(lambda: "host" in node.run("cat", "/tmp/out").stdout, "Xorg on the GPU")
    node.prolog(FIRST, share="2,mps=off")
    node.epilog(FIRST)
    alive = node.alive(screen)
    node.run("kill", "-9", str(screen))
    assert alive


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (None, "Slurm granted GPU 1, but the driver lists only 0"),
        ("lost=1", r"Slurm granted it only GPU 1, which does not answer \(the driver: GPU is lost\); .*--exclude=n\d"),
    ],
    ids=["missing", "fallen off the bus"],
)
def test_a_gpu_that_is_gone_is_a_sentence_for_the_job(node: Node, line: str | None, why: str) -> None:
    """Slurm grants GPU 1, and the driver does not list it, or lost it: refused, no node drained by it."""
    with node.gpu_file(1, line), node.job(FIRST, gpus="0,1" if line is None else "1"):
        plan = node.plan(FIRST)
    assert re.search(rf"^refused .*{why}", plan, re.MULTILINE)


def test_a_lost_gpu_is_named_and_the_others_are_shared_and_shown(cluster: Cluster) -> None:
    """Jobs on GPU 0 of n2 run and are cleaned up, in Slurm and with llsub; status, llload and doctor name GPU 1."""
    node = Node(cluster, "n2")
    script = "srun bash -c 'echo task on $CUDA_VISIBLE_DEVICES'; slurm-share status; llload -g"
    of_node = """echo SLURM_GRES=$SLURM_GRES SLURM_NTASKS_PER_NODE=$SLURM_NTASKS_PER_NODE
        srun bash -c 'echo task $SLURM_PROCID of $SLURM_SHARE_SIZE on $CUDA_VISIBLE_DEVICES'"""
    alone = """printf '#!/bin/sh\necho "process on $CUDA_VISIBLE_DEVICES"\n' >t.sh; chmod +x t.sh
        llsub ./t.sh [1,2] --local; grep -rh 'process on GPU' LLSUB.*"""
    with node.gpu_file(1, "lost=1"):
        output = completed(cluster, script, "-wn2", *ONE_GPU)
        whole = [cluster.sbatch("alice", of_node, "--share-gpu=2", "-wn2") for _ in range(3)]
        states = [cluster.wait(job) for job in whole]
        launched = cluster.as_user("alice", alone, node="n2", check=True)
        doctor = node.run("slurm-share", "doctor", "--quiet").stdout
    assert output.count(f"task on {node.uuid(0)}") == 2
    assert "slurm-share: GPU 1 does not answer (GPU is lost); see nvidia-smi on this node\n" in output
    assert re.search(rf"^  0  {node.uuid(0)[:12]}\S* .*\n  1  unknown .*GPU is lost", output, re.MULTILINE)
    assert "n2: GPU 1: GPU is lost" in output
    said = "n2 has GPU 1, which does not answer (the driver: GPU is lost): the processes use the other 1 GPU"
    assert said in launched.stdout + launched.stderr
    assert launched.stdout.count(f"process on {node.uuid(0)}") == 2
    assert "gpu-health: GPU 1 " in doctor
    assert states == ["COMPLETED"] * 3, cluster.output(whole[0])
    said = cluster.output(whole[0])
    assert "SLURM_GRES=gpu:2 SLURM_NTASKS_PER_NODE=2\n" in said
    assert sorted(re.findall(r"^task (\d) of 2 on (\S+)$", said, re.MULTILINE)) == [(n, node.uuid(0)) for n in "01"]
    sentence = "on n2 the job has GPU 1, which does not answer (the driver: GPU is lost): its tasks there use "
    sentence += "the other 1 GPU, with 1 x 2 = 2 slots instead of 4; --exclude=n2 leaves the node out"
    assert (said.count(sentence), node.log().count(sentence)) == (1, 3)
    assert node.remains() == []


def test_a_lost_gpu_on_one_of_two_nodes_loses_no_task_silently(cluster: Cluster) -> None:
    """The first node has its slots on two GPUs, the other on one: its surplus ends with the arithmetic."""
    script = """srun bash -c 'echo task $SLURM_PROCID on $SLURMD_NODENAME'; srun -n4 --ntasks-per-node=2 echo two
        srun -N1 -wn3 -n2 --gpus-per-task=1 echo bound; srun -N1 -wn3 -n1 --gres=gpu:1 echo one; true"""
    with Node(cluster, "n3").gpu_file(0, "lost=1"):
        job = cluster.sbatch("alice", script, "--share-gpu=2", "-N2", "-wn2,n3")
        state = cluster.wait(job)
    output = cluster.output(job)
    assert state == "FAILED"
    assert Counter(re.findall(r"^task \d on (n\d)$", output, re.MULTILINE)) == {"n2": 4, "n3": 2}
    arithmetic = (
        "--share-gpu=2 on 1 GPU makes 2, because GPU 0 of the job does not answer; start at most 2 on a node (srun -n4 "
    )
    for task in (3, 4):
        assert f"task {task} of 4 on n3 has no slot: {arithmetic}--ntasks-per-node=2)" in output
    assert output.count("two\n") == 4
    assert output.count("on n3 the job has GPU 0, which does not answer") == 1
    assert "has no GPU that answers: Slurm bound it to GPU 0, which does not" in output
    assert output.count("bound\n") == 1
    assert f"Slurm gave this step of job {job} no GPU that answers on node n3 (GPU 0 of the job does not)" in output
    assert "one\n" not in output


def test_a_gpu_that_is_lost_in_mid_job_keeps_nothing_else_from_being_cleared(node: Node) -> None:
    """The processes on the GPU are unknown: the Epilog's exit code drains the node."""
    node.prolog(FIRST, gpus="0,1")
    with node.gpu_file(1, "lost=1"):
        assert node.hook("epilog", FIRST).returncode == names.EXIT_NODE_UNWELL
        assert node.mps() + node.mps("server") == []
    assert "NODE UNWELL: driver-unreadable" in node.log()
    assert f"the processes on {node.uuid(1)} (GPU 1: GPU is lost) cannot be read" in node.log()
    assert node.remains() == []


def test_a_node_without_gpus_refuses_with_a_sentence(node: Node) -> None:
    """A CPU-only node in a partition with GPUs: nothing granted, or something that is not there."""
    with node.gpu_file(1, None), node.gpu_file(0, None):
        node.prolog(FIRST, gpus="")
        node.prolog(SECOND, gpus="0,1")
        plans = node.plan(FIRST), node.plan(SECOND)
        node.epilog(FIRST)
        node.epilog(SECOND)
    assert "granted the job no GPU here" in plans[0]
    assert "the driver lists only none" in plans[1]


def test_a_full_state_folder_keeps_no_epilog_from_its_work(node: Node) -> None:
    """Without a file system for users, a job fills the ledger's: its Epilog makes room."""
    node.run("mount", "-t", "tmpfs", "-o", "size=1m,mode=755", "tmpfs", STATE)
    node.run("mkdir", "-p", f"{USER}/jobs")  # nothing is mounted over what somebody may be using
    try:
        with node.job(FIRST):
            node.cluster.as_user("alice", f"cat /dev/zero >{node.mps()[0].pipe}/full", node=node.name)
        assert node.remains() == []
    finally:
        node.run("umount", STATE)


def test_state_that_root_alone_has_filled_drains_the_node_by_the_third_refusal(node: Node) -> None:
    """No user can bring that about. The node takes shares again when there is room."""
    node.run("mkdir", "-p", STATE)
    node.run("mount", "-t", "tmpfs", "-o", "size=1m,mode=755", "tmpfs", STATE)
    try:
        node.run("mkdir", f"{STATE}/user")
        node.run("mount", "-t", "tmpfs", "-o", "size=1m,mode=711", "tmpfs", f"{STATE}/user")
        node.run("bash", "-c", f"cat /dev/zero >{STATE}/full")
        assert [node.hook("prolog", job).returncode for job in (FIRST, SECOND, THIRD)] == [0, 0, names.EXIT_NODE_UNWELL]
        assert (
            "NODE UNWELL: 3 jobs refused in 10 minutes for a cause of the node's own (state-unwritable)" in node.log()
        )
        node.run("rm", f"{STATE}/full")
        with node.job(OTHER):
            assert node.slot(OTHER, 0)
    finally:
        node.run("umount", f"{STATE}/user")
        node.run("umount", STATE)


USERS_OPTIONS = "mode=0711,size=64m,nr_inodes=64k,nosuid,nodev,noexec"


def file_system(node: Node, path: str) -> str:
    """Return the device of the file system that a path is on."""
    return node.run("stat", "-c", "%d", path).stdout


def test_a_prolog_mounts_the_users_folder_where_nobody_did_and_over_nothing(node: Node) -> None:
    """Once, with its limits. Where it may not, as in a container, the job shares and doctor tells."""
    before = node.run("grep", "-c", USER, "/proc/mounts").stdout
    node.run("umount", USER)
    try:
        node.run("mkdir", "-p", f"{USER}/mps")
        node.prolog(FIRST, **PART)
        assert file_system(node, USER) == file_system(node, STATE)
        assert node.slot(FIRST, 0)["SLURM_SHARE_MPS"] == "on"
        assert f"{USER} has no file system of its own" in node.run("slurm-share", "doctor", "--quiet").stdout
        node.epilog(FIRST)
        node.run("rm", "-r", USER)
        argv = node.hook_argv("prolog", FIRST, **PART)
        node.run("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", *argv)
        assert file_system(node, USER) == file_system(node, STATE)
        assert "cannot be mounted as a file system of its own (Operation not permitted)" in node.log()
        assert node.slot(FIRST, 0)["SLURM_SHARE_MPS"] == "on"
        node.epilog(FIRST)
        node.run("rm", "-r", USER)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda job: node.prolog(job, **PART), [FIRST, SECOND]))
        mounts = [line.split() for line in node.run("grep", USER, "/proc/mounts").stdout.splitlines()]
        assert [mount[1] for mount in mounts] == [USER, f"{USER}/mps/{ALICE}"]
        for mount in mounts:
            assert {"nosuid", "nodev", "noexec", "size=65536k", "nr_inodes=65536", "mode=711"} <= set(
                mount[3].split(",")
            )
        assert node.run("slurm-share", "status").returncode == 0
        node.epilog(FIRST)
        node.epilog(SECOND)
    finally:
        if not node.run("grep", "-c", USER, "/proc/mounts").stdout.strip("0\n"):
            node.run("mount", "-t", "tmpfs", "-o", USERS_OPTIONS, "tmpfs", USER)
    assert node.run("grep", "-c", USER, "/proc/mounts").stdout == before


@pytest.mark.weekly_on_v2
def test_what_killed_hooks_left_goes_with_the_next_hook(node: Node) -> None:
    """A ledger that was being written, and the folder of a user whose daemon never came to be."""
    node.run("bash", "-c", f"touch {STATE}/.ledger.4242; mkdir -p -m711 {USER}/mps/{BOB}")
    with node.job(FIRST):
        assert node.run("ls", "-A", STATE).stdout.split() == [
            "jobs",
            "ledger",
            "ledger.lock",
            "no-mps",
            "usage",
            "user",
        ]
        assert node.run("ls", f"{USER}/mps").stdout == f"{ALICE}\n"
        node.run("bash", "-c", f"touch {STATE}/.ledger.4242; mkdir -p -m711 {USER}/mps/{BOB}")
    assert node.remains() == []


def test_a_full_log_disk_keeps_no_hook_from_its_work(node: Node) -> None:
    """The logs of hooks and MPS daemon cannot be written: the share works."""
    node.run("mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", "/var/log")
    try:
        node.run("bash", "-c", "cat /dev/zero >/var/log/full")
        with node.job(FIRST):
            assert node.slot(FIRST, 0)["SLURM_SHARE_MPS"] == "on"
            assert node.alive(node.task(FIRST))
        assert node.remains() == []
    finally:
        node.run("umount", "/var/log")


@pytest.mark.parametrize("since", ["1.0", "9999999999.0"], ids=["set forward", "set back"])
def test_a_clock_that_jumps_makes_nobody_live_on(node: Node, since: str) -> None:
    """alice's job ended without an Epilog before the clock was set: bob is let in."""
    node.prolog(FIRST)
    node.run("sed", "-i", f's/"since":[0-9.]*/"since":{since}/', f"{STATE}/ledger")
    with node.job(SECOND, uid=BOB):
        assert node.slot(SECOND, 0)["SLURM_SHARE_MPS"] == "on"
        assert [one.user for one in node.mps()] == ["bob"]


def test_a_logout_that_takes_shared_memory_takes_no_share(cluster: Cluster) -> None:
    """logind's RemoveIPC deletes files in /dev/shm in mid-job: later tasks are on MPS as before. GPU."""
    script = """srun -n1 simgpu-task --seconds 1
        until [ -e go ]; do sleep 0.1; done; rm go
        srun simgpu-task --seconds 1"""
    job = start(cluster, script, *ONE_GPU, say="simgpu-task: host")
    node = Node(cluster, "n2")
    node.run("find", "/dev/shm", "-user", "alice", "-delete")
    cluster.as_user("alice", ["touch", "go"], check=True)
    assert cluster.wait(job) == "COMPLETED"
    assert cluster.output(job).count("mps server") == 3


def test_a_ledger_that_another_hook_never_lets_go_of_costs_the_share_only(cluster: Cluster, node: Node) -> None:
    """A hook that hangs in the driver holds it: the next Prolog is over in its time, and refuses the job."""
    node.prolog(FIRST)
    holder = node.background(["flock", f"{STATE}/ledger.lock", "sleep", "600"])
    until(lambda: "FLOCK" in node.run("cat", "/proc/locks").stdout, "the lock")
    with configured(cluster, "hook_deadline_s = 0.5"):
        node.prolog(SECOND)
    node.run("pkill", "-P", str(holder))
    node.run("kill", "-9", str(holder))
    assert "another hook held it until the deadline" in node.log()
    assert "the node could not enter it" in node.plan(SECOND)
    node.epilog(SECOND)
    node.epilog(FIRST)


def test_the_log_is_one_line_a_step(node: Node) -> None:
    node.prolog(FIRST)
    node.epilog(FIRST)
    lines = node.log().splitlines()
    assert [line.split(" ", 2)[1] for line in lines] == ["prolog:", "prolog:", "epilog:", "epilog:"]
    assert json.dumps(lines).count("2001") == 3
