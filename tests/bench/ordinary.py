"""Measure what slurm-share costs jobs that do not use it: python tests/bench/ordinary.py [ROUNDS] (root).

Five local clusters of one node each are up at once: one without slurm-share (no plugin, no hooks, no job_submit.lua),
one that observes and one that shares. For the record there are one that shares with PrologFlags=Alloc, and one without
slurm-share whose Prolog and Epilog are /bin/true: what slurmd itself takes to run any. In every round each
command runs once on each of them, one cluster after the other, in an order that changes from round to round. So what
else the machine does hits all of them alike. The figures are ratios of medians to the cluster without slurm-share.

srun waits for the Prolog of its node, and slurmd takes more than 10 ms for any: behind each it waits that long between
SIGTERM and SIGKILL for what the script left (_kill_pg of src/common/run_command.c, 26.05), besides the fork of slurmd.
So the ratios to the cluster with /bin/true are what slurm-share itself costs a site.

Four minutes with the usual 40 rounds.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from collections import defaultdict
from statistics import median

from bench import Row, report

from localcluster import Cluster, process

ROUNDS = 40
WARM_UP = 3
"""Rounds that do not count: the first starts of every program read it from the disk."""
BAR = 1.10
PLAIN, OBSERVES, SHARES, ALLOC = "without slurm-share", "mode observe", "mode on", "mode on, PrologFlags=Alloc"
TRUE = "without slurm-share, Prolog=/bin/true"
SRUN, SALLOC, SBATCH = "srun -N1 true", "salloc -N1 true", "sbatch to the script's start"
BATCH = """\
begin=$(date +%s%N)
sbatch -Q -o /dev/null --wrap 'date +%s%N >started' || exit
until [ -s started ]; do sleep 0.002; done
echo "begin $begin end $(cat started)"
rm started
"""
TIMED = """\
begin=$(date +%s%N)
{command} 2>/dev/null || exit
echo "begin $begin end $(date +%s%N)"
"""
SCRIPTS = {SRUN: TIMED.format(command=SRUN), SALLOC: TIMED.format(command=SALLOC), SBATCH: BATCH}


def bring_up(stack: contextlib.ExitStack) -> dict[str, Cluster]:
    """The clusters, each on its own, and the modes set."""
    kinds = {PLAIN: ("plain", "", ("plugin", "python")), OBSERVES: ("observe", "", ()), SHARES: ("on", "", ())}
    kinds[ALLOC] = ("alloc", "PrologFlags=Alloc", ())
    kinds[TRUE] = ("true", "Prolog=/bin/true\nEpilog=/bin/true", ("plugin", "python"))
    found = {}
    for what, (name, extra, without) in kinds.items():
        unique = f"bench{os.getpid()}-{name}"
        found[what] = stack.enter_context(Cluster.up(unique, nodes=1, slurm_conf_extra=extra, without=without))
    text = (found[OBSERVES].site / "config.toml").read_text()
    found[OBSERVES].write_config(text.replace('mode = "on"', 'mode = "observe"'))
    return found


def take(cluster: Cluster, what: str, pause: random.Random) -> float:
    """How long one command took, milliseconds, by the clock inside; returns when its job has left the queue."""
    if what == SBATCH:
        time.sleep(pause.random())  # slurmctld starts batch jobs by a clock of its own: met at any of its moments
    said = cluster.as_user("alice", SCRIPTS[what], check=True).stdout.split()
    took = (int(said[said.index("end") + 1]) - int(said[said.index("begin") + 1])) / 1e6
    process.wait_until(lambda: not cluster.jobs(), "the end of the job", 60.0, every_s=0.02)
    return took


def measure(clusters: dict[str, Cluster], rounds: int) -> dict[tuple[str, str], list[float]]:
    """(command, cluster) -> milliseconds, a figure for each round."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    order = list(clusters)
    shuffled = random.Random(1)
    for number in range(WARM_UP + rounds):
        for what in SCRIPTS:
            shuffled.shuffle(order)
            for kind in order:
                took = take(clusters[kind], what, shuffled)
                if number >= WARM_UP:
                    found[what, kind].append(took)
    return found


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    begin = time.monotonic()
    with contextlib.ExitStack() as stack:
        clusters = bring_up(stack)
        version = clusters[PLAIN].slurm_version
        found = measure(clusters, rounds)
    rows = []
    for what in SCRIPTS:
        base = median(found[what, PLAIN])
        rows.append(Row(f"{what}: {PLAIN}, median of {rounds}", base, "ms"))
        for kind in (OBSERVES, SHARES, ALLOC, TRUE):
            bar = BAR if kind in (OBSERVES, SHARES) and what != SBATCH else None
            rows.append(Row(f"{what}: {kind}, ratio", median(found[what, kind]) / base, "x", bar))
        if what != SBATCH:
            any_prolog = median(found[what, TRUE])
            for kind in (OBSERVES, SHARES):
                step_argv = f"{what}: {kind}, ratio to the same with Prolog=/bin/true"
                rows.append(Row(step_argv, median(found[what, kind]) / any_prolog, "x", BAR))
    print(f"{time.monotonic() - begin:.0f} s")
    return 0 if report("ordinary", version, rows) else 1


if __name__ == "__main__":
    sys.exit(main())
