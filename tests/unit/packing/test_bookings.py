"""Bookings of several launchers, with real processes that race and die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_share.core.live import LiveFolder
from slurm_share.packing import bookings
from slurm_share.packing.bookings import Booking, Bookings

GPU = "GPU-11111111-2222-3333-4444-555555555555"
OTHER = "GPU-99999999-2222-3333-4444-555555555555"
TOTAL_MIB = 40_000

RACER = """
import os, random, sys, time
from pathlib import Path
from slurm_share.core.live import LiveFolder
from slurm_share.packing.bookings import Booking, Bookings
tmp, number, gpu, total, log = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5]
rng = random.Random(number)
mine = Bookings(LiveFolder(tmp, str(number)), str(number), [gpu])
held = 0
out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
for turn in range(60):
    wanted = rng.choice([500, 3000, 9000, 17000])
    with mine.section():
        others = mine.others()[gpu].booked_mib
        if others + wanted <= total:
            held = wanted
            mine.write({gpu: Booking(booked_mib=held, tasks=1)})
            os.write(out, f"{others + held}\\n".encode())
    if rng.random() < 0.5:
        time.sleep(rng.random() * 0.003)
    if held:
        with mine.section():
            held = 0
            mine.write({gpu: Booking()})
    if len(sys.argv) > 6 and turn == 30:
        with mine.section():
            mine.write({gpu: Booking(booked_mib=20000, tasks=1)})
        os.kill(os.getpid(), 9)
mine.close()
"""


def launcher(tmp: Path, job: str, gpus: list[str]) -> Bookings:
    return Bookings(LiveFolder(tmp, job), job, gpus)


def files(tmp: Path) -> list[str]:
    return sorted(path.parent.name for path in (tmp / f"slurm-share-{os.getuid()}" / "live").glob("*/bookings.json"))


def test_two_launchers_see_each_others_bookings_and_not_their_own(tmp_path: Path) -> None:
    first, second = launcher(tmp_path, "1", [GPU, OTHER]), launcher(tmp_path, "2", [GPU])
    with first.section():
        first.write({GPU: Booking(booked_mib=7000, memory_mib=5000, clients=3, tasks=2)})
        assert first.others()[GPU] == bookings.OtherBookings()
    with second.section():
        assert second.others()[GPU] == bookings.OtherBookings(7000, 5000, 3)
    with first.section():
        first.write({GPU: Booking()})
    with second.section():
        assert second.others()[GPU].booked_mib == 0
    first.close()
    assert len(files(tmp_path)) == 1
    second.close()
    second.close()
    assert files(tmp_path) == []


def test_racing_launchers_never_book_more_than_the_gpu_has(tmp_path: Path) -> None:
    """Twelve processes, 60 bookings each; two of them die in the middle with something booked."""
    log = tmp_path / "sums"
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, tmp_path, str(n), GPU, str(TOTAL_MIB), log, *(["die"] if n < 2 else [])]
        )
        for n in range(12)
    ]
    codes = [racer.wait(120) for racer in racers]
    assert codes == [-signal.SIGKILL] * 2 + [0] * 10
    sums = [int(line) for line in log.read_text().split()]
    assert len(sums) > 100
    assert max(sums) <= TOTAL_MIB
    last = launcher(tmp_path, "last", [GPU])
    with last.section():
        assert last.others()[GPU] == bookings.OtherBookings()
    assert len(files(tmp_path)) == 1
    last.close()


def test_the_booking_of_a_killed_launcher_is_taken_back_within_a_second(tmp_path: Path) -> None:
    code = f"""
import sys, time
from pathlib import Path
from slurm_share.core.live import LiveFolder
from slurm_share.packing.bookings import Booking, Bookings
mine = Bookings(LiveFolder(Path(sys.argv[1]), "9"), "9", ["{GPU}"])
with mine.section():
    mine.write({{"{GPU}": Booking(booked_mib=30000)}})
print("booked", flush=True)
time.sleep(600)
"""
    mine = launcher(tmp_path, "1", [GPU])
    other = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "booked\n"
    with mine.section():
        assert mine.others()[GPU].booked_mib == 30000
    other.kill()
    other.communicate()
    time.sleep(bookings.FRESH_S + 0.1)
    with mine.section():
        assert mine.others()[GPU] == bookings.OtherBookings()
    assert len(files(tmp_path)) == 1
    mine.close()


def test_the_lock_outlives_the_loop_for_as_long_as_the_guard_has_it(tmp_path: Path) -> None:
    """The file is open in both: a loop that is killed leaves its booking to the guard, which has yet to end tasks."""
    mine, other = launcher(tmp_path, "1", [GPU]), launcher(tmp_path, "2", [GPU])
    pid = os.fork()
    if pid == 0:
        with mine.section():
            mine.write({GPU: Booking(booked_mib=1234)})
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    with other.section():
        assert other.others()[GPU].booked_mib == 1234
    mine.close()
    with other.section():
        assert other.others()[GPU].booked_mib == 0
    other.close()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"booked_mib": 30000, "memory_mib": -1, "clients": 2}', bookings.OtherBookings(30_000, 0, 2)),
        (b'{"booked_mib": -5, "memory_mib": 700}', bookings.OtherBookings(0, 700, 0)),
        (b'{"booked_mib": 30000, "held_for": -1, "held_since": -1.0}', bookings.OtherBookings(30_000, 0, 0)),
    ],
)
def test_a_booking_with_a_wrong_figure_still_books_its_memory(
    tmp_path: Path, text: bytes, expected: bookings.OtherBookings
) -> None:
    mine, other = launcher(tmp_path, "1", [GPU]), launcher(tmp_path, "2", [GPU])
    (tmp_path / f"slurm-share-{os.getuid()}" / "live" / f"2.{os.getpid()}" / "bookings.json").write_bytes(
        b'{"%s": %s}' % (GPU.encode(), text)
    )
    with mine.section():
        assert mine.others()[GPU] == expected
    other.close()
    mine.close()


def test_strange_files_among_the_bookings_are_passed_over(tmp_path: Path) -> None:
    """A FIFO does not hold up anybody; a torn file of a living launcher counts as nothing booked."""
    mine, other = launcher(tmp_path, "1", [GPU]), launcher(tmp_path, "2", [GPU])
    live = tmp_path / f"slurm-share-{os.getuid()}" / "live"
    os.mkfifo(live / "fifo")
    (live / "link").symlink_to("/etc")
    file = live / f"2.{os.getpid()}" / "bookings.json"
    for strange in (lambda: file.write_bytes(b'{"GPU": {"booked_mib": 12'), lambda: os.mkfifo(file)):
        file.unlink()
        strange()
        mine._count = -1
        with mine.section():
            assert mine.others()[GPU] == bookings.OtherBookings()
    other.close()
    mine.close()
