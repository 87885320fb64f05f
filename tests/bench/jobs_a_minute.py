"""Many short jobs: python tests/bench/jobs_a_minute.py [JOBS] [MINUTES] [NAME] (root; makes its own local cluster).

`200 10` (the default) submits 200 shared jobs a minute for ten minutes, evenly, by two users, and then a tenth as many
ordinary ones at the same pace. `10000 0` submits ten thousand jobs of one second as fast as sbatch goes. Each job has
one task on one GPU; a shared one is a quarter of a GPU. A task says which slot and which GPU it has, and lives for a
second.

What a shared job costs slurmctld more than an ordinary one is asked of neither of these runs. Where jobs pile up, as
on a machine with other work, slurmctld goes through all that wait again and again, and whoever waits for the end asks
it for the whole queue: 1.6 times an ordinary job's CPU was seen so, which no line of ours had used. So a few of each
kind are run at a pace at which none has to wait, for the same time; and the messages that slurmctld gets of a job are
counted by sdiag, our questions left out.

Hooks are timed by a wrapper in their place, their CPU seconds with them: a machine that has other work to do makes the
walls longer and leaves those as they are. How busy it was with other work is one of the figures.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))

from bench import Row, cpu_of, report, rpcs_of
from hooked import Node

from localcluster import Cluster, process

SHARED = "--share-gpu=4 --gres=gpu:1 -n1 -c1 --mem=100"
ORDINARY = "--gres=gpu:1 -n1 -c1 --mem=100"
TASK = "srun bash -c 'echo slot $SLURM_SHARE_SLOT gpu $CUDA_VISIBLE_DEVICES; sleep 1'"
TIMES = "/var/log/hook-times"
WRAPPER = """#!/bin/bash
# PATH: slurmd gives a hook none
PATH=/usr/bin:/bin
TIMEFORMAT='{which} %R %U %S'
mkdir -p {times}; exec 3>{times}/$$.$EPOCHREALTIME
{{ time /opt/slurm-share/bin/slurm-share-{which} 2>&4 ; }} 4>&2 2>&3
"""
CONF = """\
Prolog=/etc/slurm/timed-prolog
Epilog=/etc/slurm/timed-epilog
MinJobAge=7200
MaxJobCount=20000
"""
# Runs on the login host as a user: `sbatch` at a pace, or as fast as it goes. Prints how many were refused.
SUBMITTER = """
import os, subprocess, sys, time
count, every, options, script = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3].split(), sys.argv[4]
os.makedirs("out", exist_ok=True)
begin, refused, late = time.monotonic(), 0, 0.0
for number in range(count):
    wait = begin + number * every - time.monotonic()
    if wait > 0: time.sleep(wait)
    late = max(late, -wait)
    argv = ["sbatch", "-Q", "-o", "out/%j", *options]
    done = subprocess.run(argv, input=script, text=True, capture_output=True)
    if done.returncode:
        refused += 1
        print(done.stderr.strip(), file=sys.stderr)
print(refused, round(time.monotonic() - begin, 1), round(late, 1))
"""
USERS = ("alice", "bob")
PATIENCE_S = 3600.0
READ_EVERY_S = 2.0
"""Each look at the queue is a question to slurmctld, whose CPU is measured."""
COMPARED, COMPARED_EVERY_S = 30, 1.0
"""Jobs of each kind, and the pace at which none of them has to wait."""
OURS = ("REQUEST_JOB_INFO", "REQUEST_PARTITION_INFO", "REQUEST_STATS_", "REQUEST_NODE_INFO", "REQUEST_PING")
"""Messages of this program's own questions."""


