"""A job's user against root's half of the node: his plan, slots, locks, sockets and logs beside root's, and his names.

test_second_user.py has the attempts of a second user.
"""

from __future__ import annotations

import datetime
import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hooked import ALICE, BIN, BOB, LOG, PART, STATE, USER, Node, completed, configured, forging_conf, slurm_conf, until
from terminal import terminals

from localcluster import Cluster, paths

pytestmark = pytest.mark.cluster

ALICES = f"{USER}/mps/{ALICE}"
"""The folder of alice's MPS daemons and slots."""
INSIDE = [sys.executable, str(paths.CHECKOUT / "packaging/demo/cluster")]


@pytest.fixture
def node(cluster: Cluster) -> Iterator[Node]:
    """Yield n2, whose hooks the test calls. Afterwards nothing is left on it, and no hook has logged a traceback."""
    node = Node(cluster, "n2")
    node.run("rm", "-f", LOG)
    yield node
    log = node.log()
    node.run("pkill", "-9", "-u", "alice,bob")
    for job in node.jobs():
        node.epilog(job)
    remains = node.remains()
    node.forget_refusals()
    if remains:
        cluster.reboot("n2")
    assert remains == []
    assert ".py" not in log


def alice(node: Node, script: str, *words: object) -> str:
    """Run Python code as alice on the node and return its output."""
    argv = ["python3", "-c", script, *map(str, words)]
    done = node.cluster.as_user("alice", argv, node=node.name, check=True)
    return done.stdout


def alices_pipe(node: Node) -> str:
    (daemon,) = [one for one in node.mps() if one.user == "alice"]
    return daemon.pipe


FORGE = """import os, sys
path, old, new = sys.argv[1:]
os.chmod(path, 0o600)
text = open(path).read()
open(path, "w").write(text.replace(*old.split("|")).replace(*new.split("|")))
"""


def give_plan(node: Node, job: int) -> None:
    """Give alice ownership of her plan, as on a file system without access lists. She cannot change it before."""
    plan = f"{STATE}/jobs/{job}/plan"
    argv = ["python3", "-c", FORGE, plan, "x|x", "x|x"]
    assert "Operation not permitted" in node.cluster.as_user("alice", argv, node=node.name).stderr
    node.run("chown", "alice", plan)


@pytest.mark.weekly_on_v2
def test_a_forged_plan_speaks_for_nobody_else(node: Node) -> None:
    """A plan that its owner rewrote for a job of bob's, and a torn ledger: the rebuilt ledger has no such job."""
    with node.job(9001):
        give_plan(node, 9001)
        alice(node, FORGE, f"{STATE}/jobs/9001/plan", "job 9001|job 9002", f"uid {ALICE}|uid {BOB}")
        node.run("truncate", "-s", "7", f"{STATE}/ledger")
        with node.job(9003, uid=BOB, gpus="1"):
            assert node.jobs() == [9003]
            assert "rebuilt from the plans of the jobs on the node (none)" in node.log()
            assert node.run("slurm-share", "status").returncode == 0


NONSENSE = ("on_gpu=0|on_gpu=" + "9" * 500, "on_gpu=|X=", "end\n|")


@pytest.mark.weekly
def test_nonsense_in_a_plan_stops_no_hook(node: Node) -> None:
    """In the plans of three jobs, each with one of its own; the ledger is torn as well, and made anew from these."""
    jobs = range(9001, 9001 + len(NONSENSE))
    for job, change in zip(jobs, NONSENSE, strict=True):
        node.prolog(job, **PART)
        before = node.plan(job)
        give_plan(node, job)
        alice(node, FORGE, f"{STATE}/jobs/{job}/plan", change, "x|x")
        assert node.plan(job) != before
    node.run("truncate", "-s", "7", f"{STATE}/ledger")
    node.prolog(9010, gpus="1")
    assert 9010 in node.jobs()
    assert node.run("slurm-share", "status").returncode == 0
    for job in jobs:
        node.epilog(job)
    node.epilog(9010, gpus="1")


LINK = """import os, sys
pipe, hard, symbolic = sys.argv[1:]
for link, target, name in ((os.link, hard, "control.log"), (os.symlink, symbolic, "server.log")):
    path = f"{pipe}/logs/{name}"
    os.unlink(path) if os.path.lexists(path) else None
    open(target, "w").write("x" * 3_000_000)
    link(target, path)
"""


def test_a_link_in_place_of_a_log_empties_nothing(node: Node) -> None:
    """Hooks empty logs that have grown, but no file that is hard-linked or that a symbolic link leads to."""
    node.prolog(9001, **PART)
    kept = (f"{STATE}/jobs/9001/slots/0", "/home/alice/kept.log")
    alice(node, LINK, alices_pipe(node), *kept)
    node.prolog(9002, **PART)  # joins her daemon
    assert "joined" in node.log()
    assert node.run("stat", "-c", "%s", *kept).stdout == "3000000\n" * 2
    node.run("rm", kept[1])
    node.epilog(9001)
    node.epilog(9002)


