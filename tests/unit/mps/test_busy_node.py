"""A control program that has not ended at the deadline."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_share.core.errors import MpsMissingError, MpsSilentError
from slurm_share.core.process import Deadline
from slurm_share.core.records import Owner
from slurm_share.mps import control, control_v3
from slurm_share.mps.records import MpsPlace


@pytest.fixture
def place(tmp_path: Path) -> MpsPlace:
    """Return the place of a daemon whose control program takes a second."""
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text("#!/bin/sh\nexec sleep 1\n")
    program.chmod(0o755)
    return MpsPlace(str(program), str(tmp_path / "pipe"), "GPU-1", Owner(os.getuid(), os.getgid()))


def why(place: MpsPlace, protocol: int, seconds: float) -> str:
    until = Deadline.after(seconds)
    with pytest.raises(MpsSilentError) as caught:
        control_v3.ask(place, ["list"], until) if protocol == 3 else control.ask(place, "get_server_list", until)
    return str(caught.value)


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_daemon_that_was_asked_too_late_is_not_said_to_be_silent(place: MpsPlace, protocol: int) -> None:
    said = why(place, protocol, 0.0)
    assert "there was no time left to ask its daemon" in said
    assert "the node is busy" in said
    assert "does not answer" not in said


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_daemon_that_had_its_time_is_said_to_be_silent(place: MpsPlace, protocol: int) -> None:
    assert "its daemon does not answer (no answer within 0." in why(place, protocol, 0.3)


def test_a_program_that_cannot_be_run_is_missing_also_after_the_deadline(place: MpsPlace) -> None:
    Path(place.program).unlink()
    with pytest.raises(MpsMissingError):
        control.ask(place, "get_server_list", Deadline.after(0.0))
