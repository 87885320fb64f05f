"""A host under systemd: a clean root booted with its own systemd in new namespaces."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from clean_roots import CleanRoot

from localcluster import process

BOOT_S = 60
BOOT = """\
lower=$1 layer=$2 group=$3 root=$2/merged
mkdir -p "$layer/upper" "$layer/work" "$root"
echo 0 >"$group/cgroup.procs"
read -r -a stat </proc/self/stat # the machine's own /proc: our pid as the machine sees it
exec unshare --uts --net --cgroup -- bash -ec '
    root=$1
    shift
    mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$root"
    mount -t tmpfs -o mode=755,size=1m dev "$root/dev"
    device() { mknod -m 666 "$root/dev/$1" c "$2" "$3"; }
    device null 1 3; device zero 1 5; device full 1 7; device random 1 8; device urandom 1 9; device tty 5 0
    mkdir "$root/dev/pts" "$root/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
    mount -t tmpfs shm "$root/dev/shm"
    ln -s pts/ptmx "$root/dev/ptmx"
    ln -s /proc/self/fd "$root/dev/fd"
    mount -t proc proc "$root/proc"
    mount -t sysfs -o ro sysfs "$root/sys"
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
    mount -t tmpfs -o mode=755 run "$root/run"
    mount -t tmpfs -o mode=1777 tmp "$root/tmp"
    echo booted >"$root/etc/hostname"
    ip link set lo up
    echo "$3" >"$2/pid.new" && mv "$2/pid.new" "$2/pid"
    cd "$root"
    mkdir -p .old
    pivot_root . .old
    umount -l /.old
    rmdir /.old
    exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /usr/lib/systemd/systemd
' bash "$root" "$lower" "$layer" "${stat[0]}"
"""
"""Mounts that a host needs before its systemd starts: /dev, and /sys/fs/cgroup as cgroup v2."""


class Booted:
    """A running host; `root` is what it was booted from."""

    def __init__(self, root: CleanRoot, pid: int) -> None:
        self.root = root
        self._pid = pid

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a program on the host, to its end."""
        enter = ["nsenter", "--target", str(self._pid), "--mount", "--pid", "--ipc", "--uts", "--net", "--cgroup"]
        env = {"PATH": process.OUTSIDE_PATH, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
        return process.run([*enter, "--wdns=/", "--", *argv], check=False, env=env, timeout_s=BOOT_S, apart=True)

    def state(self, unit: str, what: str = "ActiveState") -> str:
        """Return a property of a unit, as systemd reports it."""
        return self.run("systemctl", "show", "--value", "-p", what, unit).stdout.strip()

    def until(self, unit: str, state: str) -> None:
        """Wait for a unit to be in that state."""
        why = ["systemctl", "status", "--no-pager", "--full", unit]
        process.wait_until(
            lambda: self.state(unit) == state,
            f"{unit} being {state}",
            BOOT_S,
            every_s=0.1,
            why=lambda: self.run(*why).stdout,
        )


@contextlib.contextmanager
def booted(root: CleanRoot) -> Iterator[Booted]:
    """Boot the host; end all its processes afterwards. Skips the test, with a message, without cgroup v2."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    tree = next((Path(words[1]) for words in mounts if words[2] == "cgroup2"), None)
    if tree is None:
        pytest.skip("NOT TESTED under systemd: this machine has no cgroup v2 mounted")
    group = tree / f"slurm-share-booted.{root.layer.name}.{time.monotonic_ns()}"
    group.mkdir()
    argv = process.bound_to_us(["/bin/bash", "-ec", BOOT, "bash", root.lower, str(root.layer), str(group)])
    log = root.layer / "log"
    try:
        with (
            log.open("wb") as sink,
            subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True) as init,
        ):
            try:
                mark = root.layer / "pid"
                process.wait_until(mark.exists, "a booted host", BOOT_S, why=log.read_text)
                host = Booted(root, int(mark.read_text()))
                process.wait_until(
                    lambda: host.run("systemctl", "is-system-running").stdout.strip() in ("running", "degraded"),
                    "the end of systemd's start",
                    BOOT_S,
                    every_s=0.2,
                    why=lambda: host.run("systemctl", "list-jobs").stdout,
                )
                yield host
            finally:
                init.kill()
    finally:
        for one in sorted(group.rglob("*/"), reverse=True):
            process.wait_until(lambda one=one: _removed(one), f"the removal of {one}", BOOT_S)
        process.wait_until(lambda: _removed(group), f"the removal of {group}", BOOT_S)


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False  # a process in it is still dying
    return True
