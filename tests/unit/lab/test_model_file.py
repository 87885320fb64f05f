from __future__ import annotations

import json

import pytest

from slurm_share.lab.model_file import read_description
from slurm_share.packing import fingerprint

MODEL = {"parameters": 1 << 20, "activations": 1 << 18, "batch": 32}


def described(folder, *words, text=None):
    (folder / "train.py").write_text("")
    if text is not None:
        (folder / "train.model.json").write_text(text)
    argv = ["python", "train.py", *words]
    return read_description(argv, folder, fingerprint.key_of(argv, folder))


@pytest.mark.parametrize(
    ("changes", "words", "mib"),
    [
        ({}, [], 1440 + 16 + 64),  # 16 MiB for parameters, 64 for activations, and the context
        ({"batch": None}, ["--batch-size", "64"], 1440 + 16 + 128),
    ],
)
def test_a_description_gives_the_closed_form(tmp_path, changes, words, mib):
    assert described(tmp_path, *words, text=json.dumps({**MODEL, **changes})).point_mib == mib


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
    found = described(tmp_path, text=text)
    assert found.point_mib is None
    assert "train.model.json" in found.why


def test_without_one_the_weights_are_a_lower_bound(tmp_path):
    with open(tmp_path / "w.safetensors", "wb") as weights:
        weights.truncate(1000 << 20)
    assert described(tmp_path, "--weights", "w.safetensors", "--other", "gone.pt").point_mib == 1440 + 1200


def test_without_both_there_is_no_size_and_nothing_to_say(tmp_path):
    found = described(tmp_path)
    assert (found.point_mib, found.why) == (None, "")
    assert read_description(["sh", "-c", "a | b"], tmp_path, fingerprint.key_of([], tmp_path)).point_mib is None
