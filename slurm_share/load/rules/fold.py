"""Compute a Snapshot from the present readings and the history: rates, windows, peaks and sums.

`fold` takes the history and returns the next one, which can be stored over a restart of the sampler (`history.py`).
Times are of the kernel's monotonic clock, which nobody can set; counters of another boot are not continued.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ...mps.records import MPS_NAME
from ...node import windows
from ...node.gpu_figures import WINDOWED
from ...node.readings import DriverNow, GpuNow, HostNow, ProcessNow
from ...node.windows import WindowSeries
from ..snapshot import GpuLoad, GpuUser, JobLoad, Means, OnGpu, ProcessLoad, Snapshot, UserLoad
from . import rates
from .gpu_time import GpuTime
from .history import GpuHistory, GpuStay, Held, NodeHistory, ProcessHistory
from .job_load import fold_jobs
from .sums import NO_MAPS, ONE_SAMPLE, ONLY_AGENT, SHORTEST_S, UNREPORTED, add_up, most, rate, uuids, whole

GAP_S = 60.0
"""Longest gap between two samples, in seconds, that counts as watched; a reading stands for no longer time."""
HELD_S = 1.0
"""Seconds, and at least one sample, for which a process keeps its last use of SM time. The driver leaves out processes
with little use in its last sampling period, which is at most a second."""
KEPT_S = windows.KEPT_S
"""How long the last user of a GPU is remembered, seconds."""
_HIDDEN_UID = -1
"""Stands for the uid of a process that exists and cannot be read (hidepid)."""


def fold(
    so_far: NodeHistory, host: HostNow, driver: DriverNow, node: str, version: str = ""
) -> tuple[NodeHistory, Snapshot]:
    """Return the history with this sample, and the Snapshot of this moment."""
    now = host.at
    if so_far.boot_id != host.boot_id or (so_far.at is not None and so_far.at > now):
        so_far = NodeHistory()
    dt = None if so_far.at is None else now - so_far.at
    if dt is not None and dt < SHORTEST_S:
        dt = None
    watched = 0.0 if dt is None or dt > GAP_S else dt
    gpus = {gpu.uuid: gpu for gpu in driver.gpus}
    processes, histories = _processes(so_far, host, gpus, dt)
    gpu_histories = _gpu_histories(so_far, host, gpus.values(), dt)
    on_gpus = GpuTime(gpus, gpu_histories, processes, frozenset(host.hidden), now)
    jobs, job_histories = fold_jobs(so_far, host, processes, on_gpus, dt, watched)
    jobs = rates.with_progress(jobs, host.runs)
    unknown = dict(host.unknown)
    cpu_cores = rate(host.busy_s, so_far.busy_s, dt)
    if cpu_cores is None:
        unknown.setdefault("cpu_cores", ONE_SAMPLE)
    if driver.version is None:
        unknown["driver"] = driver.problems[0] if driver.problems else UNREPORTED
    so_far = NodeHistory(
        boot_id=host.boot_id,
        at=now,
        busy_s=host.busy_s,
        measured_s=so_far.measured_s + watched,
        gpus=gpu_histories,
        processes=histories,
        jobs=job_histories,
    )
    return so_far, Snapshot(
        node=node,
        taken=host.taken,
        measured_s=so_far.measured_s,
        interval_s=dt,
        version=version,
        driver=driver.version,
        cpus=host.cpus,
        cores=host.cores,
        load=host.load,
        cpu_cores=cpu_cores,
        memory_total_mib=host.memory_total_mib,
        memory_used_mib=host.memory_used_mib,
        gpus=tuple(_gpu(gpu, gpu_histories.get(gpu.uuid, GpuHistory()), host) for gpu in driver.gpus),
        processes=processes,
        jobs=jobs,
        users=_users(processes, jobs, on_gpus),
        problems=driver.problems,
        unknown=unknown,
    )


# ---- GPUs ------------------------------------------------------------------------------------------------------------


def _gpu_histories(
    so_far: NodeHistory, host: HostNow, gpus: Iterable[GpuNow], dt: float | None
) -> dict[str, GpuHistory]:
    now = host.at
    # The processes of MPS may be root's, and stay after the user's processes ended.
    owners = {one.pid: one.uid for one in host.processes if not one.name.startswith(MPS_NAME)}
    owners |= dict.fromkeys(host.hidden, _HIDDEN_UID)
    found = {
        uuid: history
        for uuid, history in so_far.gpus.items()
        if not all(
            windows.is_over(series, now) for one in WINDOWED if (series := getattr(history, one.windows)) is not None
        )
    }
    for gpu in gpus:
        history = so_far.gpus.get(gpu.uuid, GpuHistory())
        if dt is not None:
            stands_for = min(dt, GAP_S)
            longer = {
                one.windows: windows.add(getattr(history, one.windows) or WindowSeries(), now, stands_for, one.now(gpu))
                for one in WINDOWED
            }
            history = GpuHistory(stays=history.stays, **longer)
        there = {owners[process.pid] for process in gpu.processes or () if process.pid in owners}
        found[gpu.uuid] = msgspec.structs.replace(history, stays=_stays(history.stays, there, now))
    return found


def _stays(stays: Mapping[int, GpuStay], there: Iterable[int], now: float) -> dict[int, GpuStay]:
    """Return the stays of the users on a GPU. The stay of a user who left ends when another user is on it."""
    found = {uid: GpuStay(stays[uid].since if uid in stays else now, now) for uid in sorted(there)}
    return found or {uid: stay for uid, stay in stays.items() if now - stay.at <= KEPT_S}


def _gpu(gpu: GpuNow, history: GpuHistory, host: HostNow) -> GpuLoad:
    now = host.at
    unknown = {key: why for key, why in gpu.unknown.items() if key not in ("processes", "sm_time_percent")}
    unknown["unattributed_energy_j"] = ONLY_AGENT
    means = _means(history, now)
    for one in WINDOWED:
        if means[one.windows] is None:
            unknown[one.json] = next((unknown[key] for key in one.unknown if unknown.get(key)), ONE_SAMPLE)
    if gpu.processes is None:
        why = gpu.unknown.get("processes", "the driver does not list processes")
        unknown |= dict.fromkeys(("clients", "mps_servers", "unused_s"), why)
    if gpu.mig_of is not None:
        unknown["minor"] = "a MIG instance has none of its own"
    elif gpu.minor is None:
        unknown.setdefault("minor", UNREPORTED)
    hidden = frozenset(host.hidden)
    servers = {process.pid for process in host.processes if process.name.startswith(MPS_NAME)}
    there = hidden.union(process.pid for process in host.processes)
    listed = [process for process in gpu.processes or () if process.pid in there]
    known: dict[str, Any] = {name: getattr(gpu, name) for name in GpuLoad.__struct_fields__}
    known |= means
    bookings = tuple(host.bookings.get(gpu.uuid, ()))
    known |= {
        "booked_mib": sum(one.booked_mib for one in bookings) if bookings else None,
        "bookings": bookings,
        "clients": None if gpu.processes is None else len(listed),
        "mps_servers": None if gpu.processes is None else sum(process.pid in servers for process in listed),
        "others_mib": sum(process.memory_used_mib or 0 for process in listed if process.pid in hidden),
        "users": tuple(
            GpuUser(uid=uid, **_means(history, now, stay.since))
            for uid, stay in history.stays.items()
            if uid != _HIDDEN_UID
        ),
        "unused_s": None if listed or gpu.processes is None else _unused_s(history, now),
        "unknown": unknown,
    }
    return GpuLoad(**known)


def _means(history: GpuHistory, now: float, since: float = -math.inf) -> dict[str, Means | None]:
    """Return the windows of GpuLoad and GpuUser by field name. `since`: start of the user's stay."""
    return {
        one.windows: None if (series := getattr(history, one.windows)) is None else windows.means(series, now, since)
        for one in WINDOWED
    }


