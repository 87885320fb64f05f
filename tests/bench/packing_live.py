"""Pack unlike tasks on real Slurm, simulated GPUs: python tests/bench/packing_live.py [--seed N] (root; 15 minutes).

60 tasks of 1 to 30 GiB, 30 % of them with a --gpu-mem of half their size, on two nodes with four simulated GPUs each,
with --pack, --pack=exclusive and --pack=magm: make-span, attempts out of GPU memory, retries. Then random mixes on one
node, with the hard and the soft memory guard: number of harmed neighbours, and of their retries. The simulated tasks
slow each other down by the capacity model; no figure comes from a real GPU.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from bench import Row, report

from localcluster import Cluster
from slurm_share.triples import run_folder
from slurm_share.triples.records import Ended

TASKS = 60
NODES = 2
MIXES = 200
MIX_TASKS = 8
MIXES_A_RUN = 10
MAKE_SPAN_PART = 0.7
"""Largest accepted make-span of booked over that of exclusive."""


def mixed_tasks(chance: random.Random, count: int, seconds: tuple[float, float]) -> list[dict[str, object]]:
    """Return tasks of 1 to 30 GiB, 30 % of them with a --gpu-mem of half their size."""
    found = []
    for number in range(count):
        size = round(1024 * 30 ** chance.random())
        written = size // 2 if chance.random() < 0.3 else size
        work = chance.uniform(*seconds)
        load = chance.choice((15, 25, 40, 60))
        run = f"simgpu-task --memory {size}M --load {load} --work {work:.1f} # {number}"
        found.append({"run": run, "gpu_mem": f"{written}M", "name": f"kind{number % 6}"})
    return found


def run_packed(cluster: Cluster, folder: str, tasks: list[dict[str, object]], words: str) -> dict[int, list[Ended]]:
    """Run the tasks, and return the attempts at each. Raises RuntimeError if a task is not done."""
    text = "".join(json.dumps(one) + "\n" for one in tasks)
    cluster.as_user("alice", f"mkdir -p {folder} && cat >{folder}/mix.jsonl", input=text, check=True)
    said = cluster.as_user("alice", f"cd {folder} && llsub --tasks mix.jsonl {words} --wait", timeout=900)
    lines = cluster.as_user("alice", f"cat {folder}/LLSUB.1/p*/results.jsonl", check=True).stdout
    found: dict[int, list[Ended]] = {}
    for ended in run_folder.parse_results(lines.encode()):
        found.setdefault(ended.task, []).append(ended)
    for attempts in found.values():
        attempts.sort(key=lambda one: one.started)
    lost = [task for task in range(len(tasks)) if task not in found or found[task][-1].outcome != "done"]
    if lost:
        log = cluster.as_user("alice", f"cat {folder}/LLSUB.1/llsub-triple-mode-launch.log-*").stdout
        raise RuntimeError(f"tasks {lost} are not done ({words}): {said.stdout}{said.stderr}{log}")
    return found


def make_span_s(found: dict[int, list[Ended]]) -> float:
    """Return the time from the first start to the last end."""
    every = [one for attempts in found.values() for one in attempts]
    return max(one.started + one.seconds for one in every) - min(one.started for one in every)


def harmed(tasks: list[dict[str, object]], found: dict[int, list[Ended]]) -> list[int]:
    """Return tasks that ran out of memory although their --gpu-mem was enough."""
    lost = []
    for task, attempts in found.items():
        size = int(str(tasks[task]["run"]).split("--memory ")[1].split("M")[0])
        written = int(str(tasks[task]["gpu_mem"]).removesuffix("M"))
        if written >= size and any(one.outcome == "gpu memory" for one in attempts):
            lost.append(task)
    return lost


def policies(cluster: Cluster, chance: random.Random) -> list[Row]:
    tasks = mixed_tasks(chance, TASKS, (8, 30))
    rows, spans = [], {}
    for policy in ("exclusive", "magm", "booked"):
        found = run_packed(cluster, f"/home/alice/{policy}", tasks, f"[{NODES},auto,1] --pack={policy}")
        spans[policy] = make_span_s(found)
        attempts = Counter(one.outcome for tried in found.values() for one in tried)
        rows += [
            Row(f"{policy}: make-span", spans[policy], "s"),
            Row(f"{policy}: attempts out of GPU memory", attempts["gpu memory"], "attempts"),
            Row(f"{policy}: tasks that ran more than once", sum(len(tried) > 1 for tried in found.values()), "tasks"),
            Row(f"{policy}: tasks harmed that had enough written", len(harmed(tasks, found)), "tasks"),
        ]
    part = spans["booked"] / spans["exclusive"]
    return [*rows, Row("make-span of booked beside exclusive", part, "x", MAKE_SPAN_PART)]


def mixes(cluster: Cluster, chance: random.Random, guard: str, count: int) -> list[Row]:
    """Run random mixes on one node, several lists in one run."""
    harmed_tasks = again = runs = most = 0
    waits = []
    for number in range(0, count, MIXES_A_RUN):
        tasks = mixed_tasks(chance, MIX_TASKS * MIXES_A_RUN, (1, 3))
        words = f"[1,auto,1] --pack --memory-guard={guard} --options=-wn1"
        found = run_packed(cluster, f"/home/alice/{guard}{number}", tasks, words)
        runs += MIXES_A_RUN
        harmed_tasks += len(harmed(tasks, found))
        again += sum(len(tried) > 1 for tried in found.values())
        most = max(most, *(len(tried) for tried in found.values()))
        for tried in found.values():
            waits += [b.started - (a.started + a.seconds) for a, b in pairwise(tried)]
    return [
        Row(f"{guard} guard: random mixes of {MIX_TASKS} tasks", runs, "mixes"),
        Row(f"{guard} guard: neighbours harmed", harmed_tasks, "tasks", 0 if guard == "hard" else None),
        Row(f"{guard} guard: tasks that ran more than once", again, "tasks"),
        Row(f"{guard} guard: most attempts at one task", most, "attempts", 4),
        Row(f"{guard} guard: from the end of an attempt to the next, median", median(waits or [0.0]), "s"),
    ]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--mixes", type=int, default=MIXES)
    arguments = parser.parse_args(argv)
    print(f"seed {arguments.seed}", flush=True)
    chance = random.Random(arguments.seed)
    with Cluster.up("packing-bench", nodes=NODES, alike=True) as cluster:
        rows = policies(cluster, chance)
        for guard in ("hard", "soft"):
            rows += mixes(cluster, chance, guard, arguments.mixes)
        rows.append(Row("seed", arguments.seed, ""))
        return 0 if report("packing_live", cluster.slurm_version, rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
