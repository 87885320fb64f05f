"""Evaluate predicted slowdowns on rates of pairs that Gavel (Narayanan 2020) published, and on published runs.

Gavel's matrix is not part of this repository. It has rates and no loads: every belief about a load is the default, so
the prediction rests on the corrections learned from known pairs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median

from bench import Row

from slurm_share.lab.trace_files import read_rates
from slurm_share.packing.records import TaskAsk, TaskKey
from slurm_share.packing.rules import interference
from slurm_share.packing.rules.predicted_speeds import GroupTask, Pairs, PredictedGroup
from slurm_share.packing.rules.speeds import Member, Speeds
from slurm_share.packing.speed_records import Belief

PAYS_STP = 1.05
"""A pair pays from this aggregate speed on."""
SEEN_RATIO = 0.2
WINDOWS = 4
"""Number of windows of a published rate: one more than a group needs to be learned."""
BARS = {"v100": (0.81, 0.17), "p100": (0.82, 0.055), "k80": (0.70, 0.05)}
"""GPU -> (part of correct answers whether a pair pays, mean error of a speed)."""

Pair = tuple[str, str]
Speed = Mapping[Pair, float]
"""(job, neighbour) -> speed of the job, 1 as alone."""
Predict = Callable[[Pair], tuple[float, float]]


def read_speeds(path: Path, gpu: str) -> dict[Pair, float]:
    """Return the measured speeds of jobs with one GPU, of the pairs that ran. Raises TraceError."""
    rates = read_rates(path, gpu)
    found = {}
    for job, row in rates.items():
        for other, rate in row.items():
            alone, back = row.get(None), rates.get(other or "", {}).get(job)
            if other is not None and alone and rate > 0.0 and back:
                found[job, other] = rate / alone
    return found


def pairs_of(speeds: Speed) -> list[Pair]:
    """Return each pair once, sorted; two jobs of the same kind are a pair too."""
    return sorted({(min(pair), max(pair)) for pair in speeds})


def ask(job: str, *, has_family: bool = True) -> TaskAsk:
    """Return a job as a task: its family is the model, without the batch size."""
    family = job.partition(" (")[0] if has_family else job
    return TaskAsk(task=0, key=TaskKey(exact=job, family=family))


class Predictor:
    """The beliefs of the packer after some pairs have run."""

    def __init__(self, gpu: str, *, has_families: bool = True) -> None:
        self.gpu = gpu
        self.has_families = has_families
        self.speeds = Speeds()

    def see(self, pair: Pair, speeds: tuple[float, float]) -> None:
        """Learn from a pair that ran."""
        members = [
            Member(ask=self.ask(job), slowdown=1.0 / speed, windows=WINDOWS)
            for job, speed in zip(pair, speeds, strict=True)
        ]
        self.speeds.learn_group(members, self.gpu, "mps", when=0.0)

    def ask(self, job: str) -> TaskAsk:
        return ask(job, has_family=self.has_families)

    def predict(self, pair: Pair) -> tuple[float, float]:
        """Return the speeds of both as the policy `gain` predicts them."""
        asks = [self.ask(job) for job in pair]
        views = self.speeds.pairs([one.key for one in asks if one.key is not None])
        pairs, exponent = Pairs(views), self.speeds.exponent
        group = PredictedGroup("mps", exponent, pairs)
        for one in asks:
            group.add(GroupTask(one, self.speeds.belief(one, self.gpu), exponent, pairs))
        first, second = group.speeds()
        return first, second


class Score:
    """The part of correct predictions, and their errors."""

    def __init__(self) -> None:
        self.right: list[float] = []
        """One value for each seed."""
        self.errors: list[float] = []

    def add(self, speeds: Speed, held: Sequence[Pair], predict: Predict) -> None:
        """Score the pairs that were held out."""
        right = []
        for a, b in held:
            said, true = predict((a, b)), (speeds[a, b], speeds[b, a])
            right.append((sum(said) >= PAYS_STP) == (sum(true) >= PAYS_STP))
            self.errors += [abs(one - other) for one, other in zip(said, true, strict=True)]
        if right:
            self.right.append(fmean(right))

    @property
    def error(self) -> float:
        """Return the mean absolute error of a speed."""
        return fmean(self.errors)


def one_gpu(speeds: Speed, gpu: str, seeds: Sequence[int]) -> dict[str, Score]:
    """Return the scores of our predictor and of baselines."""
    pairs = pairs_of(speeds)
    names = ("ours", "no families", "always yes", "constant", "model alone", "unseen jobs")
    scores = {name: Score() for name in names}
    for seed in seeds:
        draw = random.Random(f"gavel {gpu} {seed}")
        seen = draw.sample(pairs, round(SEEN_RATIO * len(pairs)))
        held = [pair for pair in pairs if pair not in set(seen)]
        mean = fmean(speed for a, b in seen for speed in (speeds[a, b], speeds[b, a]))
        constant = (mean, mean)
        for name, has_families in (("ours", True), ("no families", False)):
            ours = _taught(gpu, speeds, seen, has_families=has_families)
            scores[name].add(speeds, held, ours.predict)
        scores["model alone"].add(speeds, held, Predictor(gpu).predict)
        scores["constant"].add(speeds, held, lambda pair, said=constant: said)  # type: ignore[misc]
        scores["always yes"].add(speeds, held, lambda pair: (1.0, 1.0))
        # A fifth of the jobs has never had a neighbour; the same part of the other pairs is known.
        jobs = sorted({job for pair in pairs for job in pair})
        new = set(draw.sample(jobs, max(1, len(jobs) // 5)))
        known = [pair for pair in seen if new.isdisjoint(pair)]
        ours = _taught(gpu, speeds, known, has_families=True)
        scores["unseen jobs"].add(speeds, [pair for pair in held if not new.isdisjoint(pair)], ours.predict)
    return scores


def _taught(gpu: str, speeds: Speed, seen: Sequence[Pair], *, has_families: bool) -> Predictor:
    found = Predictor(gpu, has_families=has_families)
    for a, b in seen:
        found.see((a, b), (speeds[a, b], speeds[b, a]))
    return found


def predict(path: Path, seeds: Sequence[int]) -> list[Row]:
    """Return the scores of predictions for pairs of which a fifth is known."""
    rows = []
    for gpu, (bar, bar_error) in BARS.items():
        scores = one_gpu(read_speeds(path, gpu), gpu, seeds)
        ours, where = scores["ours"], f"predict, {gpu}"
        right, low, high = fmean(ours.right), min(ours.right), max(ours.right)
        rows += [
            Row(f"{where}: right whether a pair pays ({low:.2f} to {high:.2f})", right, "", bar, "higher"),
            Row(f"{where}: mean error of a speed", ours.error, "", bar_error),
        ]
        for name in ("no families", "unseen jobs", "model alone", "constant", "always yes"):
            rows.append(Row(f"{where}: {name}, right", fmean(scores[name].right), ""))
            if name != "always yes":
                rows.append(Row(f"{where}: {name}, mean error of a speed", scores[name].error, ""))
    return rows


# ---- Published runs, without learning ----

RESNET, DGEMM = 0.4026, 0.5978
"""SM demand alone: the use of the FP32 and FP64 units (Pan 2021, Table 1)."""


def _util(ratio: float) -> Belief:
    """Return the belief about a task of which only utilisation is known."""
    return Belief(sm_ratio=0.9 * ratio, busy_ratio=ratio)


PUBLISHED: tuple[tuple[str, tuple[Belief, ...], tuple[float, ...]], ...] = (
    *(
        (f"Pan 2021, Table 4, {count} x ResNet-18", (Belief(sm_ratio=RESNET, busy_ratio=0.768),) * count, (slow,))
        for count, slow in ((2, 60 / 53), (3, 77 / 53), (4, 96 / 53), (7, 150 / 53))
    ),
    ("Pan 2021, Table 3, DGEMM and ResNet-18", (_util(0.8472), _util(0.768)), (596.8 / 458.9, 586.7 / 432.4)),
    ("Yousefzadeh 2025, Table 4.2, recommender and ResNet152", (_util(0.05), _util(0.82)), (1.04, 1.05)),
)
"""Case, beliefs, measured slowdowns (one value: the same for all). Table 3: ResNet-18 alone takes 891.3 - 458.9 s."""
MEAN_BAR, WORST_BAR = 0.05, 0.15


def no_training() -> list[Row]:
    """Return the errors of the capacity model for published slowdowns, with published loads and without learning."""
    rows, errors = [], []
    for what, beliefs, measured in PUBLISHED:
        said = interference.slowdowns(beliefs)
        true = measured if len(measured) > 1 else measured * len(beliefs)
        off = [abs(one / other - 1.0) for one, other in zip(said, true, strict=True)]
        errors += off[: len(measured)]
        text = "/".join(f"{one:.2f}" for one in said[: len(measured)])
        measured_text = "/".join(f"{one:.2f}" for one in measured)
        rows.append(Row(f"no training: {what}: {text}, measured {measured_text}", 100.0 * median(off), "% off"))
    return [
        Row("no training: published slowdowns, mean error", 100.0 * fmean(errors), "%", 100.0 * MEAN_BAR),
        Row("no training: published slowdowns, worst error", 100.0 * max(errors), "%", 100.0 * WORST_BAR),
        *rows,
    ]