@dataclass(frozen=True)
class Run:
    """The result of one row of jobs."""

    jobs: int
    refused: int
    seconds: float
    """From the first submission to the last."""
    late_s: float
    """The most that a submission came later than its turn: the submitter's own waiting for sbatch."""
    bad: dict[str, int]
    """Ends other than COMPLETED, and how many had each."""
    silent: int
    """Jobs whose task did not say the slot that it should have, or that it has none."""
    waits_s: list[float]
    """From submission to start."""
    left_at_end: int
    """Jobs that still waited or ran when the last one was submitted."""
    hooks: dict[str, list[tuple[float, float]]]
    """Prolog or Epilog -> (wall, CPU) in milliseconds."""
    controller_cpu_s: float
    slurmd_cpu_s: float
    others_cpu: float
    """Share of the machine's CPU that was used by none of this cluster, 0 to 1: about, by what is left over."""
    sdiag: dict[str, int]
    messages: dict[str, int]
    """Messages to slurmctld, by kind; our own questions are not among them."""


def busy() -> tuple[float, float]:
    """(busy, all) CPU seconds of the whole machine since its start."""
    fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return (sum(fields) - idle) / os.sysconf("SC_CLK_TCK"), sum(fields) / os.sysconf("SC_CLK_TCK")


def sdiag(cluster: Cluster) -> tuple[dict[str, int], dict[str, int]]:
    """The counters of sdiag that say how slurmctld is, and its messages by kind."""
    said = cluster.exec("ctl", ["sdiag"], check=True).stdout
    wanted = {
        "threads": r"Server thread count:\s*(\d+)",
        "agent queue": r"Agent queue size:\s*(\d+)",
        "submitted": r"Jobs submitted:\s*(\d+)",
        "completed": r"Jobs completed:\s*(\d+)",
        "failed": r"Jobs failed:\s*(\d+)",
        "main cycle, mean us": r"Mean cycle:\s*(\d+)",
        "main cycle, most us": r"Max cycle:\s*(\d+)",
    }
    found = {name: re.search(form, said) for name, form in wanted.items()}
    return (
        {name: int(match[1]) for name, match in found.items() if match},
        {kind: count for kind, (count, _) in rpcs_of(cluster).items() if not kind.startswith(OURS)},
    )


def submit(cluster: Cluster, count: int, every_s: float, options: str) -> list[tuple[int, float, float]]:
    """Both users at it side by side, each half of the jobs: (refused, seconds, late) of each."""
    each = count // len(USERS)
    for user in USERS:
        argv = ["python3", "-c", SUBMITTER, str(each), str(every_s * len(USERS)), options, f"#!/bin/bash\n{TASK}\n"]
        line = shlex.quote(f"{shlex.join(argv)} >said.new 2>refused; mv said.new said")
        cluster.as_user(user, f"rm -rf out said; setsid -f bash -c {line} </dev/null >/dev/null 2>&1", check=True)
    patience = max(600.0, 3 * count * every_s)
    files = [cluster.home / user / "said" for user in USERS]
    process.wait_until(
        lambda: all(file.exists() for file in files), "the last submission", patience, every_s=READ_EVERY_S
    )
    return [tuple(map(float, file.read_text().split())) for file in files]  # type: ignore[misc]


