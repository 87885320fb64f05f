"""A user with the agent on the node sees the same figures as without it."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_node_load import TICKS, Node, closed

from slurm_share.load.collectors import NodeReader
from slurm_share.load.rules import own_figures
from slurm_share.load.rules.visible import for_user
from slurm_share.load.sampler import NodeSampler
from slurm_share.load.snapshot import Snapshot
from slurm_share.node.gpus.load import NvmlSession
from slurm_share.node.processes import read_user_name
from slurm_share.packing.speed_records import NodeRates, Rate, TaskRate
from slurm_share.testing import FakeBinding, FakeGpu

ME = os.getuid() or 2001
NAME = read_user_name(ME)
AGENT = ME + 1
"""The agent's user."""
JOB, TASKS = 46, {201: 3, 202: 4}
"""A requeued job, and pid -> task of its run."""
CLAIMS = 203
"""A process that left its step: only its environment names the job."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A packed run with two tasks of two processes each, in sessions of their own, without cgroups."""
    made = Node(tmp_path)
    made.add(100, name="slurmstepd", uid=0, title=f"slurmstepd: [{JOB}.0]\0")
    made.add(200, parent=100, name="launch", uid=ME)
    environ = {
        "SLURM_JOB_ID": str(JOB), "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_SHARE_SLOTS": "8",
        "SLURM_SHARE_PER_GPU": "4", "SLURM_SHARE_SHARING": "mps", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=9000M",
        "CUDA_DEVICE_MAX_CONNECTIONS": "2",
        "_SLURM_SHARE_GIVEN": f"{JOB} LLSUB_TASK",
    }  # fmt: skip
    for pid, task in TASKS.items():
        own = {**environ, "LLSUB_TASK": str(task), "SLURM_SHARE_SLOT": str(task)}
        made.add(pid, parent=200, uid=ME, environ=own, session=pid)
        made.add(pid + 100, parent=pid, uid=ME, environ=own, session=pid + 100)
    made.add(CLAIMS, uid=ME, environ={**environ, "LLSUB_TASK": "3", "SLURM_SHARE_SLOT": "3"}, session=CLAIMS)
    live = tmp_path / f"tmp/slurm-share-{ME}/live/{JOB}.1.200"
    live.mkdir(parents=True)
    (live / "bookings.json").write_text(
        json.dumps({"GPU-a": {"job": f"{JOB}.1", "booked_mib": 4096, "tasks": 2, "clients": 4}})
    )
    for folder in (live, *list(live.parents)[:2]):
        folder.chmod(0o700)
    if os.getuid() == 0:
        for path in (live / "bookings.json", live, *list(live.parents)[:2]):
            os.chown(path, ME, ME)
    lock = os.open(live, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    yield made
    os.close(lock)


def sampled(node: Node, tmp: Path, rates: dict[int, tuple[NodeRates, ...]]) -> Snapshot:
    pids = [*TASKS, *(pid + 100 for pid in TASKS), CLAIMS]
    reader = NodeReader(
        "n1", node.proc, node.cgroups, node.sys, clock=lambda: 50.0, wall_clock=lambda: 1e9, tmp=tmp,
        rates=lambda _tmp, _uids: rates,
    )  # fmt: skip
    driver = FakeBinding(FakeGpu("GPU-a", compute=dict.fromkeys(pids, 50)))
    sampler = NodeSampler("n1", kernel=reader, driver=NvmlSession(driver, lambda: 50.0))
    seen = sampler.sample()
    node.add(100, name="slurmstepd", uid=0, title=f"slurmstepd: [{JOB}.0]\0", ticks=(0, 0, TICKS, 0))
    return seen


def test_with_an_agent_a_user_sees_what_the_user_sees_without_one(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every figure. A new one that is read with the user's rights has to be added in `own_figures` as well."""
    tasks = tuple(
        TaskRate(
            task=task, pid=pid, family="f", speed_ratio=0.5, units=9.0,
            rate=Rate(per_s=5.0, error_per_s=0.5, windows=4, source="log"),
        )
        for pid, task in TASKS.items()
    )  # fmt: skip
    rates = {ME: (NodeRates(job=f"{JOB}.1", run="sweep", unix_s=1e9, source="log", tasks=tasks),)}
    alone = for_user(sampled(node, tmp_path / "tmp", rates), ME, NAME)
    with monkeypatch.context() as agents:
        agents.setattr(os, "open", closed(os.open))
        blind = own_figures.closed(sampled(node, tmp_path / "agents", {}), AGENT)
    (job,) = blind.jobs
    assert (job.progress, job.unknown["progress"]) == (None, own_figures.NO_REPORT)
    assert (blind.gpus[0].booked_mib, blind.gpus[0].unknown["booked_mib"]) == (None, own_figures.NO_BOOKINGS)
    assert {"slot", "cap_mib", "connections", "task", "progress"} <= blind.processes[0].unknown.keys()

    reader = NodeReader(
        "n1", node.proc, node.cgroups, node.sys, wall_clock=lambda: 1e9, tmp=tmp_path / "tmp",
        rates=lambda _tmp, _uids: rates,
    )  # fmt: skip
    read = reader.read([one.pid for one in blind.processes], ("GPU-a",))
    seen = own_figures.with_own(for_user(blind, ME, NAME), read)
    assert seen.gpus == alone.gpus
    for with_agent, without in zip(seen.processes, alone.processes, strict=True):
        assert with_agent == without
    (mine,), (other,) = seen.jobs, alone.jobs
    assert (mine.progress.rate_per_s, mine.share, mine.slots, mine.sharing) == (10.0, 4, 8, "mps")
    # The agent's peaks are over its own time, by the sessions of the processes.
    history = {"tasks_at_once", "tasks_measured", "task_peak_mib", "task_host_peak_mib", "gpu_load", "unknown"}
    for field in set(mine.__struct_fields__) - history:
        assert getattr(mine, field) == getattr(other, field), field
    assert {field for field in mine.unknown if field not in other.unknown} <= {"gpu_load"}


def test_root_may_read_all(node: Node, tmp_path: Path) -> None:
    seen = sampled(node, tmp_path / "tmp", {})
    assert own_figures.closed(seen, 0) is seen
    assert "progress" not in own_figures.closed(seen, ME).jobs[0].unknown
