"""MPS daemons on nodes with cgroups: their user cannot misuse them, and limits hold for what runs in them.

The attack: a user traces his own daemon, which is outside his job, and makes it run a program without the job's limits
and beyond its end. The tests try each way in from a real job. Then root puts a program of the user's into the daemon's
cgroup, as if one had been found.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from clusters import cluster_of
from hooked import ALICE, Node, configured, until, why_not_idle

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("groups")]


@pytest.fixture(scope="module")
def node(can_make_clusters: None) -> Iterator[Node]:
    """Yield the one node of a cluster whose jobs are in cgroups, of the current release."""
    with cluster_of("groups", cgroup=True, nodes=1) as cluster:
        yield Node(cluster, "n1")


@pytest.fixture(autouse=True)
def nothing_remains(node: Node) -> Iterator[None]:
    """Check after each test that the next user's job starts on the node at once and that nothing is left on it."""
    yield
    cluster = node.cluster
    cluster.cancel_all()
    job = cluster.sbatch("bob", "srun -n1 true", "--share-gpu=2", "--gres=gpu:1", "--mem=200")
    until(lambda: cluster.exec("ctl", ["squeue", "-h", "-t", "R,PD,CG"]).stdout.strip() == "", f"the end of job {job}")
    assert "drain" not in why_not_idle(cluster)
    assert node.remains() == []


TRACE = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]

def attempt(what, act):
    try:
        act()
    except OSError as error:
        print(what, type(error).__name__)
    else:
        print(what, "DONE")

def trace(pid):
    if libc.ptrace(16, pid, None, None) != 0:  # PTRACE_ATTACH
        raise OSError(ctypes.get_errno(), "ptrace")
    os.waitpid(pid, 0x40000000)
    libc.ptrace(17, pid, None, None)

def take(pid):
    fd = libc.syscall(438, os.pidfd_open(pid), 2, 0)  # pidfd_getfd
    if fd < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")

found = 0
for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
    try:
        if open(f"/proc/{pid}/comm").read() != "nvidia-cuda-mps\\n":
            continue
    except OSError:
        continue
    found += 1
    attempt("trace", lambda: trace(pid))
    attempt("write", lambda: open(f"/proc/{pid}/mem", "r+b").close())
    attempt("enter", lambda: os.readlink(f"/proc/{pid}/cwd"))
    attempt("take", lambda: take(pid))
    os.kill(pid, signal.SIGCONT)
print("processes", found)
"""


@pytest.mark.on_v2
def test_a_user_cannot_trace_his_own_daemon_and_its_server(node: Node) -> None:
    """From his job: neither ptrace, nor its memory, nor its folder, nor its files. A signal goes as ever."""
    cluster = node.cluster
    script = f"srun -n1 python3 - <<'END' >/home/alice/trace 2>&1\n{TRACE}END\n"
    job = cluster.sbatch("alice", script, "--share-gpu=2", "--gres=gpu:1", "--mem=200")
    cluster.wait_running(job)
    until(lambda: "processes" in node.run("cat", "/home/alice/trace").stdout, "the end of the attack")
    said = node.run("cat", "/home/alice/trace").stdout.splitlines()
    assert sorted(said) == sorted(
        [f"{way} PermissionError" for way in ("trace", "write", "enter", "take")] * 2 + ["processes 2"]
    )


OPEN = """
import os
for number in range(4):
    try:
        os.close(os.open(f"/dev/nvidia{number}", os.O_RDWR))
        print("open", end=" ")
    except OSError as error:
        print(error.errno, end=" ")
