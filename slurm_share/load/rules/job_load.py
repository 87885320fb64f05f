"""Compute the load of a node's jobs from the present readings and their history."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from ...mps.records import MPS_NAME
from ...node import windows
from ...node.readings import HostNow, JobNow, ProcessNow
from ..snapshot import JobLoad, ProcessLoad
from .gpu_time import GpuTime
from .history import JobHistory, NodeHistory
from .sums import ONE_SAMPLE, ONLY_AGENT, UNREPORTED, add_up, first_known, most, uuids, whole

NOT_ASKED = "the node does not show it; the agent asks Slurm after a minute"
KEPT_S = windows.KEPT_S
"""How long a job without a process on the node is remembered, seconds: it may be between two steps."""
MAX_TASKS = 1024
"""Most tasks of a job that are recognised when they appear again; a further one counts as new."""
MAX_GONE = 256
"""Most jobs that are remembered after they left the node."""

LLLOAD_START_S = 2.0
"""CPU time of each step that counts as the start of a sampler, which takes about half a second."""
LLLOAD_MOST_CORES = 0.2
"""Most cores of one job that count as llload's after the start: anybody can name a program so. A sampler takes 0.01 to
0.05."""


class _Member(Struct, frozen=True):
    """A process of a job: its record, and the kernel's reading of it."""

    shown: ProcessLoad
    read: ProcessNow


def fold_jobs(
    so_far: NodeHistory,
    host: HostNow,
    processes: tuple[ProcessLoad, ...],
    on_gpus: GpuTime,
    dt: float | None,
    watched: float,
) -> tuple[tuple[JobLoad, ...], dict[int, JobHistory]]:
    """Return the present jobs and their histories. `on_gpus`: the GPUs' load. `dt`: seconds since the sample before.
    `watched`: the part of them that counts as watched."""
    members: dict[int, list[_Member]] = {}
    for shown, read in zip(processes, host.processes, strict=True):
        if shown.job is not None:
            members.setdefault(shown.job, []).append(_Member(shown, read))
    present = {job.job: job for job in host.jobs}
    for number, of_job in members.items():
        if number not in present:
            first = of_job[0].shown
            why = "no step of the job is on this node"
            unknown = dict.fromkeys(("cpu_cores", "memory_mib", "memory_kills"), why)
            present[number] = JobNow(job=number, uid=first.uid, user=first.user, unknown=unknown)
    histories = _kept(so_far.jobs, present, host.at)
    found = []
    for number in sorted(present):
        job = present[number]
        history = histories.get(number)
        if history is not None and history.uid != job.uid:
            history = None  # Slurm's job numbers have started again
        own = [member for member in members.get(number, []) if member.shown.uid == job.uid]
        load, histories[number] = _job(job, history, own, on_gpus, so_far.at, host.at, dt, watched)
        found.append(load)
    return tuple(found), histories


def _kept(jobs: Mapping[int, JobHistory], present: Mapping[int, JobNow], now: float) -> dict[int, JobHistory]:
    gone = sorted(((history.at, job) for job, history in jobs.items() if job not in present), reverse=True)
    keep = {job for at, job in gone[:MAX_GONE] if now - at <= KEPT_S}
    return {job: history for job, history in jobs.items() if job in present or job in keep}


