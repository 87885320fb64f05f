"""From raw samples to a Snapshot: a node is walked through time, one thing going wrong in each test."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_share.core.errors import StateError
from slurm_share.load.rules import fold, history, job_load
from slurm_share.load.rules.history import NodeHistory
from slurm_share.load.snapshot import JobLoad, ProcessLoad, Snapshot
from slurm_share.node.gpu_figures import Activity
from slurm_share.node.readings import DriverNow, GpuNow, HostNow, JobNow, ProcessNow, ProcessSm
from slurm_share.node.records import GpuProcess

ALICE, BOB = 2001, 2002
# The figures of a GPU that these tests leave out.
LEFT_OUT = ("power_w", "energy_j", "temperature_c", "activity", "minor", "sm_time_percent", "utilization_percent")


def gpu(uuid: str = "GPU-a", index: int = 0, **fields: Any) -> GpuNow:
    """A GPU of 80 GiB with what is stated: `pids` maps a process to its memory, `use` to its percent."""
    pids: dict[int, int | None] = fields.pop("pids", {})
    use: dict[int, float] | None = fields.pop("use", {})
    return GpuNow(
        **{
            "uuid": uuid,
            "index": index,
            "name": "Fake GPU",
            "memory_total_mib": 81920,
            "memory_used_mib": sum(mib or 0 for mib in pids.values()),
            "utilization_percent": 50.0,
            "processes": tuple(GpuProcess(pid, mib) for pid, mib in pids.items()),
            "process_sm": None if use is None else tuple(ProcessSm(pid, percent) for pid, percent in use.items()),
            "unknown": dict.fromkeys(LEFT_OUT, "not told"),
            **fields,
        }
    )


def process(pid: int, **fields: Any) -> ProcessNow:
    job = fields.get("job", 1)
    user = {ALICE: "alice", BOB: "bob"}[fields.setdefault("uid", ALICE)]
    return ProcessNow(
        **{
            "pid": pid,
            "start_ticks": pid * 10,
            "name": "python",
            "user": user,
            "cpu_s": 0.0,
            "memory_mib": 500,
            "own_mib": 400,
            "job": job,
            "step": None if job is None else "0",
            "task": None if job is None else 0,
            "task_key": f"0/{pid}",
            **fields,
        }
    )


def job(number: int = 1, uid: int = ALICE, **fields: Any) -> JobNow:
    cpu = fields.pop("cpu", 0.0)
    return JobNow(
        **{
            "job": number,
            "uid": uid,
            "user": {ALICE: "alice", BOB: "bob"}[uid],
            "cpu_s": None if cpu is None else {"cgroup": cpu},
            "memory_mib": 1000,
            "memory_kills": 0,
            **fields,
        }
    )


class Walk:
    """One node and its past, a look at a time."""

    def __init__(self) -> None:
        self.history = NodeHistory()
        self.at = 1000.0

    def read(
        self,
        *gpus: GpuNow,
        processes: tuple[ProcessNow, ...] = (),
        jobs: tuple[JobNow, ...] = (),
        after: float = 5.0,
        taken: float | None = None,
        boot_id: str = "boot-1",
        problems: tuple[str, ...] = (),
        hidden: tuple[int, ...] = (),
        busy_s: float | None = 0.0,
    ) -> Snapshot:
        self.at += after
        host = HostNow(
            boot_id=boot_id,
            taken=1e9 + self.at if taken is None else taken,
            at=self.at,
            cpus=16,
            cores=8,
            load=(1.0, 2.0, 3.0),
            busy_s=busy_s,
            memory_total_mib=4096,
            memory_used_mib=1024,
            processes=processes,
            jobs=jobs,
            hidden=hidden,
        )
        version = None if problems and not gpus else "550.0-fake"
        driver = DriverNow(version=version, gpus=gpus, problems=problems)
        self.history, seen = fold.fold(self.history, host, driver, "n1", "1.2.3")
        _check_reasons(seen)
        return seen


def _check_reasons(seen: Snapshot) -> None:
    """Every figure that is None has its reason, unless None means "none": that is the record's promise."""
    means_none = {
        *("mig_of", "booked_mib", "problem", "interval_s", "gpu_sums", "start_ticks", "job", "step", "task", "slot"),
        *("cap_mib", "connections", "progress", "unused_s"),
    }
    for record in (seen, *seen.gpus, *seen.processes, *seen.jobs, *seen.users):
        for field, name in zip(record.__struct_fields__, record.__struct_encode_fields__, strict=True):
            if getattr(record, field) is None and field not in means_none:
                assert name in record.unknown, (type(record).__name__, field)
    for gpu in seen.gpus:
        names = zip(Activity.__struct_fields__, Activity.__struct_encode_fields__, strict=True)
        for field, name in names:
            if getattr(gpu.activity, field) is None and "activity" not in gpu.unknown:
                assert f"activity.{name}" in gpu.unknown


