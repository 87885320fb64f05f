"""Fit the learned estimator to the generated data with NumPy, and report its errors for families left out of the fit.

    python tests/bench/learned/train.py            prints, writes slurm_share/lab/learned_weights.json
                                                   and tests/bench/results/learned.json
    python tests/bench/learned/train.py --dry      prints

Each family of networks is left out once. The model with the least error for them is fitted to all data and written.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy

sys.path.insert(0, str(Path(__file__).parents[1]))

import bench

from slurm_share.lab import learned
from slurm_share.lab.learned import WEIGHTS as FILE
from slurm_share.packing.rules.estimate import conformal

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests/data/learned/fake_memory.csv"
STEPS = 3000
FOLDS = 5
LARGE_MIB = 8192
"""2,150 MiB are the same for all, so the errors of small networks are small whatever the model says."""


@dataclass(frozen=True)
class Case:
    """A line of the data."""

    family: str
    model: learned.Layers
    fake_mib: float


def read() -> list[Case]:
    with open(DATA, encoding="utf-8", newline="") as file:
        return [
            Case(
                row["family"],
                learned.Layers(
                    function=row["activation"],
                    **{name: float(row[name]) for name in learned.Layers.__struct_fields__ if name != "function"},
                ),
                float(row["fake_mib"]),
            )
            for row in csv.DictReader(file)
        ]


def fit(cases: Sequence[Case], hidden: int, decay: float) -> learned.Weights:
    """Return a model with this number of hidden units; 0: a linear model, by ridge regression."""
    table = numpy.array([learned.features(case.model) for case in cases])
    wanted = numpy.log([case.fake_mib / learned.closed_mib(case.model) for case in cases])
    # An error in the sum of tensors is weighted by its part of the whole, which includes a constant 2,150 MiB.
    tensors = numpy.array([case.fake_mib for case in cases])
    weight = (conformal.PROBE_SLOPE * tensors / (conformal.PROBE_SLOPE * tensors + conformal.PROBE_BASE_MIB)) ** 2
    weight /= weight.mean()
    low, high = table.min(0), table.max(0)
    span = numpy.where(high > low, high - low, 1.0)
    inputs = numpy.where(high > low, 2.0 * (table - low) / span - 1.0, 0.0)
    layers = _ridge(inputs, wanted, weight, decay) if hidden == 0 else _network(inputs, wanted, weight, hidden, decay)
    return learned.Weights(
        features=learned.FEATURES,
        low=_rounded(low),
        high=_rounded(high),
        layers=tuple((tuple(_rounded(row) for row in rows), _rounded(constants)) for rows, constants in layers),
        lowest=round(float(wanted.min()), 4),
        highest=round(float(wanted.max()), 4),
    )


def _rounded(values) -> tuple[float, ...]:
    return tuple(round(float(value), 5) for value in values)


def _ridge(inputs, wanted, weight, decay):
    table = numpy.hstack([inputs, numpy.ones((len(inputs), 1))])
    punished = decay * numpy.eye(table.shape[1])
    punished[-1, -1] = 0.0
    found = numpy.linalg.solve(table.T @ (table * weight[:, None]) + punished, table.T @ (wanted * weight))
    return [(found[None, :-1], found[-1:])]


def _network(inputs, wanted, weight, hidden, decay):
    draw = numpy.random.default_rng(1)
    parts = [
        draw.normal(0.0, inputs.shape[1] ** -0.5, (hidden, inputs.shape[1])), numpy.zeros(hidden),
        draw.normal(0.0, hidden**-0.5, (1, hidden)), numpy.array([float(numpy.average(wanted, weights=weight))]),
    ]  # fmt: skip
    first, second = [numpy.zeros_like(part) for part in parts], [numpy.zeros_like(part) for part in parts]
    count = len(inputs)
    for step in range(1, STEPS + 1):
        inner = numpy.tanh(inputs @ parts[0].T + parts[1])
        off = weight * ((inner @ parts[2].T)[:, 0] + parts[3][0] - wanted) / count
        back = off[:, None] * parts[2] * (1.0 - inner**2)
        slopes = [
            back.T @ inputs + decay / count * parts[0], back.sum(0), off[None, :] @ inner + decay / count * parts[2],
            numpy.array([off.sum()]),
        ]  # fmt: skip
        rate = 0.01 * (1.0 - step / (STEPS + 1))
        for part, slope, one, two in zip(parts, slopes, first, second, strict=True):
            one += 0.1 * (slope - one)
            two += 0.001 * (slope**2 - two)
            part -= rate * (one / (1 - 0.9**step)) / (numpy.sqrt(two / (1 - 0.999**step)) + 1e-8)
    return [(parts[0], parts[1]), (parts[2], parts[3])]


@dataclass(frozen=True)
class Errors:
    """Errors relative to the corrected sum of fake tensors, which is itself an estimate."""

    mean: float
    median: float
    far_under: float
    """Part whose estimate is too small by more than 2 GiB."""
    bound: float
    """The factor that is enough for 95 % of the cases."""


def errors(said: Sequence[float], cases: Sequence[Case]) -> Errors:
    wanted = numpy.array([conformal.probe_mib(case.fake_mib) for case in cases])
    off = numpy.array(said) / wanted - 1.0
    return Errors(
        float(numpy.abs(off).mean()),
        float(numpy.median(numpy.abs(off))),
        float((off * wanted < -2048).mean()),
        float(numpy.quantile(wanted / numpy.array(said), 0.95)),
    )


def held_out(cases: Sequence[Case], hidden: int, decay: float, groups: Sequence[str]) -> list[float]:
    """Return the estimate of each case by a model that was fitted without its group."""
    said = [0.0] * len(cases)
    for group in sorted(set(groups)):
        weights = fit([case for case, one in zip(cases, groups, strict=True) if one != group], hidden, decay)
        for index, one in enumerate(groups):
            if one == group:
                said[index] = learned.memory_mib(cases[index].model, weights)
    return said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    cases = read()
    families = [case.family for case in cases]
    print(f"{len(cases)} networks of {len(set(families))} families; sizes by fake tensors, none measured on a GPU")
    best = None
    for hidden, decay in ((0, 1.0), (0, 10.0), (0, 100.0), (4, 1.0), (8, 1.0), (8, 10.0), (16, 1.0), (16, 10.0)):
        said = held_out(cases, hidden, decay, families)
        found = errors(said, cases)
        print(f"{hidden:2} hidden units, decay {decay:5g}: mean error {100 * found.mean:.1f} %")
        if best is None or found.mean < best[0].mean:
            best = (found, hidden, decay, said)
    assert best is not None
    found, hidden, decay, said = best
    results = [
        *_rows("closed form, corrected alike", errors([_closed(case) for case in cases], cases)),
        *_rows("a family that it has not seen", found),
    ]
    for family in sorted(set(families)):
        chosen = [index for index, one in enumerate(families) if one == family]
        one = errors([said[i] for i in chosen], [cases[i] for i in chosen])
        results += _rows(f"{family}, not seen", one)
    large = [index for index, case in enumerate(cases) if conformal.probe_mib(case.fake_mib) > LARGE_MIB]
    one = errors([said[i] for i in large], [cases[i] for i in large])
    results += _rows(f"not seen, more than {LARGE_MIB / 1024:g} GiB", one)
    folds = [str(index % FOLDS) for index in range(len(cases))]
    known = errors(held_out(cases, hidden, decay, folds), cases)
    results += _rows("new networks of known families", known)
    about = (
        f"{hidden} hidden units, decay {decay:g}, {len(cases)} random networks; labels are fake tensors with the public"
        f" correction, not GPU measurements. Mean error: family never seen {100 * found.mean:.1f} %, new network of a "
        f"known family {100 * known.mean:.1f} %"
    )
    if arguments.dry:
        bench.show("learned", None, results)
    else:
        weights = msgspec.structs.replace(fit(cases, hidden, decay), about=about)
        FILE.write_text(json.dumps(msgspec.to_builtins(weights), indent=None, separators=(",", ":")) + "\n")
        bench.report("learned", None, results)
        print(f"{FILE.relative_to(ROOT)}: {FILE.stat().st_size} bytes")
    return 0


def _rows(name: str, found: Errors) -> list[bench.Row]:
    """Return the figures for the file of results, relative to fake tensors, not to measurements."""
    return [
        bench.Row(f"{name}: mean error against fake tensors", 100 * found.mean, "%"),
        bench.Row(f"{name}: median error", 100 * found.median, "%"),
        bench.Row(f"{name}: too small by more than 2 GiB", 100 * found.far_under, "%"),
        bench.Row(f"{name}: 95 % need at most times", found.bound, ""),
    ]


def _closed(case: Case) -> float:
    return conformal.probe_mib(learned.closed_mib(case.model))


if __name__ == "__main__":
    sys.exit(main())
