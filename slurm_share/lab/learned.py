"""Estimate the GPU memory of a training from the layers of its network, with a small fitted model.

The features are those of GPUMemNet (Yousefzadeh 2025, ch. 5): numbers of convolutions and linear layers, norms and
dropouts, depth, batch, parameters, activations, activations x batch, and the activation function as a cosine and a
sine. The training data are random networks whose memory was summed over fake tensors: **no size was measured on a
GPU**. The correction of `conformal.probe_mib`, which was fitted to published measurements, is applied to that sum. The
model predicts the factor between the sum and a closed form, within the range of factors in the data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct

from ..core import text_files
from ..core.errors import StateError
from ..packing.rules.estimate.conformal import probe_mib

WEIGHTS = Path(__file__).with_name("learned_weights.json")
FUNCTIONS = ("relu", "relu6", "leaky_relu", "elu", "gelu", "silu", "hardswish", "tanh", "sigmoid")
"""Known activation functions; each is an angle on a circle, in this order."""
FEATURES = (
    "convolutions", "linears", "norms", "dropouts", "depth", "batch", "parameters", "activations",
    "activations x batch", "norms of depth", "dropouts of depth", "activations x batch of parameters", "cos", "sin",
)  # fmt: skip
"""Counts are logarithms. Two features are parts of the depth and one is a ratio, since the model forms no products."""


class Layers(Struct, frozen=True, kw_only=True):
    """The numbers of layers and elements of a network."""

    convolutions: float
    linears: float
    norms: float
    dropouts: float
    depth: float
    """All layers without sub-layers, including activation functions and pooling."""
    batch: float
    parameters: float
    activations: float
    """Elements of the outputs of all these layers, for one sample."""
    function: str = ""
    """Activation function; empty or not in FUNCTIONS: not known."""


class Weights(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fitted model: a network with a hyperbolic tangent between its layers."""

    features: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    """Range of each feature in the data; values outside are clamped."""
    layers: tuple[tuple[tuple[tuple[float, ...], ...], tuple[float, ...]], ...]
    """(a row of weights for each output, the outputs' constants); inputs are scaled to -1 to 1 over the range."""
    lowest: float
    highest: float
    """Range of the logarithm of the factor in the data."""
    about: str = ""
    """How the model was made, and its error."""


def closed_mib(model: Layers) -> float:
    """Return the closed form of the memory of a training's tensors in MiB, at least 1: 16 bytes for each parameter and
    8 for each activation."""
    elements = 16.0 * max(model.parameters, 0.0) + 8.0 * max(model.activations * model.batch, 0.0)
    return max(elements / (1 << 20), 1.0)


def features(model: Layers) -> tuple[float, ...]:
    """Return the features of a network, in the order of FEATURES."""
    cosine = sine = 0.0
    if model.function in FUNCTIONS:
        angle = 2.0 * math.pi * FUNCTIONS.index(model.function) / len(FUNCTIONS)
        cosine, sine = math.cos(angle), math.sin(angle)
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
        cosine,
        sine,
    )


def is_usable(weights: Weights) -> bool:
    """Return whether the weights are for these features, and their shapes match."""
    width = len(FEATURES)
    if weights.features != FEATURES or not len(weights.low) == len(weights.high) == width or not weights.layers:
        return False
    for rows, constants in weights.layers:
        if len(rows) != len(constants) or any(len(row) != width for row in rows):
            return False
        width = len(rows)
    return width == 1


def tensors_mib(model: Layers, weights: Weights) -> float:
    """Return the predicted largest sum of a training's fake tensors, in MiB."""
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
    """Return the memory of a training with Adam on a GPU in MiB: its tensors, corrected like those of a dry run."""
    return probe_mib(tensors_mib(model, weights))


@cache
def read_weights() -> Weights:
    """Return the fitted weights. Raises StateError if the installed file is damaged or missing."""
    try:
        weights = msgspec.json.decode(WEIGHTS.read_bytes(), type=Weights)
    except (OSError, *text_files.NOT_JSON) as error:
        raise StateError(str(WEIGHTS), f"the weights of the learned estimator cannot be read ({error})") from error
    if not is_usable(weights):
        raise StateError(str(WEIGHTS), "the weights of the learned estimator are of another version")
    return weights
