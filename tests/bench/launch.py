"""Many short tasks: python tests/bench/launch.py [ROUNDS] (root; makes two local clusters of its own, eight minutes).

python tests/bench/launch.py --rate [ROUNDS]: only launcher and bare loop, into a file of its own; three minutes.
python tests/bench/launch.py --shares [ROUNDS]: only the arrays with and without shares, into a file of its own.
python tests/bench/launch.py --packed [ROUNDS]: only tasks in triples mode, packed and not, into a file of its own.
python tests/bench/launch.py --cost [ROUNDS]: CPU time and system calls of a task (launch_cost.py), for a busy machine.

On one cluster, in one run, by a user: 10,000 times `true` in triples mode (static and dynamic; with its logs, its
pinning and its records) beside a bare posix_spawn loop in the launcher's place, which has none of them; the same with a
log for each task; xargs, GNU parallel and HyperQueue in the same place; an array of 1,000; `srun` steps in one
allocation. All of them keep 8 tasks at once on each of two nodes, the steps 8 in all. Slurm is set as its
high-throughput guide advises, and runs no Prolog.

Bare loop and launcher take turns, and the launcher is held to the median of what it was beside the bare loop of the
same round: the machine is shared with others, whose work comes and goes. The rounds are three runs in a row, and the
bar has to hold in each of them.

On a second cluster, with plugin and hooks: the same bare loop and tasks in triples mode in a share, and an array of 100
one-task jobs with a share beside the same array without.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import launch_cost
import launch_peers
from bench import Row, cpu_of, report, rpcs_of

from localcluster import Cluster, process

ROUNDS = 9
RUNS = 3
"""In a row; each is a third of the rounds, and has a median of its own."""
TASKS = 10_000
ELEMENTS = 1_000
SHARES = 100
STEPS = 200
AT_ONCE = 8
"""Tasks on each node."""
NODES = 2
PYTHON = "/opt/slurm-share/bin/python"
PARTITION = "pair"
PART_OF_BARE = 0.8
PART_OF_ORDINARY = 0.5
PART_OF_DYNAMIC = 0.9
"""Least rate of a packed run over a dynamic one: it decides where each task starts."""
FAST = f"""\
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,default_queue_depth=10000,bf_interval=2,defer
MaxArraySize=10001
MaxJobCount=30000
PartitionName={PARTITION} Nodes=n2,n3 DefMemPerCPU=500 MaxTime=1-0 State=UP
"""
CONF = FAST + "Prolog=/bin/true\nEpilog=/bin/true\n"
ONE_TASK = "--gres=gpu:1 -n1 -c1 --mem=100"
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


Way = Callable[[Cluster], tuple[float, float, float]]
"""Runs tasks; returns the first start, the last end and the moment when all is over, in Unix time."""


@dataclass(frozen=True)
class Run:
    """The cost of one way to run tasks."""

    tasks: int
    work_s: float
    """From the first task's start to the last one's end."""
    whole_s: float
    """From the command that submits to the job's end."""
    rpcs: Counter[str]
    """Messages to slurmctld, by kind."""
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
    """Return the output of alice's shell in the bench's folder."""
    return cluster.as_user("alice", f"set -e; cd bench; {text}", check=True, timeout=900).stdout


def wait_for(path: Path) -> None:
    """Wait for a file, without a query of Slurm."""
    process.wait_until(path.exists, f"{path}", 400.0, every_s=0.02)


def rpcs(cluster: Cluster) -> Counter[str]:
    """Return the RPCs since the last `sdiag -r`, without our own."""
    return Counter({name: count for name, (count, _) in rpcs_of(cluster).items() if name not in OWN_QUESTIONS})


def measured(cluster: Cluster, tasks: int, run: Way) -> Run:
    cluster.settle()
    bash(cluster, "rm -rf LLSUB.* bare.* peer.n* slurm-* done")
    cluster.exec("ctl", ["sdiag", "-r"], check=True)
    cpu, begin = cpu_of(cluster, "ctl", "slurmctld"), time.time()
    first, last, over = run(cluster)
    cluster.settle()
    found = Run(tasks, last - first, over - begin, rpcs(cluster), cpu_of(cluster, "ctl", "slurmctld") - cpu)
    print(f"  {tasks} tasks in {found.work_s:.1f} s", flush=True)
    return found


