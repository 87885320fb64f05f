"""Ending FUSE file systems that do not answer, in a folder like the kernel's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_share.node import fuse


@pytest.fixture
def connections(tmp_path: Path) -> Path:
    """Make three connections: one that owes an answer, one that does not, one that ends while it is read."""
    for name, waiting in (("44", "2\n"), ("45", "0\n"), ("46", None)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "abort").touch()
        if waiting is not None:
            (folder / "waiting").write_text(waiting)
    return tmp_path


def aborted(connections: Path) -> list[str]:
    return sorted(file.parent.name for file in connections.glob("*/abort") if file.read_text() == "1")


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can give folders to users")
def test_only_file_systems_of_the_users_that_owe_an_answer_are_ended(connections: Path) -> None:
    for name in ("44", "45", "46"):
        os.chown(connections / name, 2001, 2001)
    assert fuse.end_waited_for({2002}, str(connections)) == []
    assert aborted(connections) == []
    (said,) = fuse.end_waited_for({2001, 2002}, str(connections))
    assert "FUSE connection 44" in said
    assert "uid 2001" in said
    assert aborted(connections) == ["44"]


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root has folders of root's")
def test_a_file_system_of_roots_is_not_ended(connections: Path) -> None:
    assert fuse.end_waited_for({0}, str(connections)) == []
    assert aborted(connections) == []


def test_without_fuse_nothing_is_ended(tmp_path: Path) -> None:
    assert fuse.end_waited_for({2001}, str(tmp_path / "gone")) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can give folders to users")
def test_a_busy_file_system_that_answers_is_not_ended(connections: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It owes an answer at the first look, none at a later one, and another one after that."""
    os.chown(connections / "44", 2001, 2001)
    owed = iter(["0\n", "3\n"])
    monkeypatch.setattr(
        "slurm_share.node.fuse.time.sleep", lambda _: (connections / "44/waiting").write_text(next(owed, "3\n"))
    )
    assert fuse.end_waited_for({2001}, str(connections)) == []
    assert aborted(connections) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can give folders to users")
def test_a_number_that_the_kernel_gives_again_leads_to_no_other_users(
    connections: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(connections / "44", 2001, 2001)

    def give_again(_: float) -> None:
        if not (connections / "old").exists():
            (connections / "44").rename(connections / "old")
            (connections / "44").mkdir()
            for name in ("abort", "waiting"):
                (connections / "44" / name).touch()

    monkeypatch.setattr("slurm_share.node.fuse.time.sleep", give_again)
    fuse.end_waited_for({2001}, str(connections))
    assert aborted(connections) == ["old"]
