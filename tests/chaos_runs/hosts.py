"""Faults of a host, and how each ends. Every action returns what it did, as text."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

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


def _kill(
    cluster: Cluster, host: str, lasts_s: float = 0.0, *, those: str, argument: str = "", within_s: float = 0.0
) -> str:
    """Kill a process that `those` lists within some seconds and whose command line has `argument`."""
    tries = max(1, int(within_s / _STEP_S))
    text = _ONE.format(those=those, argument=argument, tries=tries, step=_STEP_S)
    said = cluster.exec(host, ["bash", "-c", text], timeout=120).stdout.strip()
    return f"killed {said}" if said else "there was none"


def kill_slurmd(cluster: Cluster, host: str, lasts_s: float) -> str:
    """Kill slurmd, but no child of it that is about to become a Prolog; start it again a moment later, as systemd
    does."""
    did = _kill(cluster, host, those="pgrep -F /run/slurmd.pid 'slurmd(-wlm)?'")
    time.sleep(lasts_s)
    start_slurmd(cluster, host)
    return did


def kill_slurmctld(cluster: Cluster, host: str, lasts_s: float) -> str:
    """Kill slurmctld and start it again a moment later. It forgets what it had not saved."""
    did = _kill(cluster, host, those="pgrep -F /run/slurm/slurmctld.pid 'slurmctld(-wlm)?'")
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


def _fill(cluster: Cluster, host: str, lasts_s: float, *, path: str, mount: str = "true", after: str = "") -> str:
    """Leave no room on the file system of a path for a while."""
    full = cluster.exec(host, ["bash", "-c", _FULL.format(mount=mount, path=path)])
    time.sleep(lasts_s)
    cluster.exec(host, ["bash", "-c", after or f"mount -o remount,size=64m {path}"])
    return f"{path} full for {lasts_s} s" if full.returncode == 0 else f"not filled: {full.stderr.strip()}"


_MOUNT_LOGS = "mount -t tmpfs -o size=64k tmpfs /var/log && mkdir -p /var/log/slurm /var/log/munge"
"""Gives all logs, ours and Slurm's, a file system."""


def cut_power(cluster: Cluster, host: str, lasts_s: float) -> str:
    """Switch the host off, and on again after a while."""
    cluster.kill(host)
    time.sleep(lasts_s)
    cluster.reboot(host)
    return f"dark for {lasts_s} s"


def reboot(cluster: Cluster, host: str, lasts_s: float) -> str:
    cluster.reboot(host)
    return "booted anew"


ACTIONS: dict[str, Callable[[Cluster, str, float], str]] = {
    "kill_task": partial(_kill, those="pgrep -x simgpu-task"),
    "kill_daemon": partial(_kill, those="pgrep -x nvidia-cuda-mps", argument="mps-control"),
    "kill_server": partial(_kill, those="pgrep -x nvidia-cuda-mps", argument="mps-server"),
    "kill_hook": partial(_kill, those="pgrep -x 'slurm-share-(pro|epi)'", within_s=_FIND_HOOK_S),
    "kill_helper": partial(_kill, those="pgrep -x slurm-share-hoo"),
    "kill_slurmd": kill_slurmd,
    "kill_slurmctld": kill_slurmctld,
    "cut_network": cut_network,
    "fill_state": partial(_fill, path="/run/slurm-share"),
    "fill_log": partial(_fill, path="/var/log", mount=_MOUNT_LOGS, after="umount -l /var/log"),
    "fill_spool": partial(_fill, path="/tmp", after="mount -o remount,size=2g /tmp"),
    "cut_power": cut_power,
    "reboot": reboot,
}
"""The faults by name: what does each to a host, for that many seconds. fill_spool also fills the users' /tmp."""


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
