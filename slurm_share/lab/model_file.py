"""Read the description of a model next to its script, for `--estimate=static` and `learned`.

`train.model.json` is next to `train.py`::

    {"parameters": 25557032, "activations": 31839720, "batch": 32, "optimizer": "adam"}

The numbers are elements, as summaries of models print them; activations are for one sample. Without `batch`, it is the
number of the command's flag with "batch" in its name. The formula is Adam's whatever the `optimizer`: it gives the
largest size of the usual ones.

`learned` needs the layers as well, as numbers, and takes the name of the activation function::

    {"parameters": 25557032, "activations": 31839720, "batch": 32, "convolutions": 53, "linears": 1, "norms": 53,
     "dropouts": 0, "depth": 126, "function": "relu"}

depth: all layers without sub-layers, including activation functions and pooling.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from ..core import files, text_files
from ..core.errors import StateError, shown
from ..packing.records import TaskKey
from ..packing.rules import fingerprint
from ..packing.rules.estimate import static
from . import learned

END = ".model.json"
FILE_BYTES = 64 * 1024
LAYERS = ("convolutions", "linears", "norms", "dropouts", "depth")
LEARNED = Path(__file__).with_name("learned_weights.json")
"""Weights of the learned estimator."""
WEIGHTS = (".safetensors", ".gguf", ".ckpt", ".pth", ".pt")


class _File(Struct, forbid_unknown_fields=True):
    parameters: float
    activations: float
    batch: float | None = None
    optimizer: str = ""
    convolutions: float | None = None
    linears: float | None = None
    norms: float | None = None
    dropouts: float | None = None
    depth: float | None = None
    function: str = ""


class Described(Struct, frozen=True):
    """The size from a description."""

    point_mib: float | None
    """None: there is no description, or it gives no size."""
    why: str = ""
    """Why the description was not used, or not with the estimate that was asked for; empty: it was."""
    source: Literal["static", "learned"] = "static"


def read_description(argv: Sequence[str], cwd: Path, key: TaskKey, *, is_learned: bool = False) -> Described:
    """Return the size from the file next to the command's script, else from the weights that the command names.

    Weights are taken for an inference, and give a lower bound without activations. Raises no error. is_learned: use the
    fitted model if the description has the layers.
    """
    command = fingerprint.take_apart(argv)
    if not command.script or command.is_module or "\0" in command.script:
        return Described(None)
    file = (cwd / command.script).with_suffix(END)
    try:
        data = files.read_regular(file, FILE_BYTES, follows=True) or b""
    except FileNotFoundError:
        return _weights(command.arguments, cwd)
    except OSError as error:
        return Described(None, f"{file}: {error.strerror}")
    try:
        said = msgspec.json.decode(data, type=_File)
    except text_files.NOT_JSON as error:
        return Described(None, f"{file}: {shown(str(error), 200)}")
    batch = said.batch if said.batch is not None else _batch(key)
    if batch is None:
        return Described(None, f"{file}: it has no batch, and the command has no flag for it; add batch to the file")
    model = static.ModelSummary(parameters=said.parameters, activations=said.activations, batch=batch)
    formula = static.adam_mib(model)
    if not is_learned:
        return Described(formula)
    missing = [name for name in LAYERS if getattr(said, name) is None]
    if missing:
        return Described(formula, f"{file}: the learned estimate also needs {', '.join(missing)}; the formula is used")
    return _learned(said, batch, formula)


@cache
def read_weights() -> learned.Weights:
    """Return the weights of the learned estimator. Raises StateError if the installed file is damaged or missing."""
    try:
        weights = msgspec.json.decode(LEARNED.read_bytes(), type=learned.Weights)
    except (OSError, *text_files.NOT_JSON) as error:
        raise StateError(str(LEARNED), f"the weights of the learned estimator cannot be read ({error})") from error
    if not learned.is_usable(weights):
        raise StateError(str(LEARNED), "the weights of the learned estimator are of another version")
    return weights


def _learned(said: _File, batch: float, formula: float) -> Described:
    try:
        weights = read_weights()
    except StateError as error:
        return Described(formula, f"{error}; the formula is used")
    model = learned.Layers(
        **{name: getattr(said, name) for name in LAYERS},
        batch=batch,
        parameters=said.parameters,
        activations=said.activations,
        function=said.function.lower(),
    )
    return Described(learned.memory_mib(model, weights), source="learned")


def _batch(key: TaskKey) -> float | None:
    return next((number for name, number in key.numbers if "batch" in name.lower()), None)


def _weights(arguments: Sequence[str], cwd: Path) -> Described:
    """Return the least memory for the largest weights file among the arguments."""
    sizes = []
    for argument in fingerprint.name_arguments(arguments):
        value = argument.value or ""
        if value.endswith(WEIGHTS) and "\0" not in value:
            try:
                sizes.append((cwd / value).stat().st_size)
            except OSError:
                continue  # the task may create the file, or fail without it
    if not sizes:
        return Described(None)
    return Described(static.weights_mib(max(sizes) / static.MIB))
