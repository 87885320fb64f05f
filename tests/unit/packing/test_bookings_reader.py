from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from slurm_share.core.process import identify
from slurm_share.packing import read_bookings
from slurm_share.packing.bookings_reader import MOST_FILES, BookingRead

GPU = "GPU-5131aaaa"


def lives(pid: int, start_ticks: int, uid: int) -> bool:
    found = identify(pid)
    return found is not None and found.start_ticks == start_ticks and Path(f"/proc/{pid}").stat().st_uid == uid


def own(booked_mib: int = 100, **more: object) -> dict[str, object]:
    me = identify(os.getpid())
    assert me is not None
    return {"booked_mib": booked_mib, "pid": os.getpid(), "start_ticks": me.start_ticks, **more}


class Folders:
    """The folders of bookings of one user."""

    def __init__(self, tmp: Path) -> None:
        self.tmp = tmp
        self.gpu = tmp / f"slurm-share-{os.getuid()}" / "bookings" / GPU
        self.gpu.mkdir(parents=True)
        self.gpu.parents[1].chmod(0o700)

    def write(self, name: str, text: str) -> Path:
        file = self.gpu / name
        file.write_text(text)
        return file

    def read(self, uid: int | None = None) -> tuple[BookingRead, ...]:
        found = read_bookings(self.tmp, os.getuid() if uid is None else uid, (GPU, "GPU-other"), lives)
        assert set(found) <= {GPU}
        return found.get(GPU, ())


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


def test_living_launchers_are_read_and_dead_ones_are_not(folders: Folders) -> None:
    """The file of a dead launcher is left, and counts for nothing; nothing is removed by who only looks."""
    more = {"clients": 2, "tasks": 2, "held_for": 17, "held_since": 1e9, "memory_mib": 5}
    folders.write("1.1", json.dumps(own(6000, **more)))
    folders.write("2.1", json.dumps(own(300, demand=0.5, version=2)))
    folders.write("3.1", json.dumps({**own(), "start_ticks": 1}))
    one, other = folders.read()
    assert (one.booked_mib, one.clients, one.tasks, one.held_for, one.held_since) == (6000, 2, 2, 17, 1e9)
    assert (one.job_number, other.job_number, other.booked_mib, other.held_for) == (None, None, 300, None)
    assert len(list(folders.gpu.iterdir())) == 3


@pytest.mark.parametrize(
    ("job", "number"),
    [("4711", 4711), (4711, 4711), ("4711.2", 4711), ("", None), ("4711_3", None), ("9" * 40, None)],
)
def test_the_job_is_a_number_or_unknown(folders: Folders, job: object, number: int | None) -> None:
    folders.write("a.1", json.dumps(own(job=job)))
    assert [one.job_number for one in folders.read()] == [number]


BAD = {
    "empty": lambda: "",
    "torn": lambda: '{"booked_mib": 10',
    "a list": lambda: "[]",
    "zeros": lambda: "\0" * 100,
    "nobody's": lambda: json.dumps({"booked_mib": 10}),
    "below zero": lambda: json.dumps(own(-5)),
    "beyond every figure": lambda: json.dumps(own(10**18)),
    "a word for a number": lambda: json.dumps(own(held_for="x")),
    "too long": lambda: json.dumps(own(words="x" * 5000)),
    "nested": lambda: "[" * 4000,
}


@pytest.mark.parametrize("bad", BAD)
def test_what_is_torn_or_no_booking_is_passed_over(folders: Folders, bad: str) -> None:
    folders.write("bad.1", BAD[bad]())
    folders.write("good.2", json.dumps(own(7)))
    assert [one.booked_mib for one in folders.read()] == [7]


def test_links_and_what_is_no_file_are_passed_over(folders: Folders, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text(json.dumps(own()))
    (folders.gpu / "link.1").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(folders.gpu / "fifo.1")
    (folders.gpu / "folder.1").mkdir()
    assert folders.read() == ()


@pytest.mark.parametrize("level", ["slurm-share-UID", "bookings", "gpu"])
def test_a_folder_that_is_a_link_is_passed_over(folders: Folders, level: str) -> None:
    folders.write("a.1", json.dumps(own()))
    assert len(folders.read()) == 1
    folder = {"gpu": folders.gpu, "bookings": folders.gpu.parent, "slurm-share-UID": folders.gpu.parents[1]}[level]
    moved = folder.rename(folders.tmp / "moved")
    folder.symlink_to(moved)
    assert folders.read() == ()


def test_nobody_books_for_somebody_else(folders: Folders) -> None:
    """Another user's folder with a file of ours, or a process of ours: it is not that user's booking."""
    folders.write("a.1", json.dumps(own()))
    other = os.getuid() + 1
    folders.gpu.parents[1].rename(folders.tmp / f"slurm-share-{other}")
    assert folders.read(other) == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: a folder or file of another user needs root")
@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_another_user_owns_is_passed_over(folders: Folders, what: str) -> None:
    file = folders.write("a.1", json.dumps(own()))
    assert len(folders.read()) == 1
    os.chown(folders.gpu if what == "folder" else file, 65534, 65534)
    assert folders.read() == ()


def test_a_folder_of_very_many_files_takes_no_longer(folders: Folders) -> None:
    for number in range(MOST_FILES + 40):
        folders.write(f"{number}.1", json.dumps(own(1)))
    assert len(folders.read()) == MOST_FILES


def test_without_folders_there_is_nothing(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        assert read_bookings(folder, os.getuid(), (GPU,), lives) == {}


def test_a_gpus_name_leads_nowhere_else(folders: Folders) -> None:
    folders.write("a.1", json.dumps(own()))
    assert read_bookings(folders.tmp, os.getuid(), ("..", "", f"../bookings/{GPU}", f"{GPU}/"), lives) == {}


def test_no_file_stays_open(folders: Folders) -> None:
    folders.write("a.1", json.dumps(own()))
    folders.write("b.1", "torn")
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(50):
        folders.read()
        folders.read(os.getuid() + 1)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
