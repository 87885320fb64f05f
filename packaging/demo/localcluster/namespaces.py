"""Namespaces of a cluster and its hosts: create, enter, and remove them, and find what is left of them.

The state is read from the kernel, without psutil: this runs with the system's Python before anything is installed. A
file in the run directory has the PID of a first process; its start time, or the cluster's name in its mount table,
proves that the PID still belongs to it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from . import conf, paths, process
from .errors import ClusterError, Misuse, NotDone
from .records import Host, Identity

V1, V2 = "v1", "v2"
"""Versions of cgroups."""
INSIDE_ENV = {"PATH": process.OUTSIDE_PATH, "LANG": "C.UTF-8"}
_BOOT_S = 180.0
_END_S = 60.0


def start_cluster(name: str, hosts: Sequence[Host]) -> None:
    """Start the cluster's first process, with the tmpfs and the network bridge that all hosts share. Raises NotDone."""
    run = paths.run_dir(name)
    for part in ("hosts", "log", "tree"):
        (run / part).mkdir()
    (run / "hosts.txt").write_text(conf.hosts_file(hosts))
    log = run / "log" / "cluster"
    init = [str(paths.HERE / "cluster-init"), str(run), name]
    flags = ["--mount", "--net", "--pid", "--fork", "--kill-child", "--propagation", "private"]
    process.start_apart(["/usr/bin/unshare", *flags, "--", *init], log, INSIDE_ENV)
    process.wait_until((run / "first-process").exists, f"the start of cluster {name}", _BOOT_S, why=lambda: _tail(log))


def boot(name: str, hosts: Sequence[Host], layers: str, *, cgroup: str, ahead: str = "") -> None:
    """Start the first process of each host and connect its network. `cgroup`: v1, v2, or empty for none. `ahead`:
    layers of another root, visible on the host as /.ahead. Raises NotDone or ClusterError."""
    for host in hosts:
        _start_host(name, host, layers, cgroup=cgroup, ahead=ahead)
    for host in hosts:
        _wait_for_host(name, host)
    _connect(name, hosts)


def alive(name: str, host: str | None = None) -> Identity | None:
    """Return the first process of a host (None: of the cluster) if it is alive."""
    run = paths.run_dir(name)
    identity = _read_identity(run / "first-process" if host is None else run / "hosts" / host / "pid")
    return identity if identity and identity.start_ticks == start_ticks(identity.pid) else None


def start_ticks(pid: int) -> int | None:
    """Return a process's start time (field 22 of its stat); None: no such process, or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def enter_argv(pid: int, argv: Sequence[str], *, cwd: str, uid: int | None = None, cgroup: str = "") -> list[str]:
    """Return the command line that runs `argv`, as root or a user, on the host whose first process is `pid`.

    setpriv --pdeathsig ends the program when nsenter(1), which stays outside, is ended.
    """
    namespaces = ["--mount", "--uts", "--ipc", "--net", "--pid", *(["--cgroup"] if cgroup else [])]
    enter = ["/usr/bin/nsenter", "--target", str(pid), *namespaces, "--root", f"--wdns={cwd}", "--"]
    if cgroup:
        # entering the cgroup namespace does not join the group
        groups = f"/sys/fs/cgroup/{'init' if cgroup == V2 else '*'}/cgroup.procs"
        join = f'for f in {groups}; do echo 0 > "$f"; done 2>/dev/null; exec "$@"'
        enter += ["/bin/sh", "-c", join, "sh"]
    who = [] if uid is None else [f"--reuid={uid}", f"--regid={uid}", "--init-groups"]
    return [*enter, "/usr/bin/setpriv", *who, "--pdeathsig", "KILL", "--", *argv]


def power_off(name: str, host: str) -> None:
    """Kill every process of a host at once, as a power cut does; its disk stays. Raises NotDone."""
    identity = alive(name, host)
    if identity is None:
        return
    _kill(identity)
    # The first process of a pid namespace disappears only after all others in it (zap_pid_ns_processes in the kernel).
    process.wait_until(lambda: start_ticks(identity.pid) != identity.start_ticks, f"the end of {host}", _END_S)
    _remove_groups(group / host for group in cgroups(name))
    shutil.rmtree(paths.run_dir(name) / "hosts" / host, ignore_errors=True)


def end_cluster(name: str) -> None:
    """Kill every process of the cluster and remove every file and cgroup; do nothing for those already gone."""
    identity = alive(name)
    if identity:
        _kill(identity)
    # other processes (nsenter, hosts that are starting) end by themselves or are killed next
    with contextlib.suppress(NotDone):
        process.wait_until(lambda: not processes(name), "their end", 0.5, every_s=0.01)
    for pid in processes(name):
        _kill(Identity(pid, start_ticks(pid) or 0))
    left = "processes of cluster " + name
    process.wait_until(lambda: not processes(name), f"the end of all {left}", _END_S, why=lambda: str(processes(name)))
    _remove_groups(cgroups(name))
    shutil.rmtree(paths.run_dir(name), ignore_errors=True)


def processes(name: str) -> list[int]:
    """Return every process of the cluster, read from the kernel."""
    run = str(paths.run_dir(name))
    source = f" slurm-share:{name} "
    views: dict[tuple[str, int, int], bool] = {}
    return [pid for pid in _pids() if pid != os.getpid() and (_mounts(pid, source, views) or _starts(pid, run))]


def cgroups(name: str) -> list[Path]:
    """Return the cluster's groups below the cgroup v1 controllers and in the v2 tree."""
    tree, group = v2_tree(), paths.cgroup_name(name)
    found = {*paths.CGROUP_ROOT.glob(f"*/{group}"), *([tree / group] if tree and (tree / group).exists() else [])}
    return sorted(found)