HOLD = """import fcntl, glob, os, socket, sys, time
pipe, slots = sys.argv[1:]
held = []
for path in [*glob.glob(f"{slots}/*"), f"{pipe}.ui", f"{pipe}.lock", f"{pipe}/control_lock"]:
    for lock in (fcntl.flock, fcntl.lockf):
        for flags, mode in ((os.O_RDWR, fcntl.LOCK_EX), (os.O_RDONLY, fcntl.LOCK_SH)):
            try:
                fd = os.open(path, flags | os.O_NONBLOCK)
                lock(fd, mode | fcntl.LOCK_NB)
                held.append(fd)
            except OSError: pass
for name in ("control", "control_privileged", "log"):
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        for _ in range(20):
            try:
                link = socket.socket(socket.AF_UNIX, kind)
                link.settimeout(0.2)
                link.connect(f"{pipe}/{name}")
                held.append(link)
            except OSError: break
print("holding", len(held), flush=True)
time.sleep(600)
"""


@pytest.mark.weekly_on_v2
def test_who_holds_all_locks_and_says_nothing_to_the_daemon_keeps_no_epilog(node: Node) -> None:
    """The Epilog and the daemon end all the same, and the GPU has a daemon for the next user."""
    with node.job(9001):
        argv = ["python3", "-u", "-c", HOLD, alices_pipe(node), f"{STATE}/jobs/9001/slots"]
        pid = node.background(argv, "alice")
        until(lambda: "holding" in node.run("cat", "/tmp/out").stdout, "a hand on every lock")
        assert int(node.run("cat", "/tmp/out").stdout.split()[1]) >= 4
    assert node.mps() == []
    assert node.jobs() == []
    with node.job(9002, uid=BOB):
        assert [one.user for one in node.mps()] == ["bob"]
        node.run("kill", "-9", str(pid))
        until(lambda: not node.alive(pid), "the end of her process")  # it holds her file system
    with node.job(9003, uid=BOB):
        assert node.run("find", USER, "-name", str(ALICE)).stdout == ""
    node.run("rm", "-f", "/tmp/pid", "/tmp/out")


FUSE = """import os, socket, subprocess, sys, time
held = []
for place in sys.argv[1:]:
    ours, theirs = socket.socketpair()
    subprocess.run(["/tmp/fusermount3", "-o", "fsname=hers", "--", place], pass_fds=[theirs.fileno()], check=True,
                   env={"_FUSE_COMMFD": str(theirs.fileno())})
    held.append(socket.recv_fds(ours, 1, 1))
print("holding", flush=True)
time.sleep(600)
"""
"""Mounts file systems that never answer. They vanish with this process."""
OWN_SPACE = """unshare -Urm --propagation private sh -c '
    for place; do mount --bind /dev/null "$place"; done; echo holding; sleep 600' - """


def mount(node: Node, by: str, places: list[str]) -> None:
    """Mount on files and folders of alice's: as alice, with FUSE, or as root, on a machine that has no FUSE."""
    if by == "root":
        for place in places:
            what = ["--bind", "/dev/null"] if node.run("test", "-f", place).returncode == 0 else ["-t", "tmpfs", "hers"]
            assert node.run("mount", *what, place).returncode == 0
        return
    fusermount = shutil.which("fusermount3")
    if fusermount is None or not Path("/dev/fuse").exists():
        pytest.skip("NOT TESTED: this machine has no fusermount3")
    shutil.copy(fusermount, node.cluster.root(node.name) / "tmp/fusermount3")
    node.run("bash", "-c", "chmod 4755 /tmp/fusermount3; [ -e /dev/fuse ] || mknod -m 666 /dev/fuse c 10 229")
    node.background(["python3", "-u", "-c", FUSE, *places], "alice")
    until(lambda: "holding" in node.run("cat", "/tmp/out").stdout, "her mounts", node.log)


