"""The description of a model beside its script, for `--estimate=static` and `learned`.

`train.model.json` stands beside `train.py`::

    {"parameters": 25557032, "activations": 31839720, "batch": 32, "optimizer": "adam"}

Numbers of elements, as summaries of models print them; activations of one sample. Without `batch`, it is the number of
the command's flag whose name has "batch" in it. Without `optimizer`, or with another one than Adam's, the formula is
still Adam's, which is the largest of the usual ones.

`learned` needs the layers as well, as numbers, and takes the name of the activation function::

    {"parameters": 25557032, "activations": 31839720, "batch": 32, "convolutions": 53, "linears": 1, "norms": 53,
     "dropouts": 0, "depth": 126, "function": "relu"}

depth: all layers without parts of their own, also activation functions and pooling.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from ..core.errors import StateError
from . import learned_weights
from .records import TaskKey
from .rules import fingerprint
from .rules.estimate import learned, static

END = ".model.json"
FILE_BYTES = 64 * 1024
LAYERS = ("convolutions", "linears", "norms", "dropouts", "depth")
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
    """What a description says."""

    point_mib: float | None
    """None: there is none, or it says no size."""
    why: str = ""
    """A sentence where there is one that cannot be used, or not as it was asked for."""
    source: Literal["static", "learned"] = "static"


def read_description(argv: Sequence[str], cwd: Path, key: TaskKey, *, is_learned: bool = False) -> Described:
    """Return the size by the file beside the command's script, else by the weights that the command names.

    Weights stand for an inference: they say nothing of activations, so that is a lower bound. It never fails.
    is_learned: by the fitted model, where the description has the layers that it needs.
    """
    command = fingerprint.take_apart(argv)
    if not command.script or command.is_module or "\0" in command.script:
        return Described(None)
    file = (cwd / command.script).with_suffix(END)
    try:
        data = _read(file)
    except FileNotFoundError:
        return _weights(command.arguments, cwd)
    except OSError as error:
        return Described(None, f"{file}: {error.strerror}")
    try:
        said = msgspec.json.decode(data, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Described(None, f"{file}: {error}")
    batch = said.batch if said.batch is not None else _batch(key)
    if batch is None:
        return Described(None, f"{file}: it says no batch, and no flag of the command with batch in its name has one")
    model = static.ModelSummary(parameters=said.parameters, activations=said.activations, batch=batch)
    formula = static.adam_mib(model)
    if not is_learned:
        return Described(formula)
    layers = (said.convolutions, said.linears, said.norms, said.dropouts, said.depth)
    missing = [name for name, count in zip(LAYERS, layers, strict=True) if count is None]
    if missing:
        return Described(formula, f"{file}: the learned estimate needs {', '.join(missing)} too; the formula is used")
    return _learned(said, batch, formula)


def _learned(said: _File, batch: float, formula: float) -> Described:
    try:
        weights = learned_weights.read_weights()
    except StateError as error:
        return Described(formula, f"{error}; the formula is used")
    model = learned.Layers(
        convolutions=said.convolutions or 0.0,
        linears=said.linears or 0.0,
        norms=said.norms or 0.0,
        dropouts=said.dropouts or 0.0,
        depth=said.depth or 0.0,
        batch=batch,
        parameters=said.parameters,
        activations=said.activations,
        function=said.function.lower(),
    )
    return Described(learned.memory_mib(model, weights), source="learned")


def _read(file: Path) -> bytes:
    fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb", buffering=0) as opened:
        return (opened.read(FILE_BYTES) or b"") if stat.S_ISREG(os.fstat(fd).st_mode) else b""


def _batch(key: TaskKey) -> float | None:
    return next((number for name, number in key.numbers if "batch" in name.lower()), None)


def _weights(arguments: Sequence[str], cwd: Path) -> Described:
    """Return what the largest file of weights among the arguments takes at least."""
    sizes = []
    for argument in fingerprint.name_arguments(arguments):
        value = argument.value or ""
        if value.endswith(WEIGHTS) and "\0" not in value:
            try:
                sizes.append((cwd / value).stat().st_size)
            except OSError:
                continue  # the task makes it, or fails by itself
    if not sizes:
        return Described(None)
    return Described(static.weights_mib(max(sizes) / static.MIB, is_training=False))