def _unused_s(history: GpuHistory, now: float) -> float:
    """Return how long a GPU without processes has been unused, at most the time that was measured."""
    measured = max((means.over_s for means in _means(history, now).values() if means is not None), default=0.0)
    left = max((stay.at for stay in history.stays.values()), default=None)
    return measured if left is None else min(measured, max(0.0, now - left))


# ---- Processes -------------------------------------------------------------------------------------------------------


def _processes(
    so_far: NodeHistory, host: HostNow, gpus: Mapping[str, GpuNow], dt: float | None
) -> tuple[tuple[ProcessLoad, ...], dict[int, ProcessHistory]]:
    now = host.at
    on: dict[int, list[tuple[GpuNow, int | None]]] = {}
    for gpu in gpus.values():
        for listed in gpu.processes or ():
            on.setdefault(listed.pid, []).append((gpu, listed.memory_used_mib))
    used = {
        uuid: {one.pid: one.sm_time_percent for one in gpu.process_sm}
        for uuid, gpu in gpus.items()
        if gpu.process_sm is not None
    }
    owners = {job.job: job.uid for job in host.jobs}
    # A GPU may not answer at one sample, so the history of its processes is kept for a while.
    histories = {pid: history for pid, history in so_far.processes.items() if now - history.at <= GAP_S}
    found = []
    for process in host.processes:
        history = histories.get(process.pid)
        if history is not None and history.start_ticks != process.start_ticks:
            history = None  # the pid belongs to another process now
        unknown = dict(process.unknown)
        held: dict[str, Held] = {}
        shown = []
        for gpu, memory_mib in on.get(process.pid, ()):
            before = Held() if history is None else history.gpus.get(gpu.uuid, Held())
            sm_at, sm_was = before.sm_at, before.sm_time_percent
            sm = used[gpu.uuid].get(process.pid) if gpu.uuid in used else None
            if gpu.uuid not in used:
                unknown["gpus.sm_time_percent"] = gpu.unknown.get("sm_time_percent", UNREPORTED)
            elif sm is not None:
                sm_at, sm_was = now, sm
            else:
                sm = sm_was if now - sm_at <= HELD_S or sm_at == so_far.at else 0.0
            peak = most(before.peak_mib, memory_mib)
            if memory_mib is None:
                unknown["gpus.memory_mib"] = UNREPORTED
            held[gpu.uuid] = Held(peak, sm_was, sm_at)
            shown.append(OnGpu(uuid=gpu.uuid, memory_mib=memory_mib, peak_mib=peak, sm_time_percent=sm))
        since = None if history is None or dt is None else now - history.at
        cpu_cores = None if history is None else rate(process.cpu_s, history.cpu_s, since)
        if cpu_cores is None:
            unknown["cpu_cores"] = ONE_SAMPLE
        if process.in_advance is None:
            unknown.setdefault("in_advance", NO_MAPS)
        if process.memory_mib is None:
            unknown["memory_mib"] = "the kernel does not report it"
        gone = {} if history is None else {uuid: one for uuid, one in history.gpus.items() if uuid not in held}
        histories[process.pid] = ProcessHistory(process.start_ticks, now, process.cpu_s, {**gone, **held})
        found.append(_process(process, tuple(shown), cpu_cores, owners, unknown))
    return tuple(found), histories


