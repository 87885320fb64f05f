"""Read the description of a model next to its script, for `--estimate=static`.

`train.model.json` is next to `train.py`::

    {"parameters": 25557032, "activations": 31839720, "batch": 32, "optimizer": "adam"}

The numbers are elements, as summaries of models print them; activations are for one sample. Without `batch`, it is the
number of the command's flag with "batch" in its name. The formula is Adam's whatever the `optimizer`: it gives the
largest size of the usual ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from ..core import files, text_files
from ..core.errors import shown
from ..packing.records import TaskKey
from ..packing.rules import fingerprint

END = ".model.json"
FILE_BYTES = 64 * 1024
MIB = 1 << 20
CONTEXT_MIB = 1440
"""Memory of a training process besides its tensors: context and libraries of PyTorch 2 on an A100, fitted to 3,000
published runs of fully connected networks."""
WEIGHTS_INFERENCE = 1.2
"""accelerate's rule for inference: the weights and a fifth more."""
WEIGHTS = (".safetensors", ".gguf", ".ckpt", ".pth", ".pt")


class _File(Struct, forbid_unknown_fields=True):
    parameters: float
    activations: float
    batch: float | None = None
    optimizer: str = ""


class DescribedSize(Struct, frozen=True):
    """The size from a description."""

    point_mib: float | None
    """None: there is no description, or it gives no size."""
    why: str = ""
    """Why the description was not used; empty: it was."""


def read_description(argv: Sequence[str], cwd: Path, key: TaskKey) -> DescribedSize:
    """Return the size from the file next to the command's script, else from the weights that the command names.

    Weights are taken for an inference, and give a lower bound without activations. Raises no error.
    """
    command = fingerprint.take_apart(argv)
    if not command.script or command.is_module or "\0" in command.script:
        return DescribedSize(None)
    file = (cwd / command.folder / command.script).with_suffix(END)
    try:
        data = files.read_regular(file, FILE_BYTES, follows=True) or b""
    except FileNotFoundError:
        return _weights(command.arguments, cwd)
    except OSError as error:
        return DescribedSize(None, f"{file}: {error.strerror}")
    try:
        said = msgspec.json.decode(data, type=_File)
    except text_files.NOT_JSON as error:
        return DescribedSize(None, f"{file}: {shown(str(error), 200)}")
    batch = said.batch if said.batch is not None else _batch(key)
    if batch is None:
        return DescribedSize(
            None, f"{file}: it has no batch, and the command has no flag for it; add batch to the file"
        )
    return DescribedSize(adam_mib(said.parameters, said.activations * batch))


def adam_mib(parameters: float, activations: float) -> float:
    """Return the closed form of a training with Adam in MiB: 16 bytes for each parameter (weight, gradient, two
    moments), 8 for each activation of a batch (value and gradient), and the context."""
    return (16 * parameters + 8 * activations) / MIB + CONTEXT_MIB


def _batch(key: TaskKey) -> float | None:
    return next((number for name, number in key.numbers if "batch" in name.lower()), None)


def _weights(arguments: Sequence[str], cwd: Path) -> DescribedSize:
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
        return DescribedSize(None)
    return DescribedSize(max(sizes) / MIB * WEIGHTS_INFERENCE + CONTEXT_MIB)