@pytest.mark.weekly_on_v2
@pytest.mark.parametrize("by", ["root", "alice"])
def test_what_a_user_mounts_on_his_files_keeps_nothing_of_anybodys(cluster: Cluster, node: Node, by: str) -> None:
    """On her pipe folder, on the lock beside it and on a slot, and in a namespace of her own: all goes with her job,
    each mount is named, and bob's job starts and ends clean. By root where the machine has no FUSE."""
    with node.job(9001):
        pipe, slots = alices_pipe(node), f"{ALICES}/jobs/9001/slots"
        node.background(["bash", "-c", f"{OWN_SPACE} {slots}/1 {pipe}/log"], "alice")
        until(lambda: "holding" in node.run("cat", "/tmp/out").stdout, "mounts of her own", node.log)
        mount(node, by, [pipe, f"{pipe}.ui", f"{slots}/0"])
    # a hook detaches mounts for a second or two, and leaves the rest to the next hook
    until(
        lambda: node.ledger()["leaving"] == [] or node.epilog(9001), "a hook that has time for the last mount", node.log
    )
    said = node.log()
    for place in (pipe, f"{pipe}.ui", f"{slots}/0"):
        assert f" was mounted on {place} and is detached" in said
    assert "(hers)" in said
    assert node.ledger()["leaving"] == []
    assert node.run("find", USER, "-mindepth", "2").stdout == ""
    assert cluster.wait(cluster.sbatch("bob", "srun echo ran", "-wn2", "--share-gpu=2", "--gres=gpu:1")) == "COMPLETED"
    assert node.ledger()["leaving"] == []
    assert node.log().count("alice") == said.count("alice")
    node.run("pkill", "-9", "-u", "alice")
    node.run("rm", "-f", "/tmp/pid", "/tmp/out", "/tmp/fusermount3")


STACK = """import ctypes, os, sys
libc = ctypes.CDLL(None)
os.mkdir("/tmp/long")
assert libc.mount(b"h" * 4000, b"/tmp/long", b"tmpfs", 0, None) == 0
open("/tmp/long/file", "w")
for _ in range(500): assert libc.mount(b"/tmp/long/file", sys.argv[1].encode(), None, 4096, None) == 0
"""
"""Mounts, one above the other, as a user's own FUSE program can that answers."""


@pytest.mark.weekly_on_v2
@pytest.mark.weekly
def test_many_mounts_of_a_user_keep_no_hook_of_others(node: Node) -> None:
    """Bob's job has its share, whether or not the hooks before it had the time to detach all of them."""
    with node.job(9001):
        made = node.run("python3", "-c", STACK, f"{ALICES}/jobs/9001/slots/0")
        assert made.returncode == 0, made.stderr
    with node.job(9002, uid=BOB):
        assert node.plan(9002).count("SLURM_SHARE_MPS=on") == 2
    said = node.log()
    assert "is given up" not in said
    assert said.count(" and is detached") < 100
    node.run("bash", "-c", f"umount -l {ALICES} /tmp/long; rmdir /tmp/long")
    with node.job(9003, uid=BOB):
        pass
    assert node.ledger()["leaving"] == []


FILL = """import itertools, os, sys
slot, pipe = sys.argv[1:]
try:
    for number in itertools.count(): os.mknod(f"{pipe}/{number}")
except OSError: pass
try:
    with open(slot, "wb") as file:
        while True: file.write(bytes(65536)); file.flush()
except OSError: pass
"""


SILENT = """import ctypes, os, struct, sys
place, uid, libc = sys.argv[1], int(sys.argv[2]), ctypes.CDLL(None)
fd = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={fd},rootmode=40000,user_id={uid},group_id={uid}".encode()
assert libc.mount(b"hers", place.encode(), b"fuse", 6, options) == 0
os.setgroups([]), os.setgid(uid), os.setuid(uid)
number = struct.unpack_from("<IIQ", os.read(fd, 1 << 20))[2]
os.write(fd, struct.pack("<IiQIIIIHHII", 80, 0, number, 7, 31, 0, 0, 0, 0, 4096, 0) + bytes(36))
print("holding", flush=True)
while os.read(fd, 1 << 20): open("/tmp/asked", "w")
"""
"""Mounts a file system as fusermount3 does for a user, and takes its requests as this user without an answer."""


@pytest.mark.weekly_on_v2
def test_a_process_that_its_users_file_system_keeps_alive_drains_nothing(cluster: Cluster, node: Node) -> None:
    """Her MPS server waits for a log on a file system of hers that does not answer: not even SIGKILL ends it."""
    if not Path("/dev/fuse").exists():
        pytest.skip("NOT TESTED: this machine has no FUSE")
    node.run("bash", "-c", "[ -e /dev/fuse ] || mknod -m 666 /dev/fuse c 10 229; install -d -o alice /tmp/silent")
    silent = node.background(["python3", "-u", "-c", SILENT, "/tmp/silent", str(ALICE)])
    until(lambda: "holding" in node.run("cat", "/tmp/out").stdout, "her file system", node.log)
    with configured(cluster, "release_deadline_s = 6.0"), node.job(9001):
        pipe = alices_pipe(node)
        alice(node, f"import os; os.rename('{pipe}/logs', '{pipe}/old'); os.symlink('/tmp/silent', '{pipe}/logs')")
        node.run("pkill", "-9", "-u", "alice", "-f", "mps-server")
        node.background(["env", f"CUDA_MPS_PIPE_DIRECTORY={pipe}", "simgpu-task", "--seconds", "600"], "alice")
        until(lambda: node.run("test", "-e", "/tmp/asked").returncode == 0, "a wait without end")
    assert "FUSE connection" in node.log()
    assert "outlives SIGKILL" not in node.log()
    assert node.mps() + node.mps("server") == []
    assert cluster.wait(cluster.sbatch("bob", "srun echo ran", "-wn2", "--share-gpu=2", "--gres=gpu:1")) == "COMPLETED"
    assert set(cluster.status().nodes.values()) == {"idle"}
    node.run("kill", "-9", str(silent))
    node.run("bash", "-c", "umount -l /tmp/silent; rmdir /tmp/silent; rm -f /tmp/pid /tmp/out /tmp/asked")


