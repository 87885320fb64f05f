from __future__ import annotations

import json
import time

import pytest

from slurm_share.lab import outside_sizes, probe
from slurm_share.lab.outside_sizes import OutsideSizes
from slurm_share.packing import fingerprint


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text("1\n")
    (tmp_path / "train.model.json").write_text(json.dumps({"parameters": 1, "activations": 1, "batch": 1}))
    (tmp_path / "other.py").write_text("2\n")
    return tmp_path


def ask(sizes, folder, *words):
    argv = ["python", *words]
    key = fingerprint.key_of(argv, folder)
    sizes.ask(argv, folder, key)
    return key


def wait(sizes):
    """Return what a probe gives, within some seconds."""
    for _ in range(500):
        found = sizes.take()
        notes = sizes.take_notes()
        if found or notes:
            return found, notes
        time.sleep(0.01)
    raise AssertionError("no probe has ended")


@pytest.mark.parametrize("how", ["static", "probe"])
def test_a_description_is_taken_at_once_and_once(folder, how):
    sizes = OutsideSizes(how, {})
    key = ask(sizes, folder, "train.py")
    ask(sizes, folder, "train.py")
    (found,) = sizes.take()
    assert (found.key, found.source, round(found.mib)) == (key, "static", 1440)
    assert sizes.take() == []


def test_without_a_description_a_dry_run_is_made_once_for_each_command(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(probe, "probe", lambda argv, cwd, env: asked.append(argv) or probe.ProbeResult(2000))
    sizes = OutsideSizes("probe", {})
    key = ask(sizes, folder, "other.py")
    ask(sizes, folder, "other.py")
    (found,), notes = wait(sizes)
    assert (found.key, found.source, found.mib, notes) == (key, "probe", 2000.0, [])
    assert asked == [("python", "other.py")]


def test_a_dry_run_without_an_answer_is_said(folder, monkeypatch):
    monkeypatch.setattr(probe, "probe", lambda argv, cwd, env: probe.ProbeResult(None, "too slow"))
    sizes = OutsideSizes("probe", {})
    ask(sizes, folder, "other.py")
    assert wait(sizes) == ([], ["a dry run gave no size: too slow"])


def test_static_runs_nothing(folder, monkeypatch):
    monkeypatch.setattr(probe, "probe", lambda *_: pytest.fail("a program was run"))
    sizes = OutsideSizes("static", {})
    ask(sizes, folder, "other.py")
    assert (sizes.take(), sizes.take_notes()) == ([], [])


def test_so_many_commands_are_probed_and_no_more(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(probe, "probe", lambda argv, cwd, env: asked.append(argv) or probe.ProbeResult(1))
    monkeypatch.setattr(outside_sizes, "PROBES_MOST", 2)
    sizes = OutsideSizes("probe", {})
    for number in range(5):
        ask(sizes, folder, "other.py", str(number))
    found = []
    while len(found) < 2:
        found += wait(sizes)[0]
    assert len(asked) == 2


def test_a_description_that_cannot_be_used_is_said_once(folder):
    (folder / "train.model.json").write_text("nonsense")
    sizes = OutsideSizes("static", {})
    for number in range(3):
        ask(sizes, folder, "train.py", str(number))
    (note,) = sizes.take_notes()
    assert "train.model.json" in note
