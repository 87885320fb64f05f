"""The description of a model beside its script."""

from __future__ import annotations

import json

import pytest

from slurm_share.packing import fingerprint
from slurm_share.packing.model_file import read_description

MODEL = {"parameters": 1 << 20, "activations": 1 << 18, "batch": 32}


def described(folder, *words, text=None):
    """Return what the description beside train.py says of a command."""
    (folder / "train.py").write_text("")
    if text is not None:
        (folder / "train.model.json").write_text(text)
    argv = ["python", "train.py", *words]
    return read_description(argv, folder, fingerprint.key_of(argv, folder))


def test_a_description_gives_the_closed_form(tmp_path):
    """16 MiB of parameters, 64 of activations, and the context."""
    assert described(tmp_path, text=json.dumps(MODEL)).point_mib == 1440 + 16 + 64


def test_the_batch_may_be_a_flag_s(tmp_path):
    """Twice as many activations."""
    text = json.dumps({"parameters": 1 << 20, "activations": 1 << 18})
    assert described(tmp_path, "--batch-size", "64", text=text).point_mib == 1440 + 16 + 128


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        json.dumps({**MODEL, "parameters": "many"}),
        json.dumps({**MODEL, "batchsize": 32}),
        json.dumps({"parameters": 1, "activations": 1}),
    ],
)
def test_a_description_that_cannot_be_used_is_named(tmp_path, text):
    """With its file."""
    found = described(tmp_path, text=text)
    assert found.point_mib is None
    assert "train.model.json" in found.why


def test_without_one_the_weights_are_a_lower_bound(tmp_path):
    """A fifth more than the file, and the context."""
    with open(tmp_path / "w.safetensors", "wb") as weights:
        weights.truncate(1000 << 20)
    assert described(tmp_path, "--weights", "w.safetensors", "--other", "gone.pt").point_mib == 1440 + 1200


def test_without_both_there_is_no_size_and_nothing_to_say(tmp_path):
    """The usual case."""
    found = described(tmp_path)
    assert (found.point_mib, found.why) == (None, "")
    assert read_description(["sh", "-c", "a | b"], tmp_path, fingerprint.key_of([], tmp_path)).point_mib is None