@pytest.fixture
def walk() -> Walk:
    return Walk()


def only(seen: Snapshot) -> tuple[ProcessLoad, JobLoad]:
    (one,), (its_job,) = seen.processes, seen.jobs
    return one, its_job


# ---- Rates ----


def test_the_first_look_has_no_rates(walk: Walk) -> None:
    seen = walk.read(gpu(pids={7: 100}), processes=(process(7),), jobs=(job(),))
    assert (seen.measured_s, seen.interval_s, seen.cpu_cores) == (0.0, None, None)
    assert (seen.node, seen.version, seen.driver) == ("n1", "1.2.3", "550.0-fake")
    one, its_job = only(seen)
    assert (one.cpu_cores, its_job.cpu_cores, its_job.cpu_cores_windows) == (None, None, None)
    assert one.unknown["cpu_cores"] == its_job.unknown["cpu_cores"] == "one sample so far"
    (card,) = seen.gpus
    assert (card.utilization_percent, card.utilization_percent_windows, card.clients) == (50.0, None, 1)
    assert (its_job.gpu_memory_mib, its_job.memory_mib, its_job.task_peak_mib) == (100, 1000, 100)


def test_rates_are_differences_over_time(walk: Walk) -> None:
    card = gpu(pids={7: 100})
    walk.read(card, processes=(process(7, cpu_s=10.0),), jobs=(job(cpu=20.0),), busy_s=100.0)
    seen = walk.read(card, processes=(process(7, cpu_s=15.0),), jobs=(job(cpu=40.0),), busy_s=130.0)
    one, its_job = only(seen)
    assert (one.cpu_cores, its_job.cpu_cores, seen.cpu_cores) == (1.0, 4.0, 6.0)
    assert (its_job.cpu_cores_windows.m5, its_job.cpu_cores_windows.over_s) == (4.0, 5.0)
    assert (seen.measured_s, its_job.measured_s) == (5.0, 5.0)


def test_a_wall_clock_that_jumps_moves_only_the_time_that_is_shown(walk: Walk) -> None:
    walk.read(gpu(pids={7: 1}), processes=(process(7),), jobs=(job(),), taken=2e9)
    seen = walk.read(gpu(pids={7: 1}), processes=(process(7, cpu_s=5.0),), jobs=(job(cpu=5.0),), taken=1e9)
    assert (seen.taken, seen.processes[0].cpu_cores, seen.measured_s) == (1e9, 1.0, 5.0)


def test_two_looks_at_once_have_no_rate(walk: Walk) -> None:
    walk.read(busy_s=1.0)
    seen = walk.read(busy_s=2.0, after=0.001)
    assert (seen.cpu_cores, seen.interval_s) == (None, None)


def test_a_counter_that_goes_back_is_no_rate(walk: Walk) -> None:
    walk.read(jobs=(job(cpu=500.0),), busy_s=10.0)
    seen = walk.read(jobs=(job(cpu=1.0),), busy_s=5.0)
    assert (seen.jobs[0].cpu_cores, seen.cpu_cores) == (None, None)
    assert walk.read(jobs=(job(cpu=6.0),), busy_s=10.0).jobs[0].cpu_cores == 1.0


@pytest.mark.parametrize(("llload", "cores"), [(0.5, 1.0), (1.0, 1.0), (15.0, 3.8)])
def test_the_cpu_time_of_llloads_steps_is_not_the_jobs(walk: Walk, llload: float, cores: float) -> None:
    """The start of each, and 0.2 cores after it, but no more: anybody can name a program so."""
    walk.read(jobs=(job(cpu=10.0, llload_s={"step_1": 5.0}),))
    used = 5 * 1.0 + llload + 1.5
    seen = walk.read(jobs=(job(cpu=10.0 + used, llload_s={"step_1": 5.0 + llload, "step_2": 1.5}),))
    assert seen.jobs[0].cpu_cores == pytest.approx(cores)


