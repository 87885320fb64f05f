"""pyslurm's word, where it can be had, and Slurm's commands in its place, where not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from slurm_share.core.errors import CommandError
from slurm_share.core.process import Finished
from slurm_share.slurm import jobs, pyslurm_jobs

SAID = (
    "slurm: some line of libslurm\n"
    'answer {"version": "25.11.2", "jobs": [[1, 2001, "RUNNING", "n[1-2]"], [2, 2001, "PENDING", ""],'
    ' [3, 2002, "COMPLETING", "n3"], [4, 2002, "COMPLETED", "n4"]]}\n'
)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """What runs in Python's place."""
    file = tmp_path / "python"
    file.touch(0o755)
    monkeypatch.setattr(sys, "executable", str(file))
    monkeypatch.setenv(pyslurm_jobs.WISH, "1")
    return file


def test_jobs_in_other_states_have_no_place() -> None:
    """Neither has a job without nodes."""
    answer = pyslurm_jobs.parse_answer(SAID)
    assert answer.version == "25.11.2"
    assert pyslurm_jobs.places(answer, ["RUNNING", "COMPLETING", "PENDING"]) == {"n[1-2]", "n3"}


def test_jobs_on_a_node_are_the_users_own() -> None:
    """Not another's, not those that wait or have ended; a folded list is looked into."""
    answer = pyslurm_jobs.parse_answer(SAID)
    assert pyslurm_jobs.job_ids(answer, 2001, "n2", jobs.ON_A_NODE) == (1,)
    assert pyslurm_jobs.job_ids(answer, 2001, "n3", jobs.ON_A_NODE) == ()
    assert pyslurm_jobs.job_ids(answer, 2002, "n3", jobs.ON_A_NODE) == (3,)
    assert pyslurm_jobs.job_ids(answer, 2002, "n4", jobs.ON_A_NODE) == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nothing of ours\n",
        "answer\n",
        'answer {"jobs": [[1]]}\n',
        'answer {"x": ' + "[" * 100_000,
        'answer {"version": "\udcff", "jobs": []}\n',
    ],
    ids=["nothing", "no answer", "empty", "no jobs", "nested without end", "no text"],
)
def test_what_is_no_answer_is_refused(text: str) -> None:
    """Whatever libslurm prints beside it."""
    with pytest.raises(CommandError):
        pyslurm_jobs.parse_answer(text)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'fatal: Could not establish a configuration source' >&2; exit 1", "Could not establish"),
        ("echo \"ModuleNotFoundError: No module named 'pyslurm'\" >&2; exit 1", "No module named"),
        ("kill -SEGV $$", "ended by signal 11"),
        ("exit 3", "it said nothing"),
        ("echo hello", "no answer"),
    ],
)
def test_where_pyslurm_cannot_be_used_the_commands_are_and_the_reason_is_told(
    program: Path, monkeypatch: pytest.MonkeyPatch, script: str, why: str
) -> None:
    """Its import ends the process where it finds no slurm.conf, and one built for another release may crash."""
    program.write_text(f"#!/bin/sh\n{script}\n")
    monkeypatch.setattr(jobs, "run", lambda *_, **__: "n7\n")
    assert jobs.read_places(["RUNNING"]) == {"n7"}
    assert why in pyslurm_jobs.backend({pyslurm_jobs.WISH: "1"})


def test_where_it_answers_no_command_is_started(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The places are those that it told."""
    program.write_text(f"#!/bin/sh\ncat <<'X'\n{SAID}X\n")
    monkeypatch.setattr(jobs, "run", lambda *_, **__: pytest.fail("squeue was asked"))
    monkeypatch.setattr(os, "getuid", lambda: 2001)
    assert jobs.read_places(["RUNNING"]) == {"n[1-2]"}
    assert jobs.read_my_job_ids("n1") == (1,)
    assert "through pyslurm 25.11.2" in pyslurm_jobs.backend({pyslurm_jobs.WISH: "1"})


def test_who_does_not_ask_for_it_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's commands are the usual way."""

    def never(*_: object, **__: object) -> Finished:
        pytest.fail("pyslurm was looked for")

    monkeypatch.delenv(pyslurm_jobs.WISH, raising=False)
    monkeypatch.setattr(pyslurm_jobs, "finish", never)
    monkeypatch.setattr(jobs, "run", lambda *_, **__: "n7\n\n")
    assert jobs.read_places(["RUNNING"]) == {"n7"}
    assert pyslurm_jobs.backend({}) == "Slurm is asked through its commands"
