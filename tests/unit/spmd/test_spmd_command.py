"""The process of a rank around its program."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from slurm_share.spmd import __main__ as command


def test_an_error_of_the_program_is_known_to_what_runs_at_exit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A failing rank delivers its messages for a short time only; others wait for their receivers."""
    for name in ("argv", "path", "meta_path"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
    monkeypatch.setattr(sys, "last_value", None, raising=False)
    program = tmp_path / "fails.py"
    program.write_text("raise ValueError(7)\n")
    assert command.run_program(str(program), ()) == 1
    assert isinstance(sys.last_value, ValueError)
    assert "ValueError: 7" in capfd.readouterr().err