def make_small(node: Node) -> None:
    """Let alice fill the file system at once that a hook has mounted for her job. One that the test mounts before is
    empty, and the first hook unmounts it."""
    assert node.run("mount", "-o", "remount,size=1m,nr_inodes=1000", ALICES).returncode == 0


@pytest.mark.weekly_on_v2
def test_a_user_who_fills_the_users_folder_is_refused_and_harms_nobody(node: Node) -> None:
    """Her next share is refused with a sentence; ordinary jobs run, and bob has a share meanwhile."""
    node.prolog(9001)
    make_small(node)
    alice(node, FILL, f"{STATE}/jobs/9001/slots/0", alices_pipe(node))
    assert node.run("touch", f"{ALICES}/x").returncode != 0
    assert node.run("bash", "-c", f"echo x >{STATE}/x && rm {STATE}/x").returncode == 0
    node.prolog(9002, gpus="1")
    assert f"refused job 9002 cannot have --share-gpu=2 on n2: {ALICES} is full" in node.plan(9002)
    assert node.jobs() == [9001]
    assert f"uid {ALICE}" in node.run("slurm-share", "doctor").stdout
    status = node.cluster.as_user("alice", ["slurm-share", "status"], node=node.name).stdout
    assert re.search(rf"{ALICES} is (99|100) % full: new shares of alice here", " ".join(status.split()))
    node.prolog(9003, uid=BOB, share=None)
    node.epilog(9003, uid=BOB, share=None)
    with node.job(9005, uid=BOB, gpus="1"):
        assert node.slot(9005, 0)["SLURM_SHARE_MPS"] == "on"
    node.epilog(9002, gpus="1")
    node.epilog(9001)
    assert node.mps() + node.mps("server") == []
    assert node.jobs() == []
    assert node.run("mountpoint", ALICES).returncode != 0
    with node.job(9004, uid=BOB):
        assert "slot 1 " in node.plan(9004)
        assert node.slot(9004, 0)["SLURM_SHARE_MPS"] == "on"


FILL_SCRIPT = f"""\
srun -n1 bash -c 'echo began; until [ -e fill ]; do sleep 0.1; done
    for ((i = 0; ; i++)); do : >$CUDA_MPS_PIPE_DIRECTORY/$i || break; done 2>/dev/null
    cat /dev/zero >{STATE}/jobs/$SLURM_JOB_ID/slots/$SLURM_SHARE_SLOT 2>/dev/null'
echo full; until [ -e go ]; do sleep 0.1; done
"""


@pytest.mark.weekly_on_v2
@pytest.mark.weekly
def test_a_full_users_folder_runs_nothing_unshared(cluster: Cluster, node: Node) -> None:
    """alice's next job has its slots or ends with 69; bob's, which waits for her, has its share at once."""
    tell = "srun bash -c 'echo slot ${SLURM_SHARE_SLOT-none}'"
    cluster.as_user("alice", "rm -f fill go", check=True)
    first = cluster.sbatch("alice", FILL_SCRIPT, "-wn2", "--share-gpu=2", "--gres=gpu:1", "-n1", "-ofirst.out")
    until(lambda: "began" in cluster.as_user("alice", "cat first.out").stdout, "her task")
    make_small(node)
    cluster.as_user("alice", "touch fill", check=True)
    until(lambda: "full" in cluster.as_user("alice", "cat first.out").stdout, "a full file system")
    second = cluster.sbatch("alice", tell, "-wn2", "--share-gpu=2", "--gres=gpu:1", "-n1", "-osecond.out")
    third = cluster.sbatch("bob", tell, "-wn2", "--share-gpu=2", "--gres=gpu:1", "-othird.out")
    state = cluster.wait(second)
    said = cluster.as_user("alice", "cat second.out").stdout
    assert "none" not in said
    assert (state, f"{ALICES} is full on this node" in said) in (("FAILED", True), ("COMPLETED", False)), said
    cluster.as_user("alice", "touch go", check=True)
    assert cluster.wait(first) == "COMPLETED"
    assert cluster.wait(third) == "COMPLETED"
    assert sorted(cluster.as_user("bob", "grep slot third.out").stdout.splitlines()) == ["slot 0", "slot 1"]
    assert set(cluster.status().nodes.values()) == {"idle"}


