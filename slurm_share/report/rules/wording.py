"""Say the figures of a report in words: one sentence each, the same in the text, the short report and the page."""

from __future__ import annotations

from collections import Counter

from ...core.text import counted, gib_from_to_text, gib_text, joules_text, span_text
from ...slurm.accounts import AccountedJob
from ..records import JobFigures, JobReport

UNKNOWN = "unknown"
LITTLE_S = 1.0
"""Seconds below which waiting is not worth a word."""
LIKE = 0.01
"""Part of the energy of the GPUs by which charged and nobody's may differ from it and still be all of it."""
RULES = {
    "counter": "exact: nobody else was on them",
    "sm time": "beside others the idle power in equal parts, the rest by SM time",
    "equal parts": "beside others in equal parts where SM time was not known",
    "power": "in part by the mean power: a GPU has no counter, or it was reset",
}
"""EnergyRule -> how it divides."""
SOURCES = {
    "launcher": "the run's launcher (once a second)",
    "agent": "the node's agent",
    "driver": "the driver's accounting",
    "hooks": "counters that Prolog and Epilog noted",
    "cgroup": "the kernel's counters of the job",
    "sacct": "Slurm's accounts",
    "prometheus": "Prometheus",
}
"""Source -> its name for people."""


def outcome(report: JobReport, found: JobFigures) -> str:
    """Return what the report is of, and how it ended: job 4711 (train.sh) completed after 8 min of 30 min."""
    job = report.job
    name = f" ({job.name})" if job is not None and job.name else ""
    what = f"run {report.run}" if report.run else f"job {report.title}"
    after = "" if found.elapsed_s is None else f"{' after' * (not report.runs)} {span_text(found.elapsed_s)}"
    if not has_begun(report):
        return f"{what}{'' if report.run else name} {ended(report)}"
    limit = "" if found.limit_s is None or len(report.starts) > 1 else f" of {span_text(found.limit_s)}"
    return f"{what}{'' if report.run else name} {ended(report)}{after}{limit}"


def cap(found: JobFigures) -> str:
    """Return the memory that a task may have on its GPU: "20.0 GiB", or of a range "8 to 20 GiB"."""
    most_mib = found.gpu_cap_mib or 0
    return size(most_mib) if found.gpu_least_mib is None else gib_from_to_text(found.gpu_least_mib, most_mib)


def ended(report: JobReport) -> str:
    """Return how the last start ended, as a verb; "so far" for one that runs."""
    job = report.job
    if report.runs:
        return "runs, so far"
    if job is None or not job.state:
        return "ended"
    states = Counter(_verb(one) for one in report.starts) if is_array(report) else Counter()
    if len(states) > 1:
        return ", ".join(f"{number} {verb}" for verb, number in states.most_common())
    return _verb(job)


def has_begun(report: JobReport) -> bool:
    """Return whether a start of it has begun, as far as Slurm's accounts tell."""
    return not report.starts or any(one.has_begun for one in report.starts)


def is_array(report: JobReport) -> bool:
    """Return whether the report is of several elements of an array."""
    return len({one.id for one in report.starts}) > 1 and any(one.array for one in report.starts)


def _verb(job: AccountedJob) -> str:
    if job.state == "PENDING":
        return "waits"
    verb = _VERBS.get(job.state, f"ended ({job.state})")
    if job.state == "CANCELLED" and not job.has_begun:
        verb += " before it started"
    if job.state == "FAILED" and (job.signal or job.exit_code):
        verb += f" (signal {job.signal})" if job.signal else f" (exit code {job.exit_code})"
    return verb


_VERBS = {
    "COMPLETED": "completed",
    "TIMEOUT": "was ended by its time limit",
    "OUT_OF_MEMORY": "ran out of host memory",
    "NODE_FAIL": "was lost with a node",
    "CANCELLED": "was cancelled",
    "PREEMPTED": "was preempted",
    "FAILED": "failed",
    "DEADLINE": "was ended by its deadline",
    "REQUEUED": "was requeued",
    "BOOT_FAIL": "did not start: a node did not boot",
}


def gpu_load(found: JobFigures) -> str:
    """Return the mean load of the GPUs: load 62 % (SM activity)."""
    if found.gpu_load_percent is None:
        return f"load {UNKNOWN}"
    kind = "SM activity" if found.load_is_sm else "utilisation"
    own = found.own_sm_percent
    # Where others were on the same GPUs, the job's own part is what it can change.
    shared = any(one.use.was_shared for one in found.gpus)
    mine = f", {percent(own)} its own" if shared and own is not None else ""
    return f"load {percent(found.gpu_load_percent)} ({kind}{mine})"


def percent(value: float) -> str:
    """Return a percentage with at most two digits that say something."""
    return f"{value:.1f} %" if 0 < value < 9.95 else f"{value:.0f} %"


