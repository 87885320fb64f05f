"""Evaluate measured speed on real Slurm with simulated GPUs: python tests/bench/measured_live.py (root; 5 minutes).

Levels: `[1,auto]` with equal tasks that saturate a GPU, against runs of the same tasks with each level. Undo: eight
tasks that all harm each other (--clash), with --pack and --undo=off and pause, each after a run that measured them
alone.
The simulated tasks slow each other down by the capacity model and --clash; no figure comes from a real GPU.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from itertools import combinations

from bench import Row, report

from localcluster import Cluster
from slurm_share.triples import run_folder
from slurm_share.triples.records import Ended

TRAIN = "#!/bin/bash\nexec simgpu-task --load 80 --util 100 --memory 1G --work 1.0 --progress 0.1\n"
GPUS = 2
"""Number of GPUs of each node."""
LEVELS = (2, 4, 6, 8)
"""The levels of a node with eight cores: multiples of its GPUs."""
TUNED_TASKS, FIXED_TASKS = 160, 60
END_TASKS = 10
"""The last tasks of a run, which leave places empty, are not counted."""
RATE_PART = 0.9
WORK_S = 16
HARMED = f"simgpu-task --load 10 --util 30 --progress 0.1 --work {WORK_S} --memory 1G --clash cache:8"
HARMED_TASKS = 8
UNDO = ("off", "pause")
SAID = re.compile(r"^slurm-share launch: (\d\d):(\d\d):(\d\d) (.*)$", re.MULTILINE)
STEP = re.compile(r"GPU \d+: task (\d+) (is paused|goes on)")


class Live:
    """One run of llsub by alice."""

    def __init__(
        self, cluster: Cluster, home: str, files: dict[str, str], words: str, node: str, after: int = 0
    ) -> None:
        self.cluster = cluster
        self.home = f"/home/alice/{home}"
        for name, text in files.items():
            put = f"mkdir -p {self.home} && cat >{self.home}/{name} && chmod 755 {self.home}/{name}"
            cluster.as_user("alice", put, input=text, check=True)
        first = f" --dependency=afterany:{after}" if after else ""
        line = f"cd {self.home} && llsub {words} '--options=-w {node}{first}'"
        said = cluster.as_user("alice", line, check=True).stdout
        found = re.search(r"^job (\d+):", said, re.MULTILINE)
        if found is None:
            raise RuntimeError(said)
        self.job = int(found[1])

    def wait(self) -> None:
        """Wait for its end. Raises RuntimeError if it is not completed."""
        state = self.cluster.wait(self.job, 600)
        if state != "COMPLETED":
            raise RuntimeError(f"job {self.job} of {self.home} is {state}: {self.log()}")

    def read(self, pattern: str) -> str:
        """Return the content of files of the run's folder."""
        return self.cluster.as_user("alice", f"cat {self.home}/LLSUB.1/{pattern}", check=True).stdout

    def log(self) -> str:
        return self.read("llsub-triple-mode-launch.log-*")

    def ended(self) -> list[Ended]:
        """Return all attempts, sorted by their ends."""
        found = list(run_folder.parse_results(self.read("p*/results.jsonl").encode()))
        return sorted(found, key=lambda one: one.started + one.seconds)


def equal(cluster: Cluster, home: str, triple: str, tasks: int, after: int = 0) -> Live:
    """Submit tasks of TRAIN on n2."""
    files = {"train.sh": TRAIN, "files.txt": "".join(f"{number}\n" for number in range(tasks))}
    words = f"./train.sh {triple} --tasks files.txt --window=1"
    if "auto" in triple:
        words += " --gpu-mem=1500M"
    return Live(cluster, home, files, words, "n2", after)


def harmed(cluster: Cluster, home: str, kind: str, tasks: int, words: str, node: str, after: int = 0) -> Live:
    """Submit tasks that harm each other; `kind` is their family."""
    lines = "".join(json.dumps({"run": HARMED, "gpu_mem": "2G", "name": kind}) + "\n" for _ in range(tasks))
    line = f"--tasks mix.jsonl [1,4,1] --pack --window=2 --max-per-gpu=2 {words}"
    return Live(cluster, home, {"mix.jsonl": lines}, line, node, after)