HOLD_SPACE = """import os, sys, time
slot, pipe = sys.argv[1:]
held, n = [os.open(slot, os.O_RDWR)], 0
try:
    while True: n += os.write(held[0], bytes(65536))
except OSError: pass
try:
    while True: os.close(os.open(f"{pipe}/{n}", os.O_CREAT)); n += 1
except OSError: print("full", flush=True)
while True:
    try: n += os.pwrite(held[0], bytes(4096), n)
    except OSError: time.sleep(0.01)
"""
"""Keeps the file system of a slot full, also after the slot's removal."""


@pytest.mark.weekly_on_v2
def test_a_user_who_has_left_fills_his_own_file_system_only(cluster: Cluster, node: Node) -> None:
    """A process of alice's outside her job fills a slot, which it holds open, and makes files until none can be made.
    When she has left, bob's share has its MPS and says nothing; the next hook after her process's end unmounts hers."""
    with node.job(9001):
        make_small(node)
        pid = node.background(
            ["python3", "-u", "-c", HOLD_SPACE, f"{STATE}/jobs/9001/slots/1", alices_pipe(node)], "alice"
        )
        until(lambda: "full" in node.run("cat", "/tmp/out").stdout, "a full file system")
    assert node.jobs() == []
    assert node.run("find", USER, "-mindepth", "2").stdout == f"{ALICES}\n"  # it is mounted, since it is held
    script = "srun -n1 bash -c 'echo mps=$SLURM_SHARE_MPS'; srun -n2 true"
    said = completed(cluster, script, "-wn2", "--share-gpu=2", "--gres=gpu:1", "-n2", user="bob")
    assert "mps=on" in said
    assert "share" not in said.replace("slurm-share: the GPUs of this node are simulated", "")
    verdict = node.run("slurm-share", "doctor").stdout
    assert f"uid {ALICE}" in verdict
    assert "100 %" in verdict
    said = completed(cluster, "srun true", "-wn2", "--share-gpu=2", "--gres=gpu:1", "-n2")
    assert "shared without MPS" in said
    assert f"the file system of {ALICES}" in said
    assert "took a share" not in said
    assert "slots used" not in said
    node.run("kill", "-9", str(pid))
    until(lambda: not node.alive(pid), "the end of her process")
    with node.job(9002, uid=BOB):
        assert node.run("find", USER, "-name", str(ALICE)).stdout == ""
    node.run("rm", "-f", "/tmp/pid", "/tmp/out")


def test_a_job_that_is_to_share_and_finds_no_plan_does_not_run(cluster: Cluster, node: Node) -> None:
    """The refusal cannot be written either: batch script and srun end with 69, and an ordinary job runs."""
    node.run("mount", "-t", "tmpfs", "-o", "mode=0755,size=64k,nr_inodes=20", "tmpfs", STATE)
    try:
        node.run("bash", "-c", f"for i in $(seq 30); do : >{STATE}/full.$i; done; cat /dev/zero >{STATE}/full.1")
        until(lambda: start_s() > changed_s(node), "a second in which the configuration is not new")
        options = ("-wn2", "--share-gpu=2", "--gres=gpu:1")
        assert cluster.wait(cluster.sbatch("alice", "echo ran", *options, "-obatch.out")) == "FAILED"
        said = cluster.as_user("alice", "cat batch.out").stdout
        assert "is to share its GPUs, but node n2 has no plan for it" in said
        assert "ran" not in said
        step = cluster.as_user("alice", ["srun", *options, "-n1", "hostname"])
        assert (step.returncode, step.stdout) == (69, "")
        assert cluster.wait(cluster.sbatch("bob", "echo ran", "-wn2", "-oplain.out")) == "COMPLETED"
    finally:
        node.run("umount", "-l", STATE)
    assert cluster.wait(cluster.sbatch("alice", "srun echo ran", *options, "-oagain.out")) == "COMPLETED"
    assert cluster.as_user("alice", "grep -c ran again.out").stdout == "2\n"
    assert set(cluster.status().nodes.values()) == {"idle"}


def start_s() -> int:
    return int(time.time())


def changed_s(node: Node) -> int:
    """Return when the site's configuration was last written."""
    return int((node.cluster.site / "config.toml").stat().st_mtime)


HUGE = {"FORGED_COUNT": "30", "FORGED_BYTES": "70000"}
"""More than the kernel takes as the environment of a program, with a stack of 8 MiB as slurmd has it."""
ONE_HUGE = {"FORGED_COUNT": "1", "FORGED_BYTES": "131072"}
"""More than it takes as one variable."""