def run(cluster: Cluster, count: int, every_s: float, options: str) -> Run:
    """Submit them all, wait for their end, and see what became of them."""
    known = set(cluster.exec("ctl", ["squeue", "-h", "-t", "all", "-o", "%i"], check=True).stdout.split())
    cluster.exec("ctl", ["sdiag", "--reset"], check=True)
    for name in cluster.compute_nodes:
        cluster.exec(name, ["rm", "-rf", TIMES])
    daemons = lambda: sum(cpu_of(cluster, name, "slurmd") for name in cluster.compute_nodes)  # noqa: E731
    controller, slurmd, machine = cpu_of(cluster, "ctl", "slurmctld"), daemons(), busy()
    said = submit(cluster, count, every_s, options)
    left = len(cluster.jobs())
    process.wait_until(lambda: not cluster.jobs(), "an empty queue", PATIENCE_S, every_s=READ_EVERY_S)
    controller, slurmd = cpu_of(cluster, "ctl", "slurmctld") - controller, daemons() - slurmd
    used, whole = (after - before for after, before in zip(busy(), machine, strict=True))
    form = "%i|%T|%V|%S"
    rows = cluster.exec("ctl", ["squeue", "-h", "-t", "all", "-o", form], check=True, timeout=300).stdout.split()
    jobs = [row.split("|") for row in rows if row.split("|")[0] not in known]
    bad = Counter(state for _, state, _, _ in jobs if state != "COMPLETED")
    hooks: dict[str, list[tuple[float, float]]] = {"prolog": [], "epilog": []}
    for name in cluster.compute_nodes:
        for line in cluster.exec(name, ["bash", "-c", f"cat {TIMES}/*"]).stdout.splitlines():
            which, wall, *cpu = line.split()
            hooks[which].append((1000 * seconds(wall), 1000 * sum(map(seconds, cpu))))
    # hooks and daemons of the cluster; its tasks, sbatch and srun are not told apart from other work
    ours = controller + slurmd + sum(cpu for pairs in hooks.values() for _, cpu in pairs) / 1000
    counters, messages = sdiag(cluster)
    return Run(
        jobs=len(jobs),
        refused=int(sum(one[0] for one in said)),
        seconds=max(one[1] for one in said),
        late_s=max(one[2] for one in said),
        bad=bad,
        silent=count - heard(cluster, ordinary=options == ORDINARY),
        waits_s=[stamp(start) - stamp(submitted) for _, _, submitted, start in jobs if start != "N/A"],
        left_at_end=left,
        hooks=hooks,
        controller_cpu_s=controller,
        slurmd_cpu_s=slurmd,
        others_cpu=(used - ours) / whole,
        sdiag=counters,
        messages=messages,
    )


def heard(cluster: Cluster, *, ordinary: bool) -> int:
    """Outputs that say what they should: a slot and a GPU's UUID; of an ordinary job no slot and a number."""
    form = re.compile(r"^slot gpu \d+$" if ordinary else r"^slot \d+ gpu GPU-[0-9a-f-]{36}$", re.MULTILINE)
    texts = [file.read_text() for user in USERS for file in (cluster.home / user / "out").iterdir()]
    odd = [text for text in texts if not form.search(text)]
    if odd:
        print(f"{len(odd)} outputs say something else, such as: {odd[0]!r}")
    return len(texts) - len(odd)


def seconds(text: str) -> float:
    """Read a time of bash's `time`: 0.016, or 16.:00 for a rounded 16.9996 s (bash 5.3)."""
    whole, _, part = text.partition(".")
    return int(whole) + 1.0 if part.startswith(":") else float(text)


def stamp(text: str) -> float:
    """Seconds of one of Slurm's times; only differences are looked at."""
    return datetime.fromisoformat(text).timestamp()