def rate_per_s(run: Live, first_part: float) -> float:
    """Return the finished tasks per second, without the beginning and the end of the run."""
    ends = [one.started + one.seconds for one in run.ended()]
    part = ends[int(first_part * len(ends)) : -END_TASKS]
    return (len(part) - 1) / (part[-1] - part[0])


def level_rows(tuned: Live, again: Live, fixed: dict[int, Live]) -> list[Row]:
    """Compare the result of [1,auto] with the rate of each level."""
    tuned.wait()
    rates = {}
    for level, run in fixed.items():
        run.wait()
        rates[level] = rate_per_s(run, 0.2)
    again.wait()
    found = re.search(r"(\d+) on a node(?: is best|, the most)", tuned.log())
    if found is None:
        raise RuntimeError(tuned.log())
    level = int(found[1])
    begins = f"it begins with {level}" in again.log()
    best = max(rates.values())
    return [
        *(Row(f"levels: rate of {level} at once", rate, "tasks/s") for level, rate in rates.items()),
        Row("levels: number at once that was found", level, "tasks"),
        Row("levels: its rate beside the best one's", rates[level] / best, "x", RATE_PART, "higher"),
        Row("levels: rate of [1,auto] after its trials beside the best one's", rate_per_s(tuned, 0.5) / best, "x",
            RATE_PART, "higher"),
        Row("levels: next runs that begin there", int(begins), "of 1", 1, "higher"),
    ]  # fmt: skip


def paused_spans(log: str) -> list[tuple[int, float, float]]:
    """Return (task, from, to) of all pauses in a log, in seconds of the day."""
    begun: dict[int, float] = {}
    spans = []
    for hours, minutes, seconds, text in SAID.findall(log):
        at = int(hours) * 3600 + int(minutes) * 60 + int(seconds)
        for number, what in STEP.findall(text):
            task = int(number)
            if what == "is paused":
                begun[task] = at
            elif task in begun:
                spans.append((task, begun.pop(task), float(at)))
    return spans


def paired_s(run: Live) -> float:
    """Return the seconds in which two tasks ran on one GPU, without pauses, summed over the GPUs."""
    together = sum(
        max(0.0, min(a.started + a.seconds, b.started + b.seconds) - max(a.started, b.started))
        for a, b in combinations(run.ended(), 2)
        if a.gpu == b.gpu
    )
    return together - sum(to - begun for _, begun, to in paused_spans(run.log()))


def undo_rows(runs: dict[str, Live]) -> list[Row]:
    rows, spans = [], {}
    for undo, run in runs.items():
        run.wait()
        every = run.ended()
        spans[undo] = max(one.started + one.seconds for one in every) - min(one.started for one in every)
        done = {one.task for one in every if one.outcome == "done"}
        rows += [
            Row(f"undo {undo}: time in a harmful pair, both GPUs", paired_s(run), "s"),
            Row(f"undo {undo}: make-span", spans[undo], "s"),
            Row(f"undo {undo}: tasks done", len(done), "tasks", HARMED_TASKS, "higher"),
        ]
    one_at_a_time = HARMED_TASKS * WORK_S / GPUS
    return [
        *rows,
        Row("undo: make-span one at a time, by the tasks' work", one_at_a_time, "s"),
        Row("undo: make-span of pause beside off", spans["pause"] / spans["off"], "x", 1.0),
    ]


def main(argv: Sequence[str]) -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args(argv)
    with Cluster.up("measured-bench", nodes=5) as cluster:
        undone = {}
        for undo, node in zip(UNDO, ("n3", "n4"), strict=True):
            alone = harmed(cluster, f"alone-{undo}", undo, GPUS, "", node)
            undone[undo] = harmed(cluster, undo, undo, HARMED_TASKS, f"--undo={undo}", node, alone.job)
        tuned = last = equal(cluster, "auto", "[1,auto]", TUNED_TASKS)
        again = last = equal(cluster, "again", "[1,auto]", FIXED_TASKS, last.job)
        fixed = {}
        for level in LEVELS:
            fixed[level] = last = equal(cluster, f"fixed{level}", f"[1,{level}]", FIXED_TASKS, last.job)
        rows = [*level_rows(tuned, again, fixed), *undo_rows(undone)]
        return 0 if report("measured_live", cluster.slurm_version, rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