def idle(found: JobFigures) -> str:
    """Return for how long GPUs were idle: idle 12 min of 32 GPU-min; empty: never, or not known."""
    if not found.gpu_idle_s or not found.gpu_measured_s or found.gpu_idle_s < LITTLE_S:
        return ""
    part = 100 * found.gpu_idle_s / found.gpu_measured_s
    return f"idle {part:.0f} % ({gpu_time(found.gpu_idle_s)})"


def gpu_time(seconds: float) -> str:
    """Return GPU time: 40 GPU-s, 5 GPU-min, 3.2 GPU-h."""
    if seconds < 119.5:
        return f"{seconds:.0f} GPU-s"
    return f"{seconds / 60:.0f} GPU-min" if seconds < 7200 else f"{seconds / 3600:.1f} GPU-h"


def energy(found: JobFigures) -> str:
    """Return the energy of its GPUs, how it was divided, and what was nobody's; empty: not known."""
    if found.energy_j is None:
        return ""
    if found.by.get("energy_j") == "sacct":
        return f"{joules_text(found.energy_j)}, of its nodes or GPUs as Slurm counts it"
    like = found.device_j or 0.0
    said = joules_text(found.energy_j, like)
    nobodys = found.unattributed_j or 0.0
    others = like - found.energy_j - nobodys
    if like:
        said += f" of the {joules_text(like)} of its GPUs"
        if abs(others) <= LIKE * like:
            # Three rounded figures would often not add up.
            step = _step(like)
            nobodys = step * (round(like / step) - round(found.energy_j / step))
    if nobodys > 0:
        said += f"; {joules_text(nobodys, like)} is nobody's"
    if found.unattributed_j is not None and others > LIKE * like:
        said += f", {joules_text(others, like)} other jobs'"
    return said


def _step(joules: float) -> float:
    """Return the last digit that `joules_text` writes, in joules."""
    return 1.0 if joules < 1000 else 100.0 if joules < 1e6 else 36_000.0


def cpu(found: JobFigures) -> str:
    """Return the CPU time: 3.2 of 16 CPUs (20 %), waited 5 s for a CPU; empty: not known."""
    part = found.cpu_percent
    if part is None or not found.cpus:
        return "" if found.cpu_s is None else f"{span_text(found.cpu_s)} of CPU time"
    said = f"{cores(part * found.cpus / 100)} of {counted(found.cpus, 'CPU')} ({percent(part)})"
    waits = waiting(found)
    return f"{said}; {waits}" if waits else said


def cores(number: float) -> str:
    """Return a mean number of busy CPUs."""
    return f"{number:.2f}" if number < 0.995 else f"{number:.1f}"


def waiting(found: JobFigures) -> str:
    """Return for how long processes waited: for a CPU 5 s, for storage 2 s; empty: hardly, or not known."""
    parts = [
        f"for {what} {span_text(seconds)}"
        for what, seconds in (("a CPU", found.cpu_wait_s), ("storage", found.io_wait_s))
        if seconds is not None and seconds >= LITTLE_S
    ]
    return f"waited {', '.join(parts)}" if parts else ""


def memory(found: JobFigures) -> str:
    """Return host memory: peak 12.0 GiB of 64.0 GiB; empty: not known."""
    if found.memory_peak_mib is None:
        return ""
    whose = " (of one task)" if found.by.get("memory_peak_mib") == "sacct" else ""
    limit = "" if not found.memory_limit_mib else f" of {size(found.memory_limit_mib)}"
    kills = found.memory_kills or 0
    said = f"peak {size(found.memory_peak_mib)}{whose}{limit}"
    return f"{said}; the kernel killed {counted(kills, 'process')}: memory was full" if kills else said


def size(mib: float) -> str:
    """Return a size in MiB below 1 GiB, else in GiB."""
    return f"{mib:.0f} MiB" if mib < 1024 else gib_text(mib)


def tasks(report: JobReport) -> str:
    """Return the counts of a run's attempts by outcome: 58 done, 2 gpu memory; empty: no run."""
    if not report.tasks:
        return ""
    last: dict[int, str] = {}
    for one in report.tasks:
        last[one.task] = one.outcome
    counts = Counter(outcome for outcome in last.values() if outcome)
    if not counts:
        return ""
    whole = report.run_tasks if report.run_tasks is not None else len(last)
    again = len(report.tasks) - len(last)
    retried = f"; {counted(again, 'further attempt')}" if again else ""
    left = whole - len(last)
    open_ones = f", {left} not ended" if left > 0 and not report.tasks_left_out else ""
    return f"{', '.join(f'{number} {what}' for what, number in counts.most_common())} of {whole}{open_ones}{retried}"


def sources(found: JobFigures) -> str:
    """Return who measured: the node's agent, Slurm's accounts."""
    return ", ".join(SOURCES[one] for one in found.sources)
