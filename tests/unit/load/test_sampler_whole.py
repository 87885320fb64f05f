"""The sampler: kernel and driver put together, and its memory."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from slurm_share.core.errors import StateError
from slurm_share.core.live import LiveFolder
from slurm_share.load.collectors import NodeReader
from slurm_share.load.sampler import NodeSampler
from slurm_share.node.gpus.load import NvmlSession
from slurm_share.testing import FakeBinding, FakeGpu


def make(driver: FakeBinding, clock: list[float]) -> NodeSampler:
    kernel = NodeReader("n1", clock=lambda: clock[0], wall_clock=lambda: 1e9 + clock[0])
    return NodeSampler("n1", kernel=kernel, driver=NvmlSession(driver, lambda: clock[0]))


def test_this_process_on_a_gpu() -> None:
    driver = FakeBinding(FakeGpu("GPU-a", (100, 60), compute={os.getpid(): 50, 2**22 + 1: 10}, sm={os.getpid(): 30}))
    clock = [1000.0]
    sampler = make(driver, clock)
    first = sampler.sample()
    assert (first.measured_s, first.node, first.view, first.source) == (0.0, "n1", "", "local")
    clock[0] += 5
    seen = sampler.sample()
    (process,) = seen.processes
    assert (process.pid, process.uid, process.gpus[0].sm_time_percent) == (os.getpid(), os.getuid(), 30.0)
    assert (seen.gpus[0].clients, seen.interval_s, seen.users[0].gpu_memory_mib) == (1, 5.0, 50)
    sampler.close()
    assert driver.open == 0


def test_what_a_packed_run_has_booked_is_at_its_gpu(tmp_path: Path) -> None:
    launchers = [LiveFolder(tmp_path, job) for job in ("4711", "4712")]
    held = {"held_for": 17, "held_since": 1e9}
    for live, job, booked, more in zip(launchers, ("4711", "4712"), (6000, 500), ({}, held), strict=True):
        booking = {"booked_mib": booked, "tasks": 2, "clients": 3, "job": job, **more}
        live.replace("bookings.json", json.dumps({"GPU-a": booking}).encode())
    driver = FakeBinding(FakeGpu("GPU-a", compute={os.getpid(): 50}), FakeGpu("GPU-b"))
    kernel = NodeReader("n1", clock=lambda: 1000.0, tmp=tmp_path)
    seen = NodeSampler("n1", kernel=kernel, driver=NvmlSession(driver, lambda: 1000.0)).sample()
    with_bookings, without = seen.gpus
    assert with_bookings.booked_mib == 6500
    assert [(one.uid, one.job, one.booked_mib, one.tasks, one.held_for) for one in with_bookings.bookings] == [
        (os.getuid(), 4711, 6000, 2, None),
        (os.getuid(), 4712, 500, 2, 17),
    ]
    assert (without.booked_mib, without.bookings) == (None, ())
    for live in launchers:
        live.close()


def test_a_sampler_goes_on_where_another_one_ended() -> None:
    driver = FakeBinding(FakeGpu("GPU-a", compute={os.getpid(): 90}))
    clock = [1000.0]
    before = make(driver, clock)
    before.sample()
    clock[0] += 5
    before.sample()
    after = make(driver, clock)
    memory = before.remember()
    with pytest.raises(StateError):
        after.recall(memory[:-1])
    assert after.recall(memory)
    clock[0] += 5
    seen = after.sample()
    assert (seen.measured_s, seen.interval_s) == (10.0, 5.0)
    assert not after.recall(memory.replace(b'"boot_id":"', b'"boot_id":"x'))
