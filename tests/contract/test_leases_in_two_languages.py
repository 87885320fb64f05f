"""slurmstepd (C) and the node launcher (Python) lease slots of one job: neither takes the other's, and each reads what
the other wrote.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_share.core import names, process
from slurm_share.share import leases
from slurm_share.share.leases import Leases

SLOTS, GPUS = 8, ("a", "b") * 4


@pytest.fixture(scope="module")
def program(c_program):
    return c_program("lease_verdict")


@pytest.fixture
def folder(tmp_path):
    return new_folder(tmp_path, SLOTS)


def new_folder(folder, slots):
    for name in (*map(str, range(slots)), names.SLOTS_LOCK, names.SLOTS_QUEUE, names.SLOTS_REFUSED):
        (folder / name).touch(0o600)
    return folder


@contextmanager
def c_step(program, folder, tasks, *, slots=SLOTS, gpus=2, pid=0):
    """Hold the slots of a step in C; yield their numbers."""
    step = subprocess.Popen(
        [program, folder, str(slots), str(gpus), str(tasks), str(pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        yield tuple(int(word) for word in step.stdout.readline().split()), step
    finally:
        step.communicate(timeout=120)


def test_a_launcher_takes_what_a_step_has_left(program, folder):
    launcher = Leases(folder, GPUS)
    with c_step(program, folder, 3) as (theirs, _):
        assert theirs == (0, 1, 2)
        assert launcher.take(8) == (3, 4, 5, 6, 7)
    assert (folder / "0").read_text() == f"{names.SLOT_USED}\n"
    assert launcher.take(8) == (0, 1, 2)


def test_a_step_takes_what_a_launcher_has_left(program, folder):
    launcher = Leases(folder, GPUS)
    assert launcher.take(5) == (0, 1, 2, 3, 4)
    with c_step(program, folder, 8) as (theirs, _):
        assert theirs == (5, 6, 7)
    launcher.close()
    with c_step(program, folder, 8) as (theirs, _):
        assert theirs == tuple(range(8))


def test_each_honours_the_living_task_of_the_others_dead_holder(program, folder):
    with c_step(program, folder, 1, pid=os.getpid()) as (theirs, step):
        assert theirs == (0,)
        step.kill()
    assert (folder / "0").read_text().endswith(f"task {os.getpid()} {process.identify(os.getpid()).start_ticks}\n")
    launcher = Leases(folder, GPUS)
    assert launcher.take(8) == (1, 2, 3, 4, 5, 6, 7)
    launcher.close()
    dead = os.fork()
    if dead == 0:
        mine = Leases(folder, GPUS)
        mine.take(1)
        mine.name(1, os.getppid())
        os._exit(0)
    os.waitpid(dead, 0)
    with c_step(program, folder, 8) as (theirs, _):
        assert theirs == (2, 3, 4, 5, 6, 7)


@contextmanager
def promise(program, folder, wanted, *, step=None, slots=SLOTS):
    """Run an srun that was promised slots, for a step if that has a number; return its output."""
    srun = subprocess.Popen(
        [program, folder, str(slots), "wait", str(wanted), "-1" if step is None else str(step)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield srun.stdout.readline().decode().strip()
    finally:
        srun.communicate(timeout=120)


def test_a_launcher_leaves_what_an_srun_was_promised(program, folder):
    """Before and after its step has a number, until that step's tasks have chosen; then nothing is left of it."""
    launcher = Leases(folder, GPUS)
    with promise(program, folder, 3) as said, promise(program, folder, 2, step=5) as other:
        assert (said, other) == ("promised", "promised")
        assert leases.promised(folder) == 5
        assert launcher.take(8) == (0, 1, 2)
        with c_step(program, folder, 2) as (theirs, _):  # step 5
            assert theirs == (3, 4)
            assert leases.promised(folder) == 3
            assert launcher.take(8) == ()
        assert leases.promised(folder) == 3
        assert launcher.take(8) == (3, 4)
    assert launcher.take(8) == (5, 6, 7)
    with promise(program, folder, 1) as said:
        assert said == "over"
    launcher.give_back(6)
    with promise(program, folder, 1) as said:
        assert said == "promised"


def test_a_launcher_that_gives_back_wakes_who_waits(program, folder):
    launcher = Leases(folder, GPUS)
    launcher.take(1)
    os.utime(folder / names.SLOTS_QUEUE, (0, 0))
    launcher.close()
    assert (folder / names.SLOTS_QUEUE).stat().st_mtime > 0


def test_without_a_queue_nothing_is_promised(folder):
    (folder / names.SLOTS_QUEUE).unlink()
    launcher = Leases(folder, GPUS)
    assert launcher.take(8) == tuple(range(8))
    launcher.close()


@settings(max_examples=30)
@given(st.data())
def test_both_choose_alike(program, data):
    gpus = data.draw(st.integers(1, 4))
    slots = data.draw(st.integers(1, 12))
    taken = data.draw(st.sets(st.integers(0, slots - 1)))
    wanted = data.draw(st.integers(1, slots))
    of_slot = [str(slot % gpus) for slot in range(slots)]
    with tempfile.TemporaryDirectory() as name:
        folder = new_folder(Path(name), slots)
        for slot in taken:
            task = f"{os.getpid()} {process.identify(os.getpid()).start_ticks}"
            (folder / str(slot)).write_text(f"step 0 holder 0 0 task {task}\n")
        mine = Leases(folder, of_slot)
        chosen = mine.take(wanted)
        mine.close()
        with c_step(program, folder, wanted, slots=slots, gpus=min(gpus, slots)) as (theirs, _):
            assert theirs == chosen
