"""The use by jobs, from a node's samples: totals, idle times, energy that adds up, restarts of agent and jobs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_share.load.rules import fold
from slurm_share.load.rules.history import NodeHistory
from slurm_share.load.rules.job_energy import StoredNode
from slurm_share.load.rules.job_use import JobFacts, JobRecord, NodeUse, StoredJob
from slurm_share.load.snapshot import Snapshot
from slurm_share.node.cgroups import GroupUse
from slurm_share.node.gpu_figures import Activity
from slurm_share.node.readings import DriverNow, GpuNow, HostNow, JobNow, ProcessNow, ProcessSm
from slurm_share.node.records import GpuProcess

ALICE, BOB = 2001, 2002


def gpu(uuid: str = "GPU-a", index: int = 0, **fields: Any) -> GpuNow:
    """A GPU of 80 GiB. `pids`: process -> (MiB, percent of SM time)."""
    pids: dict[int, tuple[int, float]] = fields.pop("pids", {})
    extra: dict[int, float] = fields.pop("gone", {})
    return GpuNow(
        **{
            "uuid": uuid,
            "index": index,
            "name": "Fake GPU",
            "memory_total_mib": 81920,
            "memory_used_mib": sum(mib for mib, _ in pids.values()),
            "utilization_percent": min(100.0, sum(sm for _, sm in pids.values())),
            "activity": Activity(sm_percent=20.0, dram_percent=10.0),
            "power_w": 100.0,
            "processes": tuple(GpuProcess(pid, mib) for pid, (mib, _) in pids.items()),
            "process_sm": tuple(
                ProcessSm(pid, sm) for pid, sm in {**{pid: sm for pid, (_, sm) in pids.items()}, **extra}.items() if sm
            ),
            **fields,
        }
    )


def process(pid: int, job: int | None = 1, uid: int = ALICE, **fields: Any) -> ProcessNow:
    return ProcessNow(
        **{
            "pid": pid,
            "start_ticks": pid * 10,
            "name": "python",
            "uid": uid,
            "user": {ALICE: "alice", BOB: "bob"}[uid],
            "cpu_s": 1.0,
            "own_mib": 400,
            "job": job,
            "step": None if job is None else "0",
            "task": None if job is None else pid,
            "task_key": f"0/{pid}",
            **fields,
        }
    )


def job(number: int = 1, uid: int = ALICE, cpu: float = 0.0, **fields: Any) -> JobNow:
    use = GroupUse(start="s1", cpus=4, cpu_wait_s=1.5, io_wait_s=0.5, memory_limit_mib=4096)
    return JobNow(
        **{
            "job": number,
            "uid": uid,
            "user": {ALICE: "alice", BOB: "bob"}[uid],
            "cpu_s": {"cgroup": cpu},
            "memory_mib": 1000,
            "memory_kills": 0,
            "use": use,
            **fields,
        }
    )


class Walk:
    """One node with its totals, a sample at a time."""

    def __init__(self) -> None:
        self.history = NodeHistory()
        self.use = NodeUse("n1")
        self.at = 1000.0
        self.ended: list[JobRecord] = []
        self.granted: dict[int, tuple[str, ...]] = {}
        self.facts: dict[int, JobFacts] = {}

    def sample(
        self,
        *gpus: GpuNow,
        processes: tuple[ProcessNow, ...] = (),
        jobs: tuple[JobNow, ...] = (),
        after: float = 5.0,
        boot_id: str = "boot-1",
    ) -> Snapshot:
        self.at += after
        host = HostNow(
            boot_id=boot_id, taken=1e9 + self.at, at=self.at, cpus=16, cores=8, processes=processes, jobs=jobs
        )
        driver = DriverNow(version="550.0-fake", gpus=gpus)
        self.history, seen = fold.fold(self.history, host, driver, "n1", "1.2.3")
        shown = [replace(one, granted=self.granted.get(one.job, one.granted)) for one in seen.jobs]
        seen = replace(seen, jobs=tuple(shown))
        self.ended = self.use.add(host, driver, seen, lambda number, _uid: self.facts.get(number, JobFacts()))
        return self.use.filled(seen)

    def only(self, number: int = 1) -> JobRecord:
        (found,) = self.use.records(number)
        return found

    def restart(self, boot_id: str = "boot-1") -> list[JobRecord]:
        """Let another agent go on with what this one has stored, as JSON."""
        jobs = [
            msgspec.json.decode(msgspec.json.encode(one), type=StoredJob) for one in self.use.stored_jobs().values()
        ]
        node = msgspec.json.decode(msgspec.json.encode(self.use.stored_node()), type=StoredNode)
        self.use = NodeUse("n1")
        return self.use.restore(boot_id, jobs, node)


@pytest.fixture
def walk() -> Walk:
    return Walk()


def test_a_job_has_its_totals_after_its_end(walk: Walk) -> None:
    walk.sample(gpu(energy_j=0.0, power_w=None))
    for cpu, energy in ((0.0, 500.0), (10.0, 1000.0), (20.0, 1500.0)):
        card = gpu(pids={7: (3000, 40.0)}, energy_j=energy, power_w=None)
        walk.sample(card, processes=(process(7),), jobs=(job(cpu=cpu),))
    walk.sample(gpu(energy_j=2000.0, power_w=None))
    (record,) = walk.ended
    use = record.use
    assert (use.job, use.uid, use.node, use.began, use.ended) == (1, ALICE, "n1", 1e9 + 1010, 1e9 + 1025)
    assert (use.cpus, use.cpu_s, use.cpu_wait_s, use.io_wait_s) == (4, 20.0, 1.5, 0.5)
    assert (use.memory_limit_mib, use.memory_peak_mib, use.memory_kills, use.measured_s) == (4096, 1000, 0, 10.0)
    assert (use.by["cpu_s"], use.by["memory_peak_mib"]) == ("cgroup", "agent")
    (card,) = use.gpus
    assert (card.utilization_percent, card.sm_percent, card.dram_percent, card.own_sm_percent) == (40, 20, 10, 40)
    assert (card.memory_peak_mib, card.idle_s, card.was_shared, card.measured_s) == (3000, 0.0, False, 15.0)
    assert card.energy is not None
    assert (card.energy.rule, card.device_j) == ("counter", 2000.0)
    # the half of the first and of the last interval is its: it came and ended in their middle, for all we know
    assert (card.energy.joules, use.others[0].unattributed_j) == (1500.0, 500.0)
    (task,) = use.tasks
    assert (task.task, task.step, task.memory_peak_mib, task.gpus[0].memory_peak_mib) == (7, "0", 400, 3000)
    assert "environment" in task.unknown["slot"]
    assert (record.series.at, record.series.cpu_cores) == ([1e9 + 1010, 1e9 + 1015, 1e9 + 1020], [None, 2.0, 2.0])
    assert record.series.gpus[0].memory_mib == [3000, 3000, 3000]


def test_a_gpu_that_a_job_holds_and_does_not_use_is_idle_and_its_energy_is_nobodys(walk: Walk) -> None:
    walk.sample(gpu("GPU-a"), gpu("GPU-b", 1, energy_j=0.0))
    for energy in (100.0, 200.0, 300.0):
        walk.sample(gpu("GPU-a"), gpu("GPU-b", 1, energy_j=energy), jobs=(job(),))
    walk.granted[1] = ("GPU-b",)  # Slurm tells it late
    seen = walk.sample(gpu("GPU-a"), gpu("GPU-b", 1, energy_j=400.0), jobs=(job(),))
    (card,) = walk.only().use.gpus
    assert (card.uuid, card.idle_s, card.idle_longest_s, card.measured_s) == ("GPU-b", 15.0, 15.0, 15.0)
    assert card.energy is not None
    assert card.energy.joules == 0
    assert seen.gpus[1].unattributed_energy_j == 400.0
    assert seen.jobs[0].energy_j == 0.0
    pids = {7: (10, 50.0)}
    walk.sample(gpu("GPU-b", 1, pids=pids, energy_j=500.0), processes=(process(7),), jobs=(job(),))
    walk.sample(gpu("GPU-b", 1, energy_j=500.0), jobs=(job(),))
    walk.sample(gpu("GPU-b", 1, energy_j=500.0), jobs=(job(),))
    (card,) = walk.only().use.gpus
    assert card.idle_longest_s == 15.0
    assert card.measured_s == 30.0
    assert card.idle_s == 25.0  # 15 before, and 10 after its kernels; it ran in one interval


def test_a_shared_gpus_energy_is_divided_by_sm_time_and_adds_up(walk: Walk) -> None:
    for number, energy in enumerate((0.0, 1000.0, 2000.0, 3000.0)):
        card = gpu(pids={7: (10, 60.0), 8: (10, 20.0), 9: (10, 20.0)}, energy_j=energy)
        processes = (process(7), process(8, 2, BOB), process(9, None, BOB))
        seen = walk.sample(card, processes=processes, jobs=(job(1), job(2, BOB)), after=5.0 + number)
    first, second = walk.only(1).use, walk.only(2).use
    joules = [one.gpus[0].energy.joules for one in (first, second) if one.gpus[0].energy is not None]
    assert joules == pytest.approx([1800.0, 600.0], abs=0.01)  # the process outside of jobs is not spread over them
    assert seen.gpus[0].unattributed_energy_j == pytest.approx(600.0, abs=0.01)
    assert [one.gpus[0].was_shared for one in (first, second)] == [True, True]
    assert [user.energy_j for user in seen.users] == pytest.approx([1800.0, 600.0], abs=0.01)


def test_a_process_between_two_samples_is_the_jobs_that_alone_has_the_gpu(walk: Walk) -> None:
    walk.granted[1] = ("GPU-a",)
    walk.sample(gpu(energy_j=0.0), jobs=(job(),))
    walk.sample(gpu(energy_j=100.0, gone={77: 80.0}), jobs=(job(),))
    (card,) = walk.only().use.gpus
    assert card.energy is not None
    assert card.energy.joules == 50.0
    walk.granted[2] = ("GPU-a",)
    seen = walk.sample(gpu(energy_j=200.0, gone={78: 80.0}), jobs=(job(), job(2, BOB)))
    assert seen.gpus[0].unattributed_energy_j == 150.0


def test_another_agent_goes_on_and_says_for_how_long_there_are_samples(walk: Walk) -> None:
    pids = {7: (100, 50.0)}
    walk.sample(gpu(energy_j=0.0))
    for energy in (100.0, 200.0):
        walk.sample(gpu(pids=pids, energy_j=energy), processes=(process(7),), jobs=(job(cpu=energy),))
    before = walk.only()
    assert walk.restart() == []
    walk.history = NodeHistory()
    seen = walk.sample(
        gpu(pids=pids, energy_j=500.0), processes=(process(7),), jobs=(job(cpu=500.0), job(2)), after=300
    )
    after = walk.only()
    assert (after.use.began, after.use.cpu_s) == (before.use.began, 500.0)
    assert after.use.measured_s == before.use.measured_s  # the gap does not count as measured
    assert seen.jobs[0].energy_j == 450.0  # but its energy was counted
    assert after.series.at[: len(before.series.at)] == before.series.at
    other = walk.only(2).use
    assert other.began is None
    assert "agent" in other.unknown["began"]
    walk.sample(gpu(energy_j=600.0))
    assert {one.use.job for one in walk.ended} == {1, 2}


def test_after_a_boot_the_jobs_of_the_one_before_are_over(walk: Walk) -> None:
    walk.sample()
    walk.sample(jobs=(job(),))
    (over,) = walk.restart("boot-2")
    assert over.use.ended == 1e9 + 1010
    assert "boot" in over.use.unknown["ended"]
    walk.sample(jobs=(job(),), boot_id="boot-2")
    assert walk.only().use.began is None


def test_a_requeued_job_has_a_record_for_each_start(walk: Walk) -> None:
    walk.sample()
    walk.sample(jobs=(job(cpu=50.0),))
    again = replace(job(cpu=1.0), use=GroupUse(start="s2"))
    walk.sample(jobs=(again,))  # so fast that no sample was without it
    walk.sample()
    walk.sample(jobs=(replace(job(cpu=2.0), use=GroupUse(start="s3")),))
    assert [one.use.cpu_s for one in walk.use.records(1)] == [2.0, 1.0]
    walk.facts[1] = JobFacts(restarts=2, began=1e9 + 1024.0)
    walk.sample(jobs=(replace(job(cpu=3.0), use=GroupUse(start="s3")),))
    newest = walk.use.records(1)[0].use
    assert (newest.restarts, newest.began, newest.cpu_s) == (2, 1e9 + 1024.0, 3.0)


def test_a_job_between_two_steps_goes_on(walk: Walk) -> None:
    """salloc without PrologFlags=Contain: between two steps nothing of it is on the node."""
    comes_and_goes = GroupUse()
    walk.sample()
    walk.sample(jobs=(replace(job(cpu=5.0), use=comes_and_goes),))
    walk.sample()
    (ended,) = walk.ended
    walk.sample(jobs=(replace(job(cpu=1.0), use=comes_and_goes),))
    record = walk.only()
    assert (record.use.began, record.use.ended, record.use.cpu_s) == (ended.use.began, None, 6.0)
    assert "pytest" not in str(record)


def test_a_job_number_of_another_user_is_another_job(walk: Walk) -> None:
    walk.sample()
    walk.sample(jobs=(job(1, ALICE, cpu=5.0),))
    walk.sample(jobs=(job(1, BOB, cpu=1.0),))
    assert {(one.use.uid, one.use.cpu_s) for one in walk.use.records(1)} == {(ALICE, 5.0), (BOB, 1.0)}


def test_a_driver_without_energy_says_so(walk: Walk) -> None:
    for _ in range(3):
        card = gpu(pids={7: (1, 1.0)}, power_w=None, unknown={"energy_j": "Not Supported"})
        seen = walk.sample(card, processes=(process(7),), jobs=(job(),))
    (card,) = walk.only().use.gpus
    assert (card.energy, card.unknown["energy"]) == (None, "Not Supported")
    assert (seen.jobs[0].energy_j, seen.gpus[0].unattributed_energy_j) == (None, None)
    assert "agent" in seen.jobs[0].unknown["energy_j"]


_STEP = st.tuples(
    st.integers(0, 3000),  # joules
    st.dictionaries(st.integers(7, 12), st.floats(0, 100), max_size=4),  # processes and their SM time
    st.floats(0.5, 40),
)


@given(st.lists(_STEP, min_size=2, max_size=12), st.integers(0, 11))
@settings(max_examples=60, deadline=None)
def test_charged_energy_and_nobodys_add_up_to_the_counter(steps: Any, restart_at: int) -> None:
    """Over processes that come and go, of three jobs and of none, and another agent in between."""
    walk, counter = Walk(), 0.0
    jobs = {7: 1, 8: 1, 9: 2, 10: 3, 11: None, 12: None}
    first: float | None = None
    charged = 0.0
    for number, (joules, pids, after) in enumerate(steps):
        if number == restart_at:
            walk.restart()
        counter += min(joules, 1500 * after)
        first = counter if first is None else first
        processes = tuple(process(pid, jobs[pid]) for pid in pids)
        there = tuple(job(one) for one in (1, 2, 3) if one in {jobs[pid] for pid in pids})
        card = gpu(pids={pid: (1, sm) for pid, sm in pids.items()}, energy_j=counter)
        seen = walk.sample(card, processes=processes, jobs=there, after=after)
        charged = sum(walk.use._energy.user_mj.values()) / 1000
    assert charged + (seen.gpus[0].unattributed_energy_j or 0.0) == pytest.approx(counter - (first or 0.0), abs=0.02)
    assert all(
        one.gpus[0].energy is not None and one.gpus[0].energy.joules >= 0
        for number in (1, 2, 3)
        for record in walk.use.records(number)
        if (one := record.use).gpus
    )
