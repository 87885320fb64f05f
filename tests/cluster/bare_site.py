"""A cluster with our packages on every host and none of our lines in Slurm's files."""

from __future__ import annotations

import re
from pathlib import Path

from hooked import until, why_not_idle

from localcluster import Cluster

OURS = re.compile(r"(?m)^(PrologFlags|Prolog|Epilog|LaunchParameters|JobSubmitPlugins|PlugStackConfig)=.*\n")
SCRIPT = Path(__file__).resolve().parents[2] / "plugins/job_submit.lua"


def strip(cluster: Cluster) -> None:
    """Take every line of ours out; what the packages put on the controller is there."""
    slurm = OURS.sub("", (cluster.conf / "slurm.conf").read_text())
    slurm = re.sub(r",shard:simulated:\d+", "", slurm).replace("GresTypes=gpu,shard", "GresTypes=gpu")
    (cluster.conf / "slurm.conf").write_text(slurm)
    gres = (cluster.conf / "gres.conf").read_text().splitlines(keepends=True)
    (cluster.conf / "gres.conf").write_text("".join(line for line in gres if "shard" not in line))
    (cluster.conf / "plugstack.conf").unlink(missing_ok=True)
    (cluster.conf / "job_submit.lua").unlink(missing_ok=True)
    lua = "install -D -m644 /dev/stdin /usr/lib/slurm-share/job_submit.lua"
    cluster.exec("ctl", ["bash", "-c", lua], input=SCRIPT.read_text(), check=True)


def files(cluster: Cluster) -> dict[str, bytes]:
    """Return every file in /etc/slurm."""
    return {file.name: file.read_bytes() for file in sorted(cluster.conf.iterdir()) if file.is_file()}


def put_back(cluster: Cluster, was: dict[str, bytes]) -> None:
    """Make /etc/slurm hold these files and no others, and Slurm take them."""
    if files(cluster) == was:
        return
    for file in cluster.conf.iterdir():
        if file.is_file():
            file.unlink()
    for name, data in was.items():
        (cluster.conf / name).write_bytes(data)
    reconfigure(cluster)


def slurmd_pids(cluster: Cluster) -> dict[str, str]:
    """Return the PID of each node's slurmd; empty where it is just being replaced."""
    return {name: cluster.exec(name, ["cat", "/run/slurmd.pid"]).stdout.strip() for name in cluster.compute_nodes}


def reconfigure(cluster: Cluster) -> None:
    """Run `scontrol reconfigure` and wait until every node takes jobs under the new lines.

    slurmctld answers before a node has the lines. A slurmd that takes them puts a new process in its place.
    """
    before = slurmd_pids(cluster)
    cluster.exec("ctl", ["scontrol", "reconfigure"], check=True)
    until(lambda: all(pid not in ("", before[name]) for name, pid in slurmd_pids(cluster).items()), "new slurmds")
    well = {"idle", "mixed", "allocated", "completing"}
    until(lambda: set(cluster.status().nodes.values()) <= well, "nodes in service", lambda: why_not_idle(cluster))


ACCEPTED = ("--except", "prolog-flags,process-tracking,confined-devices,unlike-nodes")
"""Checks of doctor that find something on such a cluster."""


def install(cluster: Cluster, *words: str, code: int = 0) -> str:
    """Run `slurm-share install` on the controller, which must end with `code`, and return its output."""
    done = cluster.exec("ctl", ["slurm-share", "install", *words])
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr
