"""A third user, carol, who cheats: on a node that her share is on she does what she can to hurt the others.

Each action is a job of hers that does one thing within a user's rights, some of it in processes that outlive the job.
The one exception is `mount`: fusermount3 would do it for her on a node with FUSE; here root does it on what is hers.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from subprocess import CompletedProcess

from hooked import FORGER, STATE, USER

from localcluster import Cluster, process

from .plan import CHEATER, Event
from .plan import CHEATER_UID as UID

HOME = f"/home/{CHEATER}"
KINDS = (("--share-gpu=2",), ("--share-gpu=2", "--gres=gpu:1"), ("--share-gpu=4", "--gres=gpu:1", "-n1"))
"""The shares that she asks for: whole nodes, a GPU, a part of one."""
SIZE_OF_FAT = 60_000
"""Bytes of job-control environment that she gives a job; job_submit.lua refuses more than 64 KiB."""
HELD_S = 60
"""How long her processes outlive their job at most."""
_RUNS_S = 40.0
_PROGRAM = r"""
import fcntl, glob, os, socket, stat, subprocess, sys, time
action, held_s, uids = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent")
slots = f"/run/slurm-share/jobs/{os.environ['SLURM_JOB_ID']}/slots"
mine = [path for path in [*glob.glob(f"{slots}/*"), *glob.glob(f"{pipe}/*"), f"{pipe}.ui", f"{pipe}.lock"]]

def linger(does_more=lambda: None):
    "Let the job go on without this process, in a session of its own and without the job's files."
    print(action, "goes on", flush=True)
    if os.fork():
        return
    os.setsid()
    for fd in range(3):
        os.dup2(os.open("/dev/null", os.O_RDWR), fd)
    end = time.time() + held_s
    while time.time() < end:
        does_more()
        time.sleep(0.05)
    os._exit(0)

def attempt(call, *args, **options):
    try:
        return call(*args, **options)
    except OSError:
        return None

def fill(fd):
    while attempt(os.write, fd, bytes(65536)):
        pass

if action == "hold_space":
    fds = [attempt(os.open, path, os.O_RDWR | os.O_NONBLOCK) for path in mine]
    fds.append(attempt(os.open, f"{pipe}/big", os.O_CREAT | os.O_RDWR, 0o600))
    fds = [fd for fd in fds if fd is not None and stat.S_ISREG(os.fstat(fd).st_mode)]
    for fd in fds:
        fill(fd)
    linger()
elif action == "many_files":
    for number in range(200_000):
        try:
            os.mknod(f"{pipe}/{number}")
        except OSError:
            break
elif action == "squat":
    for uid in uids:
        attempt(os.mkdir, f"/tmp/slurm-share-{uid}", 0o700)
elif action == "replace":
    for number, path in enumerate(mine):
        attempt(os.unlink, path)
        (
            lambda: attempt(os.mkfifo, path), lambda: attempt(os.symlink, "/etc/passwd", path),
            lambda: attempt(os.makedirs, f"{path}/a/b"), lambda: attempt(os.symlink, f"{pipe}/x", path),
            lambda: attempt(socket.socket(socket.AF_UNIX).bind, path), lambda: attempt(os.symlink, path, path),
        )[number % 6]()
elif action == "take_away":
    for path in [*mine, pipe]:
        attempt(os.chmod, path, 0)
