"""Compare GPU models by the strength of their multiprocessors, to use loads that were measured on another model."""

from __future__ import annotations

STRENGTHS: dict[str, float] = {
    "A10": 72 * 1695,
    "A30": 56 * 1440,
    "A40": 84 * 1740,
    "A100": 108 * 1410,
    "H100 PCIe": 114 * 1755,
    "H100": 132 * 1980,
    "H200": 132 * 1980,
    "L4": 58 * 2040,
    "L40": 142 * 2490,
    "L40S": 142 * 2520,
    "P100": 56 * 1328,
    "T4": 40 * 1590,
    "V100": 80 * 1530,
}
"""Multiprocessors times the highest clock in MHz. Source: NVIDIA's data sheets and architecture white papers."""


def strength(model: str) -> float | None:
    """Return the strength of a GPU model by the driver's name for it; None: not known, or a MIG instance."""
    if "MIG" in model:
        return None
    words = model.replace("-", " ").split()
    for name, value in STRENGTHS.items():
        parts = name.split()
        if all(part in words for part in parts):
            return value
    return None


def scale(measured_on: str, used_on: str) -> float:
    """Return the factor that converts a load from one GPU model to another; 1 if one of them is not known.

    Only clock and number of multiprocessors are compared, not memory or instructions.
    """
    there, here = strength(measured_on), strength(used_on)
    return 1.0 if there is None or here is None else there / here
