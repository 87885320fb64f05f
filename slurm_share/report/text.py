"""The report as text: plain lines within a width. Values in, lines out."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from msgspec import Struct

from ..core import nodelist, terminal
from ..core.text import counted, span_text
from ..usage import TaskUse
from . import tables
from .records import JobFigures, JobReport, NodeGpu
from .rules import figures as adding
from .rules import mig_fit, spread, wording
from .rules.next_time import NextTime

WIDTH_LEAST, WIDTH_MOST = 60, 120
BAR = 24
"""Columns between the brackets of a bar."""
LABEL = 12
REMARK = "    "
"""Between a command and what it does."""


class Section(Struct, frozen=True):
    """A part of a report."""

    title: str
    """Empty: the head."""
    lines: tuple[str, ...]


def sections(report: JobReport, found: JobFigures, then: NextTime, width: int) -> tuple[Section, ...]:
    """Return the parts of the report, without the empty ones."""
    width = max(WIDTH_LEAST, min(width, WIDTH_MOST))
    parts = (
        Section("", head(report, found, width)),
        Section("", tuple(_bar_lines(report, found, width))),
        Section("GPUs", tuple(_gpu_lines(found, width))),
        Section(tasks_title(report), tuple(_task_lines(report, width))),
        Section(starts_title(report), tuple(_start_lines(report, width))),
        Section("Next time", tuple(next_lines(then, report, width))),
        Section("Known from", tuple(source_lines(report, found, width))),
    )
    return tuple(part for part in parts if part.lines)


def lines(parts: Sequence[Section]) -> list[str]:
    """Return the report as lines, a blank one between two parts."""
    found: list[str] = []
    for part in parts:
        found += [""] if found else []
        found += [part.title] if part.title else []
        found += part.lines
    return found


# ---- Head ----


def head(report: JobReport, found: JobFigures, width: int) -> tuple[str, ...]:
    """Return what the report is of, how it ended, what it asked for and had."""
    job = report.job
    what = f"Run {report.run}" if report.run and report.title == report.run else f"Job {report.title}"
    name = f"  {job.name}" if job is not None and job.name else ""
    run = f"  (run {report.run})" if report.run and report.title != report.run else ""
    said = [terminal.shortened(f"{what}{name}{run}  {user_and_nodes(report, found)}", width)]
    said += _wrapped([when(report, found)], width, "  ")
    if job is not None and job.het is not None:
        part = "all its components" if len(report.starts) > 1 else job.id
        said += _wrapped([f"Heterogeneous job {job.het}: this is the report of {part}."], width, "  ")
    if found.simulated:
        said += _wrapped(["SIMULATED GPUs: nothing was computed on them."], width, "  ")
    return (*said, *_rows([("asked for", asked(report)), ("had", had(report, found))], width))


def user_and_nodes(report: JobReport, found: JobFigures) -> str:
    """Return user, partition and nodes."""
    job = report.job
    where = nodelist.fold(found.nodes) if found.nodes else "no node yet"
    return ", ".join(part for part in (job.user if job else "", job.partition if job else "", where) if part)


def when(report: JobReport, found: JobFigures) -> str:
    """Return how it ended, after what time, and when that was."""
    job = report.job
    verb = wording.ended(report)
    after = "" if found.elapsed_s is None else f"{' after' * (not report.runs)} {span_text(found.elapsed_s)}"
    if not wording.has_begun(report):
        after = ""
    elif len(report.starts) > 1 and found.elapsed_s is not None:
        noun = "element" if wording.is_array(report) else "component" if _is_het(report) else "start"
        after = f"; {counted(len(report.starts), noun)}, {span_text(found.elapsed_s)} together"
    elif found.limit_s and after:
        after += f" of {span_text(found.limit_s)}"
    span = ""
    begin = min((one.start for one in report.starts if one.start is not None), default=None)
    if begin is not None:
        # The queue does not tell when a job ended.
        end = None if job is None or report.runs or job.elapsed_s is None else job.end
        span = f"; {tables.clock(begin)}" + (f" to {tables.clock(end, begin)}" if end is not None else "")
    return f"{verb[0].upper()}{verb[1:]}{after}{span}"


def _is_het(report: JobReport) -> bool:
    return len({one.id for one in report.starts}) > 1 and any(one.het for one in report.starts)


def asked(report: JobReport) -> str:
    """Return what the job asked for."""
    job = report.job
    parts = [f"llsub {report.triple}"] if report.triple else []
    parts += [f"--share-gpu={report.share}"] if report.share and not report.triple else []
    if job is not None:
        gpus = job.asked_gpus or (None if report.share or report.triple else job.gpus)
        parts += [counted(gpus, "GPU")] if gpus else []
        if job.memory_asked_mib and not report.triple:
            parts.append(f"{wording.size(job.memory_asked_mib)} on each node")
        parts.append(f"at most {span_text(job.limit_s)}" if job.limit_s else "no time limit")
    return ", ".join(parts)


def had(report: JobReport, found: JobFigures) -> str:
    """Return what the job had; empty: it has not started."""
    if not wording.has_begun(report):
        return ""
    parts = []
    if found.gpu_count:
        names = dict.fromkeys(one.use.name for one in found.gpus if one.use.name)
        of_type = f" ({', '.join(names)})" if names else ""
        parts.append(f"{counted(found.gpu_count, 'GPU')}{of_type}")
        ways = dict.fromkeys(use.sharing for use in report.uses if use.sharing)
        parts += [f"sharing={'+'.join(ways)}"] if ways else []
    elif report.job is not None and report.job.shards:
        parts.append("part of a GPU")
    parts += [counted(found.cpus, "CPU")] if found.cpus else []
    parts += [f"{wording.size(found.memory_limit_mib)} of memory on a node"] if found.memory_limit_mib else []
    parts += [counted(len(found.nodes), "node")] if found.nodes else []
    return ", ".join(parts)


# ---- Bars ----


def bar(percent: float, width: int = BAR) -> str:
    """Return a bar as jobstats draws it: [||||||        25 %]."""
    label = f"{percent:.0f} %"
    room = width - len(label)
    full = max(0, min(room, round(percent / 100 * width)))
    return f"[{'|' * full}{' ' * (room - full)}{label}]"


def bars(report: JobReport, found: JobFigures) -> list[tuple[str, float | None, str]]:
    """Return (label, percent, text) of each figure that has a whole; percent None: it is not known."""
    rows: list[tuple[str, float | None, str]] = []
    is_known = found.gpu_load_percent is not None or found.gpu_peak_mib is not None
    if is_known:
        rows.append(("GPU load", found.gpu_load_percent, _load_text(found)))
        rows.append(("GPU memory", found.gpu_memory_percent, _gpu_memory_text(found)))
    elif found.gpu_count or found.gpus:
        rows.append(("GPUs", None, f"unknown: {found.unknown.get('gpus.utilization_percent') or _WAYS['gpu']}"))
    rows.append(("CPU", found.cpu_percent, _cpu_text(report, found)))
    rows.append(
        ("host memory", found.memory_percent, wording.memory(found) or _unknown(report, found, "memory_peak_mib"))
    )
    if report.job is not None and report.job.limit_s and report.job.elapsed_s is not None and len(report.starts) == 1:
        part = 100 * report.job.elapsed_s / report.job.limit_s
        rows.append(("time", part, f"{span_text(report.job.elapsed_s)} of {span_text(report.job.limit_s)}"))
    return rows


def _bar_lines(report: JobReport, found: JobFigures, width: int) -> list[str]:
    said = []
    for label, percent, text in bars(report, found):
        shown = f"{bar(percent)}  " if percent is not None else ""
        indent = 2 + LABEL + 1
        first = f"  {label:<{LABEL}} {shown}"
        said += textwrap.wrap(
            terminal.safe(text),
            width,
            initial_indent=first,
            subsequent_indent=" " * (len(first) if shown else indent),
            break_long_words=False,
        ) or [first.rstrip()]
    return [*said, *_rows(further(report, found), width)]


def _load_text(found: JobFigures) -> str:
    if found.gpu_load_percent is None:
        return f"unknown: {found.unknown.get('gpus.utilization_percent') or _WAYS['gpu']}"
    kind = "SM activity" if found.load_is_sm else "utilisation (an upper bound of SM activity)"
    shared = any(one.use.was_shared for one in found.gpus)
    mine = ""
    if shared:
        mine = "; others were on the same GPUs"
        mine += "" if found.own_sm_percent is None else f", {wording.percent(found.own_sm_percent)} was its own"
    return f"{kind}, mean of {counted(len(found.gpus), 'GPU')}{mine}"


def _gpu_memory_text(found: JobFigures) -> str:
    if found.gpu_peak_mib is None:
        return f"unknown: {found.unknown.get('gpus.memory_peak_mib') or _WAYS['gpu']}"
    of = f" of {wording.size(found.gpu_memory_mib)}" if found.gpu_memory_mib else ""
    cap = f"; cap of a task {wording.cap(found)}" if found.gpu_cap_mib else ""
    booked = [one.use.memory_booked_mib for one in found.gpus if one.use.memory_booked_mib is not None]
    books = f"; booked {wording.size(max(booked))}" if booked else ""
    which = ""
    if len(found.gpus) > 1:
        top = max(found.gpus, key=lambda one: one.use.memory_peak_mib or -1)
        which = f" on {_gpu_name(top, found)}"
    return f"peak {wording.size(found.gpu_peak_mib)}{of}{which}{cap}{books}"


def _gpu_name(one: NodeGpu, found: JobFigures) -> str:
    index = one.use.uuid[:12] if one.use.index is None else str(one.use.index)
    return f"GPU {index}" + (f" of {one.node}" if len({other.node for other in found.gpus}) > 1 else "")


def _cpu_text(report: JobReport, found: JobFigures) -> str:
    if found.cpu_percent is None or not found.cpus:
        return wording.cpu(found) or _unknown(report, found, "cpu_s")
    return f"{wording.cores(found.cpu_percent * found.cpus / 100)} of {counted(found.cpus, 'CPU')} busy"


_WAYS = {
    "gpu": "nobody measured them. The launcher of llsub measures a run's; for other jobs ask an administrator for "
    "slurm-share-agent on the nodes, or for usage_record in config.toml",
    "cpu_s": "Slurm counts it at the end of each step",
    "memory_peak_mib": "neither an agent nor Slurm's accounts (JobAcctGatherType) have it",
}
"""Figure -> the way to know it next time."""


def _unknown(report: JobReport, found: JobFigures, name: str) -> str:
    if report.job is not None and not report.job.has_begun:
        return "it has not started"
    return f"unknown: {found.unknown.get(name) or _WAYS[name]}"


def further(report: JobReport, found: JobFigures) -> list[tuple[str, str]]:
    """Return the figures without a bar: label, text."""
    rows: list[tuple[str, str]] = []
    if found.gpu_idle_s is not None and found.gpu_measured_s:
        longest = max((one.use.idle_longest_s or 0.0 for one in found.gpus), default=0.0)
        text = wording.idle(found).removeprefix("idle ") or "never for a second"
        rows.append(("GPUs idle", text + (f", {span_text(longest)} without a break" if longest >= 1 else "")))
    if found.dram_percent is not None:
        rows.append(("GPU DRAM", f"{wording.percent(found.dram_percent)} of the bandwidth"))
    if waits := wording.waiting(found):
        rows.append(("waiting", waits.removeprefix("waited ")))
    if energy := wording.energy(found):
        rule = f" ({wording.RULES[found.energy_rule]})" if found.energy_rule else ""
        rows.append(("energy", f"{energy}{rule}"))
    elif found.gpu_count and found.gpus:
        rows.append(("energy", f"unknown: {found.unknown.get('gpus.energy', 'the driver has no counter of it')}"))
    if instance := mig_fit.sentence([one.use for one in found.gpus]):
        rows.append(("MIG", instance))
    if report.tasks and (counts := wording.tasks(report)):
        rows.append(("tasks", counts))
    return rows


def _rows(rows: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Return label and text in two columns, the text wrapped."""
    said: list[str] = []
    for label, text in rows:
        if text:
            said += textwrap.wrap(
                terminal.safe(text),
                width,
                initial_indent=f"  {label:<{LABEL}} ",
                subsequent_indent=" " * (LABEL + 3),
                break_long_words=False,
            )
    return said


