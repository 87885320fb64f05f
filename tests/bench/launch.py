"""Many short tasks: python tests/bench/launch.py (root; makes a local cluster of its own, a few minutes).

On one cluster, in one run, by a user: 10,000 times `true` in triples mode (static and dynamic; with its logs, its
pinning and its records) beside a bare posix_spawn loop in the launcher's place, which has none of them; an array of
1,000; `srun` steps in one allocation. All of them keep 8 tasks at once on each of two nodes, the steps 8 in all. Slurm
is set as its high-throughput guide advises, and runs no Prolog. Bare loop and launcher take turns, and their medians
are compared: the machine is shared with others.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "packaging/demo"))

from bench import Row, median, report

from localcluster import Cluster

ROUNDS = 3
TASKS = 10_000
ELEMENTS = 1_000
STEPS = 200
AT_ONCE = 8
"""Tasks on each node."""
NODES = 2
PYTHON = "/opt/slurm-share/bin/python"
PARTITION = "pair"
CONF = f"""\
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,default_queue_depth=10000,bf_interval=2,defer
MaxArraySize=10001
MaxJobCount=30000
Prolog=/bin/true
Epilog=/bin/true
PartitionName={PARTITION} Nodes=n2,n3 DefMemPerCPU=500 MaxTime=1-0 State=UP
"""
OWN_QUESTIONS = ("REQUEST_JOB_INFO", "REQUEST_JOB_INFO_SINGLE", "REQUEST_STATS_INFO")
"""RPCs that this bench causes itself, while it waits and counts."""

BARE = r"""
import json, os, sys, time
path, tasks, at_once = os.fsencode(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
environment = dict(os.environb)  # os.environ itself would be encoded anew for every task
begin, started, running = time.time(), 0, 0
while started < tasks or running:
    while running < at_once and started < tasks:
        os.posix_spawn(path, (path,), environment)
        started, running = started + 1, running + 1
    assert os.wait()[1] == 0
    running -= 1
with open(f"bare.{os.environ['SLURMD_NODENAME']}.json", "w") as out:
    json.dump([begin, time.time()], out)
"""


@dataclass(frozen=True)
class Run:
    """What one way of running tasks took."""

    tasks: int
    work_s: float
    """From the first task's start to the last one's end."""
    whole_s: float
    """From the command that submits to the job's end."""
    rpcs: Counter[str]
    """Of slurmctld, by kind."""
    slurmctld_s: float
    """Its CPU time."""

    @property
    def rate(self) -> float:
        """Tasks per second."""
        return self.tasks / self.work_s

    @property
    def rate_with_start(self) -> float:
        """The same with the job's start and end."""
        return self.tasks / self.whole_s


def bash(cluster: Cluster, text: str) -> str:
    """What alice's shell says, in the bench's folder."""
    return cluster.as_user("alice", f"set -e; cd bench; {text}", check=True, timeout=900).stdout


def wait_for(path: Path, seconds: float = 120) -> None:
    """Without asking Slurm."""
    end = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > end:
            raise RuntimeError(f"{path} did not appear in {seconds} s")
        time.sleep(0.02)


def slurmctld_s(cluster: Cluster) -> float:
    """CPU time of slurmctld so far."""
    stat = cluster.exec("ctl", ["bash", "-c", "cat /proc/$(pgrep -x slurmctld)/stat"], check=True).stdout
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100  # in clock ticks, 100 a second on Linux


def rpcs(cluster: Cluster) -> Counter[str]:
    """RPCs since the last `sdiag -r`, without our own."""
    text = cluster.exec("ctl", ["sdiag"], check=True).stdout
    by_type = text.partition("by message type")[2].partition("by user")[0]
    found = {name: int(count) for name, count in re.findall(r"(\w+)\s+\(\s*\d+\) count:(\d+)", by_type)}
    return Counter({name: count for name, count in found.items() if name not in OWN_QUESTIONS})


def measured(cluster: Cluster, tasks: int, run: Callable[[Cluster], tuple[float, float, float]]) -> Run:
    """`run` answers (first start, last end, all over) in Unix time."""
    cluster.settle()
    bash(cluster, "rm -rf LLSUB.* bare.* slurm-* done")
    cluster.exec("ctl", ["sdiag", "-r"], check=True)
    cpu, begin = slurmctld_s(cluster), time.time()
    first, last, over = run(cluster)
    cluster.settle()
    return Run(tasks, last - first, over - begin, rpcs(cluster), slurmctld_s(cluster) - cpu)


def bare(cluster: Cluster) -> tuple[float, float, float]:
    """The loop in the launcher's place: the same job, the same number of tasks at once."""
    script = (
        f"srun --ntasks-per-node=1 {PYTHON} -I loop.py $PWD/true {TASKS // NODES} {AT_ONCE}; "
        "date +%s.%N >done.part; mv done.part done"
    )
    bash(cluster, f"sbatch -Q -p {PARTITION} -N{NODES} --ntasks-per-node=1 --exclusive --wrap '{script}'")
    here = cluster.home / "alice/bench"
    wait_for(here / "done")
    times = [json.loads(path.read_text()) for path in here.glob("bare.n*.json")]
    if len(times) != NODES:
        raise RuntimeError("the bare loop did not end well on every node")
    return min(one[0] for one in times), max(one[1] for one in times), float((here / "done").read_text())


def launcher(distribution: str) -> Callable[[Cluster], tuple[float, float, float]]:
    """llsub, as a user writes it."""

    def run(cluster: Cluster) -> tuple[float, float, float]:
        words = f"--ntasks {TASKS} --distribution={distribution} -q {PARTITION}"
        bash(cluster, f"llsub ./true [{NODES},{AT_ONCE},1] {words} >llsub.out 2>&1")
        folder = cluster.home / "alice/bench/LLSUB.1"
        wait_for(folder / "summary.json")
        ended = [json.loads(line) for path in folder.glob("p*/results.jsonl") for line in path.read_text().splitlines()]
        if sorted(one["task"] for one in ended) != list(range(TASKS)) or any(one["code"] for one in ended):
            raise RuntimeError(f"{len(ended)} results, not {TASKS} tasks done once each")
        logs = sum(1 for _ in folder.glob("p*/*.log.*"))
        if logs not in (TASKS, NODES * AT_ONCE):
            raise RuntimeError(f"{logs} logs")
        first = min(one["started"] for one in ended)
        last = max(one["started"] + one["seconds"] for one in ended)
        return first, last, (folder / "summary.json").stat().st_mtime

    return run


def array(cluster: Cluster) -> tuple[float, float, float]:
    """A Slurm array; its times are whole seconds, as Slurm keeps them."""
    job = int(bash(cluster, f"sbatch --parsable -p {PARTITION} -a 1-{ELEMENTS} --wrap ./true"))
    while cluster.exec("ctl", ["squeue", "-h", "-j", str(job)]).stdout:
        time.sleep(0.5)
    over = time.time()
    record = cluster.job(job)
    found = {
        name: [
            time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
            for text in re.findall(rf"\b{name}=(\d{{4}}-\S+)", record)
        ]
        for name in ("StartTime", "EndTime")
    }
    if record.count("JobState=COMPLETED") != ELEMENTS:
        raise RuntimeError("not every element of the array completed")
    return min(found["StartTime"]), max(found["EndTime"]), over


def steps(cluster: Cluster) -> tuple[float, float, float]:
    """srun in one allocation."""
    script = (
        "date +%s.%N >begin; "
        f"seq {STEPS} | xargs -P{AT_ONCE} -I@ srun --exact -N1 -n1 -c1 --mem=100 ./true || exit 1; "
        "date +%s.%N >done.part; mv done.part done"
    )
    bash(cluster, f"sbatch -Q -p {PARTITION} -N{NODES} --ntasks-per-node={AT_ONCE} --wrap '{script}'")
    here = cluster.home / "alice/bench"
    wait_for(here / "done")
    end = float((here / "done").read_text())
    return float((here / "begin").read_text()), end, end


WAYS: tuple[tuple[str, Callable[[Cluster], tuple[float, float, float]]], ...] = (
    ("bare loop", bare),
    ("triples, static", launcher("block")),
    ("triples, dynamic", launcher("dynamic")),
)


def rows_of(name: str, runs: list[Run]) -> list[Row]:
    """The figures of one way."""
    rate = median([run.rate for run in runs])
    tasks = runs[0].tasks
    worst = max(runs, key=lambda run: run.rpcs.total())
    return [
        Row(f"{name}: {tasks} tasks", rate, "tasks/s"),
        Row("  with the job's start and end", median([run.rate_with_start for run in runs]), "tasks/s"),
        Row("  RPCs to slurmctld", worst.rpcs.total(), "RPCs"),
        Row("  CPU time of slurmctld", median([run.slurmctld_s for run in runs]), "s"),
    ]


def main() -> int:
    """Measure, print, write; 1 where a bar does not hold."""
    with Cluster.up("bench-launch", slurm_conf_extra=CONF, without=("plugin",)) as cluster:
        cluster.as_user("alice", "mkdir bench; cp /bin/true bench/true", check=True)
        cluster.as_user("alice", "cat >bench/loop.py", input=BARE, check=True)
        runs: dict[str, list[Run]] = {name: [] for name, _ in WAYS}
        for turn in range(ROUNDS):
            for name, way in WAYS if turn % 2 == 0 else reversed(WAYS):
                runs[name].append(measured(cluster, TASKS, way))
        runs["array"] = [measured(cluster, ELEMENTS, array)]
        runs["srun steps"] = [measured(cluster, STEPS, steps)]
        version = cluster.slurm_version
    for name, found in runs.items():
        print(
            f"{name}: " + ", ".join(f"{run.rate:.0f}/s" for run in found) + f"; {dict(found[-1].rpcs.most_common(5))}"
        )
    rate = {name: median([run.rate for run in found]) for name, found in runs.items()}
    best = {name: max(run.rate for run in found) for name, found in runs.items()}  # disturbed least by others
    rows = [row for name, found in runs.items() for row in rows_of(name, found)]
    for name in ("triples, static", "triples, dynamic"):
        rows += [
            Row(f"{name}: part of the bare loop's rate", rate[name] / rate["bare loop"], "x", 0.70, "higher"),
            Row(f"{name}: the same of each one's best round", best[name] / best["bare loop"], "x"),
            Row(f"{name}: beside the array", rate[name] / rate["array"], "x"),
            Row(f"{name}: beside srun steps", rate[name] / rate["srun steps"], "x"),
        ]
    return 0 if report("launch", version, rows) else 1


if __name__ == "__main__":
    sys.exit(main())