def bare(cluster: Cluster) -> tuple[float, float, float]:
    """The loop in the launcher's place: the same job, the same number of tasks at once."""
    return in_its_place(cluster, f"{PYTHON} -I loop.py $PWD/true {TASKS // NODES} {AT_ONCE}")


def peer(which: str) -> Way:
    """Another program in the launcher's place."""
    return lambda cluster: in_its_place(cluster, f'bash peer.sh "{which}" {TASKS // NODES} {AT_ONCE}')


def in_its_place(cluster: Cluster, command: str) -> tuple[float, float, float]:
    """A command on each of the nodes; it writes down when it began and ended."""
    script = f"srun --ntasks-per-node=1 {command}; date +%s.%N >done.part; mv done.part done"
    bash(cluster, f"sbatch -Q -p {PARTITION} -N{NODES} --ntasks-per-node=1 --exclusive --wrap '{script}'")
    here = cluster.home / "alice/bench"
    wait_for(here / "done")
    times = [json.loads(path.read_text()) for path in here.glob("bare.n*.json")]
    if len(times) != NODES:
        raise RuntimeError(f"{command} did not end well on every node")
    return min(one[0] for one in times), max(one[1] for one in times), float((here / "done").read_text())


def launcher(distribution: str, *options: str, in_share: bool = False) -> Way:
    """llsub, as a user writes it; `in_share`: every task must have had a slot of a share."""

    def run(cluster: Cluster) -> tuple[float, float, float]:
        words = f"--ntasks {TASKS} --distribution={distribution} -q {PARTITION} {' '.join(options)}"
        bash(cluster, f"llsub ./true [{NODES},{AT_ONCE},1] {words} >llsub.out 2>&1")
        folder = cluster.home / "alice/bench/LLSUB.1"
        wait_for(folder / "summary.json")
        ended = [json.loads(line) for path in folder.glob("p*/results.jsonl") for line in path.read_text().splitlines()]
        if sorted(one["task"] for one in ended) != list(range(TASKS)) or any(one["code"] for one in ended):
            raise RuntimeError(f"{len(ended)} results, not {TASKS} tasks done once each")
        if in_share and any(one.get("slot") is None for one in ended):
            raise RuntimeError("tasks ran without a slot")
        logs = sum(1 for _ in folder.glob("p*/*.log.*"))
        if logs not in (TASKS, NODES * AT_ONCE):
            raise RuntimeError(f"{logs} logs")
        first = min(one["started"] for one in ended)
        last = max(one["started"] + one["seconds"] for one in ended)
        return first, last, (folder / "summary.json").stat().st_mtime

    return run


def array(elements: int, options: str = "") -> Way:
    """A Slurm array; its times are whole seconds, as Slurm keeps them."""

    def run(cluster: Cluster) -> tuple[float, float, float]:
        job = int(bash(cluster, f"sbatch --parsable -p {PARTITION} {options} -a 1-{elements} --wrap ./true"))
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
        if record.count("JobState=COMPLETED") != elements:
            raise RuntimeError("not every element of the array completed")
        return min(found["StartTime"]), max(found["EndTime"]), over

    return run


def steps(cluster: Cluster) -> tuple[float, float, float]:
    """Run an srun for each task in one allocation."""
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


WAYS = {"bare loop": bare, "triples, static": launcher("block"), "triples, dynamic": launcher("dynamic")}


def rows_of(name: str, runs: list[Run]) -> list[Row]:
    rate = median([run.rate for run in runs])
    tasks = runs[0].tasks
    worst = max(runs, key=lambda run: run.rpcs.total())
    return [
        Row(f"{name}: {tasks} tasks", rate, "tasks/s"),
        Row("  with the job's start and end", median([run.rate_with_start for run in runs]), "tasks/s"),
        Row("  RPCs to slurmctld", worst.rpcs.total(), "RPCs"),
        Row("  CPU time of slurmctld", median([run.slurmctld_s for run in runs]), "s"),
    ]