def test_steps_that_come_and_go_are_counted_for_what_they_did(walk: Walk) -> None:
    """Without cgroups each step is a counter: a new one counts from 0, one that has gone is not taken off."""
    walk.read(jobs=(job(cpu_s={"0": 100.0, "1": 5.0}),))
    seen = walk.read(jobs=(job(cpu_s={"1": 10.0, "2": 5.0}),))
    assert seen.jobs[0].cpu_cores == 2.0


def test_a_number_that_was_given_to_another_process_is_another(walk: Walk) -> None:
    walk.read(gpu(pids={7: 900}), processes=(process(7, cpu_s=100.0),), jobs=(job(),))
    seen = walk.read(gpu(pids={7: 10}), processes=(process(7, start_ticks=99, cpu_s=900.0),), jobs=(job(),))
    one, its_job = only(seen)
    assert (one.cpu_cores, one.gpus[0].peak_mib, its_job.task_peak_mib) == (None, 10, 900)


def test_a_process_that_has_gone_between_two_reads_is_not_shown(walk: Walk) -> None:
    seen = walk.read(gpu(pids={7: 100, 8: 50}), processes=(process(7),), jobs=(job(),))
    assert [one.pid for one in seen.processes] == [7]
    assert (seen.gpus[0].clients, seen.gpus[0].others_mib, seen.gpus[0].memory_used_mib) == (1, 0, 150)


def test_a_hidden_process_is_somebody_elses(walk: Walk) -> None:
    seen = walk.read(gpu(pids={7: 100, 8: 50}), processes=(process(7),), jobs=(job(),), hidden=(8,))
    assert (seen.gpus[0].clients, seen.gpus[0].others_mib) == (2, 50)


def test_a_suspended_job_uses_nothing_and_keeps_its_peaks(walk: Walk) -> None:
    walk.read(gpu(pids={7: 900}, use={7: 40}), processes=(process(7, cpu_s=9.0),), jobs=(job(cpu=9.0),))
    for _ in range(3):
        idle = gpu(pids={7: 200}, utilization_percent=0.0)
        seen = walk.read(idle, processes=(process(7, cpu_s=9.0),), jobs=(job(cpu=9.0),))
    one, its_job = only(seen)
    assert (one.cpu_cores, one.gpus[0].sm_time_percent, its_job.cpu_cores, its_job.gpu_load) == (0.0, 0.0, 0.0, 0.0)
    assert (its_job.task_peak_mib, one.gpus[0].peak_mib, its_job.tasks) == (900, 900, 1)


def test_a_long_gap_is_not_time_that_was_watched(walk: Walk) -> None:
    walk.read(gpu(), jobs=(job(cpu=0.0),))
    seen = walk.read(gpu(utilization_percent=80.0), jobs=(job(cpu=3600.0),), after=3600.0)
    assert seen.jobs[0].cpu_cores == 1.0
    assert (seen.measured_s, seen.jobs[0].measured_s) == (0.0, 0.0)
    assert seen.gpus[0].utilization_percent_windows.over_s == fold.GAP_S


# ---- Use of a GPU by a process ----


def test_use_that_is_left_out_is_held_for_a_round_and_then_0(walk: Walk) -> None:
    found = []
    for use in ({7: 40.0}, {}, {}, {7: 10.0}):
        seen = walk.read(gpu(pids={7: 100}, use=use), processes=(process(7),), jobs=(job(),))
        found.append(seen.processes[0].gpus[0].sm_time_percent)
    assert found == [40.0, 40.0, 0.0, 10.0]


def test_between_quick_looks_use_is_held_for_a_second(walk: Walk) -> None:
    walk.read(gpu(pids={7: 100}, use={7: 40.0}), processes=(process(7),), jobs=(job(),))
    for expected in (40.0, 40.0, 40.0):
        seen = walk.read(gpu(pids={7: 100}), processes=(process(7),), jobs=(job(),), after=0.15)
        assert seen.processes[0].gpus[0].sm_time_percent == expected


