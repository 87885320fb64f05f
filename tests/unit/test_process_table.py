"""A hook reads each process of the node once, however often it asks which there are."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from slurm_share import mps_processes, process_table
from slurm_share.process_table import ProcessTable


def put(proc: Path, pid: int, name: str, *, age_s: float = 60.0, parent: int = 1) -> None:
    """A process as the kernel lists it."""
    start = int((time.clock_gettime(time.CLOCK_BOOTTIME) - age_s) * 100)
    (proc / str(pid)).mkdir(exist_ok=True)
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} " + "0 " * 17 + f"{start} 0 0")


def test_a_process_is_read_once_and_new_ones_are_found(tmp_path: Path) -> None:
    """Three readings of a hundred processes; one goes and one comes meanwhile."""
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
    """slurmd forks, and what it forked becomes a slurmstepd."""
    put(tmp_path, 100, "slurmd", age_s=0.1)
    table = ProcessTable(str(tmp_path))
    assert table.read()[100][1] == b"slurmd"
    put(tmp_path, 100, "slurmstepd", age_s=0.1)
    assert table.read()[100][1] == b"slurmstepd"


def test_a_hooks_questions_share_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this machine's own processes; a program that does not end soon has a new table for each question."""
    monkeypatch.setattr(process_table, "_kept", None)
    mps_processes.read_processes()
    assert process_table._kept is None
    process_table.keep()
    table = process_table._kept
    assert table is not None
    process_table.read()
    first = table.files_read
    mps_processes.read_processes()
    process_table.read()
    assert table.files_read < first + first // 2
