"""Add up the figures of a report over its starts, nodes and GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import get_args

from msgspec.structs import replace

from ...core.records import Reasons
from ...slurm.accounts import AccountedJob
from ...usage import EnergyRule, EnergyUse, GpuUse, JobUse, Sources, TaskUse
from ..records import JobFigures, JobReport, NodeGpu

EXACT: tuple[EnergyRule, ...] = get_args(EnergyRule)
"""Rules of dividing energy, the most exact first."""
HELD_TWICE = "several of its starts had a GPU at the same time, whose whole energy is in the record of each"
OVERLAP = 0.05
"""Part of their time for which starts may be on a GPU together and count as one after another: a sample at the end of
one is also the first one of the next."""
NO_PRESSURE = "the kernel or the node's agent does not tell it"


def figures(report: JobReport) -> JobFigures:
    """Return the sums of a report."""
    job, uses = report.job, report.uses
    nodes = tuple(dict.fromkeys([*(name for one in report.starts for name in one.nodes), *(use.node for use in uses)]))
    silent = tuple(name for name in nodes if not any(use.node == name for use in uses))
    gpus = gpus_of(uses, report.now)
    by: Sources = {}
    for use in uses:
        by |= {name: source for name, source in use.by.items() if name not in by}
    for one in gpus:
        by |= {f"gpus.{name}": source for name, source in one.use.by.items() if f"gpus.{name}" not in by}
    elapsed_s = _elapsed(report)
    cpu_had_s, cpu_s = _cpu(report, is_whole=not silent, by=by)
    fullest = max((use for use in uses if use.memory_peak_mib is not None), key=_memory_part, default=None)
    peak, limit = (None, None) if fullest is None else (fullest.memory_peak_mib, fullest.memory_limit_mib)
    if peak is None and job is not None and job.memory_peak_mib is not None:
        peak, by["memory_peak_mib"] = job.memory_peak_mib, "sacct"
    limit = limit or (job.memory_asked_mib if job is not None else None)
    measured = [one.use for one in gpus]
    load, is_sm = _load(measured)
    charged = [one.energy for one in measured if one.energy is not None]
    largest = max(measured, key=lambda use: use.memory_peak_mib or -1, default=None)
    energy_j, energy_by = _energy(report, charged)
    # Each start's record has the whole GPU's energy: of starts at the same time it would count several times.
    is_once = not any(_is_held_twice(several, report.now) for several in _holders(uses).values())
    unknown = _reasons(report, measured)
    if not is_once:
        unknown |= {"device_j": HELD_TWICE, "unattributed_j": HELD_TWICE}
    by |= energy_by
    return replace(
        JobFigures(
            elapsed_s=elapsed_s,
            limit_s=job.limit_s if job is not None else None,
            nodes=nodes,
            silent=silent,
            cpus=_cpus(job, uses),
            cpu_had_s=cpu_had_s,
            cpu_s=cpu_s,
            cpu_wait_s=total(use.cpu_wait_s for use in uses),
            io_wait_s=total(use.io_wait_s for use in uses),
            memory_limit_mib=limit,
            memory_peak_mib=peak,
            memory_kills=_count(total(use.memory_kills for use in uses)),
            gpu_count=_gpu_count(job, uses),
            gpus=gpus,
            gpu_s=_gpu_seconds(report, measured),
            gpu_idle_s=total(use.idle_s for use in measured),
            gpu_measured_s=total(use.measured_s for use in measured),
            gpu_load_percent=load,
            load_is_sm=is_sm,
            own_sm_percent=_mean(measured, "own_sm_percent"),
            dram_percent=_mean(measured, "dram_percent"),
            gpu_peak_mib=largest.memory_peak_mib if largest is not None else None,
            gpu_cap_mib=min((use.memory_cap_mib for use in measured if use.memory_cap_mib is not None), default=None),
            gpu_least_mib=min(
                (use.memory_least_mib for use in measured if use.memory_least_mib is not None), default=None
            ),
            gpu_memory_mib=largest.memory_total_mib if largest is not None else None,
            energy_j=energy_j,
            energy_idle_j=total(one.idle_j for one in charged) if len(charged) == len(measured) else None,
            energy_rule=max((one.rule for one in charged), key=EXACT.index, default=None),
            unattributed_j=total(one.unattributed_j for use in uses for one in use.others) if is_once else None,
            device_j=_device(uses) if is_once else None,
            simulated=any(use.simulated for use in measured),
            by=by,
        ),
        unknown=unknown,
    )


def all_tasks(report: JobReport) -> tuple[TaskUse, ...]:
    """Return the attempts at tasks of a run; of another job the tasks that somebody measured."""
    return report.tasks or tuple(task for use in report.uses for task in use.tasks)


def total(values: Iterable[float | None]) -> float | None:
    """Return the sum of the known values; None: none is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _count(value: float | None) -> int | None:
    return None if value is None else int(value)


