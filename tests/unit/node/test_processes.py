"""The owner of a process, from the kernel's four UIDs."""

from __future__ import annotations

import os
from pathlib import Path

from slurm_share.node import processes


def process(folder: Path, pid: int, uids: str, name: str = "x", start_ticks: int = 77) -> None:
    one = folder / str(pid)
    one.mkdir()
    (one / "status").write_text(f"Name:\t{name}\nUid:\t{uids}\nGid:\t0\t0\t0\t0\n")
    (one / "stat").write_text(f"{pid} ({name}) S 1 {' '.join(['0'] * 17)} {start_ticks} 0 0\n")


def test_the_oldest_slurmd_counts_and_not_what_it_forks(tmp_path: Path) -> None:
    """A slurmd that was told to end still starts the steps whose Prologs it runs."""
    assert processes.read_slurmd_start(tmp_path) is None
    ticks = os.sysconf("SC_CLK_TCK")
    for pid, name, start_s in ((5, "slurmd-wlm", 90), (6, "slurmd", 70), (7, "slurmd", 95), (8, "slurmstepd", 10)):
        process(tmp_path, pid, "0\t0\t0\t0", name, start_s * ticks)
    assert processes.read_slurmd_start(tmp_path) == 70.0


def test_only_a_process_that_is_a_users_through_and_through_is_his(tmp_path: Path) -> None:
    for pid, uids in {
        5: "2001\t2001\t2001\t2001",
        6: "2001\t0\t0\t0",  # su, at its password prompt
        7: "0\t2001\t0\t2001",  # a file server, for a moment
        8: "2001\t2001\t0\t2001",  # can become root again
        9: "20010\t20010\t20010\t20010",
    }.items():
        process(tmp_path, pid, uids)
    assert [one.identity.pid for one in processes.read_processes_of(2001, tmp_path)] == [5]