def percentile(values: list[float], percent: float) -> float:
    """The value that so many percent do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else float("nan")


def cpu_ms(one: Run) -> float:
    """CPU time of slurmctld for a job."""
    return 1000 * one.controller_cpu_s / max(1, one.jobs)


def messages_of(one: Run) -> float:
    """RPCs to slurmctld for a job."""
    return sum(one.messages.values()) / max(1, one.jobs)


def rows_of(name: str, one: Run, *, first: bool) -> list[Row]:
    """The figures of a run; bars only for what is ours alone."""
    bar = 0.0 if first else None
    wall = {which: [pair[0] for pair in pairs] for which, pairs in one.hooks.items()}
    cpu = {which: [pair[1] for pair in pairs] for which, pairs in one.hooks.items()}
    rows = [
        Row(f"{name}: jobs", one.jobs, "jobs"),
        Row("  in so many seconds submitted", one.seconds, "s"),
        Row("  refused by sbatch", one.refused, "jobs", bar),
        Row("  not COMPLETED", sum(one.bad.values()), "jobs", bar),
        Row("  whose task did not find what it should", one.silent, "jobs", bar),
        Row("  submitter behind its pace, at most", one.late_s, "s"),
        Row("  jobs there when the last was submitted", one.left_at_end, "jobs"),
        Row("  wait from submission to start, median", median(one.waits_s), "s"),
        Row("  wait, 95 of 100", percentile(one.waits_s, 95), "s"),
        Row("  wait, longest", max(one.waits_s), "s"),
    ]
    for which in ("prolog", "epilog"):
        rows += [
            Row(f"  {which}, median wall", median(wall[which]), "ms"),
            Row(f"  {which}, 95 of 100 wall", percentile(wall[which], 95), "ms"),
            Row(f"  {which}, median CPU, programs of MPS that it ran included", median(cpu[which]), "ms"),
        ]
    rows += [
        Row("  slurmctld, CPU of a job", cpu_ms(one), "ms"),
        Row("  slurmd, CPU of a job, all nodes", 1000 * one.slurmd_cpu_s / max(1, one.jobs), "ms"),
        *(Row(f"  sdiag: {what}", value, "") for what, value in one.sdiag.items()),
        Row("  CPU of the machine that went elsewhere: tasks, sbatch, srun, other work", 100 * one.others_cpu, "%"),
    ]
    return rows


def main(jobs: int, minutes: float, name: str) -> int:
    every = 60 / jobs if minutes else 0.0
    count = int(jobs * minutes) if minutes else jobs
    with Cluster.up(f"sbench-{name.replace('_', '-')}", "26.05", slurm_conf_extra=CONF) as cluster:
        for which in ("prolog", "epilog"):
            file = cluster.conf / f"timed-{which}"
            file.write_text(WRAPPER.format(which=which, times=TIMES))
            file.chmod(0o755)
        shared = run(cluster, count, every, SHARED)
        ordinary = run(cluster, max(40, count // 10), every, ORDINARY)
        one, other = (run(cluster, COMPARED, COMPARED_EVERY_S, kind) for kind in (SHARED, ORDINARY))
        nodes = [Node(cluster, node) for node in cluster.compute_nodes]
        remains = [line for node in nodes for line in node.remains()]
        drained = [node for node, state in cluster.status().nodes.items() if state not in ("idle", "planned")]
        tracebacks = sum(".py" in line for node in nodes for line in node.log().splitlines())
        version = cluster.slurm_version
    for line in remains + drained:
        print(f"left: {line}")
    if shared.bad:
        print(json.dumps(shared.bad))
    compared = {
        kind: (one.messages.get(kind, 0), other.messages.get(kind, 0)) for kind in one.messages | other.messages
    }
    for kind, (here, there) in sorted(compared.items()):
        print(f"messages to slurmctld, {COMPARED} shared and {COMPARED} ordinary jobs: {kind} {here}, {there}")
    rows = rows_of(
        f"{jobs} shared jobs a minute" if minutes else f"{jobs} shared jobs of a second at once", shared, first=True
    )
    if minutes:
        # one minute's jobs: more than that would mean that the cluster falls behind for good
        rows.append(Row("it keeps up: jobs there at the end, of a minute's", shared.left_at_end / jobs, "", 1.0))
    rows += rows_of("the same, ordinary", ordinary, first=False)
    rows += [
        Row(f"{COMPARED} jobs, one a second, none waits: slurmctld, CPU of a shared one", cpu_ms(one), "ms"),
        Row("  of an ordinary one", cpu_ms(other), "ms"),
        # nothing of ours runs in slurmctld but job_submit.lua: half as much again would be a fault of it
        Row("  a shared one to an ordinary one", cpu_ms(one) / cpu_ms(other), "x", 1.5),
        Row("  messages that it gets of a shared one", messages_of(one), ""),
        Row("  of an ordinary one", messages_of(other), ""),
        # hooks and plugin ask the controller nothing; a node that says that it is there, now and then, is in both
        Row("  more than of an ordinary one", messages_of(one) - messages_of(other), "", 0.2),
        Row("left on the nodes: processes, sockets, files, ledger lines, modes", len(remains), "things", 0),
        Row("nodes that are not idle afterwards", len(drained), "nodes", 0),
        Row("tracebacks in the hooks' logs", tracebacks, "lines", 0),
    ]
    return 0 if report(name, version, rows) else 1


if __name__ == "__main__":
    words = sys.argv[1:]
    jobs, minutes, name = [*words, *("200", "10", "jobs_a_minute")[len(words) :]]
    sys.exit(main(int(jobs), float(minutes), name))
