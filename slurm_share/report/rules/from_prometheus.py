"""Make records of a job's use from what a site's Prometheus has of it: the agents' metrics over the job's life.

Metrics of a job are sums over its GPUs of a node. They are a GPU's only where the job has one GPU there; of several,
each GPU has its load alone. An unknown figure stays unknown, with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence

from ...core import numbers
from ...load import PrometheusRange, metrics
from ...slurm.accounts import AccountedJob
from ...usage import EnergyUse, GpuSeries, GpuUse, JobUse, UseSeries

PREFIX = metrics.PREFIX
JOB = ("cpu_used_cores", "memory_bytes", "memory_kills_total", "gpu_memory_bytes", "energy_joules_total", "holds_gpu")
GPU = ("info", "utilization_ratio", "activity_ratio", "memory_total_bytes", "power_watts")
COVERED = 0.8
"""Part of a job's time that has to have points before a sum over time is told. Ours."""
MIB = 1 << 20
PARTLY = "Prometheus has only a part of the job's time"
TOGETHER = "Prometheus has the sum over the job's GPUs only"
Points = Mapping[float, float]


def job_query(job: AccountedJob) -> str:
    """Return the query for a job's own metrics."""
    return f'{{__name__=~"{PREFIX}job_({"|".join(JOB)})",jobid="{job.job}",user={_quoted(job.user)}}}'


def gpu_query(found: Iterable[PrometheusRange]) -> str:
    """Return the query for the GPUs that a job held; empty: it held none."""
    held = sorted({(one.labels.node, one.labels.gpu) for one in found if one.labels.name == f"{PREFIX}job_holds_gpu"})
    if not held:
        return ""
    nodes, gpus = ("|".join(map(re.escape, dict.fromkeys(names))) for names in zip(*held, strict=True))
    return f'{{__name__=~"{PREFIX}gpu_({"|".join(GPU)})",node=~{_quoted(nodes)},gpu=~{_quoted(gpus)}}}'


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def records(
    job: AccountedJob,
    until: float,
    step_s: float,
    of_job: Sequence[PrometheusRange],
    of_gpus: Sequence[PrometheusRange],
) -> tuple[list[JobUse], list[UseSeries]]:
    """Return a record and a series for each of the job's nodes of which Prometheus has something. `until`: its end, or
    now. `step_s`: seconds between two points."""
    uses, series = [], []
    for node in job.nodes:
        own = [one for one in of_job if one.labels.node == node]
        if not own or job.start is None or job.uid is None:
            continue
        values = {_name(one, "job_"): _points(one) for one in own if not one.labels.gpu}
        held = sorted({one.labels.gpu for one in own if one.labels.gpu})
        gpus = {gpu: [one for one in of_gpus if (one.labels.node, one.labels.gpu) == (node, gpu)] for gpu in held}
        uses.append(_use(job, node, until, step_s, values, gpus))
        series.append(_series(job, node, step_s, values, gpus))
    return uses, series


def _use(
    job: AccountedJob,
    node: str,
    until: float,
    step_s: float,
    values: Mapping[str, Points],
    gpus: Mapping[str, Sequence[PrometheusRange]],
) -> JobUse:
    elapsed = max(0.0, until - (job.start or until))
    cores, memory, kills = (values.get(name, {}) for name in ("cpu_used_cores", "memory_bytes", "memory_kills_total"))
    is_whole = bool(cores) and len(cores) * step_s >= COVERED * elapsed
    known = {"cpu_s": is_whole, "memory_peak_mib": bool(memory), "memory_kills": bool(kills)}
    return JobUse(
        job=job.job,
        restarts=job.restarts,
        uid=job.uid or 0,
        node=node,
        began=job.start,
        ended=job.end,
        measured_s=min(elapsed, len(cores) * step_s),
        cpu_s=_mean(cores) * elapsed if is_whole else None,
        memory_peak_mib=_mib(max(memory.values(), default=None)),
        memory_kills=round(counted_up(kills)) if kills else None,
        gpus=tuple(_gpu(uuid, found, elapsed, step_s, values, len(gpus)) for uuid, found in gpus.items()),
        by={name: "prometheus" for name, is_known in known.items() if is_known},
        unknown={} if is_whole else {"cpu_s": PARTLY},
    )