def test_use_by_strangers_is_left_out(walk: Walk) -> None:
    seen = walk.read(gpu(pids={7: 100}, use={7: 40.0, 99: 60.0}), processes=(process(7),), jobs=(job(),))
    assert seen.jobs[0].gpu_load == 0.5
    assert len(seen.processes) == 1


def test_a_job_s_gpu_load_is_the_figure_of_its_gpus(walk: Walk) -> None:
    """The mean of five minutes that the GPU's own line has, by SM activity where there is any; of a user the same. A
    GPU at 95 % at this moment is no 95 % there and 76 % here."""
    for sm in (76.0, 57.0, 95.0):
        on = {"pids": {7: 100}, "use": {7: 95.0}, "activity": Activity(sm_percent=sm)}
        two = (gpu(**on), gpu("GPU-b", 1, **on))
        seen = walk.read(*two, processes=(process(7),), jobs=(job(),), after=60.0)
    loads = [one.load_percent_5min for one in seen.gpus]
    assert loads == [76.0, 76.0]
    assert (seen.jobs[0].gpu_load, seen.users[0].gpu_load) == (1.52, 1.52)


def test_a_job_s_gpu_load_begins_with_the_job(walk: Walk) -> None:
    for _ in range(3):
        walk.read(gpu(pids={7: 100}, utilization_percent=90.0), processes=(process(7),), jobs=(job(),))
    for _ in range(3):
        later = gpu(pids={8: 100}, utilization_percent=10.0)
        seen = walk.read(later, processes=(process(8, job=2, uid=BOB),), jobs=(job(2, BOB),))
    assert seen.gpus[0].load_percent_5min == 42.0  # of 25 s, with the first look 5 s earlier
    assert [one.gpu_load for one in (*seen.jobs, *seen.users)] == [0.1, 0.1]


def test_the_load_of_a_gpu_with_two_jobs_is_divided_as_the_driver_divides_its_time(walk: Walk) -> None:
    both = (process(7), process(8, job=2, uid=BOB))
    jobs = (job(), job(2, BOB))
    for use, expected in (({7: 60.0, 8: 20.0}, [0.375, 0.125]), ({}, [0.375, 0.125]), ({}, [0.25, 0.25])):
        seen = walk.read(gpu(pids={7: 100, 8: 100}, use=use), processes=both, jobs=jobs)
        assert [one.gpu_load for one in seen.jobs] == expected
    seen = walk.read(
        gpu(pids={7: 100, 9: 50}, use={7: 30.0, 9: 10.0}), processes=(process(7),), jobs=(job(),), hidden=(9,)
    )
    assert seen.jobs[0].gpu_load == 0.375


def test_use_that_is_not_told_is_unknown_and_not_0(walk: Walk) -> None:
    two = (process(7), process(8, job=2))
    seen = walk.read(gpu(pids={7: 100}, use=None), processes=(process(7),), jobs=(job(),))
    assert seen.jobs[0].gpu_load == 0.5
    seen = walk.read(gpu(pids={7: 100, 8: 1}, use=None), processes=two, jobs=(job(), job(2)))
    one, its_job = seen.processes[0], seen.jobs[0]
    assert (one.gpus[0].sm_time_percent, its_job.gpu_load) == (None, None)
    seen = walk.read(gpu(pids={7: 100, 9: 1}, use=None), processes=(process(7),), jobs=(job(),), hidden=(9,))
    one, its_job = only(seen)
    assert (
        one.unknown["gpus.sm_time_percent"]
        == its_job.unknown["gpu_load"]
        == seen.users[0].unknown["gpu_load"]
        == "not told"
    )


# ---- Tasks and peaks ----


def test_a_task_is_all_its_processes_on_all_its_gpus(walk: Walk) -> None:
    cards = (gpu("GPU-a", pids={7: 100, 9: 30}), gpu("GPU-b", 1, pids={7: 200, 8: 50}))
    people = (process(7, task_key="0/0"), process(8, task_key="0/0"), process(9, task_key="0/1"))
    seen = walk.read(*cards, processes=people, jobs=(job(),))
    (its_job,) = seen.jobs
    assert (its_job.tasks, its_job.task_peak_mib, its_job.gpu_memory_mib) == (2, 350, 380)
    assert (its_job.gpus, its_job.tasks_measured, its_job.tasks_at_once) == (("GPU-a", "GPU-b"), 2, 2)
    assert seen.processes[0].gpus[1].memory_mib == 200


