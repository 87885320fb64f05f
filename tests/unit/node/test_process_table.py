"""A hook reads each process of the node once, however often it lists them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from slurm_share.mps import processes
from slurm_share.node import process_table
from slurm_share.node.process_table import ProcessTable
from slurm_share.share.rules import leftovers


def put(proc: Path, pid: int, name: str, *, age_s: float = 60.0, parent: int = 1) -> None:
    start = int((time.clock_gettime(time.CLOCK_BOOTTIME) - age_s) * 100)
    (proc / str(pid)).mkdir(exist_ok=True)
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} " + "0 " * 17 + f"{start} 0 0")


def test_a_process_is_read_once_and_new_ones_are_found(tmp_path: Path) -> None:
    for pid in range(100, 200):
        put(tmp_path, pid, "sleep")
    (tmp_path / "self").mkdir()
    table = ProcessTable(str(tmp_path))
    assert len(table.read()) == 100
    (tmp_path / "100" / "stat").unlink()
    (tmp_path / "100").rmdir()
    put(tmp_path, 300, "slurmstepd", parent=7)
    found = table.read()
    assert (100 in found, found[300][:2], len(found)) == (False, (7, b"slurmstepd"), 100)
    table.read()
    assert table.files_read == 101


def test_a_process_that_had_just_begun_is_read_again(tmp_path: Path) -> None:
    put(tmp_path, 100, "slurmd", age_s=0.1)
    table = ProcessTable(str(tmp_path))
    assert table.read()[100][1] == b"slurmd"
    put(tmp_path, 100, "slurmstepd", age_s=0.1)
    assert table.read()[100][1] == b"slurmstepd"


def test_a_hooks_questions_share_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's own processes are read; a long-running program has a new table for each question."""
    monkeypatch.setattr(process_table, "_kept", None)
    processes.read_processes()
    assert process_table._kept is None
    process_table.keep()
    table = process_table._kept
    assert table is not None
    process_table.read()
    first = table.files_read
    processes.read_processes()
    process_table.read()
    assert table.files_read < first + first // 2


def owned(proc: Path, pid: int, name: str, *, folder: int, files: int, real: int, program: str = "sleep") -> None:
    """Return the process with the owners of its folder and files, its real UID and its program."""
    put(proc, pid, name)
    process = proc / str(pid)
    (process / "status").write_text(f"Name:\tx\nUid:\t{real}\t{folder}\t0\t{folder}\n")
    (process / "exe").symlink_to(f"/usr/sbin/{program}")
    os.chown(process, folder, folder)
    os.chown(process / "stat", files, files)


@pytest.fixture
def owners(tmp_path: Path) -> Path:
    """Return a /proc with one process of each kind; the files of those without core dumps are root's."""
    if os.getuid() != 0:
        pytest.skip("NOT TESTED: only root may give files away")
    owned(tmp_path, 1, "init", folder=0, files=0, real=0)
    owned(tmp_path, 2, "slurmstepd", folder=0, files=0, real=0, program="slurmstepd")
    owned(tmp_path, 3, "slurmstepd", folder=2001, files=0, real=0, program="slurmstepd")  # acts as the job's user
    owned(tmp_path, 4, "dcgm", folder=110, files=110, real=110)
    owned(tmp_path, 5, "su", folder=0, files=0, real=2001)
    owned(tmp_path, 10, "sleep", folder=2001, files=2001, real=2001)
    owned(tmp_path, 11, "slurmstepd", folder=2001, files=0, real=2001)  # forbids dumps, and calls itself so
    owned(tmp_path, 12, "slurmstepd", folder=2001, files=0, real=2001, program="slurmstepd")  # and has its program
    owned(tmp_path, 20, "nvidia-cuda-mps", folder=2002, files=2002, real=2002)
    owned(tmp_path, 21, "nvidia-cuda-mps", folder=2002, files=0, real=2002)
    owned(tmp_path, 22, "nvidia-cuda-mps", folder=2002, files=100000, real=2002)  # in a user namespace, without dumps
    (tmp_path / "sys/fs").mkdir(parents=True)
    (tmp_path / "sys/fs/suid_dumpable").write_text("2\n")
    return tmp_path


SYSTEMS = {1, 2, 3, 4, 5}


def test_processes_of_users_who_are_not_asked_for_are_not_read(owners: Path) -> None:
    table = ProcessTable(str(owners))
    assert set(table.read(())) == SYSTEMS
    assert table.files_read == len(SYSTEMS)
    assert set(table.read((2002,))) == SYSTEMS | {20, 21, 22}
    assert set(table.read((2001,))) == SYSTEMS | {10, 11, 12, 20, 21, 22}
    assert len(table.read()) == 11


@pytest.mark.parametrize("why", ["dumps of all", "not known", "a user's"])
def test_every_process_is_read_where_owners_do_not_tell_whose_it_is(owners: Path, why: str) -> None:
    """With fs.suid_dumpable=1 the files of slurmstepd that acts as a user are that user's."""
    setting = owners / "sys/fs/suid_dumpable"
    if why == "dumps of all":
        setting.write_text("1\n")
    elif why == "not known":
        setting.unlink()
    else:
        os.chown(owners, 2001, 2001)
    assert len(ProcessTable(str(owners)).read(())) == 11


def test_children_are_those_that_the_kernel_lists(tmp_path: Path) -> None:
    """The kernel lists them for every thread of a parent; without such lists they are those that name it as their
    parent."""
    parent = subprocess.Popen(["/bin/sh", "-c", "sleep 600 & sleep 600 & wait"], start_new_session=True)
    try:
        while len(process_table.read_children([parent.pid]).get(parent.pid, [])) < 2:
            assert parent.poll() is None
        listed = process_table.read_children([parent.pid, os.getpid(), 2**22 + 1])
        assert parent.pid in listed[os.getpid()]
        assert 2**22 + 1 not in listed
        (tmp_path / str(parent.pid)).mkdir()
        for pid in (parent.pid, *listed[parent.pid]):
            put(tmp_path, pid, "sleep", parent=os.getpid() if pid == parent.pid else parent.pid)
        assert {
            key: sorted(value) for key, value in process_table.read_children([parent.pid], str(tmp_path)).items()
        } == {parent.pid: sorted(listed[parent.pid])}
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()


def test_the_first_ordinary_uid_is_the_same_everywhere() -> None:
    assert process_table.FIRST_ORDINARY_UID == leftovers.FIRST_ORDINARY_UID
