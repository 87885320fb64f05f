from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_share.core.live import LiveFolder
from slurm_share.node.gpu_figures import GpuBooking
from slurm_share.packing import read_bookings

GPU = "GPU-5131aaaa"


class Launcher:
    """A living launcher, this process, with a file of bookings."""

    def __init__(self, tmp: Path, job: str) -> None:
        self.tmp, self.live = tmp, LiveFolder(tmp, job)

    def write(self, text: str) -> None:
        (self.live.path / "bookings.json").write_text(text)

    def read(self) -> tuple[GpuBooking, ...]:
        found = read_bookings(self.tmp, os.getuid(), (GPU, "GPU-other"))
        assert set(found) <= {GPU}
        return found.get(GPU, ())


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    made = Launcher(tmp_path, "1")
    yield made
    made.live.close()


def test_the_bookings_of_all_launchers_are_read(launcher: Launcher) -> None:
    other = Launcher(launcher.tmp, "2")
    more = {"clients": 2, "tasks": 2, "held_for": 17, "held_since": 1e9, "memory_mib": 5}
    launcher.write(json.dumps({GPU: {"booked_mib": 6000, **more}, "GPU-foreign": {}}))
    other.write(json.dumps({GPU: {"booked_mib": 300, "demand": 0.5}}))
    one, two = launcher.read()
    assert (one.booked_mib, one.clients, one.tasks, one.held_for, one.held_since) == (6000, 2, 2, 17, 1e9)
    assert (two.booked_mib, two.held_for) == (300, None)
    other.live.close()


@pytest.mark.parametrize(
    ("job", "number"),
    [("4711", 4711), (4711, 4711), ("4711.2", 4711), ("", None), ("4711_3", None), ("9" * 40, None)],
)
def test_the_job_is_a_number_or_unknown(launcher: Launcher, job: object, number: int | None) -> None:
    launcher.write(json.dumps({GPU: {"job": job}}))
    assert [one.job for one in launcher.read()] == [number]


BAD = {
    "empty": "",
    "torn": '{"GPU-5131aaaa":{"booked_mib": 10',
    "a list": "[]",
    "zeros": "\0" * 100,
    "below zero": json.dumps({GPU: {"booked_mib": -5}}),
    "beyond every figure": json.dumps({GPU: {"booked_mib": 10**18}}),
    "a word for a number": json.dumps({GPU: {"held_for": "x"}}),
    "too long": json.dumps({GPU: {"words": "x" * 80_000}}),
    "nested": "[" * 4000,
}


@pytest.mark.parametrize("bad", BAD)
def test_what_is_torn_or_no_booking_is_passed_over(launcher: Launcher, bad: str) -> None:
    other = Launcher(launcher.tmp, "2")
    launcher.write(BAD[bad])
    other.write(json.dumps({GPU: {"booked_mib": 7}}))
    assert [one.booked_mib for one in launcher.read()] == [7]
    other.live.close()
