"""Formulas over a description of a model: baselines, and a first guess where a user gives such a description.

None of them is used by default: they hold for one framework, and know nothing of its caches. tests/bench/estimates.py
compares them with published measurements.
"""

from __future__ import annotations

from msgspec import Struct

MIB = 1 << 20
FLOAT_BYTES = 4
CONTEXT_MIB = 1440
"""What a training process takes besides its tensors: context and libraries of PyTorch 2 on an A100, fitted to 3,000
published runs of fully connected networks."""
PROBE_SLOPE, PROBE_BASE_MIB = 1.12, 2150.0
"""Measured peak against the sum of fake tensors: fitted to published measurements of 1,017 timm models in five batch
sizes, where it has a median error of 5.3 %."""
WEIGHTS_INFERENCE = 1.2
"""accelerate's rule: a fifth on top of the weights for inference."""
WEIGHTS_ADAM = 4.0
"""Training with Adam: weights, gradients, and two moments."""


class ModelSummary(Struct, frozen=True, kw_only=True):
    """What a summary of a model says, in numbers of elements."""

    parameters: float
    activations: float
    """For one sample."""
    batch: float
    gradients: float | None = None
    """For one sample; None: as many as parameters."""


def horus_mib(model: ModelSummary, context_mib: float = 0.0) -> float:
    """Return Horus' estimate in MiB: (B A + P) + B G elements of 4 bytes, and the context (Yousefzadeh 2025, 5.3.1).

    With as many gradients as parameters, and 800 MiB of context, this is what was published of 12 convolutional
    networks: it takes the parameters' gradients once for each sample, and knows no state of an optimiser.
    """
    gradients = model.parameters if model.gradients is None else model.gradients
    elements = model.batch * model.activations + model.parameters + model.batch * gradients
    return elements * FLOAT_BYTES / MIB + context_mib


def adam_mib(model: ModelSummary, context_mib: float = CONTEXT_MIB) -> float:
    """Return the closed form of a training with Adam in MiB: 16 bytes for each parameter (weight, gradient, two
    moments), 8 for each activation (itself and its gradient), and the context."""
    return (16 * model.parameters + 8 * model.activations * model.batch) / MIB + context_mib


def weights_mib(file_mib: float, *, is_training: bool, context_mib: float = CONTEXT_MIB) -> float:
    """Return what a model of such a weights file takes at least, in MiB: activations are not in it."""
    return file_mib * (WEIGHTS_ADAM if is_training else WEIGHTS_INFERENCE) + context_mib


def probe_mib(fake_mib: float, slope: float = PROBE_SLOPE, base_mib: float = PROBE_BASE_MIB) -> float:
    """Return what a process takes whose fake tensors reach `fake_mib` together."""
    return slope * fake_mib + base_mib