def _job(
    job: JobNow,
    history: JobHistory | None,
    members: list[_Member],
    on_gpus: GpuTime,
    last: float | None,
    now: float,
    dt: float | None,
    watched: float,
) -> tuple[JobLoad, JobHistory]:
    unknown = dict(job.unknown)
    before = JobHistory(uid=job.uid, at=now, since=now) if history is None else history
    cpu_cores = None
    # Only if the last sample had the job too: over a gap there is no rate.
    if history is not None and dt is not None and history.at == last:
        cpu_cores = _job_rate(job, history, dt)
    if cpu_cores is None:
        unknown.setdefault("cpu_cores", ONE_SAMPLE)
    cpu = before.cpu_cores_windows
    if dt is not None:
        cpu = windows.add(cpu, now, dt, cpu_cores)
    cpu_means = windows.means(cpu, now)
    if cpu_means is None:
        unknown["cpu"] = unknown.get("cpu_cores", ONE_SAMPLE)
    kills, kills_seen = before.kills, before.kills_seen
    if job.memory_kills is not None:
        kills = (kills or 0) + max(0, job.memory_kills - kills_seen)
        kills_seen = job.memory_kills

    tasks = [member for member in members if not member.shown.name.startswith(MPS_NAME)]
    by_task: dict[str, list[_Member]] = {}
    for member in tasks:
        by_task.setdefault(member.read.task_key or f"pid {member.shown.pid}", []).append(member)
    peak, host_peak = before.peak_mib, before.host_peak_mib
    is_unreported = False
    for of_task in by_task.values():
        memory = add_up(on.memory_mib for member in of_task for on in member.shown.gpus)
        is_unreported = is_unreported or memory is None
        peak = most(peak, memory)
        host_peak = most(host_peak, add_up(member.read.own_mib for member in of_task))
    host_mean = before.host_mean_mib
    if by_task and job.memory_mib is not None and len(by_task) >= before.at_once:
        # The largest task has at least the mean, which includes other processes and /dev/shm. With fewer tasks than
        # before, the memory may also belong to tasks that have ended.
        mean = job.memory_mib // len(by_task)
        host_mean = mean if len(by_task) > before.at_once else most(host_mean, mean)
    new = [task_key for task_key in by_task if task_key not in before.task_keys]
    known_tasks = (*(task_key for task_key in before.task_keys if task_key not in by_task), *by_task)[-MAX_TASKS:]

    gpu_memory = whole(add_up(on.memory_mib for member in members for on in member.shown.gpus))
    gpu_load = on_gpus.of([member.shown for member in members], before.since)
    if gpu_memory is None:
        unknown["gpu_memory_mib"] = "the driver does not report the memory of each process"
    if gpu_load is None:
        reasons = (member.shown.unknown.get("gpus.sm_time_percent") for member in members)
        unknown["gpu_load"] = next((why for why in reasons if why), UNREPORTED)
    if peak is None:
        unknown["task_peak_mib"] = UNREPORTED if is_unreported else "no task has been on a GPU"
    shown_host_peak = most(host_peak, host_mean)
    if shown_host_peak is None:
        unknown["task_host_peak_mib"] = "no task has been on a GPU"
    unknown["granted"] = NOT_ASKED
    unknown["energy_j"] = ONLY_AGENT
    shares = first_known(member.read.share for member in tasks)
    slots = first_known(member.read.slots for member in tasks)
    sharing = first_known(member.read.sharing for member in tasks)
    for field, value in (("share", shares), ("slots", slots), ("sharing", sharing)):
        if value is None:
            closed = any("slot" in member.shown.unknown for member in tasks)
            unknown[field] = (
                "only their user and root can read its tasks' environments" if closed else "no task here names it"
            )
    measured_s = before.measured_s + (watched if history is not None else 0.0)
    after = replace(
        before,
        at=now,
        cpu_s=job.cpu_s,
        llload_s=job.llload_s,
        cpu_cores_windows=cpu,
        kills=kills,
        kills_seen=kills_seen,
        peak_mib=peak,
        host_peak_mib=host_peak,
        host_mean_mib=host_mean,
        task_keys=known_tasks,
        measured=before.measured + len(new),
        at_once=max(before.at_once, len(by_task)),
        measured_s=measured_s,
    )
    load = JobLoad(
        job=job.job,
        uid=job.uid,
        user=job.user,
        share=shares,
        slots=slots,
        sharing=sharing,
        tasks=len(by_task),
        gpus=uuids(member.shown for member in members),
        gpu_memory_mib=gpu_memory,
        gpu_load=gpu_load,
        cpu_cores=cpu_cores,
        cpu_cores_windows=cpu_means,
        memory_mib=job.memory_mib,
        memory_kills=kills,
        task_peak_mib=peak,
        task_host_peak_mib=shown_host_peak,
        tasks_measured=after.measured,
        tasks_at_once=after.at_once,
        measured_s=measured_s,
        unknown=unknown,
    )
    return load, after


def _job_rate(job: JobNow, history: JobHistory, dt: float) -> float | None:
    """Return the cores in use by counters that appear and vanish, without the steps of llload. A new counter has
    counted since the last sample. None if the job's own cgroup went back: it is another one of the same name."""
    now, before = job.cpu_s, history.cpu_s
    if now is None or before is None:
        return None
    if now.keys() == before.keys() == {"cgroup"} and now["cgroup"] < before["cgroup"]:
        return None
    llload = _since(job.llload_s, history.llload_s)
    start = _since({step: min(cpu_s, LLLOAD_START_S) for step, cpu_s in job.llload_s.items()}, history.llload_s)
    return max(0.0, _since(now, before) - start - min(llload - start, LLLOAD_MOST_CORES * dt)) / dt


def _since(now: Mapping[str, float], before: Mapping[str, float]) -> float:
    return sum(max(0.0, value - before.get(key, 0.0)) for key, value in now.items())
