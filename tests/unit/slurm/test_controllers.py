"""The hosts of slurmctld, in slurm.conf and in what scontrol says."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_share.core.errors import SlurmSilentError
from slurm_share.slurm import controllers, jobs
from slurm_share.slurm.conf_text import ConfText, parse


def test_every_line_is_a_controller():
    text = "SlurmctldHost=ctl1(10.0.0.1)\nslurmctldhost = ctl2.site\nSlurmctldHost=ctl1\n"
    assert controllers.named_in(ConfText(Path("f"), parse(text, Path("f")))) == ("ctl1", "ctl2.site")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [("a", "a", True), ("a", "a.b", True), ("a.b", "a", True), ("a.b", "a.c", False), ("a", "b", False)],
)
def test_a_name_may_have_its_domain(one, other, same):
    """Two names with domains are compared whole."""
    assert controllers.is_same_host(one, other) is same


def test_controllers_are_those_that_ping_names():
    text = "Slurmctld(primary) at ctl is UP\nSlurmctld(backup) at ctl2.site is DOWN\n"
    assert controllers.parse_ping(text) == {"ctl": True, "ctl2.site": False}


@pytest.mark.parametrize(
    ("said", "down"),
    [
        ("Slurmctld(primary) at ctl is UP\n", False),
        ("Slurmctld(primary) at ctl is DOWN\n", True),
        ("Slurmctld(primary) at a is DOWN\nSlurmctld(backup) at b is UP\n", False),
        ("", False),
    ],
)
def test_scontrol_ping_says_whether_a_controller_is_up(said: str, down: bool) -> None:
    assert controllers.are_all_down(controllers.parse_ping(said)) is down


@pytest.mark.parametrize(
    "read",
    [jobs.read_queue, jobs.read_waiting, lambda: jobs.read_places(["RUNNING"]), lambda: jobs.read_my_job_ids("n1")],
    ids=["queue", "waiting", "places", "own"],
)
def test_squeue_is_not_waited_for_once_no_controller_is_up(tmp_path, monkeypatch, read):
    for name, does in {"squeue": "exec sleep 60", "scontrol": "echo 'Slurmctld(primary) at ctl is DOWN'"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(jobs, "CHECK_AFTER_S", 0.1)
    with pytest.raises(SlurmSilentError, match="no word from its controller"):
        read()
