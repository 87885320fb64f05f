"""Measure what `llload --watch 1` costs Slurm: python tests/bench/watch.py [SECONDS] (root; makes a local cluster with
accounting).

Alice's shared job runs on two nodes while she watches them for ten minutes. Counted: the steps that sacct has of the
job, her RPCs at slurmctld (sdiag) with the watch and in as long a time without it, and the surveys taken.
"""

from __future__ import annotations

import json
import re
import sys
import time

from bench import Row, report

from localcluster import Cluster

LLLOAD = "/opt/slurm-share/bin/llload"
WORK = "srun simgpu-task --memory 1G --load 20 --seconds 3000"


def rpcs(cluster: Cluster) -> int:
    """Return the number of RPCs of alice that slurmctld has answered."""
    said = cluster.exec("ctl", ["sdiag"], check=True).stdout
    found = re.search(r"^\s*alice\s*\(\s*\d+\)\s+count:(\d+)", said, re.MULTILINE)
    return int(found[1]) if found else 0


def steps(cluster: Cluster, job: int) -> list[str]:
    """Return the steps of the job in Slurm's accounts, those of the batch script and the share too."""
    said = cluster.exec("ctl", ["sacct", "-nPX", "-j", str(job), "-o", "JobID"], check=True).stdout
    every = cluster.exec("ctl", ["sacct", "-nP", "-j", str(job), "-o", "JobID"], check=True).stdout
    return sorted(set(every.split()) - set(said.split()))


def main(seconds: int) -> int:
    with Cluster.up("bench-watch", "26.05", accounting=True) as cluster:
        job = cluster.sbatch("alice", WORK, "--share-gpu=2", "-w", "n2,n3", "-N2")
        cluster.wait_running(job)
        time.sleep(5)
        idle = rpcs(cluster)
        time.sleep(60)
        idle_per_minute = rpcs(cluster) - idle
        before, known = rpcs(cluster), steps(cluster, job)
        watch = f"timeout --preserve-status -s INT {seconds} {LLLOAD} --json --watch 1 > watch.jsonl; echo $?"
        ended = cluster.as_user("alice", ["bash", "-c", watch], timeout=seconds + 60).stdout.strip()
        asked = rpcs(cluster) - before
        time.sleep(5)
        new = [step for step in steps(cluster, job) if step not in known]
        looks = [json.loads(line) for line in (cluster.home / "alice" / "watch.jsonl").read_text().splitlines()]
        answered = sum(all(node["snapshot"] for node in look["nodes"]) for look in looks)
        cluster.exec("ctl", ["scancel", str(job)])
        version = cluster.slurm_version
    minutes = seconds / 60
    print(f"llload ended with {ended}; new steps in sacct: {', '.join(new)}")
    return not report(
        "watch",
        version,
        [
            Row(f"llload --watch 1 on two nodes for {minutes:g} min: looks", len(looks), "looks"),
            Row("  of them with both nodes", 100 * answered / max(1, len(looks)), "%", 99, "higher"),
            Row("  new steps of the job in sacct", len(new), "steps", 1),
            Row("  RPCs of the user to slurmctld", asked / minutes, "a minute", 6),
            Row("  the same without it", idle_per_minute, "a minute"),
        ],
    )


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 600))