def alice_runs_at_once(cluster: Cluster) -> None:
    """Check that n2 is in service, and that a share of alice's starts and ends there."""
    assert cluster.wait(cluster.sbatch("alice", "srun echo ran", "-wn2", "--share-gpu=2", "-ohers.out")) == "COMPLETED"
    assert "ran" in cluster.as_user("alice", "cat hers.out").stdout
    assert set(cluster.status().nodes.values()) == {"idle"}


@pytest.mark.release
@pytest.mark.weekly_on_v2
def test_a_user_cannot_keep_slurmd_from_starting_a_hook(cluster: Cluster, node: Node) -> None:
    """With an environment that is too large for the kernel: every way into the queue refuses it, for every job."""
    conf = {"SLURM_CONF": forging_conf(cluster)}
    ways = (["sbatch", "--wrap=true"], ["salloc", "true"], ["srun", "true"], ["sbatch", "--share-gpu=2", "--wrap=true"])
    cluster.as_user("bob", "echo 'optional /usr/lib/slurm-share/share_gpu.so' >>plugstack.conf", check=True)
    for argv, size in zip(ways, (HUGE, ONE_HUGE, HUGE, ONE_HUGE), strict=True):
        done = cluster.as_user("bob", [argv[0], "-wn2", *argv[1:]], env=conf | size)
        assert done.returncode != 0, argv
        assert "bytes of SPANK environment for Prolog and Epilog, and at most 65536 are accepted" in done.stderr, argv
    accepted = conf | {"FORGED_COUNT": "9", "FORGED_BYTES": "7000"}
    cluster.as_user("bob", ["srun", "-wn2", "--share-gpu=2", "--gres=gpu:1", "-n2", "true"], env=accepted, check=True)
    assert "2 slots" in node.log()
    alice_runs_at_once(cluster)


@pytest.mark.release
@pytest.mark.weekly_on_v2
@pytest.mark.weekly
def test_with_the_prolog_at_allocation_a_step_cannot_keep_slurmd_from_starting_a_hook(cluster: Cluster) -> None:
    """Without it slurmd passes the environment of a job's first step on a node to the Prolog, and Lua sees no steps."""
    conf = {"SLURM_CONF": forging_conf(cluster)}
    with slurm_conf(cluster, "PrologFlags=Alloc"):
        for argv in (["salloc", "-wn2"], ["salloc", "-wn2", "--share-gpu=2", "--gres=gpu:1"]):
            step = ["env", *(f"{key}={value}" for key, value in (conf | HUGE).items()), "srun", "-n1", "echo", "ran"]
            assert cluster.as_user("bob", [*argv, *step], check=True).stdout == "ran\n"
        alice_runs_at_once(cluster)


HOSTILE = "[red]x[/red]\x1b[2J\x1b]0;t\x07\r\nNodeName=n9 \u202e'\"$(id)`id`"
LOOKS = [
    "llstat", "llstat --json", "llfree", "llload --json", "llload -g --detail", "llload -g --processes",
    "llload -g --tsv", "llload --advise", "slurm-share status", "slurm-share sample",
    "slurm-share archive --source local", "slurm-share report --from {day}", "slurm-share report --from {day} --json",
]  # fmt: skip
AS_ROOT = ("slurm-share archive", "slurm-share report")
SCREEN = "llload-tui --interval 1 --view jobs"
ODD = re.compile(r"[^\n\t\x20-\x7e\u00a0-\u200d\u2010-\u2027\u2030-\u2064\u2070-\U0010ffff]")
"""Characters that a terminal must not get from a name: controls, and signs that change the direction of writing."""


