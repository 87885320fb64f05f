"""Say what to ask for next time: the number of tasks (load/rules/advice), memory, time, CPUs and GPUs."""

from __future__ import annotations

import math
import posixpath
import shlex
from collections.abc import Sequence

from msgspec import Struct

from ...core.settings import Settings
from ...core.text import counted, span_text
from ...load import Advice, advise_nodes, thresholds
from ...slurm.records import Submission
from ...slurm.rules import submitted
from ...usage import TaskUse
from ..records import JobFigures, JobReport, Request
from . import evidence, wording

ROOM = 1.2
"""Factor above what was measured that is asked for. Source: jobstats proposes 20 % above the peak of memory."""
MEMORY_MUCH = 70.0
"""Percent of the requested host memory below which less is proposed. Source: jobstats (notes on memory)."""
MEMORY_LEAST_MIB = 1024
"""Host memory that has to be left over before less is proposed. Ours."""
TIME_MUCH = 40.0
"""Percent of the time limit below which a shorter one is proposed: a shorter job starts sooner in a gap. jobstats
proposes it below 10 % in red, 60 % in black; between them it is worth it from an hour on."""
TIME_LEAST_S = 3600.0
"""Time that has to be left over before a shorter limit is proposed. Ours: schedulers fill gaps of this size."""
CPU_MUCH = 50.0
"""Percent of the CPUs below which fewer are proposed, for a job without GPUs; with them CPUs come with the GPUs."""
AGAIN = 1.5
"""Factor for what a job ran out of: it needed more, and nobody knows how much."""
IDLE_MUCH = 90.0
"""Percent of its time for which a GPU has to be idle to be proposed away."""


class NextTime(Struct, frozen=True, kw_only=True):
    """The request for next time: advice, options, a whole command."""

    advice: Advice | None = None
    """About the number of tasks; None: there is nothing to say about it."""
    requests: tuple[Request, ...] = ()
    line: str = ""
    """The whole command with the options of `requests`; empty: not certain."""


def advice(report: JobReport, settings: Settings, submission: Submission | None) -> Advice | None:
    """Return the advice about the number of tasks on a node; None: the job has no GPU, or nothing was measured."""
    nodes = evidence.of_report(report)
    if not nodes or report.job is None or not any(node.gpus for node in nodes):
        return None
    failures = _memory_failures(report.tasks)
    if not failures and all(node.load is None and not node.kills for node in nodes):
        return None
    last = report.job
    jobs = [evidence.queued(one, report) for one in report.starts if one.job == last.job or one.array is not None]
    return advise_nodes(jobs, nodes, settings, memory_failures=failures, submission=submission)


def _memory_failures(tasks: Sequence[TaskUse]) -> int:
    """Return the attempts that ran out of GPU memory, without those of a packed run whose task got more afterwards:
    they had more than was booked for them, which says nothing about the number of tasks."""
    last = {task.task: task.outcome for task in tasks}
    return sum(
        task.outcome == "gpu memory"
        and (last[task.task] == "gpu memory" or all(gpu.memory_booked_mib is None for gpu in task.gpus))
        for task in tasks
    )


def requests(report: JobReport, found: JobFigures) -> tuple[Request, ...]:
    """Return the changes of what the job asks for, those first without which it fails again."""
    job = report.job
    if job is None or report.runs or not job.has_begun:
        return ()
    named = [_gpus(report, found), _memory(report, found), _time(report), _cpus(report, found)]
    known = [one for one in named if one is not None]
    return tuple(sorted(known, key=lambda one: not one.is_needed))


def _memory(report: JobReport, found: JobFigures) -> Request | None:
    job = report.job
    assert job is not None
    limit, peak = found.memory_limit_mib, found.memory_peak_mib
    if job.state == "OUT_OF_MEMORY" or found.memory_kills:
        if not limit:
            return None
        why = f"it ran out of its {wording.size(limit)}; how much it needs is not known"
        return Request(option=f"--mem={_mem(limit * AGAIN)}", why=why, is_needed=True)
    # MaxRSS of sacct is one task's: it tells the need of a job only if that has one task on each node.
    is_of_task = found.by.get("memory_peak_mib") == "sacct" and (job.tasks or 1) > len(job.nodes)
    if peak is None or not limit or is_of_task or _has_whole_nodes(report) or len(report.starts) > 1:
        return None
    wanted = max(peak * ROOM, 64.0)
    if 100 * peak / limit >= MEMORY_MUCH or limit - wanted < MEMORY_LEAST_MIB:
        return None
    why = f"its peak was {wording.size(peak)} of {wording.size(limit)}; with 20 % on top"
    return Request(option=f"--mem={_mem(wanted)}", why=why)


