"""A control daemon that ends at its start without a word."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from slurm_share.core.errors import MpsRefusedError
from slurm_share.core.process import Deadline
from slurm_share.core.records import Owner
from slurm_share.mps import daemons
from slurm_share.mps.records import MpsPlace


@pytest.fixture
def place(tmp_path: Path) -> MpsPlace:
    """Return the place of a daemon whose program ends with code 3."""
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    made = MpsPlace(str(program), str(tmp_path / "pipe"), "GPU-1", Owner(os.getuid(), os.getgid()))
    Path(made.logs).mkdir(parents=True)
    return made


def why(place: MpsPlace) -> str:
    with pytest.raises(MpsRefusedError) as caught:
        daemons._start_daemon(place, [], Deadline.after(60))
    return str(caught.value)


@pytest.mark.parametrize(
    ("room", "said"),
    [
        ({"f_bavail": 0, "f_files": 9, "f_favail": 9}, "the file system of {} is full"),
        ({"f_bavail": 9, "f_files": 9, "f_favail": 0}, "the file system of {} has no room for further files (inodes)"),
        ({"f_bavail": 9, "f_files": 0, "f_favail": 0}, "it ended with exit code 3 and printed no reason"),
    ],
)
def test_the_full_file_system_is_named(
    place: MpsPlace, monkeypatch: pytest.MonkeyPatch, room: dict[str, int], said: str
) -> None:
    monkeypatch.setattr(daemons.os, "statvfs", lambda _: SimpleNamespace(**room))
    assert said.format(place.pipe) in why(place)
    assert "no message" not in why(place)


def test_the_logs_are_named_where_nothing_is_full(place: MpsPlace) -> None:
    assert f"it ended with exit code 3 and printed no reason; its logs are in {place.logs}" in why(place)