@pytest.mark.weekly
def test_names_are_shown_and_do_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """Names with markup, newlines and control sequences: every command shows its table and prints none of them."""
    folder = f"/home/alice/{HOSTILE.replace('/', '|')}"
    cluster.as_user("alice", f"mkdir -p {shlex.quote(folder)}", check=True)
    job = cluster.sbatch(
        "alice",
        "ln -sf /usr/local/bin/simgpu-task '[b]p'; srun -n1 './[b]p' --memory 1G --seconds 600",
        *("-wn2", "--share-gpu=2", "--gres=gpu:1", "-J", HOSTILE, "--comment", HOSTILE, "-D", folder, "-o/dev/null"),
    )
    try:
        cluster.wait_running(job)
        node = Node(cluster, "n2")
        until(lambda: "simgpu-task" in node.run("pgrep", "-fa", "seconds 600").stdout or node.mps("server"), "its task")
        day = datetime.datetime.now(datetime.UTC).date().isoformat()
        for look in LOOKS:
            where = "n2" if look.startswith("slurm-share") else "login"
            words = look.format(day=day).split()
            is_roots = look.startswith(AS_ROOT)
            done = cluster.exec(where, words) if is_roots else cluster.as_user("alice", words, node=where)
            assert done.returncode == 0, (look, done.stdout, done.stderr)
            assert "Traceback" not in done.stderr
            assert ODD.findall(done.stdout + done.stderr) == [], look
            assert "uid=" not in done.stdout  # nobody ran id
            assert not re.search(r"^NodeName=n9", done.stdout, re.MULTILINE), look
            if look == "llstat --json":
                assert json.loads(done.stdout)
            if look == "llstat":
                assert "[red]x[/red]" in done.stdout  # as it is, and not as markup
            if look.startswith("slurm-share report"):
                assert "alice" in done.stdout
        with terminals(tmp_path) as opened:
            raw = ["script", "-qefc", SCREEN, "/tmp/drawn"]
            screen = opened.open("names", [*INSIDE, "--name", cluster.name, "as", "alice", "--", *raw])
            screen.shows("[red]x[/red]")
            screen.press("q")
            screen.until(lambda: screen.code is not None, "its end")
            assert screen.code == 0, screen.text
        drawn = (cluster.root("login") / "tmp/drawn").read_text(errors="replace")
        assert "[red]x[/red]" in drawn
        for order in ("\x1b]0;t", "\r\nNodeName", "\u202e"):
            assert order not in drawn
        ended = cluster.as_user("alice", ["llkill", str(job)])
        assert f"ended {job} ([red]x[/red]" in ended.stdout
        assert ODD.findall(ended.stdout + ended.stderr) == []
    finally:
        cluster.exec("ctl", ["scancel", str(job)])
        cluster.wait(job)


MANY = 120
PARTS = ("--share-gpu=4", "--gres=gpu:1", "-n1", "-c1", "--mem=100")
START_S = 120.0
"""Time limit for a job on a node that nobody else uses; on an idle machine it takes two seconds."""


@pytest.mark.weekly
def test_many_jobs_of_a_second_keep_no_other_user_waiting(cluster: Cluster, node: Node) -> None:
    """alice's short shares keep two nodes busy; bob's starts at once (10,000: tests/bench/jobs_a_minute.py 10000 0)."""
    task = "srun bash -c 'echo slot $SLURM_SHARE_SLOT; sleep 1'"
    array = cluster.sbatch("alice", task, f"--array=1-{MANY}", "-xn3", "-o", "many-%a", *PARTS)
    until(lambda: len(node.jobs()) >= 4, "her jobs on n2")
    begin = time.monotonic()
    bobs = cluster.sbatch("bob", "echo up", "-wn3", "--share-gpu=2", "--gres=gpu:1")
    later = cluster.sbatch("bob", "echo up", "-wn2", "--share-gpu=2", "--gres=gpu:1")
    until(lambda: "up\n" in cluster.exec("login", ["cat", f"/home/bob/slurm-{bobs}.out"]).stdout, "bob's first word")
    assert time.monotonic() - begin < START_S
    assert str(array) in "".join(cluster.jobs())  # hers go on meanwhile
    assert cluster.wait(array, timeout=900) == "COMPLETED"
    assert cluster.wait(later) == "COMPLETED"
    said = cluster.as_user("alice", "cat many-*; rm many-*").stdout.splitlines()
    assert len([line for line in said if re.fullmatch(r"slot \d+", line)]) == MANY
    for name in cluster.compute_nodes:
        assert Node(cluster, name).remains() == []
    assert set(cluster.status().nodes.values()) == {"idle"}


CALLS = "open,openat,creat,mkdir,mkdirat,rmdir,unlink,unlinkat,rename,renameat,renameat2,link,linkat,symlink,symlinkat"
CALLS += ",chmod,fchmodat,chown,lchown,fchownat,mknod,mknodat,truncate,mount,umount2"
BECOME = "setuid,setreuid,setresuid,clone,clone3,fork,vfork"
ROOTS = [
    rf"{STATE}(/ledger(\.lock)?|/\.ledger\.\d+\.\d+|/jobs|/user|/no-mps)?",
    rf"{STATE}/jobs/\d+(/plan|/loaded|/\.plan\.\d+\.\d+|/slots(/(lock|queue|refused|choose|\d+))?)?",
    rf"{STATE}/usage(/\d+|/\.\d+\.\d+\.\d+)?",
    rf"{USER}/mps(/\d+(/[0-9a-z-]+\.(lock|ui)|/launchers)?)?",
    rf"{USER}/mps/\d+/jobs(/\d+(/slots(/(lock|queue|refused|choose|\d+))?)?)?",
    re.escape(LOG),
    r"/dev/null",
    r"/(dev/shm|tmp)/\.slurm-share-leftovers-[0-9a-f]{32}(/\d+)?",
    r"/proc/self/(oom_score_adj|fd/\d+)|/proc/\d+/oom_score_adj",
]
"""Folders in which root makes, writes, moves, hands over or removes something: only root can write there."""
A_USERS = (
    rf"{USER}/mps/\d+/(\.?[0-9a-f]+-[0-9a-z.-]+|\.?launchers[0-9.]*)/.+"
    rf"|({STATE}|{USER}/mps/\d+)/jobs/\d+/slots/.+|/dev/shm/.+|/tmp/.+|/home/.+"
)
"""Folders in which anybody may have put a name: root opens nothing there without O_NOFOLLOW."""


