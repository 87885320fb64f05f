"""Estimate memory by formulas over a description of a model.

They are used only if the user asks for them: they hold for one framework, and ignore its caches.
tests/bench/estimates.py compares them with published measurements.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from itertools import combinations

from msgspec import Struct

MIB = 1 << 20
CONTEXT_MIB = 1440
"""Memory of a training process besides its tensors: context and libraries of PyTorch 2 on an A100, fitted to 3,000
published runs of fully connected networks."""
PROBE_SLOPE, PROBE_BASE_MIB = 1.12, 2150.0
"""Peak as a line over the sum of fake tensors, fitted to published measurements of 1,017 timm models with five batch
sizes; median error 5.3 %."""
PROBES_MOST = 30
"""Newest dry runs in a fit: 435 slopes, about 0.1 ms."""
WEIGHTS_INFERENCE = 1.2
"""accelerate's rule for inference: the weights and a fifth more."""


class ModelSummary(Struct, frozen=True, kw_only=True):
    """The size of a model, in numbers of elements."""

    parameters: float
    activations: float
    """For one sample."""
    batch: float


def adam_mib(model: ModelSummary) -> float:
    """Return the closed form of a training with Adam in MiB: 16 bytes for each parameter (weight, gradient, two
    moments), 8 for each activation (value and gradient), and the context."""
    return (16 * model.parameters + 8 * model.activations * model.batch) / MIB + CONTEXT_MIB


def weights_mib(file_mib: float) -> float:
    """Return the least memory of an inference with a weights file of this size, in MiB, without activations."""
    return file_mib * WEIGHTS_INFERENCE + CONTEXT_MIB


def probe_mib(fake_mib: float, slope: float = PROBE_SLOPE, base_mib: float = PROBE_BASE_MIB) -> float:
    """Return the memory of a process whose fake tensors sum up to `fake_mib`, in MiB."""
    return slope * fake_mib + base_mib


def fit_probes(points: Iterable[tuple[float, float]]) -> tuple[float, float] | None:
    """Return slope and base of the line through (sum of fake tensors, peak), by the median of all slopes (Theil-Sen);
    None: all sums are equal."""
    known = list(points)[-PROBES_MOST:]
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(known, 2) if a[0] != b[0]]
    if not slopes:
        return None
    slope = max(statistics.median(slopes), 0.0)
    return slope, statistics.median(y - slope * x for x, y in known)