def _gpu(
    uuid: str, found: Sequence[PrometheusRange], elapsed: float, step_s: float, values: Mapping[str, Points], count: int
) -> GpuUse:
    """Return one GPU; the job's own memory and energy are this GPU's only where it has no other on the node."""
    info = next((one.labels for one in found if _name(one, "gpu_") == "info"), None)
    sm = _of(found, "activity_ratio", "sm")
    busy = _of(found, "utilization_ratio")
    total = _of(found, "memory_total_bytes")
    memory = values.get("gpu_memory_bytes", {}) if count == 1 else {}
    energy = values.get("energy_joules_total", {}) if count == 1 else {}
    known = {"sm_percent": sm, "utilization_percent": busy, "memory_peak_mib": memory, "energy": energy}
    return GpuUse(
        uuid=uuid,
        index=None if info is None else numbers.whole(info.index),
        name="" if info is None else info.model,
        simulated=info is not None and info.simulated == "yes",
        held_s=elapsed,
        measured_s=min(elapsed, len(sm or busy) * step_s),
        sm_percent=100 * _mean(sm) if sm else None,
        utilization_percent=100 * _mean(busy) if busy else None,
        memory_total_mib=_mib(max(total.values(), default=None)),
        memory_peak_mib=_mib(max(memory.values(), default=None)),
        # How the agent divided it is no metric: the least exact rule of counters is told.
        energy=EnergyUse(joules=counted_up(energy), rule="equal parts") if energy else None,
        by={name: "prometheus" for name, points in known.items() if points},
        unknown={} if count == 1 else {"memory_peak_mib": TOGETHER, "energy": TOGETHER},
    )


def _series(
    job: AccountedJob,
    node: str,
    step_s: float,
    values: Mapping[str, Points],
    gpus: Mapping[str, Sequence[PrometheusRange]],
) -> UseSeries:
    cores, memory = values.get("cpu_used_cores", {}), values.get("memory_bytes", {})
    loads = {
        uuid: _of(found, "activity_ratio", "sm") or _of(found, "utilization_ratio") for uuid, found in gpus.items()
    }
    power = {uuid: _of(found, "power_watts") for uuid, found in gpus.items()}
    own = values.get("gpu_memory_bytes", {}) if len(gpus) == 1 else {}
    at = sorted({*cores, *memory, *own, *(moment for points in loads.values() for moment in points)})
    return UseSeries(
        job=job.job,
        restarts=job.restarts,
        uid=job.uid or 0,
        node=node,
        every_s=step_s,
        at=at,
        cpu_cores=[cores.get(moment) for moment in at],
        memory_mib=[_mib(memory.get(moment)) for moment in at],
        gpus=[
            GpuSeries(
                uuid=uuid,
                load_percent=[None if (load := loads[uuid].get(moment)) is None else 100 * load for moment in at],
                memory_mib=[_mib(own.get(moment)) for moment in at],
                power_w=[power[uuid].get(moment) for moment in at],
            )
            for uuid in gpus
        ],
    )


def counted_up(points: Points) -> float:
    """Return what a counter of a job counted: it begins at 0, and again when its agent starts anew."""
    total = before = 0.0
    for _, value in sorted(points.items()):
        total += value - before if value >= before else value
        before = value
    return total


def _name(one: PrometheusRange, kind: str) -> str:
    return one.labels.name.removeprefix(f"{PREFIX}{kind}")


def _points(one: PrometheusRange) -> dict[float, float]:
    return {at: value for at, value in one.points if value is not None and value >= 0}


def _of(found: Sequence[PrometheusRange], name: str, unit: str = "") -> dict[float, float]:
    return next((_points(one) for one in found if _name(one, "gpu_") == name and one.labels.unit == unit), {})


def _mean(points: Points) -> float:
    return sum(points.values()) / len(points)


def _mib(value: float | None) -> int | None:
    return None if value is None else round(value / MIB)