def test_a_peak_outlives_its_task(walk: Walk) -> None:
    walk.read(gpu(pids={7: 900}), processes=(process(7),), jobs=(job(),))
    walk.read(gpu(pids={8: 100, 9: 100}), processes=(process(8), process(9)), jobs=(job(),))
    seen = walk.read(gpu(pids={7: 50}), processes=(process(7),), jobs=(job(),))
    (its_job,) = seen.jobs
    assert (its_job.task_peak_mib, its_job.tasks_measured, its_job.tasks_at_once, its_job.tasks) == (900, 3, 2, 1)


def test_host_memory_of_a_task_is_its_own_or_the_mean(walk: Walk) -> None:
    people = (process(7, own_mib=400), process(8, own_mib=700))
    seen = walk.read(gpu(pids={7: 1, 8: 1}), processes=people, jobs=(job(memory_mib=1000),))
    assert seen.jobs[0].task_host_peak_mib == 700
    seen = walk.read(gpu(pids={7: 1, 8: 1}), processes=people, jobs=(job(memory_mib=4000),))
    assert seen.jobs[0].task_host_peak_mib == 2000


def test_what_all_tasks_made_is_not_the_last_ones(walk: Walk) -> None:
    """4000 MiB of two tasks, with what they share: neither the first that came nor the last that stays has it all."""
    one, two = process(7, own_mib=400), process(8, own_mib=700)
    peaks = []
    for people in ((one,), (one, two), (one,), (one, two), (two,)):
        card = gpu(pids={person.pid: 1 for person in people})
        peaks.append(walk.read(card, processes=people, jobs=(job(memory_mib=4000),)).jobs[0].task_host_peak_mib)
    assert peaks == [4000, 2000, 2000, 2000, 2000]


def test_mps_itself_is_no_task(walk: Walk) -> None:
    people = (process(7), process(8, name="nvidia-cuda-mps-server"[:15]))
    seen = walk.read(gpu(pids={7: 100, 8: 500}), processes=people, jobs=(job(),))
    (its_job,) = seen.jobs
    assert (its_job.tasks, its_job.task_peak_mib, its_job.gpu_memory_mib) == (1, 100, 600)


def test_memory_that_the_driver_does_not_tell_makes_no_peak(walk: Walk) -> None:
    seen = walk.read(gpu(pids={7: None, 8: 100}), processes=(process(7), process(8)), jobs=(job(),))
    (its_job,) = seen.jobs
    assert (its_job.gpu_memory_mib, its_job.task_peak_mib, seen.users[0].gpu_memory_mib) == (None, 100, None)


def test_a_hundred_thousand_tasks_take_no_more_memory_than_some(walk: Walk) -> None:
    for first in range(0, 4000, 40):
        pids = dict.fromkeys(range(first + 1, first + 41), 10)
        people = tuple(process(pid, task_key=f"0/0/l{pid}") for pid in pids)
        seen = walk.read(gpu(pids=pids), processes=people, jobs=(job(),))
    assert seen.jobs[0].tasks_measured == 4000
    assert len(walk.history.jobs[1].task_keys) == job_load.MAX_TASKS
    assert len(walk.history.processes) <= 40 * (fold.GAP_S / 5 + 1)


def test_kills_are_counted_though_a_steps_counter_goes_with_it(walk: Walk) -> None:
    for counter, expected in ((0, 0), (2, 2), (0, 2), (1, 3), (None, 3)):
        unknown = {} if counter is not None else {"memory_kills": "not told"}
        seen = walk.read(jobs=(job(memory_kills=counter, unknown=unknown),))
        assert seen.jobs[0].memory_kills == expected


# ---- Whose it is ----


def test_a_job_of_somebody_else_is_not_believed(walk: Walk) -> None:
    people = (process(7), process(8, uid=BOB, is_own_claim=True), process(9, uid=BOB))
    seen = walk.read(gpu(pids={7: 100, 8: 50, 9: 5}), processes=people, jobs=(job(),))
    assert [one.job for one in seen.processes] == [1, None, None]
    assert seen.jobs[0].gpu_memory_mib == 100
    alice, bob = seen.users
    assert (alice.user, alice.gpu_memory_mib, alice.jobs) == ("alice", 100, (1,))
    assert (bob.user, bob.gpu_memory_mib, bob.jobs, bob.processes) == ("bob", 55, (), 2)