def span_of(use: JobUse, now: float) -> float | None:
    """Return how long a start had its node, in seconds; until `now` if it runs."""
    return None if use.began is None else max(0.0, (now if use.ended is None else use.ended) - use.began)


def _elapsed(report: JobReport) -> float | None:
    found = total(one.elapsed_s for one in report.starts)
    if found is not None:
        return found
    longest: dict[tuple[int, int], float] = {}
    for use in report.uses:
        span = span_of(use, report.now)
        if span is not None:
            key = (use.job, use.restarts or 0)
            longest[key] = max(span, longest.get(key, 0.0))
    return total(longest.values())


def _cpus(job: AccountedJob | None, uses: Sequence[JobUse]) -> int | None:
    if job is not None and job.cpus:
        return job.cpus
    last = last_start(uses)
    return sum(use.cpus or 0 for use in last) or None


def last_start(uses: Sequence[JobUse]) -> tuple[JobUse, ...]:
    """Return the records of the last start, on all its nodes."""
    newest = max(uses, key=lambda use: (use.began or 0.0, use.job, use.restarts or 0), default=None)
    return tuple(use for use in uses if newest and (use.job, use.restarts or 0) == (newest.job, newest.restarts or 0))


def _cpu(report: JobReport, *, is_whole: bool, by: Sources) -> tuple[float | None, float | None]:
    """Return the CPU time that the job could have had, and the one it used, both of the same nodes and starts."""
    measured = [
        (span * cpus, use.cpu_s)
        for use in report.uses
        if use.cpu_s is not None
        and (cpus := use.cpus or _cpus_of_node(report, use))
        and (span := span_of(use, report.now)) is not None
    ]
    told = [one for one in report.starts if one.cpu_s is not None and one.cpus and one.elapsed_s is not None]
    is_all = is_whole and len(measured) == len(report.uses) and len(report.uses) >= len(report.starts)
    # sacct counts a process only after its end: a running job has hardly any CPU time there.
    if measured and (is_all or not told or report.runs):
        return sum(had for had, _ in measured), sum(used for _, used in measured)
    if told:
        by["cpu_s"] = "sacct"
        return (
            sum((one.elapsed_s or 0.0) * (one.cpus or 0) for one in told),
            sum(one.cpu_s or 0.0 for one in told),
        )
    return None, total(use.cpu_s for use in report.uses)


def _cpus_of_node(report: JobReport, use: JobUse) -> int | None:
    """Return the CPUs that Slurm gave the job on each of its nodes; None: not known."""
    start = next((one for one in report.starts if one.job == use.job and one.cpus), None)
    return None if start is None or start.cpus is None else start.cpus // (len(start.nodes) or 1)


def _memory_part(use: JobUse) -> float:
    return (use.memory_peak_mib or 0) / (use.memory_limit_mib or 1 << 40)


def _gpu_count(job: AccountedJob | None, uses: Sequence[JobUse]) -> int | None:
    seen = sum(len(use.gpus) for use in last_start(uses))
    if job is None or job.gpus is None:
        return seen if uses else None
    if job.gpus or not job.shards:
        return max(job.gpus, seen)
    return seen or None


def gpus_of(uses: Sequence[JobUse], now: float) -> tuple[NodeGpu, ...]:
    """Return the GPUs of a job, each with the sums and means over the starts that had it, by node and index."""
    found: dict[tuple[str, str], list[GpuUse]] = {}
    for use in uses:
        for gpu in use.gpus:
            held = gpu.held_s if gpu.held_s is not None else span_of(use, now)
            found.setdefault((use.node, gpu.uuid), []).append(replace(gpu, held_s=held))
    twice = {key for key, several in _holders(uses).items() if _is_held_twice(several, now)}
    joined = [
        NodeGpu(node=key[0], use=replace(_over_starts(several), **({"device_j": None} if key in twice else {})))
        for key, several in found.items()
    ]
    return tuple(sorted(joined, key=lambda one: (one.node, one.use.index if one.use.index is not None else 1 << 30)))


