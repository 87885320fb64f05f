"""The leases of a launcher: free slots, their order, the contents of their files."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from slurm_share.core import process
from slurm_share.core.errors import StateError
from slurm_share.core.paths import Paths
from slurm_share.share import leases
from slurm_share.share.leases import Leases, choose

TWO_GPUS = ("a", "b") * 4


@pytest.fixture
def folder(tmp_path):
    for name in (*map(str, range(8)), "lock"):
        (tmp_path / name).touch(0o600)
    return tmp_path


@contextmanager
def held(file):
    """Hold a lock as another process does."""
    fd = os.open(file, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    yield
    os.close(fd)


def text(folder, slot):
    return (folder / str(slot)).read_text()


def me():
    return f"{os.getpid()} {process.identify(os.getpid()).start_ticks}"


@pytest.mark.parametrize(
    ("free", "wanted", "chosen"),
    [
        (range(8), 5, (0, 1, 2, 3, 4)),
        (range(8), 9, (0, 1, 2, 3, 4, 5, 6, 7)),
        ((1, 2, 3, 4, 5, 7), 3, (1, 3, 2)),
        ((0, 2, 4), 2, (0, 2)),
        ((), 2, ()),
        (range(8), 0, ()),
    ],
)
def test_the_gpu_with_most_free_slots_comes_first(free, wanted, chosen):
    """On equal ones the lowest number; on an empty node slot i is for process i."""
    assert choose(TWO_GPUS, free, wanted) == chosen


def test_slots_are_held_until_they_are_given_back(folder):
    first, second = Leases(folder, TWO_GPUS, step=3), Leases(folder, TWO_GPUS)
    assert first.take(5) == (0, 1, 2, 3, 4)
    assert second.take(5) == (5, 6, 7)
    assert text(folder, 0) == f"step 3 holder {me()} task 0 0\n"
    first.give_back(2)
    assert text(folder, 2) == "used\n"
    assert second.take(1) == (2,)
    first.close()
    first.close()
    assert Leases(folder, TWO_GPUS).take(8) == (0, 1, 3, 4)
    assert second.slots == (5, 6, 7, 2)


def test_a_slots_file_names_its_task(folder):
    mine = Leases(folder, TWO_GPUS)
    mine.take(1)
    task = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    mine.name(0, task.pid)
    mine.name(1, task.pid)
    named = f"step 0 holder {me()} task {task.pid} {process.identify(task.pid).start_ticks}\n"
    assert (text(folder, 0), text(folder, 1)) == (named, "")
    task.communicate()
    mine.name(0, task.pid)
    assert text(folder, 0) == named


def test_the_slot_of_a_killed_launcher_is_its_tasks_while_that_lives(folder):
    (folder / "0").write_text(f"step 0 holder 999999 5 task {me()}\n")
    (folder / "1").write_text(f"step 0 holder 999999 5 task {os.getpid()} 1\n")
    (folder / "2").write_text("step 0 holder 999999 5 task 0 0\n")
    (folder / "3").write_text(f"step 0 holder 999999 5 task {me()}\nmore")
    (folder / "4").write_bytes(b"\xff" * 4096)
    assert Leases(folder, TWO_GPUS).take(8) == (1, 2, 3, 4, 5, 6, 7)


def test_a_slot_is_read_as_leased_by_its_lock_or_by_its_living_task(tmp_path):
    """A task that chose its slot itself holds no lock, and /proc/locks hides some locks in a pid namespace."""
    paths = Paths(root=tmp_path)
    folder = paths.slots(7)
    folder.mkdir(parents=True)
    texts = [
        "",
        "used\n",
        f"step 0 holder 9 5 task {me()}\n",
        "",
        f"step 0 holder 9 5 task {os.getpid()} 1\n",
        "noise" * 9,
    ]
    for slot, said in enumerate(texts):
        (folder / str(slot)).write_text(said)
    info = (folder / "3").stat()
    locks = tmp_path / "locks"
    place = f"{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}:{info.st_ino}"
    locks.write_text(f"1: FLOCK  ADVISORY  WRITE 999999 {place} 0 EOF\n")
    assert leases.read_leased(paths, 7, 6, locks) == {2, 3}
    assert leases.read_leased(paths, 7, 7, locks) is None


def test_a_dead_child_does_not_keep_its_slot(folder):
    task = subprocess.Popen(["true"])
    started = process.identify(task.pid)
    while process.identify(task.pid) is not None:
        pass
    ticks = 1 if started is None else started.start_ticks
    (folder / "0").write_text(f"step 0 holder 999999 5 task {task.pid} {ticks}\n")
    assert Leases(folder, TWO_GPUS).take(1) == (0,)
    task.wait()


def test_a_lock_that_is_held_for_ever_is_not_waited_for(folder, monkeypatch):
    monkeypatch.setattr(leases, "PATIENCE_S", 0.05)
    with held(folder / "lock"), pytest.raises(StateError, match="another process of the job holds it"):
        Leases(folder, TWO_GPUS).take(1)
    assert Leases(folder, TWO_GPUS).take(1) == (0,)


def test_the_lock_is_waited_for(folder):
    holder = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, 2); print(flush=True); sys.stdin.read()"
    waiting = subprocess.Popen(
        [sys.executable, "-c", holder, folder / "lock"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    waiting.stdout.readline()
    threading.Timer(0.1, waiting.stdin.close).start()
    assert Leases(folder, TWO_GPUS).take(1) == (0,)
    waiting.wait()
    waiting.stdout.close()


@pytest.mark.parametrize("damage", ["missing", "link", "fifo", "folder"])
def test_a_damaged_folder_is_refused_and_nothing_is_taken(folder, damage):
    file = folder / "7"
    file.unlink()
    if damage == "link":
        file.symlink_to(folder / "6")
    elif damage == "fifo":
        os.mkfifo(file)
    elif damage == "folder":
        file.mkdir()
    with pytest.raises(StateError, match="/7: "):
        Leases(folder, TWO_GPUS).take(2)
    with held(folder / "0"):
        pass
    if file.is_dir():
        file.rmdir()
    else:
        file.unlink(missing_ok=True)
    file.touch()
    assert Leases(folder, TWO_GPUS).take(8) == tuple(range(8))


def test_a_child_that_was_forked_does_not_keep_a_slot_that_was_given_back(folder):
    mine = Leases(folder, TWO_GPUS)
    mine.take(1)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    mine.close()
    assert Leases(folder, TWO_GPUS).take(1) == (0,)
    os.close(write)
    os.waitpid(child, 0)


@pytest.mark.parametrize(
    ("data", "task"),
    [
        (b"step 0 holder 10 11 task 12 13\n", (12, 13)),
        (b"step 0 holder 10 11 task 2147483648 13\n", None),
        (b"step 4294967296 holder 10 11 task 12 13\n", None),
        (b"step 0 holder 10 11 task 12 99999999999999999999\n", None),
        (b"step 0 holder 10 11 task 12 13\n" + b"\n" * 99, None),
        (b"", None),
    ],
)
def test_the_task_in_a_slots_file_is_the_one_that_the_plugin_reads(data, task):
    assert leases.task_in(data) == task
