"""Memory that a process may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_share.spmd import memory

MEMINFO = "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 500 kB\n"


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    made = {"/proc/meminfo": MEMINFO, "/proc/self/cgroup": ""}
    monkeypatch.setattr(memory, "_text", lambda path: made.get(str(path), ""))
    return made


def test_without_limits_the_kernel_s_estimate_counts(files: dict[str, str]) -> None:
    assert memory.available_bytes() == 500 * 1024
    assert memory.total_bytes() > 1 << 26


def test_the_tightest_control_group_counts_and_cached_files_do_not(files: dict[str, str]) -> None:
    files["/proc/self/cgroup"] = "0::/slurm/job_5/step_0\n"
    job = Path("/sys/fs/cgroup/slurm/job_5")
    files[f"{job}/memory.max"] = "400000\n"
    files[f"{job}/memory.current"] = "350000\n"
    files[f"{job}/memory.stat"] = "anon 1\ninactive_file 20000\n"
    files[f"{job}/step_0/memory.max"] = "max\n"
    files[f"{job}/step_0/memory.current"] = "340000\n"
    assert memory.available_bytes() == 70_000
    assert memory.total_bytes() == 400_000


def test_in_a_container_the_limit_of_the_root_counts(files: dict[str, str]) -> None:
    files["/proc/self/cgroup"] = "0::/\n"
    files["/sys/fs/cgroup/memory.max"] = "400000\n"
    files["/sys/fs/cgroup/memory.current"] = "350000\n"
    assert memory.available_bytes() == 50_000


def test_the_older_control_groups_are_read_too(files: dict[str, str]) -> None:
    files["/proc/self/cgroup"] = "5:devices:/x\n4:cpu,memory:/job\n0::/\n"
    files["/sys/fs/cgroup/memory/job/memory.limit_in_bytes"] = "300000\n"
    files["/sys/fs/cgroup/memory/job/memory.usage_in_bytes"] = "310000\n"
    assert memory.available_bytes() == 0
    files["/sys/fs/cgroup/memory/job/memory.limit_in_bytes"] = "9223372036854771712\n"
    assert memory.available_bytes() == 500 * 1024


def test_the_real_files_of_this_machine_are_understood() -> None:
    assert 0 < memory.available_bytes() <= memory.total_bytes()
