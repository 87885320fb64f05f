"""Play whole runs of `llsub [1,auto]` on curves of throughput: the launcher's trials, with simulated tasks and time.

    python tests/bench/tuning_runs.py [--seeds N] [--processes N]

Each case is a curve, a number of tasks of 60 s, and a source of rates (progress, or finished tasks). Three runs follow
each other, each with the records of those before. The figures are the rate of the level with which a run ends over the
best rate of the curve with as many tasks as there are, and the time of the run over its time at the best level from the
beginning. Rates have 10 % of noise in each half minute, times of tasks 10 %, and runs differ by 5 %. TUNED_ON are
published curves, for which the constants of the search were chosen; HELD_OUT are curves for which they were not;
"drawn" is another curve for each seed.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from types import SimpleNamespace
from typing import Any, cast

import tuning_curves
from bench import Row, over_seeds, report

from slurm_share.packing import Attempt, History, TaskAsk, TaskKey, TunedRun
from slurm_share.triples.launcher import tuning

TASK_S = 60.0
NOISE, RUNS_DIFFER = 0.10, 0.05
NOISE_S = 30.0
"""Seconds for which a draw of the node's noise holds."""
KNOWN_S = 60.0
"""Seconds until the memory of a task is known, in the first run of a script."""
RUNS = 3
TASKS = (30, 60, 100, 200)
SOURCES = ("progress", "finished")
GOOD_RATIO = 0.9
KEY = TaskKey(exact="exact", family="family")
MODEL = "Simulated GPU"

Case = tuple[tuning_curves.Curve, int, int]
TUNED_ON = tuning_curves.CASES


def saturating(half: float) -> tuning_curves.Curve:
    """Return a curve that reaches half of its limit at `half` tasks."""
    return lambda level: level / (half + level)


def peaked(peak: float) -> tuning_curves.Curve:
    """Return a curve that rises to a peak and falls to half of it at 2.7 times its place."""
    return lambda level: level * math.exp(-level / peak)