def prepare(cluster: Cluster) -> Path:
    """The user's folder with the program and the bare loop."""
    cluster.as_user("alice", "mkdir bench; cp /bin/true bench/true", check=True)
    cluster.as_user("alice", "cat >bench/loop.py", input=BARE, check=True)
    return cluster.home / "alice/bench"


def in_turn(cluster: Cluster, rounds: int, ways: Mapping[str, Way], tasks: int = TASKS) -> dict[str, list[Run]]:
    """Measure the ways one after the other, in every second round backwards."""
    runs: dict[str, list[Run]] = {name: [] for name in ways}
    for turn in range(rounds):
        for name in ways if turn % 2 == 0 else reversed(ways):
            runs[name].append(measured(cluster, tasks, ways[name]))
    return runs


def without_hooks(rounds: int) -> tuple[dict[str, list[Run]], str]:
    """Every way on a cluster without plugin and hooks, and Slurm's version."""
    with Cluster.up("bench-launch", slurm_conf_extra=CONF, without=("plugin",)) as cluster:
        peers = launch_peers.bring(prepare(cluster))
        runs = in_turn(cluster, rounds, WAYS)
        runs["triples, a log for each task"] = [measured(cluster, TASKS, launcher("block", "--logs=task"))]
        for name in peers:
            runs[launch_peers.NAMES[name]] = [measured(cluster, TASKS, peer(name))]
        runs["array"] = [measured(cluster, ELEMENTS, array(ELEMENTS))]
        runs["srun steps"] = [measured(cluster, STEPS, steps)]
        return runs, cluster.slurm_version


def with_hooks(rounds: int) -> dict[str, list[Run]]:
    """Plugin and hooks on: the bare loop in an ordinary job, triples mode in a share, both arrays."""
    with Cluster.up("bench-launch-share", slurm_conf_extra=FAST) as cluster:
        prepare(cluster)
        runs: dict[str, list[Run]] = {"hooks on, bare loop": [], "hooks on, triples in a share": []}
        for _ in range(rounds):
            runs["hooks on, bare loop"].append(measured(cluster, TASKS, bare))
            runs["hooks on, triples in a share"].append(
                measured(cluster, TASKS, launcher("block", "-g 1", in_share=True))
            )
        runs["hooks on, ordinary array"] = [measured(cluster, SHARES, array(SHARES, ONE_TASK))]
        runs["hooks on, share array"] = [measured(cluster, SHARES, array(SHARES, "--share-gpu=4 " + ONE_TASK))]
        return runs


def parts(name: str, runs: list[Run], bare_runs: list[Run], bar: float | None = None) -> list[Row]:
    """The rate of each round beside the bare loop's of the same round."""
    found = [one.rate / other.rate for one, other in zip(runs, bare_runs, strict=True)]
    each = len(found) // RUNS
    in_a_row = [found[turn * each : (turn + 1) * each] for turn in range(RUNS)] if bar is not None and each else []
    return [
        Row(f"{name}: part of the bare loop's rate", median(found), "x", bar, "higher"),
        *(
            Row(f"  run {number} of {RUNS}, {each} rounds", median(rounds), "x", bar, "higher")
            for number, rounds in enumerate(in_a_row, 1)
        ),
        Row("  the least of a round", min(found), "x"),
        Row("  the most of a round", max(found), "x"),
    ]


def rate_alone(rounds: int = ROUNDS) -> int:
    """Measure only the launcher beside the bare loop, print, write; return 1 where a bar does not hold."""
    with Cluster.up("bench-launch", slurm_conf_extra=CONF, without=("plugin",)) as cluster:
        prepare(cluster)
        runs = in_turn(cluster, rounds, WAYS)
        version = cluster.slurm_version
    rows = [row for name, found in runs.items() for row in rows_of(name, found)]
    for name in ("triples, static", "triples, dynamic"):
        rows += parts(name, runs[name], runs["bare loop"], PART_OF_BARE)
    return 0 if report("launch_rate", version, rows) else 1


