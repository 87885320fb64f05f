"""Faults of a host, and how each ends. Every action returns what it did, as text."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from localcluster import Cluster, ClusterError

SPOOL = "/tmp/slurmd"
"""SlurmdSpoolDir of this cluster, on its own file system, so that it can be full while the machine is not."""
_FIND_HOOK_S = 12.0
_STEP_S = 0.02
_TRIES = 5
_ONE = r"""for n in $(seq {tries}); do
    for pid in $({those} | shuf); do
        comm=$(cat /proc/$pid/comm 2>/dev/null)
        tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -q -- '{argument}' || continue
        whose=$(stat -c %U /proc/$pid 2>/dev/null)
        job=$(tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | sed -n 's/^SLURM_JOB_ID=/, job /p')
        kill -9 "$pid" 2>/dev/null && echo "$comm $pid of $whose$job" && exit
    done
    sleep {step}
done"""
_FULL = (
    "{mount} && used=$(df --output=used -k {path} | tail -n1) && mount -o remount,size=$((used < 4 ? 4 : used))k {path}"
)
"""A script that leaves no room on a tmpfs without writing: it sets the size to what is in use."""


def _kill(cluster: Cluster, host: str, those: str, argument: str = "", seconds: float = 0.0) -> str:
    tries = max(1, int(seconds / _STEP_S))
    text = _ONE.format(those=those, argument=argument, tries=tries, step=_STEP_S)
    said = cluster.exec(host, ["bash", "-c", text], timeout=120).stdout.strip()
    return f"killed {said}" if said else "there was none"


def kill_task(cluster: Cluster, host: str, lasts_s: float) -> str:
    """Kill a program on a GPU."""
    return _kill(cluster, host, "pgrep -x simgpu-task")


def kill_daemon(cluster: Cluster, host: str, lasts_s: float) -> str:
    """Kill an MPS control daemon."""
    return _kill(cluster, host, "pgrep -x nvidia-cuda-mps", "mps-control")


def kill_server(cluster: Cluster, host: str, lasts_s: float) -> str:
    """Kill an MPS server."""
    return _kill(cluster, host, "pgrep -x nvidia-cuda-mps", "mps-server")


def kill_hook(cluster: Cluster, host: str, lasts_s: float) -> str:
    """Kill the first Prolog or Epilog that runs within the next seconds."""
    return _kill(cluster, host, "pgrep -x 'slurm-share-(pro|epi)'", seconds=_FIND_HOOK_S)


def kill_helper(cluster: Cluster, host: str, lasts_s: float) -> str:
    """Kill the hooks' helper and what it runs."""
    return _kill(cluster, host, "pgrep -x slurm-share-hoo")


def kill_slurmd(cluster: Cluster, host: str, lasts_s: float) -> str:
    """Kill slurmd, but no child of it that is about to become a Prolog; start it again a moment later, as systemd
    does."""
    did = _kill(cluster, host, "pgrep -F /run/slurmd.pid 'slurmd(-wlm)?'")
    time.sleep(lasts_s)
    start_slurmd(cluster, host)
    return did


def kill_slurmctld(cluster: Cluster, host: str, lasts_s: float) -> str:
    """Kill slurmctld and start it again a moment later. It forgets what it had not saved."""
    did = _kill(cluster, host, "pgrep -F /run/slurm/slurmctld.pid 'slurmctld(-wlm)?'")
    time.sleep(lasts_s)
    start_slurmctld(cluster)
    return did


def start_slurmd(cluster: Cluster, host: str) -> None:
    """Start slurmd if it does not run."""
    cluster.exec(host, ["bash", "-c", "pgrep -x 'slurmd(-wlm)?' >/dev/null || slurmd"], timeout=60)


def start_slurmctld(cluster: Cluster) -> None:
    """Start slurmctld if it does not run."""
    cluster.exec("ctl", ["bash", "-c", "pgrep -x 'slurmctld(-wlm)?' >/dev/null || slurmctld"], timeout=60)


def cut_network(cluster: Cluster, host: str, lasts_s: float) -> str:
    """Take the host's link down, and up again later; the route goes with the link."""
    cluster.exec(host, ["ip", "link", "set", "eth0", "down"], check=True)
    time.sleep(lasts_s)
    plug_in(cluster, host)
    return f"no network for {lasts_s} s"


def plug_in(cluster: Cluster, host: str) -> None:
    """Bring up the link and the route if they are missing."""
    text = "ip link set eth0 up; ip route show default | grep -q . || ip route add default via 10.77.0.254"
    cluster.exec(host, ["bash", "-c", text])


def _fill(cluster: Cluster, host: str, path: str, lasts_s: float, mount: str = "true", after: str = "") -> str:
    full = cluster.exec(host, ["bash", "-c", _FULL.format(mount=mount, path=path)])
    time.sleep(lasts_s)
    cluster.exec(host, ["bash", "-c", after or f"mount -o remount,size=64m {path}"])
    return f"{path} full for {lasts_s} s" if full.returncode == 0 else f"not filled: {full.stderr.strip()}"


def fill_state(cluster: Cluster, host: str, lasts_s: float) -> str:
    """Fill the file system of our state folder."""
    return _fill(cluster, host, "/run/slurm-share", lasts_s)


def fill_log(cluster: Cluster, host: str, lasts_s: float) -> str:
    """Fill the file system of all logs, ours and Slurm's."""
    mount = "mount -t tmpfs -o size=64k tmpfs /var/log && mkdir -p /var/log/slurm /var/log/munge"
    return _fill(cluster, host, "/var/log", lasts_s, mount, "umount -l /var/log")


def fill_spool(cluster: Cluster, host: str, lasts_s: float) -> str:
    """Fill the file system of slurmd's state and of /tmp."""
    return _fill(cluster, host, "/tmp", lasts_s, after="mount -o remount,size=2g /tmp")


def cut_power(cluster: Cluster, host: str, lasts_s: float) -> str:
    """Switch the host off, and on again after a while."""
    cluster.kill(host)
    time.sleep(lasts_s)
    cluster.reboot(host)
    return f"dark for {lasts_s} s"


def reboot(cluster: Cluster, host: str, lasts_s: float) -> str:
    """Switch the host off and on."""
    cluster.reboot(host)
    return "booted anew"


ACTIONS: dict[str, Callable[[Cluster, str, float], str]] = {
    action.__name__: action
    for action in (
        kill_task, kill_daemon, kill_server, kill_hook, kill_helper, kill_slurmd, kill_slurmctld, cut_network,
        fill_state, fill_log, fill_spool, cut_power, reboot,
    )
}  # fmt: skip


def make_calm(cluster: Cluster, hosts: Sequence[str]) -> None:
    """Undo everything that an action may have left: power, cables, disks, daemons. What does not work yet, on a
    machine that is busy, is tried again."""
    for host in hosts:
        for _ in range(_TRIES):
            try:
                _make_calm(cluster, host)
                break
            except ClusterError:
                time.sleep(1.0)


def _make_calm(cluster: Cluster, host: str) -> None:
    if not cluster.is_up(host):
        cluster.reboot(host)
    plug_in(cluster, host)
    if host == "ctl":
        start_slurmctld(cluster)
        return
    undo = "while mountpoint -q /var/log; do umount -l /var/log; done; mount -o remount,size=64m /run/slurm-share"
    cluster.exec(host, ["bash", "-c", f"{undo}; mount -o remount,size=2g /tmp"])
    start_slurmd(cluster, host)
