"""Limits that a node cannot set for MPS daemons, from its cgroups and its slurmd's rights."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_share.doctor.facts import system
from slurm_share.doctor.facts.records import UnknownFact

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: whether limits hold is for root to see")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "proc/90").mkdir(parents=True)
    (tmp_path / "proc/90/status").write_text("Name:\tslurmd\nCapBnd:\t000001ffffffffff\n")
    return tmp_path


def with_v1(root: Path, *controllers: str) -> Path:
    for one in controllers:
        (root / "sys/fs/cgroup" / one).mkdir()
    return root


def test_all_of_v1_holds_all(root: Path) -> None:
    assert system.read_unheld(90, with_v1(root, "memory", "pids", "devices", "freezer")) == ()


def test_each_controller_that_is_missing_is_named(root: Path) -> None:
    said = system.read_unheld(90, with_v1(root, "freezer", "pids"))
    assert not isinstance(said, UnknownFact)
    assert [one.partition(" (")[0] for one in said] == ["host memory is not limited", "any GPU may be opened"]


def test_a_node_without_cgroups_holds_nothing(root: Path) -> None:
    assert system.read_unheld(90, root) == ("there are no cgroups that can be written: no limit holds",)


def test_v2_wants_its_controllers_and_bpf(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(program: bytes) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(system.device_guard, "load", refuse)
    (root / "sys/fs/cgroup/cgroup.controllers").write_text("cpu memory\n")
    said = system.read_unheld(90, root)
    assert not isinstance(said, UnknownFact)
    assert [one.partition(" (")[0] for one in said] == [
        "the number of processes is not limited",
        "any GPU may be opened",
    ]
    assert "Operation not permitted" in said[1]


def test_a_slurmd_without_the_capability_leaves_daemons_traceable(root: Path) -> None:
    (root / "proc/90/status").write_text("Name:\tslurmd\nCapBnd:\t000001f7ffffffff\n")
    said = system.read_unheld(90, with_v1(root, "memory", "pids", "devices", "freezer"))
    assert said == ("users can trace their daemons (slurmd may not use CAP_WAKE_ALARM)",)