def _over_starts(uses: Sequence[GpuUse]) -> GpuUse:
    if len(uses) == 1:
        return uses[0]
    energies = [use.energy for use in uses]
    return replace(
        uses[-1],
        held_s=total(use.held_s for use in uses),
        measured_s=total(use.measured_s for use in uses),
        utilization_percent=_mean(uses, "utilization_percent"),
        sm_percent=_mean(uses, "sm_percent"),
        dram_percent=_mean(uses, "dram_percent"),
        own_sm_percent=_mean(uses, "own_sm_percent"),
        memory_peak_mib=max((use.memory_peak_mib for use in uses if use.memory_peak_mib is not None), default=None),
        idle_s=total(use.idle_s for use in uses),
        idle_longest_s=max((use.idle_longest_s for use in uses if use.idle_longest_s is not None), default=None),
        was_shared=any(use.was_shared for use in uses) if all(use.was_shared is not None for use in uses) else None,
        energy=_added([one for one in energies if one is not None]),
        device_j=total(use.device_j for use in uses),
        by={name: source for use in uses for name, source in use.by.items()},
        unknown={name: why for use in uses for name, why in use.unknown.items()},
    )


def _added(energies: Sequence[EnergyUse]) -> EnergyUse | None:
    if not energies:
        return None
    return EnergyUse(
        joules=sum(one.joules for one in energies),
        idle_j=sum(one.idle_j for one in energies),
        rule=max((one.rule for one in energies), key=EXACT.index),
    )


def _mean(uses: Sequence[GpuUse], field: str) -> float | None:
    """Return the mean of a field over the GPUs that have it, by the time for which each was measured."""
    known = [(getattr(use, field), use.measured_s or use.held_s or 1.0) for use in uses]
    kept = [(value, weight) for value, weight in known if value is not None]
    weights = sum(weight for _, weight in kept)
    return sum(value * weight for value, weight in kept) / weights if weights else None


def _load(uses: Sequence[GpuUse]) -> tuple[float | None, bool]:
    """Return (mean load, whether it is SM activity): one kind of figure for all GPUs, never a mixture."""
    if uses and all(use.sm_percent is not None for use in uses):
        return _mean(uses, "sm_percent"), True
    found = _mean(uses, "utilization_percent")
    return (found, False) if found is not None else (_mean(uses, "sm_percent"), True)


def _gpu_seconds(report: JobReport, uses: Sequence[GpuUse]) -> float | None:
    told = [one for one in report.starts if one.gpus is not None and one.elapsed_s is not None]
    if told and any(one.gpus for one in told):
        return total((one.gpus or 0) * (one.elapsed_s or 0.0) for one in told)
    return total(use.held_s for use in uses) if uses else (0.0 if told else None)


def _energy(report: JobReport, charged: Sequence[EnergyUse]) -> tuple[float | None, Sources]:
    """Return the energy that the job is charged with. sacct's, where there is no other, is of whole nodes."""
    if charged:
        return sum(one.joules for one in charged), {}
    found = total(one.energy_j for one in report.starts)
    return found, {} if found is None else {"energy_j": "sacct"}


def _holders(uses: Iterable[JobUse]) -> dict[tuple[str, str], list[JobUse]]:
    found: dict[tuple[str, str], list[JobUse]] = {}
    for use in uses:
        for gpu in use.gpus:
            found.setdefault((use.node, gpu.uuid), []).append(use)
    return found


def _is_held_twice(uses: Sequence[JobUse], now: float) -> bool:
    """Return whether starts had the same GPU at the same time."""
    spans = sorted((use.began, now if use.ended is None else use.ended) for use in uses if use.began is not None)
    until = whole = twice = 0.0
    for begin, end in spans:
        whole += max(0.0, end - max(begin, until))
        twice += max(0.0, min(end, until) - begin)
        until = max(until, end)
    return twice > OVERLAP * whole


def _device(uses: Sequence[JobUse]) -> float | None:
    """Return the energy of the job's GPUs, by the source that charged the job."""
    found: list[float | None] = []
    for use in uses:
        found += [one.total_j for one in use.others] if use.others else [one.device_j for one in use.gpus]
    return total(found)


def _reasons(report: JobReport, gpus: Sequence[GpuUse]) -> Reasons:
    """Return why figures are not known: the reason of the source that should know it, else who could."""
    found: Reasons = {}
    for use in report.uses:
        found |= {name: f"{use.node}: {why}" for name, why in use.unknown.items() if name not in found}
    for gpu in gpus:
        found |= {f"gpus.{name}": why for name, why in gpu.unknown.items() if f"gpus.{name}" not in found}
    return found