def v2_tree() -> Path | None:
    """Return where the tree of cgroup v2 is mounted; None: nowhere."""
    return parse_v2_tree(Path("/proc/self/mounts").read_text(errors="replace"))


def parse_v2_tree(mounts: str) -> Path | None:
    """Return the first mount of cgroup v2 in the text of /proc/self/mounts."""
    words = (line.split(" ") for line in mounts.splitlines())
    return next((Path(line[1]) for line in words if len(line) > 2 and line[2] == "cgroup2"), None)


def v2_controllers() -> frozenset[str]:
    """Return the controllers that groups in the tree of v2 can have: none where v1 has them."""
    tree = v2_tree()
    return frozenset() if tree is None else frozenset((tree / "cgroup.controllers").read_text().split())


def has_v1() -> bool:
    """Return whether hosts can be given cgroups of their own in v1."""
    return not _missing_of_v1()


def _missing_of_v1() -> list[str]:
    needed = ("freezer", "memory", "cpuset", "devices", "cpuacct", "cpu", "pids")
    return [name for name in needed if not os.access(paths.CGROUP_ROOT / name / "cgroup.procs", os.W_OK)]


def require_cgroup(kind: str) -> None:
    """Raise Misuse unless hosts can be given cgroups of their own, in v1 or v2."""
    if kind == V2:
        tree = v2_tree()
        if tree is None or not os.access(tree / "cgroup.procs", os.W_OK) or not v2_controllers() >= {"memory", "pids"}:
            raise Misuse(
                "--cgroup-v2 needs a writable tree of cgroup v2 with the controllers memory and pids, and this machine "
                "has none (a kernel with controllers of cgroup v1 has none for v2); run with --kernel v2"
            )
        return
    if _missing_of_v1():
        raise Misuse(
            f"--cgroup needs the cgroup v1 controllers, and this machine has no writable {', '.join(_missing_of_v1())} "
            f"below {paths.CGROUP_ROOT} (a kernel with cgroup v2 only has none); run with --cgroup-v2"
        )


def _start_host(name: str, host: Host, layers: str, *, cgroup: str, ahead: str) -> None:
    run = paths.run_dir(name)
    first = alive(name)
    if first is None:
        raise ClusterError(f"cluster {name} has lost its first process; take it down and up again")
    shutil.rmtree(run / "hosts" / host.name, ignore_errors=True)
    (run / "hosts" / host.name).mkdir()
    above = f"{v2_tree()}/" if cgroup == V2 else ""
    group = f"{cgroup}:{above}{paths.cgroup_name(name)}/{host.name}" if cgroup else ""
    simulated = [str(host.gpus), str(host.driver or ""), host.memory_limits]
    init = [str(paths.HERE / "host-init"), str(run), name, host.name, layers, *simulated, group, ahead]
    enter = ["/usr/bin/nsenter", "--target", str(first.pid), "--mount", "--net", "--pid", "--wdns=/", "--"]
    namespaces = ["--mount", "--uts", "--ipc", "--net", "--pid", "--propagation", "private"]
    unshare = ["/usr/bin/setsid", "-f", "/usr/bin/unshare", *namespaces, "--fork", "--kill-child", "--"]
    process.start_apart([*enter, *unshare, *init], run / "log" / host.name, INSIDE_ENV)


