"""One node seen by steps of several jobs, each with its own GPUs before it."""

from __future__ import annotations

from msgspec.structs import replace

from slurm_share.load.rules.merge import merge
from slurm_share.load.snapshot import GpuBooking, GpuLoad, JobLoad, JobProgress, OnGpu, ProcessLoad, Snapshot, UserLoad


def look(minor, *, taken=1.0, pid=None, job=None, memory=100, **other):
    """Return the view of a step with this one GPU: the GPU has number 0 there, and both jobs' cgroups are known."""
    uuid = f"GPU-{minor}"
    process = ProcessLoad(
        pid=pid or 1000 + minor,
        start_ticks=5,
        name="python",
        uid=7,
        user="alice",
        job=job or minor,
        gpus=(OnGpu(uuid=uuid, memory_mib=memory),),
    )
    used = {"gpus": (uuid,), "gpu_memory_mib": memory, "gpu_load": 0.5}
    jobs = tuple(
        JobLoad(
            job=number, uid=7, user="alice", cpu_cores=2.0, **({**used, "tasks": 1} if number == process.job else {})
        )
        for number in (0, 1)
    )
    user = UserLoad(uid=7, user="alice", jobs=(0, 1), processes=1, cpu_cores=4.0, **used)
    gpu = GpuLoad(uuid=uuid, index=0, minor=minor, name="A", memory_used_mib=memory)
    values = {"gpus": (gpu,), "processes": (process,), "jobs": jobs, "users": (user,), "hidden_gpus": 1, **other}
    return Snapshot(node="n1", taken=taken, cpus=8, cores=8, cpu_cores=4.0, **values)


def test_one_look_is_itself():
    only = look(0)
    assert merge([only]) is only


def test_gpus_of_two_steps_stand_beside_one_another_under_their_own_numbers():
    both = merge([look(1), look(0)])
    assert [(gpu.uuid, gpu.index) for gpu in both.gpus] == [("GPU-0", 0), ("GPU-1", 1)]
    assert [process.pid for process in both.processes] == [1001, 1000]
    assert both.hidden_gpus == 0


def test_what_both_see_is_counted_once():
    both = merge([look(0), look(1)])
    assert both.cpu_cores == 4.0
    assert [job.job for job in both.jobs] == [0, 1]
    assert {(job.cpu_cores, job.gpu_memory_mib, job.tasks) for job in both.jobs} == {(2.0, 100, 1)}
    (user,) = both.users
    assert (user.processes, user.gpu_memory_mib, user.gpu_load, user.cpu_cores) == (2, 200, 1.0, 4.0)


def test_two_steps_that_see_the_same_are_one_look():
    assert merge([look(0, taken=1.0), look(0, taken=2.0, memory=150)]) == look(0, taken=2.0, memory=150)


def test_each_step_adds_what_only_it_can_read():
    """With a /tmp for each job, a step reads the files of its own job's launchers only; the agent shows it all GPUs."""

    def of_job(job, taken):
        seen = merge([look(0), look(1)])
        progress, booked = JobProgress(rate_per_s=10.0 + job), GpuBooking(uid=7, job=job, booked_mib=100 * (job + 1))
        closed = {"unknown": {"progress": "only its user"}}
        return replace(
            seen,
            taken=taken,
            jobs=tuple(replace(one, **({"progress": progress} if one.job == job else closed)) for one in seen.jobs),
            processes=tuple(replace(one, slot=job if one.job == job else None) for one in seen.processes),
            gpus=(replace(seen.gpus[0], booked_mib=booked.booked_mib, bookings=(booked,)), *seen.gpus[1:]),
        )

    both = merge([of_job(0, 1.0), of_job(1, 2.0)])
    assert [(one.progress.rate_per_s, one.unknown) for one in both.jobs] == [(10.0, {}), (11.0, {})]
    assert {(one.job, one.slot) for one in both.processes} == {(0, 0), (1, 1)}
    assert both.gpus[0].booked_mib == 300
    assert sorted(one.job for one in both.gpus[0].bookings) == [0, 1]


def test_a_process_on_two_gpus_is_one_process():
    both = merge([look(0, pid=9, job=1), look(1, pid=9, job=1)])
    (process,) = both.processes
    assert [on.uuid for on in process.gpus] == ["GPU-0", "GPU-1"]
    assert both.users[0].processes == 1
    assert both.jobs[1].gpu_memory_mib == 200


def test_unknown_of_a_part_is_unknown_of_the_whole():
    both = merge([look(0, job=1), look(1, job=1, memory=None)])
    assert both.jobs[1].gpu_memory_mib is None
    assert both.users[0].gpu_memory_mib is None
