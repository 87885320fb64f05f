from __future__ import annotations

import json

import pytest

from slurm_share.lab import model_file
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
        ({"convolutions": 5, "function": "gelu"}, [], 1440 + 16 + 64),  # the layers do not matter
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


@pytest.mark.parametrize("text", [None, "{}", "nonsense", '{"features": ["depth"], "low": [], "high": []}'])
def test_without_usable_weights_the_formula_stands_for_the_learned_model(tmp_path, monkeypatch, text):
    monkeypatch.setattr(model_file, "LEARNED", tmp_path / "weights.json")
    model_file.read_weights.cache_clear()
    if text is not None:
        (tmp_path / "weights.json").write_text(text)
    layers = {"convolutions": 1, "linears": 1, "norms": 1, "dropouts": 0, "depth": 4}
    (tmp_path / "train.py").write_text("")
    (tmp_path / "train.model.json").write_text(json.dumps({**MODEL, **layers}))
    argv = ["python", "train.py"]
    found = read_description(argv, tmp_path, fingerprint.key_of(argv, tmp_path), is_learned=True)
    assert (found.point_mib, found.source) == (1440 + 16 + 64, "static")
    assert "weights.json" in found.why
    assert "the formula is used" in found.why