def _wait_for_host(name: str, host: Host) -> None:
    run = paths.run_dir(name)
    state, log = run / "hosts" / host.name, run / "log" / host.name

    def ended() -> bool:
        return (state / "pid").exists() or (state / "failed").exists()

    process.wait_until(ended, f"the boot of {host.name}", _BOOT_S, why=lambda: _tail(log))
    if (state / "failed").exists():
        raise ClusterError(f"{host.name} did not boot: {_tail(log)}")


def _connect(name: str, hosts: Sequence[Host]) -> None:
    first = alive(name)
    pids = {host: alive(name, host.name) for host in hosts}
    if first is None or not all(pids.values()):
        gone = ", ".join(host.name for host, pid in pids.items() if pid is None)
        raise ClusterError(f"cluster {name}: {gone or 'its first process'} ended right after its start")
    for host in hosts:  # after a power cut the kernel removes the old interface with a delay
        _ip(first.pid, [f"link del v-{host.name}"], check=False)
    links: list[str] = []
    for host, identity in pids.items():
        assert identity is not None
        links.append(f"link add v-{host.name} type veth peer name eth0 {_mac(host)} netns {identity.pid}")
        links.append(f"link set v-{host.name} master br0 up")
    _ip(first.pid, links)
    for host, identity in pids.items():
        assert identity is not None
        address = [f"addr add {host.address}/16 dev eth0", "link set eth0 up", "route add default via 10.77.0.254"]
        _ip(identity.pid, ["link set lo up", *address])


def _mac(host: Host) -> str:
    """Return a MAC address that a host keeps over a reboot; otherwise the other hosts' ARP tables are stale for a
    while.

    02: locally administered (IEEE 802, as QEMU and Docker use it).
    """
    octets = [int(word) for word in host.address.split(".")]
    return "address 02:00:" + ":".join(f"{octet:02x}" for octet in octets)


def _ip(pid: int, commands: Sequence[str], *, check: bool = True) -> None:
    enter = ["/usr/bin/nsenter", "--target", str(pid), "--net", "--"]
    process.run([*enter, "ip", "-batch", "-"], input="\n".join(commands) + "\n", check=check)


def _kill(identity: Identity) -> None:
    if identity.start_ticks == start_ticks(identity.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(identity.pid, signal.SIGKILL)


def _read_identity(path: Path) -> Identity | None:
    try:
        pid, ticks = path.read_text().split()
        return Identity(int(pid), int(ticks))
    except (OSError, ValueError):
        return None


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - the fast one


def _mounts(pid: int, source: str, views: dict[tuple[str, int, int], bool]) -> bool:
    """Return whether the process sees a file system with that source, which means that it is in the cluster.

    `views` caches the answers: processes with the same mount namespace and root see the same, and a cluster may have
    thousands of them.
    """
    try:
        root = os.stat(f"/proc/{pid}/root")  # noqa: PTH116 - a Path for each process of the machine takes time
        view = (os.readlink(f"/proc/{pid}/ns/mnt"), root.st_dev, root.st_ino)  # noqa: PTH115
        if view not in views:
            views[view] = source in Path(f"/proc/{pid}/mountinfo").read_text(errors="replace")
    except OSError:
        return False
    return views[view]


def _starts(pid: int, run: str) -> bool:
    """Return whether the process is an init of ours that is entering its namespaces: its arguments name it and the
    cluster."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return False
    inits = {str(paths.HERE / "cluster-init"), str(paths.HERE / "host-init")}
    return any(word in inits and following == run for word, following in itertools.pairwise(words))


def _remove_groups(tops: Iterable[Path]) -> None:
    """Remove cgroups with all below them, deepest first; their processes have ended already."""
    for top in tops:
        groups = sorted((Path(folder) for folder, _, _ in os.walk(top)), key=lambda path: len(path.parts), reverse=True)
        for group in groups:
            process.wait_until(partial(_rmdir, group), f"the removal of {group}", _END_S)


def _rmdir(group: Path) -> bool:
    """Remove one cgroup; False while the kernel still counts a dying process in it (EBUSY)."""
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _tail(log: Path) -> str:
    try:
        return " | ".join(log.read_text(errors="replace").strip().splitlines()[-4:])
    except OSError:
        return ""