def test_a_processs_own_word_makes_no_job(walk: Walk) -> None:
    own = process(7, is_own_claim=True)
    assert walk.read(gpu(pids={7: 1}), processes=(own,)).processes[0].job is None
    assert walk.read(gpu(pids={7: 1}), processes=(own,), jobs=(job(),)).processes[0].job == 1


def test_a_job_without_a_step_is_known_by_its_process(walk: Walk) -> None:
    seen = walk.read(gpu(pids={7: 100}), processes=(process(7),))
    (its_job,) = seen.jobs
    assert (its_job.job, its_job.gpu_memory_mib, its_job.cpu_cores, its_job.memory_mib) == (1, 100, None, None)
    assert its_job.unknown["memory_mib"] == "no step of the job is on this node"


def test_a_number_that_slurm_gave_again_is_another_job(walk: Walk) -> None:
    walk.read(gpu(pids={7: 900}), processes=(process(7),), jobs=(job(),))
    seen = walk.read(gpu(pids={8: 10}), processes=(process(8, uid=BOB),), jobs=(job(uid=BOB),))
    assert (seen.jobs[0].task_peak_mib, seen.jobs[0].measured_s) == (10, 0.0)


def test_share_and_slots_are_what_a_task_says(walk: Walk) -> None:
    seen = walk.read(gpu(pids={7: 1}), processes=(process(7, share=4, slots=8),), jobs=(job(),))
    assert (seen.jobs[0].share, seen.jobs[0].slots) == (4, 8)
    closed = process(8, unknown={"slot": "closed", "cap_mib": "closed"})
    seen = walk.read(gpu(pids={8: 1}), processes=(closed,), jobs=(job(),))
    assert (seen.jobs[0].share, "environment" in seen.jobs[0].unknown["share"]) == (None, True)


# ---- GPUs ----


def test_sm_activity_and_memory_bandwidth_are_windowed_beside_utilisation(walk: Walk) -> None:
    walk.read(gpu())
    for sm in (20.0, 40.0):
        activity = Activity(**dict.fromkeys(Activity.__struct_fields__, sm))
        seen = walk.read(gpu(activity=activity), after=5)
    (card,) = seen.gpus
    assert card.load_percent_windows == card.sm_percent_windows
    assert [one.m1 for one in (card.sm_percent_windows, card.dram_percent_windows)] == [30.0, 30.0]
    assert card.utilization_percent_windows.m1 == 50.0
    assert (card.activity.sm_percent, card.activity.dram_percent) == (40.0, 40.0)


def stays(seen: Snapshot) -> dict[int, tuple[float, float] | None]:
    """User -> (mean utilisation, seconds it is over) of the time that is the user's."""
    return {
        one.uid: one.utilization_percent_windows
        and (one.utilization_percent_windows.m15, one.utilization_percent_windows.over_s)
        for one in seen.gpus[0].users
    }


def test_a_users_time_on_a_gpu_begins_when_the_user_comes(walk: Walk) -> None:
    alice, bob = process(7), process(8, uid=BOB, job=2)

    def look(used: float, *there: ProcessNow) -> Snapshot:
        pids = dict.fromkeys((one.pid for one in there), 100)
        return walk.read(gpu(pids=pids, utilization_percent=used), processes=there)

    assert stays(look(90.0, bob)) == {BOB: None}
    assert stays(look(90.0, bob)) == {BOB: (90.0, 5.0)}
    assert stays(look(90.0, alice)) == {ALICE: None}
    assert stays(look(10.0, alice)) == {ALICE: (10.0, 5.0)}
    assert stays(look(0.0)) == {ALICE: (5.0, 10.0)}
    assert stays(look(20.0, alice, bob)) == {ALICE: (10.0, 15.0), BOB: None}
    assert stays(look(40.0, bob)) == {BOB: (40.0, 5.0)}
    assert stays(look(10.0, alice, bob)) == {ALICE: None, BOB: (25.0, 10.0)}


def test_somebody_who_cannot_be_seen_ends_a_stay_all_the_same(walk: Walk) -> None:
    walk.read(gpu(pids={7: 1}), processes=(process(7),))
    server = process(9, name="nvidia-cuda-mps-server", uid=BOB, job=None)
    assert stays(walk.read(gpu(pids={9: 1}), processes=(server,))) == {ALICE: (50.0, 5.0)}
    assert stays(walk.read(gpu(pids={8: 1}), hidden=(8,))) == {}
    assert stays(walk.read(gpu(pids={7: 1}), processes=(process(7),))) == {ALICE: None}