def _process(
    process: ProcessNow,
    gpus: tuple[OnGpu, ...],
    cpu_cores: float | None,
    owners: Mapping[int, int],
    unknown: dict[str, str],
) -> ProcessLoad:
    """Return the record of a process. Its job counts only if it belongs to the same user; a job that only the process
    itself names counts only if the job is on this node."""
    owner = None if process.job is None else owners.get(process.job)
    believed = owner == process.uid or (owner is None and not process.is_own_claim)
    return ProcessLoad(
        pid=process.pid,
        start_ticks=process.start_ticks,
        name=process.name,
        uid=process.uid,
        user=process.user,
        job=process.job if believed else None,
        step=process.step if believed else None,
        task=process.task if believed else None,
        slot=process.slot,
        gpus=gpus,
        cap_mib=process.cap_mib,
        connections=process.connections,
        in_advance=process.in_advance,
        cpu_cores=cpu_cores,
        memory_mib=process.memory_mib,
        progress=process.progress,
        unknown=unknown,
    )


# ---- Users -----------------------------------------------------------------------------------------------------------


def _users(processes: tuple[ProcessLoad, ...], jobs: tuple[JobLoad, ...], on_gpus: GpuTime) -> tuple[UserLoad, ...]:
    names = {process.uid: process.user for process in processes} | {job.uid: job.user for job in jobs}
    return tuple(
        _user(uid, user, [one for one in processes if one.uid == uid], [one for one in jobs if one.uid == uid], on_gpus)
        for uid, user in sorted(names.items())
    )


def _user(uid: int, user: str, processes: list[ProcessLoad], jobs: list[JobLoad], on_gpus: GpuTime) -> UserLoad:
    sums: dict[str, Any] = {
        "gpu_memory_mib": whole(add_up(on.memory_mib for process in processes for on in process.gpus)),
        "gpu_load": on_gpus.of_user(uid, processes),
        "cpu_cores": add_up(job.cpu_cores for job in jobs),
        "memory_mib": whole(add_up(job.memory_mib for job in jobs)),
    }
    unknown_of = {"gpu_memory_mib": "gpus.memory_mib", "gpu_load": "gpus.sm_time_percent"}
    unknown = {"energy_j": ONLY_AGENT}
    for field, value in sums.items():
        if value is None:
            key = unknown_of.get(field, field)
            whys = [*(process.unknown for process in processes), *(job.unknown for job in jobs)]
            unknown[field] = next((why[key] for why in whys if key in why), "not reported")
    own_jobs = tuple(job.job for job in jobs)
    return UserLoad(
        uid=uid, user=user, jobs=own_jobs, processes=len(processes), gpus=uuids(processes), unknown=unknown, **sums
    )
