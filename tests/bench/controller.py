"""Measure what queries cost slurmctld: python tests/bench/controller.py [SECONDS] (root; makes a local cluster).

A real slurmctld with 10,000 nodes that have no slurmd (26.05, State=EXTERNAL) and jobs on them. Looked at, each for as
long as the others: by nobody; by `llload --all --watch` and by the dashboard at their usual five seconds; by twelve
`llfree`. The nodes' agents are played (many_agents.py): who asks slurmctld, and for what, is the same. Counted by
slurmctld itself (sdiag, RPCs by type and user) and by the kernel (its CPU).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench import Row, cpu_of, report, rpcs_of
from load import ASK, GPUS, PYTHON, play_agents, wait_for

from localcluster import Cluster

NODES, JOBS = 10_000, 300
LLFREES = 12
QUIET = {"REQUEST_STATS_INFO", "MESSAGE_NODE_REGISTRATION_STATUS", "REQUEST_PING", "MESSAGE_EPILOG_COMPLETE"}
"""RPCs of nobody who looks: sdiag's own, and slurmd's."""
DASHBOARD = (
    "TERM=xterm-256color timeout {s} script -qefc 'stty cols 200 rows 50; llload-tui --all --source agents' /dev/null"
)
SUBMIT = """
for number in $(seq {jobs}); do sbatch -Q --external -pmany -N1 -c8 --gres=gpu:1 -t 600 || exit 1; done
"""


@dataclass(frozen=True)
class Felt:
    """The work of slurmctld in an interval."""

    seconds: float
    cpu_s: float
    rpcs: dict[str, int]
    rpc_us: int
    """Time it says that it spent in them."""

    @property
    def count(self) -> int:
        """RPCs of the programs that query."""
        return sum(self.rpcs.values())


def rpcs(cluster: Cluster) -> tuple[dict[str, int], int]:
    """Return how many there were by type, and their microseconds in all."""
    wanted = {name: row for name, row in rpcs_of(cluster).items() if name not in QUIET}
    return {name: count for name, (count, _) in wanted.items()}, sum(total for _, total in wanted.values())


def felt(cluster: Cluster, seconds: float, look: Callable[[], None]) -> Felt:
    """The work of slurmctld while somebody queried it."""
    before, us = rpcs(cluster)
    cpu, begin = cpu_of(cluster, "ctl", "slurmctld"), time.monotonic()
    look()
    rest = begin + seconds - time.monotonic()
    if rest > 0:
        time.sleep(rest)
    took, spent = time.monotonic() - begin, cpu_of(cluster, "ctl", "slurmctld") - cpu
    after, us_after = rpcs(cluster)
    new = {name: count - before.get(name, 0) for name, count in after.items() if count > before.get(name, 0)}
    return Felt(took, spent, new, us_after - us)


def rows_of(what: str, one: Felt, idle: Felt, *, bar_rpcs: float | None, bar_cpu: float | None) -> list[Row]:
    """Its figures, and what of them the looking made."""
    share = one.cpu_s / one.seconds - idle.cpu_s / idle.seconds
    kinds = ", ".join(f"{count} {name}" for name, count in sorted(one.rpcs.items(), key=lambda pair: -pair[1]))
    print(f"{what}: {kinds or 'no RPC'}")
    return [
        Row(f"{what}: RPCs a minute", 60 * one.count / one.seconds, "a minute", bar_rpcs),
        Row("  time in them, as slurmctld says", one.rpc_us / 1000 * 60 / one.seconds, "ms a minute"),
        Row("  CPU of slurmctld beyond that without anybody, of one core", 100 * share, "%", bar_cpu),
    ]


def watched(cluster: Cluster, seconds: float, script: str) -> None:
    """A program on the login host for that long, as an operator."""
    done = cluster.exec("login", ["bash", "-c", script], timeout=seconds + 120)
    if done.returncode not in (0, 124, 130):
        raise SystemExit(f"{script} ended with {done.returncode}: {done.stderr[-500:]}")


def main(seconds: float) -> int:
    nodes = (
        f"NodeName=node[00001-{NODES:05d}] CPUs=96 RealMemory=1000000 Gres=gpu:{GPUS} State=EXTERNAL\n"
        f"PartitionName=many Nodes=node[00001-{NODES:05d}] MaxTime=1-0 State=UP"
    )
    with Cluster.up("sbench-controller", "26.05", agents=True, nodes=1) as cluster:
        with (cluster.conf / "slurm.conf").open("a") as file:
            file.write(f"{nodes}\n")
        cluster.reboot("ctl")
        recorded = wait_for(cluster, "n1", f"{PYTHON} -c '{ASK}'", "a snapshot of the agent")
        play_agents(cluster, NODES, recorded)
        cluster.as_user("alice", SUBMIT.format(jobs=JOBS), check=True, timeout=1200)
        count = "squeue -h -t R -o %i | wc -l"
        wait_for(cluster, "ctl", f"[ $({count}) -ge {JOBS} ]", f"{JOBS} running jobs")
        idle = felt(cluster, seconds, lambda: None)
        watch = (
            f"timeout -s INT {seconds:g} llload --all --source agents --json --watch | grep -c node00001 >/tmp/looks"
        )
        llload = felt(cluster, seconds, lambda: watched(cluster, seconds, watch))
        looks = int(cluster.exec("login", ["cat", "/tmp/looks"]).stdout)
        tui = felt(
            cluster, seconds, lambda: watched(cluster, seconds, DASHBOARD.format(s=f"{seconds:g}") + " >/tmp/drawn")
        )
        drawn = cluster.exec("login", ["cat", "/tmp/drawn"]).stdout
        each = f"for n in $(seq {LLFREES}); do llfree >/tmp/free || exit 1; done"
        free = felt(cluster, 0, lambda: watched(cluster, 600, each))
        listed = cluster.exec("login", ["cat", "/tmp/free"]).stdout
        version = cluster.slurm_version
    assert looks > 1, "llload showed the nodes again and again"
    assert "node0" in drawn, "the dashboard showed nodes"
    assert "many" in listed, "llfree showed the partition"
    rows = [
        Row("nodes", NODES, "nodes"),
        Row("running jobs", JOBS, "jobs"),
        Row("each looked at for", seconds, "s"),
        *rows_of("nobody", idle, idle, bar_rpcs=None, bar_cpu=None),
        # Slurm's facts are asked for once a minute, however often somebody looks: a few questions, the first at once
        *rows_of("llload --all --watch", llload, idle, bar_rpcs=12, bar_cpu=2),
        Row("  looks in that time", looks, "looks"),
        *rows_of("llload-tui --all", tui, idle, bar_rpcs=12, bar_cpu=2),
        Row("llfree: RPCs of one", free.count / LLFREES, "RPCs", 6),
        Row("  CPU of slurmctld for one", 1000 * free.cpu_s / LLFREES, "ms", 100),
        Row("  seconds of one, start included", free.seconds / LLFREES, "s"),
    ]
    return 0 if report("controller", version, rows) else 1


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 120.0))