def two_alone(file: str, rounds: int, tasks: int, ways: Mapping[str, Way], what: str, bar: float) -> int:
    """Measure two ways in turn on a cluster with hooks; hold the rate of the second to a part of the first's."""
    with Cluster.up("bench-launch-share", slurm_conf_extra=FAST) as cluster:
        prepare(cluster)
        runs = in_turn(cluster, rounds, ways, tasks)
        version = cluster.slurm_version
    rows = [row for name, found in runs.items() for row in rows_of(name, found)]
    found = [other.rate / one.rate for one, other in zip(*runs.values(), strict=True)]
    rows.append(Row(what, median(found), "x", bar, "higher"))
    return 0 if report(file, version, rows) else 1


def shares_alone(rounds: int = RUNS) -> int:
    """Measure only the array of shares beside the same array without."""
    ways = {"ordinary array": array(SHARES, ONE_TASK), "share array": array(SHARES, "--share-gpu=4 " + ONE_TASK)}
    what = "share array: part of the ordinary one's rate"
    return two_alone("share_array", rounds, SHARES, ways, what, PART_OF_ORDINARY)


def packed_alone(rounds: int = RUNS) -> int:
    """Measure only packed tasks beside the same tasks with fixed GPUs, both in a share of one GPU a node."""
    ways = {
        "in a share, dynamic": launcher("dynamic", "-g 1", in_share=True),
        "packed": launcher("dynamic", "-g 1", "--pack", in_share=True),
    }
    what = "packed: part of the rate with fixed GPUs"
    return two_alone("launch_packed", rounds, TASKS, ways, what, PART_OF_DYNAMIC)


def cost_alone(rounds: int = RUNS) -> int:
    """Measure what a task costs, bare and in each kind of run, on one node of a cluster with hooks."""
    with Cluster.up("bench-launch-share", slurm_conf_extra=FAST) as cluster:
        rows, calls = launch_cost.measure(cluster, prepare(cluster), rounds)
        version = cluster.slurm_version
    each = [{"way": way, **found} for way, found in calls.items()]
    return 0 if report("launch_cost", version, rows, system_calls=each) else 1


def main(rounds: int = ROUNDS) -> int:
    runs, version = without_hooks(rounds)
    shared = with_hooks(min(rounds, 2))
    for name, found in (runs | shared).items():
        print(
            f"{name}: " + ", ".join(f"{run.rate:.0f}/s" for run in found) + f"; {dict(found[-1].rpcs.most_common(5))}"
        )
    rate = {name: median([run.rate for run in found]) for name, found in (runs | shared).items()}
    rows = [row for name, found in (runs | shared).items() for row in rows_of(name, found)]
    for name in ("triples, static", "triples, dynamic"):
        rows += parts(name, runs[name], runs["bare loop"], PART_OF_BARE)
        rows += [
            Row(f"{name}: beside the array", rate[name] / rate["array"], "x"),
            Row(f"{name}: beside srun steps", rate[name] / rate["srun steps"], "x"),
        ]
    rows += parts("hooks on, triples in a share", shared["hooks on, triples in a share"], shared["hooks on, bare loop"])
    name = "hooks on, share array"
    part = rate[name] / rate["hooks on, ordinary array"]
    rows.append(Row(f"{name}: part of the ordinary one's", part, "x", PART_OF_ORDINARY, "higher"))
    return 0 if report("launch", version, rows) else 1


if __name__ == "__main__":
    modes = {"--rate": rate_alone, "--shares": shares_alone, "--packed": packed_alone, "--cost": cost_alone}
    alone = modes.get("".join(sys.argv[1:2]))
    sys.exit((alone or main)(*map(int, sys.argv[1 if alone is None else 2 :])))
