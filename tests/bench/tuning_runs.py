"""Play whole runs of `llsub [1,auto]` on curves of throughput: the launcher's trials, with simulated tasks and time.

    python tests/bench/tuning_runs.py [--seeds N] [--processes N] [--set NAME]

Each case is a curve, a number of tasks, and a source of rates (progress, or finished tasks). Three runs follow each
other, each with the records of those before. The figures are the rate of the level with which a run ends over the best
rate of the curve with as many tasks as there are, and the time of the best fixed level, with the same tasks and noise,
over the time of the run: 1 is a run that knew the best level from the beginning.

Of the curves, PUBLISHED are published; DRAWN_UP are other shapes; VARIED have other plateaus, noise of 2 to 25 %, tasks
of 5 s to 10 minutes, and durations with tails. The constants of the search were chosen on these. UNSEEN are of the same
kinds, and were drawn up by hand when no constant was changed any more. "drawn" is another curve for each seed.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from statistics import fmean
from types import SimpleNamespace
from typing import Any, cast

import tuning_curves
from bench import Row, over_seeds, report

from slurm_share.packing import Attempt, History, SearchRun, TaskAsk, TaskKey
from slurm_share.triples.launcher import tuning

RUNS_DIFFER = 0.05
NOISE_S = 30.0
"""Seconds for which a draw of the node's noise holds."""
KNOWN_S = 60.0
"""Seconds until the memory of a task is known, in the first run of a script."""
RUNS = 3
TASKS = (12, 30, 60, 100, 300)
SOURCES = ("progress", "finished")
GOOD_RATIO = 0.9
KEY = TaskKey(exact="exact", family="family")
MODEL = "Simulated GPU"

Durations = Callable[[random.Random], float]
"""Returns the duration of a task over the usual one."""


def saturating(half: float) -> tuning_curves.Curve:
    """Return a curve that reaches half of its limit at `half` tasks."""
    return lambda level: level / (half + level)


def peaked(peak: float) -> tuning_curves.Curve:
    """Return a curve that rises to a peak and falls to half of it at 2.7 times its place."""
    return lambda level: level * math.exp(-level / peak)