def _has_whole_nodes(report: JobReport) -> bool:
    """Return whether the job has whole nodes, whose memory nobody else can get meanwhile: triples and shares have."""
    return bool(report.triple or report.share)


def _mem(mib: float) -> str:
    """Return a size for --mem, rounded up to what people write."""
    if mib < 1024:
        return f"{math.ceil(mib / 128) * 128}M"
    return f"{math.ceil(mib / 1024)}G"


def _time(report: JobReport) -> Request | None:
    job = report.job
    assert job is not None
    if not job.limit_s or job.elapsed_s is None:
        return None
    if job.state == "TIMEOUT":
        if report.run:
            return None  # llsub --resume goes on with the tasks that are left
        why = "its limit ended it; how long it needs is not known"
        return Request(option=f"--time={_written(job.limit_s * AGAIN)}", why=why, is_needed=True)
    longest = max(one.elapsed_s or 0.0 for one in report.starts)
    is_done = all(one.state == "COMPLETED" for one in report.starts)
    if not is_done or 100 * longest / job.limit_s >= TIME_MUCH or job.limit_s - longest < TIME_LEAST_S:
        return None
    wanted = max(longest * ROOM, 600.0)
    why = f"it took {span_text(longest)} of {span_text(job.limit_s)}; a shorter job can start sooner"
    return Request(option=f"--time={_written(wanted)}", why=why)


def _written(seconds: float) -> str:
    """Return a time limit as Slurm takes it, rounded up to 5 minutes: 1-12:00:00."""
    minutes = math.ceil(seconds / 300) * 5
    days, rest = divmod(minutes, 24 * 60)
    clock = f"{rest // 60:02}:{rest % 60:02}:00"
    return f"{days}-{clock}" if days else clock


def _cpus(report: JobReport, found: JobFigures) -> Request | None:
    job = report.job
    assert job is not None
    part = found.cpu_percent
    if part is None or not job.cpus or found.gpu_count or report.triple or len(report.starts) > 1:
        return None
    each = job.cpus / max(1, job.tasks or 1)
    wanted = max(1, math.ceil(each * part / 100 * ROOM))
    if part >= CPU_MUCH or wanted >= each:
        return None
    used = wording.cores(part * job.cpus / 100)
    return Request(option=f"--cpus-per-task={wanted}", why=f"{used} of its {counted(job.cpus, 'CPU')} were busy")


def _gpus(report: JobReport, found: JobFigures) -> Request | None:
    """Return fewer GPUs, if some were idle nearly all the time and others were not."""
    measured = [one.use for one in found.gpus if one.use.idle_s is not None and one.use.measured_s]
    if not found.gpu_count or len(measured) < found.gpu_count or report.triple or len(report.starts) > 1:
        return None
    if min(use.measured_s or 0.0 for use in measured) < thresholds.SHORT_S:
        return None
    idle = [use for use in measured if 100 * (use.idle_s or 0.0) / (use.measured_s or 1.0) >= IDLE_MUCH]
    if not idle:
        return None
    if len(idle) == len(measured):
        return Request(option="", why="it hardly used its GPUs: leave --gres and --gpus out if it does not need them")
    nodes = max(1, len(report.job.nodes if report.job else ()))
    left = len(measured) - len(idle)
    if left % nodes:
        return None
    which = ", ".join(f"GPU {use.index}" for use in idle[:4])
    return Request(option=f"--gpus-per-node={left // nodes}", why=f"{counted(len(idle), 'GPU')} idle: {which}")


def line(found: Sequence[Request], submit_line: str, script_is_there: bool) -> str:
    """Return the complete command for the next submission; empty: it is not certain. Slurm keeps the submit line
    without its quotes, so it counts only if its script is there."""
    options = [one.option for one in found if one.option]
    if not options or not script_is_there:
        return ""
    words = submitted.with_options(submit_line, options)
    return "" if words is None else shlex.join(words)


def script_of(submit_line: str, folder: str) -> str:
    """Return the absolute path of the script in a submit line of sbatch; empty: it has none, or it is not certain."""
    script = submitted.script_of(submit_line)
    return posixpath.normpath(posixpath.join(folder, script)) if script and folder.startswith("/") else ""


def short_lines(then: NextTime) -> list[str]:
    """Return what to ask for next time in a line each, for the short report."""
    said = [one.text for one in then.requests]
    found = then.advice
    if found is None or found.verdict == "unknown":
        return said
    by = f" (decided by {found.decided_by})" if found.decided_by else ""
    if found.verdict in ("more", "fewer"):
        how = found.change[0] if found.change else f"{found.next} on a node"
        return [*said, f"{found.verdict} tasks: {how}{by}"]
    return [*said, f"as many tasks as now{by}" if found.verdict == "stay" else found.sentence]