def test_who_was_on_a_gpu_is_forgotten_in_time(walk: Walk) -> None:
    walk.read(gpu(pids={7: 1}), processes=(process(7),))
    walk.history = history.recall(history.render(walk.history), "boot-1") or walk.history
    for _ in range(15):
        assert stays(walk.read(gpu(), after=60)).keys() == {ALICE}
    assert stays(walk.read(gpu(), after=60)) == {}


def test_instances_are_counted_and_their_gpu_is_not(walk: Walk) -> None:
    parent = gpu("GPU-a", mig_parent=True, memory_used_mib=700)
    first = gpu("MIG-1", mig_of="GPU-a", pids={7: 500}, use=None)
    second = gpu("MIG-2", mig_of="GPU-a", pids={8: 200}, use=None)
    seen = walk.read(parent, first, second, processes=(process(7), process(8)), jobs=(job(),))
    assert sum(one.memory_used_mib or 0 for one in seen.whole_gpus) == 700
    assert (seen.jobs[0].gpu_memory_mib, seen.jobs[0].gpus) == (700, ("MIG-1", "MIG-2"))


def test_a_gpu_that_is_lost_for_a_while_keeps_its_windows_and_peaks(walk: Walk) -> None:
    """While it is lost its figures are unknown; when it is back its window has a hole and no zeros."""
    for _ in range(3):
        walk.read(gpu(pids={7: 900}), processes=(process(7),), jobs=(job(),))
    nothing = ("memory_total_mib", "memory_used_mib", "utilization_percent", "processes", "sm_time_percent", "activity")
    lost = GpuNow(
        uuid="GPU-a",
        index=0,
        name="Fake GPU",
        problem="GPU is lost",
        unknown=dict.fromkeys((*nothing, "power_w", "energy_j", "temperature_c", "minor"), "GPU is lost"),
    )
    seen = walk.read(lost, jobs=(job(),), problems=("GPU 0 does not answer",))
    assert (seen.gpus[0].problem, seen.gpus[0].clients, seen.gpus[0].memory_used_mib) == ("GPU is lost", None, None)
    assert seen.problems == ("GPU 0 does not answer",)
    seen = walk.read(gpu(pids={7: 100}), processes=(process(7),), jobs=(job(),))
    assert (seen.gpus[0].utilization_percent_windows.m1, seen.processes[0].gpus[0].peak_mib) == (50.0, 900)


def test_a_node_without_a_driver_still_has_cores_and_jobs(walk: Walk) -> None:
    seen = walk.read(jobs=(job(),), problems=("this node has no NVIDIA driver",))
    assert (seen.driver, seen.gpus, seen.jobs[0].job, seen.cores) == (None, (), 1, 8)
    assert seen.unknown["driver"] == "this node has no NVIDIA driver"


# ---- Over a restart ----


@pytest.mark.parametrize(
    "data", [b"", b"null", b"{", b"\xff", b'{"version":99,"boot_id":"boot-1"}', b'{"jobs":{"x":1}}']
)
def test_what_is_no_past_is_refused_with_a_sentence(data: bytes) -> None:
    with pytest.raises(StateError, match="the sampler's stored history: "):
        history.recall(data, "boot-1")


def test_a_past_of_another_boot_is_not_taken_up(walk: Walk) -> None:
    walk.read(jobs=(job(cpu=5.0),))
    assert history.recall(history.render(walk.history), "boot-2") is None
    seen = walk.read(jobs=(job(cpu=9.0),), boot_id="boot-2")
    assert (seen.measured_s, seen.jobs[0].cpu_cores) == (0.0, None)


def test_jobs_that_have_gone_are_forgotten_in_time(walk: Walk) -> None:
    walk.read(gpu(pids={7: 900}), processes=(process(7),), jobs=(job(),))
    walk.read()
    assert walk.read(jobs=(job(),)).jobs[0].task_peak_mib == 900
    walk.read(after=job_load.KEPT_S + 1)
    walk.read()
    assert walk.history.jobs == {}
    assert walk.history.processes == {}
