"""Histories and groups of a packed run, and messages if they cannot be written."""

from __future__ import annotations

from types import SimpleNamespace

from slurm_share.packing import PackRequest
from slurm_share.packing.rules.speed_account import GroupResult
from slurm_share.triples.launcher.pack_learning import PackLearning

GROUP = GroupResult(
    gpu=0, tasks=(0, 1), from_s=1.0, seconds=60.0, windows=3, stp=1.3, error=0.1, delta=None, predicted=1.4,
    slowdowns=(1.5, 1.6),
)  # fmt: skip


def test_groups_that_cannot_be_written_are_said_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    said: list[str] = []
    node = SimpleNamespace(folder=tmp_path / "gone", count=1, estimate_history="")
    learning = PackLearning(PackRequest(estimate="none"), node, {}, 0.0, said.append)
    packer = SimpleNamespace(groups=SimpleNamespace(take_new=lambda: [GROUP]))
    learning.write_groups(packer)
    learning.write_groups(packer)
    assert said == ["groups of tasks are not recorded for slurm-share pack explain: No such file or directory"]
