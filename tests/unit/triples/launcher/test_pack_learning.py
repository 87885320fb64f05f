"""Sizes that a launcher learns reach the board before the decision that needs them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_share import packing
from slurm_share.triples.launcher.pack_learning import PackLearning

MODEL = {"parameters": 25557032, "activations": 31839720, "batch": 32}


class FakeBoard:
    """Knows no size, and notes what it is offered."""

    def __init__(self) -> None:
        self.offers: list[tuple[str, float]] = []

    def is_unknown(self, ask: packing.TaskAsk) -> bool:
        return True

    def offered(self, key: packing.TaskKey, source: str, mib: float) -> None:
        self.offers.append((source, mib))


def test_a_description_is_known_as_soon_as_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "train.model.json").write_text(json.dumps(MODEL))
    (tmp_path / "train.sh").touch()
    node: Any = SimpleNamespace(folder=tmp_path, count=1, estimate_history="")
    learning = PackLearning(
        packing.PackRequest(estimate="static"), node, packing.EventLog(None, ""), {}, 0.0, lambda note: None
    )
    argv = ("sh", "train.sh")
    ask = packing.TaskAsk(task=0, gpus=1, submitted_s=0.0, key=packing.key_of(argv, tmp_path, ""))
    board: Any = FakeBoard()
    learning.ask_outside(ask, lambda: argv, tmp_path, board)
    ((source, mib),) = board.offers
    assert source == "static"
    assert 5000 < mib < 10_000
