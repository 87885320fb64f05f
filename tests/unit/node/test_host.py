"""Processes and mounts from psutil, and what becomes of its errors."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from doctor_hosts import write_process

from slurm_share.node import host


def test_a_real_process_is_read() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            [found] = [one for one in host.read_named({"sleep"}) if one.pid == child.pid]
            assert (found.name, found.uid, found.argv) == ("sleep", os.getuid(), ("sleep", "60"))
            assert Path(found.program).is_file()
        finally:
            child.kill()


def test_a_zombie_does_not_run() -> None:
    child = subprocess.Popen(["true"])
    end = time.monotonic() + 120
    while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE and time.monotonic() < end:
        time.sleep(0.01)
    assert child.pid in psutil.pids()
    assert child.pid not in [one.pid for one in host.read_named({"true"})]
    child.wait()


@pytest.mark.parametrize(("state", "is_stopped"), [("S", False), ("T", True), ("t", True)])
def test_a_stopped_process_is_told_from_a_running_one(tmp_path: Path, state: str, is_stopped: bool) -> None:
    write_process(tmp_path, 57, "slurmd", state=state)
    [found] = host.read_named({"slurmd"}, tmp_path / "proc")
    assert (found.pid, found.is_stopped, found.program, found.argv) == (57, is_stopped, "", ())


def test_another_proc_is_read_only_during_the_call(tmp_path: Path) -> None:
    write_process(tmp_path, 57, "slurmd")
    host.read_named({"slurmd"}, tmp_path / "proc")
    assert psutil.Process().pid == os.getpid()
    assert host.read_named({"slurmd"}, tmp_path / "nowhere") == ()
    assert host.read_mounts(tmp_path / "nowhere") == ()
    assert psutil.PROCFS_PATH == "/proc"


@pytest.mark.parametrize("lost", ["stat", "status"])
def test_a_process_that_ends_meanwhile_is_left_out(tmp_path: Path, lost: str) -> None:
    """Without stat psutil raises NoSuchProcess, without another file the kernel's FileNotFoundError."""
    write_process(tmp_path, 57, "slurmd")
    write_process(tmp_path, 58, "slurmd")
    (tmp_path / f"proc/57/{lost}").unlink()
    assert [one.pid for one in host.read_named({"slurmd"}, tmp_path / "proc")] == [58]


ERRORS = [psutil.NoSuchProcess(1), psutil.AccessDenied(1), psutil.ZombieProcess(1), FileNotFoundError()]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_what_psutil_may_not_read_is_unknown(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object) -> None:
        raise error

    for name in ("memory_info", "environ"):
        monkeypatch.setattr(psutil.Process, name, fail)
    assert host.read_resident_bytes() is None
    assert host.read_begun_environ() is os.environ


@pytest.mark.parametrize("error", [psutil.AccessDenied(57), psutil.ZombieProcess(57)], ids=["denied", "zombie"])
def test_a_hidden_program_leaves_the_process_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    write_process(tmp_path, 57, "slurmd")
    monkeypatch.setattr(psutil.Process, "exe", fail)
    monkeypatch.setattr(psutil.Process, "cmdline", fail)
    [found] = host.read_named({"slurmd"}, tmp_path / "proc")
    assert (found.program, found.argv) == ("", ())


def test_own_memory_and_environment_are_real() -> None:
    lines = Path("/proc/self/environ").read_bytes().split(b"\0")
    assert {os.fsencode(f"{name}={value}") for name, value in host.read_begun_environ().items()} <= set(lines)
    assert 2**20 < (host.read_resident_bytes() or 0) < 2**34


def test_mounts_are_those_of_the_kernel() -> None:
    lines = [line.split(" - ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    kernel = [(first.split()[4].encode().decode("unicode_escape"), rest.split()[0]) for first, rest in lines]
    assert [(point, kind) for point, kind, _ in host.read_mounts()] == kernel