def with_steps(step: int, gain: float) -> tuning_curves.Curve:
    """Return a curve that rises by a ratio at every multiple of `step` tasks, and by 2 % of a task between them."""
    return lambda level: gain ** (level // step) * (1.0 + 0.02 * (level % step)) if level else 0.0


def lognormal(sigma: float) -> Durations:
    return lambda draw: draw.lognormvariate(0.0, sigma)


def with_tail(part: float, factor: float) -> Durations:
    """Return durations of which a part is longer by a factor."""
    return lambda draw: draw.lognormvariate(0.0, 0.1) * (factor if draw.random() < part else 1.0)


def pareto(shape: float) -> Durations:
    """Return durations with a heavy tail, cut at 20 times the shortest."""
    return lambda draw: min(draw.paretovariate(shape), 20.0)


TENTH = lognormal(0.10)


@dataclass(frozen=True)
class Case:
    """A node and its tasks."""

    curve: tuning_curves.Curve
    gpus: int
    hi: int
    """Most tasks for which there is memory."""
    noise: float = 0.10
    """Standard deviation of the logarithm of the node's rate in each half minute."""
    task_s: float = 60.0
    """Usual duration of a task alone."""
    durations: Durations = TENTH


between = tuning_curves.between
PUBLISHED = {name: Case(*case) for name, case in tuning_curves.CASES.items()}
DRAWN_UP = {
    "saturating, half at 3": Case(saturating(3.0), 1, 16),
    "saturating, half at 10": Case(saturating(10.0), 2, 48),
    "peaked at 5": Case(peaked(5.0), 1, 16),
    "peaked at 12": Case(peaked(12.0), 2, 40),
    "steps of 4": Case(with_steps(4, 1.5), 1, 12),
    "linear to 20, then flat": Case(between({1: 1.0, 20: 20.0}), 4, 40),
    "flat": Case(lambda level: 1.0 if level else 0.0, 1, 16),
    "falling": Case(lambda level: level**-0.3 if level else 0.0, 2, 16),
}
VARIED = {
    "flat from 3, tails": Case(between({1: 1.0, 3: 2.6}), 1, 12, 0.15, 60.0, with_tail(0.05, 8.0)),
    "flat from 14 on two": Case(between({1: 1.0, 14: 9.0, 28: 9.3}), 2, 28, 0.05, 20.0, lognormal(0.5)),
    "root of the tasks": Case(lambda level: level**0.5, 1, 20, 0.20, 30.0, lognormal(0.3)),
    "half full, then down": Case(between({1: 1.0, 6: 5.0, 12: 3.0}), 1, 12, 0.10, 90.0, pareto(2.5)),
    "long tasks, linear": Case(between({1: 1.0, 8: 7.6, 16: 8.0}), 4, 16, 0.02, 600.0, lognormal(0.2)),
    "short tasks, linear": Case(between({1: 1.0, 24: 22.0}), 2, 24, 0.10, 5.0, lognormal(0.2)),
    "short tasks, flat": Case(lambda level: 1.0 if level else 0.0, 1, 10, 0.25, 8.0, with_tail(0.1, 4.0)),
    "hardly a gain": Case(between({1: 1.0, 2: 1.12, 4: 1.18, 16: 1.2}), 1, 16, 0.10, 45.0, lognormal(0.4)),
    "slow start": Case(between({1: 1.0, 2: 1.2, 4: 3.0, 8: 6.0, 16: 6.5}), 1, 16, 0.10, 60.0, lognormal(0.2)),
    "down from the first": Case(lambda level: level**-0.6 if level else 0.0, 1, 8, 0.15, 120.0, lognormal(0.5)),
    "flat from 5 on two": Case(between({1: 1.0, 2: 1.9, 6: 4.8, 20: 5.0}), 2, 20, 0.12, 40.0, lognormal(0.25)),
    "logarithm": Case(lambda level: math.log1p(level), 1, 24, 0.08, 75.0, lognormal(0.15)),
    "peaked at 9, heavy tail": Case(peaked(9.0), 1, 24, 0.10, 50.0, pareto(3.0)),
    "plateau at a third, then down": Case(
        between({1: 1.0, 5: 4.5, 10: 4.5, 15: 3.5}), 1, 15, 0.10, 60.0, with_tail(0.1, 3.0)
    ),
    "linear on eight": Case(between({1: 1.0, 32: 30.0}), 8, 32, 0.05, 120.0, lognormal(0.3)),
    "half a GPU each": Case(between({1: 1.0, 4: 2.0, 8: 2.1}), 2, 8, 0.20, 300.0, lognormal(0.2)),
    "very short tasks": Case(between({1: 1.0, 6: 5.0, 18: 7.0}), 1, 18, 0.10, 3.0, lognormal(0.4)),
    "a little down": Case(lambda level: level**-0.1 if level else 0.0, 1, 12, 0.15, 45.0, lognormal(0.3)),
    "cliff at 9": Case(between({1: 1.0, 8: 7.0, 9: 3.0, 16: 2.0}), 1, 16, 0.10, 60.0, lognormal(0.2)),
}
UNSEEN = {
    "flat from 4, slow": Case(between({1: 1.0, 4: 3.1, 14: 3.4}), 1, 14, 0.10, 150.0, lognormal(0.3)),
    "cube root on two": Case(lambda level: level ** (1 / 3), 2, 32, 0.10, 35.0, with_tail(0.03, 6.0)),
    "two bends": Case(between({1: 1.0, 4: 3.6, 10: 6.0, 20: 6.6}), 2, 20, 0.15, 70.0, pareto(2.8)),
    "peaked at 7": Case(peaked(7.0), 1, 18, 0.08, 55.0, lognormal(0.25)),
    "linear, little memory": Case(between({1: 1.0, 6: 5.7}), 2, 6, 0.10, 240.0, lognormal(0.4)),
    "down by a third": Case(between({1: 1.0, 3: 0.9, 12: 0.66}), 1, 12, 0.12, 25.0, lognormal(0.2)),
}
DRAWN = "drawn"
"""Name of a curve that is another one for each seed."""
SETS = {"published": PUBLISHED, "drawn-up": DRAWN_UP, "varied": VARIED, "unseen": UNSEEN}
CASES: dict[str, Case] = {**PUBLISHED, **DRAWN_UP, **VARIED, **UNSEEN}


def drawn(seed: int) -> Case:
    """Return a curve of a random kind, with a random place of its bend or peak, number of GPUs and bound of memory."""
    draw = random.Random(f"curve {seed}")
    gpus = draw.choice((1, 2, 4))
    hi = gpus * draw.randint(4, 16)
    bend = draw.uniform(1.0, 0.8 * hi)
    kind = draw.choice(("saturating", "peaked", "linear"))
    if kind == "saturating":
        return Case(saturating(bend), gpus, hi)
    if kind == "peaked":
        return Case(peaked(max(bend, gpus)), gpus, hi)
    return Case(between({1: 1.0, max(round(bend), 2): bend, hi + 1: 1.2 * bend}), gpus, hi)


@dataclass(frozen=True)
class Played:
    """The result of one run: its last level, its seconds, its record and its sentences."""

    level: int
    seconds: float
    record: SearchRun | None
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


def play(case: Case, tasks: int, source: str, seed: str, history: History, known_s: float) -> Played:
    """Return one run, in ticks of a second as the launcher's loop."""
    gpus, hi = case.gpus, case.hi
    clock = _Clock()
    tuning.time = cast(Any, clock)
    node = _Node(gpus, hi, tasks, known_s)
    kept: list[SearchRun] = []
    said: list[str] = []
    run = SimpleNamespace(
        rate_window_s=30.0, pack=SimpleNamespace(is_tuned=True, is_compared=False), triple=SimpleNamespace(per_node=hi)
    )
    place = SimpleNamespace(workers=range(hi), name="n1", count=1, cores=64)
    trials = tuning.Tuning(cast(Any, run), cast(Any, place), cast(Any, node), said.append, kept.append)
    trials.begin(KEY, tasks, history)
    work, factors = drawn_run(case, tasks, seed)
    done = [0.0] * tasks
    while node.waiting or node.running:
        while node.waiting and len(node.running) < min(node.per_gpu * gpus, hi):
            task = next(iter(node.waiting))
            del node.waiting[task]
            node.running[task] = Attempt(
                ask=TaskAsk(task=task), worker=0, rank=task, started=clock.time(), clock=clock.now
            )
            if source == "progress":
                node.running[task].units, node.running[task].rate_source = 0.0, "progress"
        factor = factors(clock.now)
        clock.now += 1.0
        node.now = clock.now
        count = len(node.running)
        each = factor * case.curve(count) / case.curve(1) / count
        for task, one in list(node.running.items()):
            done[task] += each
            if source == "progress":
                one.units = min(done[task] / work[task], 1.0) * case.task_s
            if done[task] >= work[task]:
                del node.running[task]
                node.known_s = min(node.known_s, clock.now)
                trials.ended(one, clock.now, is_done=True)
        trials.tick(node.running, None, clock.now)
    trials.finish()
    said += trials.sentences()
    return Played(trials.level.tasks, clock.now, kept[-1] if kept else None, tuple(said))


def drawn_run(case: Case, tasks: int, seed: str) -> tuple[list[float], Callable[[float], float]]:
    """Return the work of each task, in seconds alone, and the node's speed at a second: the same for every search."""
    rng = random.Random(seed)
    work = [case.task_s * (case.durations(rng) if case.noise else 1.0) for _ in range(tasks)]
    of_run = rng.lognormvariate(0.0, RUNS_DIFFER) if case.noise else 1.0
    drawn_factors: list[float] = []

    def factor(now: float) -> float:
        while len(drawn_factors) <= now / NOISE_S:
            drawn_factors.append(of_run * rng.lognormvariate(0.0, case.noise))
        return drawn_factors[int(now / NOISE_S)]

    return work, factor


def fixed_s(case: Case, tasks: int, seed: str, level: int) -> float:
    """Return the time of a run at a fixed level."""
    work, factor = drawn_run(case, tasks, seed)
    now, each_done, started = 0.0, 0.0, 0
    ends: list[float] = []  # the work of running tasks, counted from the begin of the run
    while started < tasks or ends:
        while started < tasks and len(ends) < level:
            heapq.heappush(ends, each_done + work[started])
            started += 1
        each = factor(now) * case.curve(len(ends)) / case.curve(1) / len(ends)
        until = (int(now / NOISE_S) + 1) * NOISE_S
        if each_done + each * (until - now) < ends[0]:
            each_done += each * (until - now)
            now = until
        else:
            now += (ends[0] - each_done) / each
            each_done = heapq.heappop(ends)
    return now


@cache
def best_s(name: str, seed: int, tasks: int, draw: str) -> float:
    """Return the time of a run at the best fixed level, with the same tasks and noise."""
    case = CASES[name] if name in CASES else drawn(seed)
    return min(fixed_s(case, tasks, draw, level) for level in range(case.gpus, case.hi + 1, case.gpus))


def in_a_row(name: str, tasks: int, source: str, seed: int) -> list[tuple[float, float]]:
    """Return the rate of the last level and the time, over the best, of runs that follow each other."""
    case = CASES[name] if name in CASES else drawn(seed)
    records: tuple[SearchRun, ...] = ()
    found = []
    top = tuning_curves.top(case.curve, max(min(case.hi, tasks), case.gpus), case.gpus)
    for number in range(RUNS):
        draw = f"{seed} {number}"
        one = play(case, tasks, source, draw, History(searches=records), KNOWN_S if number == 0 else 0.0)
        found.append((case.curve(one.level) / top, best_s(name, seed, tasks, draw) / one.seconds))
        if one.record is not None:
            records = (*records, one.record)
    return found


def one_seed(seed: int, cases: Sequence[str] = tuple(CASES)) -> dict[tuple[str, int, str], list[tuple[float, float]]]:
    """Return (curve, tasks, source) -> for each run, its last level's rate and its speed, over the best."""
    return {
        (name, tasks, source): in_a_row(name, tasks, source, seed)
        for name in cases
        for tasks in TASKS
        for source in SOURCES
    }


def rows(noisy: Sequence[dict]) -> list[Row]:
    """Return the mean speed of each set in the first and the last run, of the lower one of both sources."""
    found = []
    for label, names in (*SETS.items(), (DRAWN, (DRAWN,))):
        for tasks, run in product(TASKS, (0, RUNS - 1)):
            values = [
                min(fmean(one[name, tasks, source][run][1] for one in noisy) for source in SOURCES)
                for name in names
                if (name, tasks, SOURCES[0]) in noisy[0]
            ]
            if values:
                bar = GOOD_RATIO if label != DRAWN and tasks >= 100 and run else None
                what = f"{label}, {tasks} tasks, run {run + 1}: of the best speed"
                found.append(Row(what, fmean(values), "", bar, "higher"))
    return found


def table(noisy: Sequence[dict]) -> None:
    """Print means over the seeds: rate of the last level, and speed, of the first and the last run."""
    print(f"{'mean rate of the last level / speed, run 1':>70}   run {RUNS}")
    names = dict.fromkeys(name for name, _, _ in noisy[0])
    for name in names:
        for source in SOURCES:
            cells = []
            for run in (0, RUNS - 1):
                for what in (0, 1):
                    means = (fmean(one[name, tasks, source][run][what] for one in noisy) for tasks in TASKS)
                    cells.append(" ".join(f"{mean:.2f}" for mean in means))
            print(f"{name:24} {source:9} {' | '.join(cells)}")
    for source in SOURCES:
        cells = []
        for run in (0, RUNS - 1):
            means = (fmean(one[name, tasks, source][run][1] for one in noisy for name in names) for tasks in TASKS)
            cells.append(" ".join(f"{mean:.3f}" for mean in means))
        print(f"{'all, speed':24} {source:9} {' | '.join(cells)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, metavar="N")
    parser.add_argument("--seed", type=int, metavar="N", help="the first seed (default: drawn)")
    parser.add_argument("--processes", type=int, metavar="N", help="(default: one for each core)")
    parser.add_argument("--no-report", action="store_true", help="print the short table only")
    parser.add_argument("--set", choices=(*SETS, DRAWN), help="play only the curves of a set")
    chosen = parser.parse_args()
    cases = (*CASES, DRAWN) if chosen.set is None else tuple(SETS.get(chosen.set, (DRAWN,)))
    first = random.SystemRandom().randrange(10**6) if chosen.seed is None else chosen.seed
    print(f"first seed {first}; repeat with --seed {first}; tasks {TASKS}", flush=True)
    noisy = over_seeds(partial(one_seed, cases=cases), range(first, first + chosen.seeds), "tuning", chosen.processes)
    table(noisy)
    if chosen.no_report:
        return 0
    return 0 if report("tuning_runs", None, rows(noisy), first_seed=first, seeds=chosen.seeds) else 1


if __name__ == "__main__":
    sys.exit(main())