def ended_in(text: str) -> str:
    """Return the exit code of the first process of a trace; empty: it runs."""
    ended = re.search(rf"^{text.partition(' ')[0]} +\+\+\+ exited with (\d+)", text, re.MULTILINE) if text else None
    return ended[1] if ended else ""


def traced(node: Node, out: Path, *argv: str) -> list[str]:
    """Return the system calls that a program and its children made as root."""
    entered = node.cluster._enter(node.name, list(argv))
    trace = [
        "strace", "-f", "--pidns-translation", "-e", f"trace={CALLS},{BECOME}", "-e", "signal=none", "-o", str(out),
    ]  # fmt: skip
    out.unlink(missing_ok=True)
    # it would stay as long as the daemons that the hook leaves behind
    with subprocess.Popen([*trace, *entered], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as strace:
        try:
            until(lambda: out.exists() and ended_in(out.read_text(errors="replace")), "the hook's end")
        finally:
            strace.kill()  # what it traces goes on
    assert ended_in(out.read_text(errors="replace")) == "0"
    text = out.read_text(errors="replace")
    out.unlink()
    users: set[str] = set()
    begun: dict[str, str] = {}
    found = []
    for line in text.splitlines():
        pid, _, call = line.partition(" ")
        call = call.strip()
        if call.endswith("<unfinished ...>"):
            begun[pid] = call.removesuffix("<unfinished ...>")
            continue
        if resumed := re.match(r"<\.\.\. \w+ resumed>(.*)", call):
            call = begun.pop(pid, "") + resumed[1]
        if child := re.match(r"(?:clone3?|v?fork)\(.*= \d+(?: /\* (\d+) in strace's PID NS \*/)?$", call):
            number = child[1] or call.rpartition("= ")[2]
            if pid in users:
                users.add(number)
        elif re.match(r"set(?:res|re)?uid\((?:-1, )?[1-9]\d{3}.*= 0$", call):
            users.add(pid)
        elif pid not in users:
            found.append(call)
    return found


@pytest.mark.skipif(shutil.which("strace") is None, reason="NOT TESTED: strace is not installed")
@pytest.mark.weekly
def test_root_makes_and_changes_nothing_but_what_is_listed(cluster: Cluster, node: Node, tmp_path: Path) -> None:
    """Root writes only where it alone can put a name, and follows no link in a user's folder, by the system calls."""
    lines = ('clean_up = ["gpu_processes", "shm"]', 'exclusive_user_nodes = ["n2"]', "hook_helper = false")
    with configured(cluster, *lines):
        calls = traced(node, tmp_path / "trace", *node.hook_argv("prolog", 9001, SLURM_JOB_EXCLUSIVE="NODE"))
        cluster.as_user("alice", "touch /dev/shm/hers", node="n2", check=True)
        calls += traced(node, tmp_path / "trace", *node.hook_argv("epilog", 9001, SLURM_JOB_EXCLUSIVE="NODE"))
    done = [call for call in calls if not re.search(r"= -1 E", call)]
    opened = [call for call in done if re.match(r"(?:open|openat|creat)\(", call)]
    assert len(opened) > 100
    assert any(f"{STATE}/ledger.lock" in call for call in opened)
    loose = [
        call for call in opened if re.search(rf'"(?:{A_USERS})"', call) and not re.search(r"O_NOFOLLOW|O_EXCL", call)
    ]
    assert loose == []
    written = [call for call in done if call not in opened or re.search(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC", call)]
    places = [place for call in written for place in re.findall(r'"(/[^"]*)"', call)]
    odd = [place for place in places if not any(re.fullmatch(form, place) for form in ROOTS) and not is_hooks(place)]
    assert [place for place in odd if not place.startswith("/dev/shm/hers")] == []
    assert f"{BIN}prolog" not in places


def is_hooks(place: str) -> bool:
    """Return whether a call belongs to the hook, and not to the way into the node or to writing our bytecode."""
    return place.startswith(("/proc/", "/sys/", "/opt/slurm-share/")) or "__pycache__" in place
