"""Evaluate undoing by measured rates in simulations with harmful pairs that their loads do not show."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import combinations_with_replacement
from statistics import fmean

from bench import Row
from msgspec.structs import replace

from slurm_share.lab import policies, truth
from slurm_share.lab.records import Assumptions, Result, SimTask, Trace
from slurm_share.lab.report import harmful_ratio
from slurm_share.lab.world import simulate
from slurm_share.packing.history_records import TaskRun

KINDS, TASKS, GPUS = 10, 200, 4
SPAN_S = 8 * 3600.0
HARMFUL = Assumptions(harmful_ratio=0.2, rate_sigma=0.10)
PAYS_STP = 1.1
APART, PAUSE = "gain,max_per_gpu=2", "gain,max_per_gpu=2,undo=pause"
BOOKED = "booked,max_per_gpu=2"
BLIND = "no rates"
"""The policy gain without rates of tasks: no pair is measured, and nothing is undone."""
CASES: dict[str, tuple[str, Assumptions]] = {
    BLIND: (APART, replace(HARMFUL, has_rates=False)),
    BOOKED: (BOOKED, HARMFUL),
    APART: (APART, HARMFUL),
    PAUSE: (PAUSE, HARMFUL),
    "no harm": (APART, replace(HARMFUL, harmful_ratio=0.0)),
}
HARM_BAR, FALSE_BAR = 1 / 3, 0.05

SHOWN = (BOOKED, "no harm")

Figures = dict[str, float]


def kinds(seed: int, sizes: int = 1) -> Trace:
    """Return tasks of ten kinds in a random order, of 10 to 25 minutes alone, submitted over eight hours.

    Each kind is a family.

    sizes: number of commands of each family; each is a kind of its own.
    """
    draw = random.Random(f"kinds {seed}")
    made = []
    families = max(1, KINDS // sizes)
    for number in range(families * sizes):
        family, size = number // sizes, number % sizes
        sm, mib = draw.uniform(0.15, 0.5), draw.randint(4000, 14_000)
        made.append((f"family{family} {size}", f"family{family}", sm, mib, draw.uniform(600.0, 1500.0)))
    order = [number % len(made) for number in range(TASKS)]
    draw.shuffle(order)
    tasks = []
    for number, kind in enumerate(order):
        name, family, sm, mib, seconds = made[kind]
        tasks.append(
            SimTask(
                task=number, name=name, submitted_s=SPAN_S * number / TASKS, memory_mib=mib, sm_ratio=sm,
                work_s=seconds * math.exp(draw.gauss(0.0, 0.2)), command=name, family=family,
            )
        )  # fmt: skip
    return Trace(name="kinds", tasks=tuple(tasks), gpus=GPUS)


def forbidden(trace: Trace, result: Result, seed: int, assumed: Assumptions = HARMFUL) -> tuple[int, int]:
    """Return the numbers of useful pairs of kinds that were refused, and of all useful pairs."""
    loads = {task.name: truth.TrueLoad(task, assumed) for task in trace.tasks}
    true = truth.Interference(assumed, seed)
    refused = {frozenset((pair.a, pair.b)) for pair in result.pairs if pair.is_refused}
    pays = [
        frozenset((a, b))
        for a, b in combinations_with_replacement(sorted(loads), 2)
        if sum(true.speeds([loads[a], loads[b]])) >= PAYS_STP
    ]
    return sum(pair in refused for pair in pays), len(pays)


def alone_runs(trace: Trace, seed: int) -> list[TaskRun]:
    """Return a history in which each kind has run once, alone on a GPU, so its size, load and rate are known."""
    draw = random.Random(f"alone {seed}")
    found = {}
    for task in trace.tasks:
        found[task.name] = TaskRun(
            when=1.7e9 - 3600.0, exact=task.command, family=task.family, gpu_model=trace.gpu_model,
            gpu_total_mib=trace.gpu_mib, sharing="mps", kind="done", seconds=task.work_s, alone_seconds=task.work_s,
            peak_mib=task.memory_mib, sm_ratio=task.sm_ratio, util_ratio=1.0, dram_ratio=0.0,
            rate_alone=math.exp(draw.gauss(0.0, HARMFUL.rate_sigma / math.sqrt(20))), rate_source="progress",
        )  # fmt: skip
    return list(found.values())


SHOWN_EVERY = 5
"""Every fifth seed has the cases that are shown only."""


def one_seed(seed: int) -> dict[str, Figures]:
    """Return the figures of each policy for one seed."""
    found = {}
    trace = kinds(seed)
    known = alone_runs(trace, seed)
    for name, (text, assumed) in CASES.items():
        if name in SHOWN and seed % SHOWN_EVERY:
            continue
        result = simulate(trace, policies.parse(text), assumed, seed, history=known)
        wrong, pays = forbidden(trace, result, seed, assumed)
        found[name] = _figures(result) | {"wrong": wrong, "pays": pays}
    if seed % SHOWN_EVERY:
        return found
    sized = kinds(seed, sizes=3)
    result = simulate(sized, policies.parse(APART), HARMFUL, seed, history=alone_runs(sized, seed))
    wrong, pays = forbidden(sized, result, seed)
    found["sizes"] = _figures(result) | {"wrong": wrong, "pays": pays}
    return found


def _figures(result: Result) -> Figures:
    assert result.unfinished == 0
    return {
        "harmful": harmful_ratio(result),
        "harmful_s": result.harmful_s,
        "make_span_s": result.make_span_s,
        "jct_s": result.jct_s,
        "stp": result.stp,
        "antt": result.antt,
        "paused_s": result.paused_s,
    }


def undo(every: Sequence[dict[str, Figures]]) -> list[Row]:
    """Return the effect of undoing over the seeds."""
    rows = []

    def mean(text: str, figure: str) -> float:
        return fmean(of[text][figure] for of in every if text in of)

    for name, text in (("apart", APART), ("pause", PAUSE)):
        where = f"undo, {name}"
        pays = sum(of[text]["pays"] for of in every)
        wrong = sum(of[text]["wrong"] for of in every) / pays
        rows += [
            Row(
                f"{where}: share of time in harmful pairs, of gain's without rates",
                mean(text, "harmful") / mean(BLIND, "harmful"),
                "",
                HARM_BAR,
            ),
            Row(f"{where}: pairs with STP >= 1.1 that were refused", 100.0 * wrong, "%", 100.0 * FALSE_BAR),
            Row(
                f"{where}: make-span, of gain's without rates",
                mean(text, "make_span_s") / mean(BLIND, "make_span_s"),
                "",
            ),
            Row(f"{where}: JCT, of gain's without rates", mean(text, "jct_s") / mean(BLIND, "jct_s"), ""),
        ]
    for name, text in (("booked", BOOKED), ("gain, no rates", BLIND), ("gain", APART), ("gain, pause", PAUSE)):
        if not any(text in of for of in every):
            continue
        rows += [
            Row(f"undo, {name}: share of time in harmful pairs", 100.0 * mean(text, "harmful"), "%"),
            Row(f"undo, {name}: STP", mean(text, "stp"), ""),
            Row(f"undo, {name}: ANTT", mean(text, "antt"), ""),
        ]
    for name, what in (("no harm", "no pair harms: pairs with STP >= 1.1 that were refused"),
                       ("sizes", "families of three sizes, harm by size: the same")):  # fmt: skip
        shown = [of[name] for of in every if name in of]
        if not shown:
            continue
        wrong = sum(one["wrong"] for one in shown) / sum(one["pays"] for one in shown)
        rows.append(Row(f"undo, apart, {what}", 100.0 * wrong, "%"))
    return rows
