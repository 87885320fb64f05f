"""The matrix of pairs of programs: what is measured in the time available, and the model's prediction."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from statistics import fmean, median
from typing import Any

from slurm_share.packing.rules import interference
from slurm_share.packing.speed_records import Load

SECONDS_MOST, SECONDS_LEAST = 8.0, 1.5
"""Seconds of one measurement: a shorter one is noise, a longer one costs time only."""
REPEATS = 3
BETWEEN_S = 1.2
"""Seconds of warm-up before a measurement, and after it."""
START_S = 8.0
"""Seconds to start the second copy of a program, for its pair with itself, and everything that must start first."""
BAR = 0.10
"""The wanted mean absolute error of predicted speeds (1: as fast as alone)."""
Pair = tuple[str, str]


@dataclass(frozen=True)
class Plan:
    """The measurements of a run."""

    seconds: float
    repeats: int
    pairs: tuple[Pair, ...]
    left_out: int
    """Pairs for which there is no time."""


def plan(names: Sequence[str], minutes: float, methods: int = 2, seed: int = 1) -> Plan:
    """Return the longest measurements for which there is time; then fewer repeats; then fewer pairs, drawn by seed.

    Raises ValueError where there is time for nothing.
    """
    pairs = list(combinations_with_replacement(names, 2))
    work_s = minutes * 60 - methods * START_S * (len(names) + 2)
    for repeats in range(REPEATS, 0, -1):
        seconds = work_s / ((len(pairs) + len(names)) * repeats * methods) - BETWEEN_S
        if seconds >= SECONDS_LEAST:
            return Plan(min(seconds, SECONDS_MOST), repeats, tuple(pairs), 0)
    each = methods * (SECONDS_LEAST + BETWEEN_S)
    fitting = int(work_s / each) - len(names)
    if fitting < 1:
        least = (minutes * 60 - work_s + (len(names) + 1) * each) / 60
        raise ValueError(f"{minutes:g} minutes are too few for {len(names)} programs; at least {least:.1f}")
    chosen = sorted(random.Random(seed).sample(range(len(pairs)), fitting))
    return Plan(SECONDS_LEAST, 1, tuple(pairs[index] for index in chosen), len(pairs) - fitting)


def predicted(a: Load, b: Load, method: str) -> tuple[float, float]:
    """Return the speeds of two programs beside one another by the model, without any measurement of the pair."""
    one, other = interference.slowdowns((a, b), method)  # type: ignore[arg-type]
    return 1.0 / one, 1.0 / other


def rows(
    alone: Mapping[str, Sequence[float]],
    together: Mapping[Pair, Sequence[tuple[float, float]]],
    loads: Mapping[str, Load],
    method: str,
) -> list[dict[str, Any]]:
    """Return a row for each pair: speeds relative to alone, medians over repeats, and what the model says.

    alone: rates of each program. together: rates of both programs of a pair.
    """
    found = []
    for (a, b), repeats in together.items():
        base_a, base_b = median(alone[a]), median(alone[b])
        if not (repeats and base_a > 0 and base_b > 0):
            continue
        speeds = (median(one for one, _ in repeats) / base_a, median(other for _, other in repeats) / base_b)
        said = predicted(loads[a], loads[b], method)
        figures = {
            "speed_a": speeds[0], "speed_b": speeds[1], "stp": sum(speeds), "predicted_a": said[0],
            "predicted_b": said[1], "spread": max(map(_spread, zip(*repeats, strict=True))),
        }  # fmt: skip
        rounded = {name: round(value, 4) for name, value in figures.items()}
        found.append({"a": a, "b": b, "method": method, **rounded})
    return found


def _spread(rates: Sequence[float]) -> float:
    """Return how far apart repeats are, as a part of their median."""
    middle = median(rates)
    return (max(rates) - min(rates)) / middle if middle > 0 else 0.0


def errors(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the errors of the predicted speeds, and how often the model is right on whether sharing pays."""
    if not found:
        return {"pairs": 0}
    off = [abs(row[f"predicted_{who}"] - row[f"speed_{who}"]) for row in found for who in "ab"]
    off_stp = [abs(row["predicted_a"] + row["predicted_b"] - row["stp"]) for row in found]
    right = [(row["predicted_a"] + row["predicted_b"] >= 1.05) == (row["stp"] >= 1.05) for row in found]
    return {
        "pairs": len(found),
        "speed_mae": round(fmean(off), 4),
        "speed_worst": round(max(off), 4),
        "stp_mae": round(fmean(off_stp), 4),
        "right_on_stp_1.05": round(fmean(right), 4),
        "bar": BAR,
        "holds": fmean(off) <= BAR,
    }


def report(found: Sequence[Mapping[str, Any]], plan_: Plan) -> str:
    """Return the text for people."""
    lines = [
        f"{len(plan_.pairs)} pairs, {plan_.repeats} repeats of {plan_.seconds:.1f} s each"
        + (f"; no time for {plan_.left_out} pairs" if plan_.left_out else "")
    ]
    for method in dict.fromkeys(row["method"] for row in found):
        own = [row for row in found if row["method"] == method]
        one = errors(own)
        lines.append(
            f"{method}: mean error of predicted speeds {one['speed_mae']:.3f} (bar {BAR:.2f}: "
            f"{'holds' if one['holds'] else 'FAILS'}), worst {one['speed_worst']:.2f}, of STP {one['stp_mae']:.3f}; "
            f"right on whether sharing pays in {100 * one['right_on_stp_1.05']:.0f} %"
        )
        worst = sorted(own, key=_off, reverse=True)[:3]
        lines += [
            f"  {row['a']} beside {row['b']}: {row['speed_a']:.2f} and {row['speed_b']:.2f}, "
            f"predicted {row['predicted_a']:.2f} and {row['predicted_b']:.2f}"
            for row in worst
        ]
    return "\n".join(lines)


def _off(row: Mapping[str, Any]) -> float:
    return max(abs(row["predicted_a"] - row["speed_a"]), abs(row["predicted_b"] - row["speed_b"]))