"""
EPERM, ENXIO = "1", "6"
"""ENXIO: it may be opened, and no driver is there to do it."""


def in_group(node: Node, script: str) -> str:
    """Run a program as alice in the cgroup of her daemon and return its output."""
    (daemon,) = node.mps()
    join = (
        f"for tree in /sys/fs/cgroup /sys/fs/cgroup/*; do folder=$tree$(sed -n 's/^.*:\\(.*slurm-share.*\\)$/\\1/p;' "
        f"/proc/{daemon.pid}/cgroup | head -n1); [ ! -e $folder/cgroup.procs ] || echo $$ >$folder/cgroup.procs; done; "
        'exec setpriv --reuid alice --regid alice --clear-groups "$@"'
    )
    return node.run("bash", "-c", join, "-", "bash", "-c", script).stdout


@pytest.mark.on_v2
def test_in_a_daemons_cgroup_only_its_own_gpu_can_be_opened(node: Node) -> None:
    node.prolog(9001, gpus="2")
    try:
        assert in_group(node, f"python3 -c '{OPEN}'").split() == [EPERM, EPERM, ENXIO, EPERM]
    finally:
        node.epilog(9001, gpus="2")


STAY = "trap '' TERM; (trap '' TERM; sleep 600 & sleep 600 & wait) & sleep 600"


@pytest.mark.on_v2
def test_what_is_in_a_daemons_cgroup_ends_with_the_job(node: Node) -> None:
    """Programs that ignore SIGTERM, in a session of their own; and the group goes, too."""
    with node.job(9001):
        in_group(node, f'setsid -f bash -c "{STAY}" >/dev/null 2>&1 </dev/null')
        until(lambda: "sleep 600" in node.run("ps", "-u", "alice", "-o", "args").stdout, "her programs")
        assert node.daemon_groups() != []
    assert "sleep 600" not in node.run("ps", "-u", "alice", "-o", "args").stdout
    assert node.daemon_groups() == []


@pytest.mark.weekly_on_v2
def test_a_daemon_that_its_user_ends_leaves_nothing(node: Node) -> None:
    """He kills it, as he may, and removes its folder; the server that it leaves ends with the job all the same."""
    with node.job(9001):
        (daemon,) = node.mps()
        node.cluster.as_user("alice", f"kill -9 {daemon.pid}; rm -rf {daemon.pipe}/*", node="n1")
    assert node.mps("server") == []


@pytest.mark.weekly_on_v2
def test_each_gpu_has_a_group_of_its_own_that_goes_with_its_last_job(node: Node) -> None:
    node.prolog(9001, SLURM_JOB_NTASKS="1", SLURM_JOB_NUM_NODES="1", SLURM_JOB_EXCLUSIVE="USER")
    node.prolog(9002, SLURM_JOB_NTASKS="1", SLURM_JOB_NUM_NODES="1", SLURM_JOB_EXCLUSIVE="USER")
    node.prolog(9003, gpus="1")
    assert len(node.daemon_groups()) == 2
    assert all(f"/uid_{ALICE}/" in group for group in node.daemon_groups())
    node.epilog(9001)
    node.epilog(9003, gpus="1")
    assert len(node.daemon_groups()) == 1
    node.epilog(9002)
    assert node.daemon_groups() == []


FORK = """
import os, signal
children = []
try:
    for _ in range(120):
        children.append(os.fork())
        if children[-1] == 0:
            signal.pause()
except OSError as error:
    print(type(error).__name__)
for child in children:
    os.kill(child, signal.SIGKILL)
"""


@pytest.mark.on_v2
def test_memory_and_processes_of_a_daemons_cgroup_are_limited(node: Node) -> None:
    """A program there that takes more memory is killed, and one that starts more processes is not let."""
    with configured(node.cluster, "mps_daemon_memory_mib = 256", "mps_daemon_processes = 100"):
        node.prolog(9001)
    try:
        assert in_group(node, "python3 -c 'len(b\"x\" * (512 << 20))'; echo $?").strip() == "137"
        assert in_group(node, f"python3 -c '{FORK}'").strip() == "BlockingIOError"
    finally:
        node.epilog(9001)


@pytest.mark.weekly_on_v2
def test_the_hooks_helper_is_in_no_group_of_slurms(node: Node) -> None:
    """A new slurmd sets up cgroups in which nothing else may be; its limits do not apply to the helper."""
    node.prolog(9001)
    node.epilog(9001)
    until(lambda: node.run("test", "-S", "/run/slurm-share.hooks/socket").returncode == 0, "a helper")
    (helper,) = node.run("pgrep", "-x", "slurm-share-hoo").stdout.split()
    lines = node.run("cat", f"/proc/{helper}/cgroup").stdout.splitlines()
    places = {line.split(":")[1]: line.split(":")[2] for line in lines}
    ours = [""] if node.cluster.cgroup_v2 else ["freezer", "memory", "pids", "devices"]
    assert [places[one] for one in ours if not places[one].endswith("/slurm-share/hooks")] == []
