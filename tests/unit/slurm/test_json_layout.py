"""Slurm 26.11 no longer writes the layout of JSON that 24.11 and 26.05 have in common."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_share.core.errors import CommandError
from slurm_share.slurm import jobs

SQUEUE = """\
#!/bin/sh
echo "$@" >>{calls}
case "$*" in *v0.0.43*) echo layout 43; exit 0 ;; esac
echo "squeue: error: load_plugins: unable to find plugin: {missing}" >&2
exit 1
"""
"""The answer of squeue 26.05.5 for a layout that it does not have, 2026-11-29."""


def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> Path:
    calls, program = tmp_path / "calls", tmp_path / "squeue"
    program.write_text(SQUEUE.format(calls=calls, missing=missing))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return calls


def test_the_next_layout_is_asked_for_where_slurm_has_not_the_usual_one(tmp_path, monkeypatch):
    calls = squeue(tmp_path, monkeypatch, "data_parser/v0.0.42")
    assert jobs.ask(jobs.queue_argv(users=["alice"])) == "layout 43\n"
    assert calls.read_text().splitlines() == ["--user=alice --json=v0.0.42", "--user=alice --json=v0.0.43"]


def test_another_error_is_said_at_once(tmp_path, monkeypatch):
    calls = squeue(tmp_path, monkeypatch, "auth/munge")
    with pytest.raises(CommandError, match="auth/munge"):
        jobs.ask(jobs.queue_argv())
    assert len(calls.read_text().splitlines()) == 1