def with_steps(step: int, gain: float) -> tuning_curves.Curve:
    """Return a curve that rises by a ratio at every multiple of `step` tasks, and by 2 % of a task between them."""
    return lambda level: gain ** (level // step) * (1.0 + 0.02 * (level % step)) if level else 0.0


HELD_OUT: dict[str, Case] = {
    "saturating, half at 3": (saturating(3.0), 1, 16),
    "saturating, half at 10": (saturating(10.0), 2, 48),
    "peaked at 5": (peaked(5.0), 1, 16),
    "peaked at 12": (peaked(12.0), 2, 40),
    "steps of 4": (with_steps(4, 1.5), 1, 12),
    "linear to 20, then flat": (tuning_curves.between({1: 1.0, 20: 20.0}), 4, 40),
    "flat": (lambda level: 1.0 if level else 0.0, 1, 16),
    "falling": (lambda level: level**-0.3 if level else 0.0, 2, 16),
}
DRAWN = "drawn"
"""Name of a curve that is another one for each seed."""
CASES: dict[str, Case] = {**TUNED_ON, **HELD_OUT}


def drawn(seed: int) -> Case:
    """Return a curve of a random kind, with a random place of its bend or peak, number of GPUs and bound of memory."""
    draw = random.Random(f"curve {seed}")
    gpus = draw.choice((1, 2, 4))
    hi = gpus * draw.randint(4, 16)
    bend = draw.uniform(1.0, 0.8 * hi)
    kind = draw.choice(("saturating", "peaked", "linear"))
    if kind == "saturating":
        return saturating(bend), gpus, hi
    if kind == "peaked":
        return peaked(max(bend, gpus)), gpus, hi
    return tuning_curves.between({1: 1.0, max(round(bend), 2): bend, hi + 1: 1.2 * bend}), gpus, hi


@dataclass(frozen=True)
class Played:
    """The result of one run: its last level, its seconds, its record and its sentences."""

    level: int
    seconds: float
    record: TunedRun | None
    said: tuple[str, ...]


class _Clock:
    """Stands in for the module `time` of the launcher's trials."""

    def __init__(self) -> None:
        self.now = 0.0
        self.unix_s = 1.8e9

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.unix_s + self.now


class _Node:
    """The parts of launcher and board that the trials use, on a node whose tasks follow a curve."""

    def __init__(self, gpus: int, hi: int, tasks: int, known_s: float) -> None:
        self.hi, self.known_s, self.now = hi, known_s, 0.0
        self.facts = {
            str(number): SimpleNamespace(
                model=MODEL, is_mps=True, is_simulated=True, takes_only_mps=False, is_single=False
            )
            for number in range(gpus)
        }
        self.running: dict[int, Attempt] = {}
        self.waiting: dict[int, None] = dict.fromkeys(range(tasks))
        self.max_per_gpu = None
        self.per_gpu = 1

    def most_on_a_gpu(self) -> int | None:
        return self.hi // len(self.facts) if self.now >= self.known_s else None

    def limit(self, per_gpu: int) -> None:
        self.per_gpu = per_gpu


def play(
    case: Case, tasks: int, source: str, noise: float, rng: random.Random, history: History, known_s: float
) -> Played:
    """Return one run, in ticks of a second as the launcher's loop."""
    curve, gpus, hi = case
    clock = _Clock()
    tuning.time = cast(Any, clock)
    node = _Node(gpus, hi, tasks, known_s)
    kept: list[TunedRun] = []
    said: list[str] = []
    run = SimpleNamespace(
        rate_window_s=30.0, pack=SimpleNamespace(is_tuned=True, is_compared=False), triple=SimpleNamespace(per_node=hi)
    )
    place = SimpleNamespace(workers=range(hi), name="n1", count=1, cores=64)
    trials = tuning.Tuning(cast(Any, run), cast(Any, place), cast(Any, node), said.append, kept.append)
    trials.begin(KEY, tasks, history)
    work = {task: TASK_S * curve(1) * rng.lognormvariate(0.0, noise) for task in range(tasks)}
    done = dict.fromkeys(range(tasks), 0.0)
    of_run = rng.lognormvariate(0.0, RUNS_DIFFER) if noise else 1.0
    factor, until = 1.0, 0.0
    while node.waiting or node.running:
        while node.waiting and len(node.running) < min(node.per_gpu * gpus, hi):
            task = next(iter(node.waiting))
            del node.waiting[task]
            node.running[task] = Attempt(
                ask=TaskAsk(task=task), worker=0, rank=task, started=clock.time(), clock=clock.now
            )
            if source == "progress":
                node.running[task].units, node.running[task].rate_source = 0.0, "progress"
        if clock.now >= until:
            factor, until = of_run * rng.lognormvariate(0.0, noise), clock.now + NOISE_S
        clock.now += 1.0
        node.now = clock.now
        count = len(node.running)
        for task, one in list(node.running.items()):
            done[task] += factor * curve(count) / count
            if source == "progress":
                one.units = min(done[task] / work[task], 1.0) * TASK_S
            if done[task] >= work[task]:
                del node.running[task]
                trials.ended(one, clock.now, is_done=True)
        trials.tick(node.running, None, clock.now)
    trials.finish()
    said += trials.sentences()
    level = trials.tuner.level if trials.tuner is not None else gpus
    return Played(level, clock.now, kept[-1] if kept else None, tuple(said))


def fixed_s(case: Case, tasks: int) -> float:
    """Return the time of a run without noise at the level with the highest rate."""
    curve, gpus, hi = case
    return tasks * TASK_S * curve(1) / tuning_curves.top(curve, min(hi, tasks), gpus)


def in_a_row(case: Case, tasks: int, source: str, noise: float, seed: int) -> list[Played]:
    """Return runs that follow each other, each with the records of those before."""
    rng = random.Random(seed)
    records: tuple[TunedRun, ...] = ()
    found = []
    for number in range(RUNS):
        one = play(case, tasks, source, noise, rng, History(tuned=records), KNOWN_S if number == 0 else 0.0)
        found.append(one)
        if one.record is not None:
            records = (*records, one.record)
    return found


def one_seed(
    seed: int, noise: float = NOISE, cases: Sequence[str] = tuple(CASES)
) -> dict[tuple[str, int, str], list[tuple[float, float]]]:
    """Return (curve, tasks, source) -> for each run, its last level's rate and its time, relative to the best."""
    found = {}
    for name in cases:
        case = CASES[name] if name in CASES else drawn(seed)
        for tasks in TASKS:
            top = tuning_curves.top(case[0], min(case[2], tasks), case[1])
            for source in SOURCES:
                runs = in_a_row(case, tasks, source, noise, seed)
                best_s = fixed_s(case, tasks)
                found[name, tasks, source] = [(case[0](one.level) / top, one.seconds / best_s) for one in runs]
    return found


def rows(exact: dict, noisy: Sequence[dict]) -> list[Row]:
    """Return the figures of the third run of each case; `table` shows all runs. Those TUNED_ON have to reach 0.9."""
    found = []
    for name, tasks, source in exact:
        where = f"{name}, {tasks} tasks, {source}: run {RUNS}"
        bar = GOOD_RATIO if name in TUNED_ON else None
        found += [
            Row(f"{where}, no noise, of the best rate", exact[name, tasks, source][-1][0], "", bar, "higher"),
            Row(f"{where}, noise, mean of the best rate", fmean(one[name, tasks, source][-1][0] for one in noisy), "",
                bar, "higher"),
        ]  # fmt: skip
    return found


def table(exact: dict, noisy: Sequence[dict]) -> None:
    print(f"{'':26}{'tasks':>6} {'source':9}  no noise: rate 1 2 3   noise: rate 1 2 3   >= 0.9: 1 2 3     time: 1 2 3")
    for name, tasks, source in exact:
        key = name, tasks, source
        cells = [" ".join(f"{one[0]:.2f}" for one in exact[key])]
        cells.append(" ".join(f"{fmean(one[key][run][0] for one in noisy):.2f}" for run in range(RUNS)))
        cells.append(" ".join(f"{fmean(one[key][run][0] >= 0.9 - 1e-9 for one in noisy):4.0%}" for run in range(RUNS)))
        cells.append(" ".join(f"{fmean(one[key][run][1] for one in noisy):.2f}" for run in range(RUNS)))
        print(f"{name:26}{tasks:6} {source:9}  {cells[0]:>20}   {cells[1]:>17}   {cells[2]:>15}   {cells[3]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=40, metavar="N")
    parser.add_argument("--seed", type=int, metavar="N", help="the first seed (default: drawn)")
    parser.add_argument("--processes", type=int, metavar="N", help="(default: one for each core)")
    parser.add_argument("--no-report", action="store_true", help="print the short table only")
    parser.add_argument("--tuned", action="store_true", help="play only the curves for which constants were chosen")
    chosen = parser.parse_args()
    cases = tuple(TUNED_ON) if chosen.tuned else (*CASES, DRAWN)
    first = random.SystemRandom().randrange(10**6) if chosen.seed is None else chosen.seed
    print(f"first seed {first}; repeat with --seed {first}", flush=True)
    exact = one_seed(first, 0.0, cases)
    noisy = over_seeds(partial(one_seed, cases=cases), range(first, first + chosen.seeds), "tuning", chosen.processes)
    table(exact, noisy)
    if chosen.no_report:
        return 0
    return 0 if report("tuning_runs", None, rows(exact, noisy), first_seed=first, seeds=chosen.seeds) else 1


if __name__ == "__main__":
    sys.exit(main())
