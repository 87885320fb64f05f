"""The sampler: kernel and driver put together, and its memory."""

from __future__ import annotations

import os

import pytest

from slurm_share.core.errors import StateError
from slurm_share.load.collectors import NodeReader
from slurm_share.load.sampler import Sampler
from slurm_share.node.gpus.load import NvmlSession
from slurm_share.testing import FakeBinding, FakeGpu


def make(driver: FakeBinding, clock: list[float]) -> Sampler:
    kernel = NodeReader("n1", clock=lambda: clock[0], wall_clock=lambda: 1e9 + clock[0])
    return Sampler("n1", kernel=kernel, driver=NvmlSession(driver, lambda: clock[0]))


def test_this_process_on_a_gpu() -> None:
    """What the driver lists is looked up in /proc; a pid that is not there is nobody."""
    driver = FakeBinding(FakeGpu("GPU-a", (100, 60), compute={os.getpid(): 50, 2**22 + 1: 10}, sm={os.getpid(): 30}))
    clock = [1000.0]
    sampler = make(driver, clock)
    first = sampler.sample()
    assert (first.measured_s, first.node, first.view, first.source) == (0.0, "n1", "", "local")
    clock[0] += 5
    seen = sampler.sample()
    (process,) = seen.processes
    assert (process.pid, process.uid, process.gpus[0].sm_percent) == (os.getpid(), os.getuid(), 30.0)
    assert (seen.gpus[0].clients, seen.interval_s, seen.users[0].gpu_memory_mib) == (1, 5.0, 50)
    sampler.close()
    assert driver.open == 0


def test_a_sampler_goes_on_where_another_one_ended() -> None:
    """Its first look has rates; what is torn is refused, and nothing has changed then."""
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
