"""Compare the slowdowns that the capacity model predicts with published ones, from published loads."""

from __future__ import annotations

from statistics import fmean, median

from bench import Row

from slurm_share.packing.rules import interference
from slurm_share.packing.speed_records import Load

RESNET, DGEMM = 0.4026, 0.5978
"""SM demand alone: the use of the FP32 and FP64 units (Pan 2021, Table 1)."""


def _util(ratio: float) -> Load:
    """Return the load of a task of which only utilisation is known."""
    return Load(sm_ratio=0.9 * ratio, busy_ratio=ratio)


PUBLISHED: tuple[tuple[str, tuple[Load, ...], tuple[float, ...]], ...] = (
    *(
        (f"Pan 2021, Table 4, {count} x ResNet-18", (Load(sm_ratio=RESNET, busy_ratio=0.768),) * count, (slow,))
        for count, slow in ((2, 60 / 53), (3, 77 / 53), (4, 96 / 53), (7, 150 / 53))
    ),
    ("Pan 2021, Table 3, DGEMM and ResNet-18", (_util(0.8472), _util(0.768)), (596.8 / 458.9, 586.7 / 432.4)),
    ("Yousefzadeh 2025, Table 4.2, recommender and ResNet152", (_util(0.05), _util(0.82)), (1.04, 1.05)),
)
"""Case, loads, measured slowdowns (one value: the same for all). Table 3: ResNet-18 alone takes 891.3 - 458.9 s."""
MEAN_BAR, WORST_BAR = 0.05, 0.15


def no_training() -> list[Row]:
    """Return the errors of the capacity model for published slowdowns, with published loads."""
    rows, errors = [], []
    for what, loads, measured in PUBLISHED:
        said = interference.slowdowns(loads)
        true = measured if len(measured) > 1 else measured * len(loads)
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