def _wrapped(texts: Sequence[str], width: int, indent: str) -> list[str]:
    return [
        line
        for text in texts
        for line in textwrap.wrap(
            terminal.safe(text), width, initial_indent=indent, subsequent_indent=indent, break_long_words=False
        )
    ]


# ---- Tables ----


def _gpu_lines(found: JobFigures, width: int) -> list[str]:
    rows, note = tables.gpu_rows(found)
    return [*tables.as_lines(tables.GPU_COLUMNS, rows, width), *([f"  {note}"] if note else [])]


def tasks_title(report: JobReport) -> str:
    """Return the title of the table of tasks."""
    tasks = adding.all_tasks(report)
    left = f", and {report.tasks_left_out} more that are not counted here" if report.tasks_left_out else ""
    return f"Tasks ({counted(len(tasks), 'attempt')}{left})"


def _task_lines(report: JobReport, width: int) -> list[str]:
    tasks = adding.all_tasks(report)
    if len(tasks) <= tables.TASKS_MOST:
        return tables.as_lines(tables.TASK_COLUMNS, tables.task_rows(tasks), width)
    said = [*tables.as_lines(tables.SPREAD_COLUMNS, tables.spread_rows(tasks), width), f"  {SPREAD_KEY}"]
    of_worst = spread.worst(tasks)
    if of_worst:
        rows = tables.as_lines(tables.TASK_COLUMNS, tables.task_rows(of_worst), width)
        said += ["", f"  {worst_title(of_worst)}", *rows]
    return said


