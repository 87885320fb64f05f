"""Estimate a training's GPU memory from the layers of its network, by a small model that was fitted to data of ours.

The features are those of GPUMemNet (Yousefzadeh 2025, ch. 5): numbers of convolutions and linear layers, norms and
dropouts, depth, batch, parameters, activations, activations x batch, and the activation function as a cosine and a
sine. The data are networks of random shape, whose memory was added up by fake tensors: **no size in them was measured
on a GPU**. To that sum comes the correction of `static.probe_mib`, which was fitted to published measurements. What
the model says is by which factor the sum differs from a closed form, so it cannot be far from that form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from . import static

FUNCTIONS = ("relu", "relu6", "leaky_relu", "elu", "gelu", "silu", "hardswish", "tanh", "sigmoid")
"""Activation functions that are known; each has its angle on a circle, in this order."""
FEATURES = (
    "convolutions", "linears", "norms", "dropouts", "depth", "batch", "parameters", "activations",
    "activations x batch", "norms of depth", "dropouts of depth", "activations x batch of parameters", "cos", "sin",
)  # fmt: skip
"""Counts as logarithms. Two are parts of the depth, and one a ratio, so that a model without products can use them."""


class Layers(Struct, frozen=True, kw_only=True):
    """What a network consists of."""

    convolutions: float
    linears: float
    norms: float
    dropouts: float
    depth: float
    """All layers without parts of their own: activation functions and pooling, too."""
    batch: float
    parameters: float
    activations: float
    """Outputs of all these layers for one sample, in elements."""
    function: str = ""
    """Activation function; empty, or not one of FUNCTIONS: not known."""


class Weights(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fitted model: layers of a network, between them a hyperbolic tangent."""

    features: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    """Range of each feature in the data; what is outside is taken to be at its edge."""
    layers: tuple[tuple[tuple[tuple[float, ...], ...], tuple[float, ...]], ...]
    """(a row of weights for each output, the outputs' constants); inputs are from -1 to 1 over the range."""
    lowest: float
    highest: float
    """Of the logarithm of the factor, in the data."""
    about: str = ""
    """How it was made, and its error."""


def closed_mib(model: Layers) -> float:
    """Return the memory of a training's tensors by the closed form, in MiB: 16 bytes for each parameter, 8 for each
    activation. At least 1."""
    elements = 16.0 * max(model.parameters, 0.0) + 8.0 * max(model.activations * model.batch, 0.0)
    return max(elements / static.MIB, 1.0)


def features(model: Layers) -> tuple[float, ...]:
    """Return the features of a network, in the order of FEATURES."""
    angle = None
    if model.function in FUNCTIONS:
        angle = 2.0 * math.pi * FUNCTIONS.index(model.function) / len(FUNCTIONS)
    depth = max(model.depth, 1.0)
    elements = model.activations * model.batch
    counts = (
        model.convolutions, model.linears, model.norms, model.dropouts, model.depth, model.batch, model.parameters,
        model.activations, elements,
    )  # fmt: skip
    return (
        *(math.log1p(max(count, 0.0)) for count in counts),
        min(max(model.norms / depth, 0.0), 1.0),
        min(max(model.dropouts / depth, 0.0), 1.0),
        math.log1p(max(elements, 0.0)) - math.log1p(max(model.parameters, 0.0)),
        0.0 if angle is None else math.cos(angle),
        0.0 if angle is None else math.sin(angle),
    )


def is_usable(weights: Weights) -> bool:
    """Return whether the weights are of this model's features, and their shapes fit one another."""
    width = len(FEATURES)
    if weights.features != FEATURES or not len(weights.low) == len(weights.high) == width or not weights.layers:
        return False
    for rows, constants in weights.layers:
        if len(rows) != len(constants) or any(len(row) != width for row in rows):
            return False
        width = len(rows)
    return width == 1


def tensors_mib(model: Layers, weights: Weights) -> float:
    """Return the largest sum of a training's tensors in MiB, as fake tensors would give it."""
    values: Sequence[float] = [
        0.0 if high <= low else 2.0 * (min(max(value, low), high) - low) / (high - low) - 1.0
        for value, low, high in zip(features(model), weights.low, weights.high, strict=True)
    ]
    last = len(weights.layers) - 1
    for index, (rows, constants) in enumerate(weights.layers):
        sums = [
            constant + math.fsum(weight * value for weight, value in zip(row, values, strict=True))
            for row, constant in zip(rows, constants, strict=True)
        ]
        values = sums if index == last else [math.tanh(one) for one in sums]
    return closed_mib(model) * math.exp(min(max(values[0], weights.lowest), weights.highest))


def memory_mib(model: Layers, weights: Weights) -> float:
    """Return what a training with Adam takes on a GPU, in MiB: its tensors, corrected as those of a dry run are."""
    return static.probe_mib(tensors_mib(model, weights))