elif action == "hold_locks":
    held = []
    for path in mine:
        fd = attempt(os.open, path, os.O_RDWR | os.O_NONBLOCK)
        if fd is not None:
            held.append(fd)
            attempt(fcntl.flock, fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            attempt(fcntl.lockf, fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for _ in range(50):
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        link.settimeout(0.2)
        attempt(link.connect, f"{pipe}/control")
        held.append(link)
    linger()
elif action == "kill_own":
    subprocess.run(["pkill", "-9", "-u", str(os.getuid()), "nvidia-cuda-mps"])
elif action == "outlive":
    subprocess.Popen(["simgpu-task", "--memory", "100M", "--seconds", "600"], start_new_session=True,
                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(action, "is done", flush=True)
"""
_SCRIPT = """\
srun -n1 --slot-wait=0 python3 ~/cheat.py {action} {held_s} {uids}
sleep {seconds}
"""
_MOUNT = f"""\
mkdir -p /tmp/cheat && touch /tmp/cheat/file && chown {UID} /tmp/cheat/file
count=0
for folder in $(find {USER}/mps/{UID} -mindepth 1 -maxdepth 1 -type d -user {UID}); do
    mount -t tmpfs -o uid={UID},size=64k carols "$folder" && count=$((count + 1))
done
for file in $(find {USER} -path "*/jobs/*/slots/0" -type f -user {UID}); do
    mount --bind /tmp/cheat/file "$file" && count=$((count + 1))
done
echo "$count"
"""
_GONE = f"""\
used=$(df --output=used -k {USER} | tail -n1); seen=$(du -skx {USER} | cut -f1); echo $((used - seen))
"""
MOST_GONE_KIB = 64
"""A tmpfs counts folders otherwise than du."""


def make_user(cluster: Cluster) -> None:
    """Add the cheater to the accounts of every host, and write her program and her plugin into her home."""
    home = cluster.home / CHEATER
    home.mkdir(mode=0o755, exist_ok=True)
    line = f"{CHEATER}:x:{UID}:{UID}::{HOME}:/bin/bash"
    add = f"grep -q ^{CHEATER}: /etc/passwd || {{ echo {line} >>/etc/passwd; echo {CHEATER}:x:{UID}: >>/etc/group; }}"
    for host in cluster.hosts:
        cluster.exec(host, ["bash", "-c", f"{add}; [ {host} != login ] || chown {UID}:{UID} {HOME}"], check=True)
    build = """cat >cheat.py && gcc -shared -fPIC -o forger.so forger.c && cp /etc/slurm/slurm.conf slurm.conf
        echo "PlugStackConfig=$HOME/plugstack.conf" >>slurm.conf
        { cat /etc/slurm/plugstack.conf; echo "optional $HOME/forger.so"; } >plugstack.conf"""
    (home / "forger.c").write_text(FORGER)
    as_cheater(cluster, build, input=_PROGRAM, check=True)


def as_cheater(cluster: Cluster, text: str, *, input: str = "", check: bool = False) -> CompletedProcess[str]:
    """Run a piece of bash as the cheater on the login host."""
    words = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "env", "-i", f"HOME={HOME}"]
    words += [f"USER={CHEATER}", "PATH=/usr/local/bin:/usr/bin:/bin", "bash", "-c", f"cd; {text}"]
    return cluster.exec("login", words, input=input, timeout=60, check=check)


def cheat(cluster: Cluster, event: Event) -> str:
    """Submit the job that does it; return what happened. Raises CommandFailed if Slurm does not take the job."""
    kind = KINDS[int(event.which * len(KINDS))]
    options = [*kind, "--parsable", "-t2", "--mem=200", "--no-requeue", f"-J{event.action}", "-ocheat.%j.out"]
    others = " ".join(map(str, (2001, 2002)))
    script = _SCRIPT.format(action=event.action, held_s=HELD_S, uids=others, seconds=event.lasts_s)
    env = ""
    if event.action == "fat":
        env = f"FORGED_NAME=FAT FORGED_VALUE=$(head -c {SIZE_OF_FAT} /dev/zero | tr '\\0' x) SLURM_CONF=~/slurm.conf "
    done = as_cheater(cluster, f"{env}sbatch {shlex.join(options)}", input=f"#!/bin/bash\n{script}", check=True)
    job = int(done.stdout.strip().split(";")[0])
    if event.action != "mount":
        return f"job {job}"
    for node in _runs_on(cluster, job):
        count = cluster.exec(node, ["bash", "-c", _MOUNT]).stdout.strip() or "0"
        return f"job {job}: {count} mounts on {node}"
    return f"job {job}: it does not run"


def _runs_on(cluster: Cluster, job: int) -> Iterator[str]:
    """Yield the first node of a job once it runs there and has a plan; nothing if that takes too long."""
    end = time.monotonic() + _RUNS_S
    while time.monotonic() < end:
        said = cluster.exec("ctl", ["squeue", "-h", f"-j{job}", "-tR", "-o%B"]).stdout.split()
        if said and cluster.exec(said[0], ["test", "-s", f"{STATE}/jobs/{job}/plan"]).returncode == 0:
            yield said[0]
            return
        if not said and not cluster.exec("ctl", ["squeue", "-h", f"-j{job}", "-tPD,CF", "-o%i"]).stdout.strip():
            return
        time.sleep(0.3)


def read_remains(cluster: Cluster, node: str) -> list[str]:
    """Return what she still has on a node and `Node.remains` does not list: space of files that are gone, GPUs."""
    found = []
    gone = cluster.exec(node, ["bash", "-c", _GONE]).stdout.strip()
    if gone.isdecimal() and int(gone) > MOST_GONE_KIB:
        found.append(f"{gone} KiB of the users' part are held by files that are gone")
    theirs = cluster.exec(node, ["pgrep", "-l", "-u", str(UID), "simgpu-task|nvidia-cuda"]).stdout
    return found + [f"{CHEATER}'s process {line}" for line in theirs.splitlines()]


def end_processes(cluster: Cluster) -> None:
    """Wait until no process that outlived its job lives any more. Until then it may hold a lock of hers, and its file
    stays."""
    nodes = cluster.compute_nodes
    process.wait_until(
        lambda: not any(cluster.exec(node, ["pgrep", "-u", str(UID), "python3"]).stdout for node in nodes),
        "the end of the cheater's processes",
        4 * HELD_S,
        every_s=1.0,
    )