SPREAD_KEY = "HALF: half of them had at most this. TASK: the one with the most."


def worst_title(tasks: Sequence[TaskUse]) -> str:
    """Return the title of the table of the tasks that most want a look."""
    count = ("one", "two", "three", "four", "five")[len(tasks) - 1]
    return f"the {count} that most want{'s' * (len(tasks) == 1)} a look:"


def starts_title(report: JobReport) -> str:
    """Return the title of the table of starts."""
    return "Elements" if wording.is_array(report) else "Components" if _is_het(report) else "Starts"


def _start_lines(report: JobReport, width: int) -> list[str]:
    rows, note = tables.start_rows(report)
    return [*tables.as_lines(tables.START_COLUMNS, rows, width), *([f"  {note}"] if note else [])]


# ---- Next time, sources ----


def next_lines(then: NextTime, report: JobReport, width: int) -> list[str]:
    """Return what to ask for next time, with the lines to submit."""
    said: list[str] = []
    advice = then.advice
    for one in then.requests:
        said += _wrapped([one.text], width, "  ")
    if then.line:
        said += ["", f"  {terminal.safe(then.line)}"]
    if advice is not None and advice.verdict != "unknown":
        both = any(one.is_needed for one in then.requests) and advice.verdict == "fewer"
        said += ["", *(["  or", ""] if both else [])] if said else []
        sure = f" (confidence: {advice.confidence})" if advice.confidence != "none" else ""
        said += _wrapped([f"{advice.sentence}{sure}"], width, "  ")
        said += [line for one in advice.resubmit[:1] for line in ("", f"  {terminal.safe(one)}")]
    elif advice is not None and not report.runs:
        said += [""] if said else []
        said += _wrapped([f"How many tasks: {advice.sentence}"], width, "  ")
    if report.run and report.job is not None and not report.runs and _is_unfinished(report):
        said += ["", f"  llsub --resume {terminal.safe(report.run)}{REMARK}the tasks that are not done"]
    return said


def _is_unfinished(report: JobReport) -> bool:
    done = {one.task for one in report.tasks if one.outcome == "done"}
    return report.run_tasks is not None and not report.tasks_left_out and len(done) < report.run_tasks


def source_lines(report: JobReport, found: JobFigures, width: int) -> list[str]:
    """Return who measured, which nodes are missing, and which sources did not answer."""
    said = _wrapped([f"{wording.sources(found)}."], width, "  ") if found.sources else []
    if found.silent and found.nodes and found.gpu_count != 0:
        text = f"Nothing was measured on {nodelist.fold(found.silent)}."
        said += _wrapped([text], width, "  ")
    return said + _wrapped([_sentence(one) for one in report.problems], width, "  ")


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?")) else f"{text}."
