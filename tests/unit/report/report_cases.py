"""Jobs for the tests of reports."""

from __future__ import annotations

from typing import Any

from slurm_share.report.records import JobReport
from slurm_share.slurm.accounts import AccountedJob
from slurm_share.usage.records import EnergyUse, GpuEnergy, GpuUse, JobUse, TaskUse

BEGAN = 1_795_971_600.0
GIB = 1024


def accounted(**changed: Any) -> AccountedJob:
    """Return a job of alice's on n1 that completed after 10 minutes of an hour."""
    values: dict[str, Any] = {
        "job": 4711, "id": "4711", "name": "train.sh", "user": "alice", "uid": 2001, "partition": "gpu",
        "state": "COMPLETED", "exit_code": 0, "submitted": BEGAN - 60, "start": BEGAN, "end": BEGAN + 600,
        "elapsed_s": 600.0, "limit_s": 3600.0, "cpus": 16, "nodes": ("n1",), "gpus": 2, "asked_gpus": 2, "shards": 0,
        "cpu_s": 1920.0, "memory_asked_mib": 64 * GIB, "restarts": 0, "folder": "/home/alice",
        "submit_line": "sbatch --share-gpu=2 train.sh", "admin_comment": "share-gpu=2",
    }  # fmt: skip
    return AccountedJob(**values | changed)


def gpu(index: int = 0, **changed: Any) -> GpuUse:
    """Return a GPU of 80 GiB that was half busy for ten minutes, and idle for two."""
    values: dict[str, Any] = {
        "uuid": f"GPU-{index:08x}", "index": index, "name": "NVIDIA H100", "held_s": 600.0, "measured_s": 600.0,
        "utilization_percent": 70.0, "sm_percent": 50.0, "dram_percent": 20.0, "own_sm_percent": 50.0,
        "memory_total_mib": 80 * GIB, "memory_peak_mib": 8 * GIB, "memory_cap_mib": 38 * GIB, "idle_s": 120.0,
        "idle_longest_s": 90.0, "was_shared": False, "energy": EnergyUse(joules=180_000.0, idle_j=60_000.0),
        "device_j": 200_000.0, "by": {"sm_percent": "agent", "memory_peak_mib": "agent"},
    }  # fmt: skip
    return GpuUse(**values | changed)


def use(**changed: Any) -> JobUse:
    """Return what that job used on n1: two GPUs with two tasks each."""
    gpus = changed.get("gpus", (gpu(0), gpu(1)))
    values: dict[str, Any] = {
        "job": 4711, "restarts": 0, "uid": 2001, "node": "n1", "began": BEGAN, "ended": BEGAN + 600, "share": 2,
        "slots": 4, "sharing": "mps", "cpus": 16, "cpu_s": 1920.0, "cpu_wait_s": 5.0, "io_wait_s": 30.0,
        "memory_limit_mib": 64 * GIB,
        "memory_peak_mib": 12 * GIB, "memory_kills": 0, "gpus": gpus,
        "others": tuple(GpuEnergy(uuid=one.uuid, unattributed_j=20_000.0, total_j=200_000.0) for one in gpus),
        "by": {"cpu_s": "cgroup", "memory_peak_mib": "cgroup"},
    }  # fmt: skip
    return JobUse(**values | changed)


def task(number: int, **changed: Any) -> TaskUse:
    """Return a task of a run that was done after 60 s."""
    on = gpu(
        number % 2, held_s=60.0, measured_s=60.0, idle_s=6.0, memory_peak_mib=2 * GIB,
        energy=EnergyUse(joules=6_000.0, idle_j=2_000.0, rule="sm time"),
    )  # fmt: skip
    values: dict[str, Any] = {
        "task": number, "outcome": "done", "slot": number % 4, "began": BEGAN + 60.0 * (number // 4), "seconds": 60.0,
        "cpu_s": 55.0, "memory_peak_mib": 512, "gpus": (on,),
    }  # fmt: skip
    return TaskUse(**values | changed)


def report(**changed: Any) -> JobReport:
    """Return the report of that job."""
    values: dict[str, Any] = {
        "title": "4711", "starts": (accounted(),), "uses": (use(),), "share": "2", "now": BEGAN + 700,
    }  # fmt: skip
    return JobReport(**values | changed)
