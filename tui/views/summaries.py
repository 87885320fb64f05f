"""Lines that summarize several nodes, a job or a user. Pure: values in, lines out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from operator import attrgetter

from textual.content import Content

from slurm_share.core.text import counted
from slurm_share.load import (
    Advice,
    GpuRow,
    JobLoad,
    JobRow,
    NodeRow,
    Sum,
    UsageRow,
    elements_of,
    flags,
    job_request,
    nodes_of,
    percent,
    text,
)
from slurm_share.load import advice_columns as advice_table
from slurm_share.load import gpu_columns as gpu_table
from slurm_share.load import job_columns as job_table
from slurm_share.load import node_columns as node_table
from slurm_share.slurm.records import QueuedJob

from ..history import Figure
from ..picture import SurveyPicture
from ..widgets.charts import Chart
from ..wire import Point
from .text import Piece, facts, labelled, line

SUMMED_MOST = 1000
"""Most rows of jobs or users that are summed: 5,000 take 0.3 s, and no frame may take 0.1 s."""


def nodes_summary(rows: Sequence[NodeRow], width: int, count: str = "") -> Content:
    """Return the totals of these nodes in one line. `count`: their number as text."""
    gpus = 0
    cpus = load = gpu_load = memory = total = 0.0
    for row in rows:
        one = row.figures
        if one.load is not None and one.cpus:
            cpus, load = cpus + one.cpus, load + one.load
        if one.gpu_load is not None and one.gpus:
            gpus, gpu_load = gpus + one.gpus, gpu_load + one.gpu_load
        if one.gpu_memory_used_mib is not None and one.gpu_memory_mib:
            memory, total = memory + one.gpu_memory_used_mib, total + one.gpu_memory_mib
    used, free, out = (sum(map(attrgetter(one), rows)) for one in ("is_used", "is_free", "is_out"))
    parts: list[Piece | str] = [
        (count or counted(len(rows), "node"), "strong"),
        *attention((row.severity for row in rows), has_severities=True),
        left_idle(sum(row.figures.gpus_idle or 0 for row in rows)),
        f"{used} in use, {free} free{f', {out} out of service' if out else ''}" if used + free + out else "",
        f"CPU {text.percent_text(percent(load, cpus))} of {cpus:.0f}" if cpus else "",
        f"GPU {gpu_load:.2f} of {gpus} ({text.percent_text(percent(gpu_load, gpus))})" if gpus else "",
        f"GPU memory {text.whole_gigabytes(int(memory))} of {text.whole_gigabytes(int(total))}" if total else "",
    ]
    return facts(parts, width)


def attention(severities: Iterable[flags.Severity], *, has_severities: bool = False) -> list[Piece]:
    """Return how many rows with these severities need attention. `has_severities`: and how many have which severity;
    only dead is red. A job or a user has no severity: its nodes have."""
    counts = Counter(severities)
    told = [(f"{counts[one]} {one}", kind) for one, kind in zip(flags.URGENT, "!HH", strict=True) if counts[one]]
    number = sum(counts[one] for one in flags.URGENT)
    head = (f"{number} need{'s' * (number == 1)} attention (f)", "strong")
    return [] if not told else [head, *told] if has_severities else [(head[0], "H")]


def left_idle(number: int) -> Piece:
    """Return how many GPUs running jobs hold and leave idle; no text for none."""
    return (f"{counted(number, 'GPU')} left idle" if number else "", "H")


def usage_sums(rows: Sequence[UsageRow], what: str, width: int) -> list[Content]:
    """Return the sums over the shown rows of jobs or users in one line. `what`: their number as text."""
    if len(rows) < 2:
        return []
    if len(rows) > SUMMED_MOST:
        return [line((f"sums are shown for up to {SUMMED_MOST:,} rows; a filter (/) narrows them", "dim"))]
    there = [row for row in rows if not row.is_waiting]
    held = [one for row in rows for one in row.records if not one.nodes]
    waiting, known = sum(map(elements_of, held)), [one for one in held if one.gpus is not None]
    asked = Sum(float(sum((one.gpus or 0) * elements_of(one) for one in known)), len(known) < len(held))
    gpus, cpus = sum(row.gpus or 0 for row in there), sum(row.cpus or 0 for row in there)
    load, cores, gpu_memory, memory, given = (
        _total(map(attrgetter(of), there)) for of in ("gpu_load", "cpu", "gpu_memory", "memory", "memory_requested")
    )
    parts: list[Piece | str] = [
        (f"sum of {what}", "strong"),
        f"GPU {text.summed_load(load)} of {gpus}" if gpus else "",
        left_idle(sum(int(row.idle_gpus.value or 0) for row in there)),
        f"CPU {text.summed_load(cores)} of {cpus}" if cpus else "",
        f"memory {text.summed_memory(memory)}" + (f" of {text.summed_memory(given)}" if given.value else ""),
        f"GPU memory {text.summed_memory(gpu_memory)}" if gpus else "",
        f"{counted(waiting, 'job')} wait{'s' * (waiting == 1)} for {_gpus(asked)}" if waiting else "",
    ]
    return [facts(parts, width)]


def _gpus(number: Sum) -> str:
    """Return a number of GPUs: 1 GPU, 7? GPUs."""
    found = text.summed_count(number)
    return f"{found} GPU{'' if found == '1' else 's'}"


def _total(parts: Iterable[Sum]) -> Sum:
    """Return the sum of sums; partial if one of them is, or is not known."""
    found = list(parts)
    known = [one.value for one in found if one.value is not None]
    return Sum(sum(known) if known else None, bool(known) and any(one.partial or one.value is None for one in found))


def advised(found: Iterable[Advice | None]) -> list[Piece]:
    """Return how many jobs have which verdict, the most urgent first."""
    return [
        (advice_table.said(verdict, count), "H" if verdict in advice_table.WANTS_CHANGE else "")
        for verdict, count in advice_table.counts(found).items()
    ]


def tasks_text(tasks: str) -> str:
    """Return a number of tasks as text: 1 task, 4/8 tasks."""
    return f"{tasks} task" if tasks == "1" else f"{tasks} tasks"


def advice_text(advice: Advice) -> str:
    """Return the advice about a job as a sentence."""
    return advice.sentence if advice.sentence.startswith("no advice") else f"advice: {advice.sentence}"


def job_summary(row: JobRow, width: int) -> Content:
    """Return a job in one line: its identity, then its usage."""
    parts: list[Piece | str] = [(f"job {job_table.job_id(row)}", "strong"), row.name, f"of {text.named(row.user)}"]
    parts.append(f"{job_table.state(row)} {job_table.place(row)}")
    if not row.has_no_gpu and (row.slots is not None or row.tasks.value):
        parts.append(tasks_text(job_table.tasks(row)))
    if rate := job_table.rate([load for _, load in row.loads], with_source=True):
        parts.append(f"work {rate}")
    if row.gpus:
        parts.append(f"GPU {text.summed_load(row.gpu_load)} of {row.gpus}")
        if row.idle_gpus.value:
            parts.append((f"{text.summed_count(row.idle_gpus)} idle", "H"))
        parts.append(text.summed_memory(row.gpu_memory))
    parts.append(f"CPU {text.load_text(row.cpu.value)}" + (f" of {row.cpus}" if row.cpus else ""))
    if row.tasks_measured:
        parts.append(f"largest task {text.gigabytes(row.peak_mib)}")
    if (nppn := job_table.nppn(row.advice)) != text.NONE:
        parts.append(f"NPPN {nppn}")
    if row.kills.value:
        parts.append((f"{row.kills.value:.0f} ended out of memory", "H"))
    return facts(parts, width)


def times_line(row: JobRow, width: int) -> Content:
    """Return since when a job runs, its time limit and what is left of it, in one line."""
    left = job_table.time_left(row)
    parts = [
        "running for " + ("?" if row.runs_s is None else text.time_text(row.runs_s)),
        f"time limit {job_table.limit(row)}",
        "" if left == job_table.UNLIMITED else f"time left {left}",
        "" if row.starts is None else f"started {text.moment_text(row.starts, row.now)}",
        f"partition {row.job.partition}" if row.job is not None and row.job.partition else "",
    ]
    return facts(parts, width)


def job_headline(row: JobRow, width: int) -> Content:
    """Return the identity of a job in one line, with its state."""
    return facts(
        [(f"job {job_table.job_id(row)}", "strong"), row.name, f"of {text.named(row.user)}", job_table.state(row)],
        width,
    )


def request_lines(row: JobRow, width: int, most: int = 99) -> list[Content]:
    """Return why a waiting job waits and what it asks for, the most important first."""
    return [one for label, texts in job_request.facts(row) for one in labelled(label, texts, width)][: max(0, most)]


def _job_on_node(load: JobLoad, record: QueuedJob | None, advice: Advice | None, width: int) -> Content:
    """Return what a job uses on one node, in one line."""
    tasks = f"{load.tasks}" + ("" if load.slots is None else f"/{load.slots}")
    parts: list[Piece | str] = [(f"job {load.job if record is None else record.id}", "strong")]
    parts += [record.name if record is not None else "", f"of {text.named(load.user)}"]
    has_gpu = bool(load.gpus or load.tasks or load.share) or (record is not None and record.gpus != 0)
    if has_gpu and (load.gpus or load.slots or load.tasks):
        # Tasks are counted by their GPU memory, so the count of a job without a GPU is unknown.
        parts.append(tasks_text(tasks))
    if rate := job_table.rate([load], with_source=True):
        parts.append(f"work {rate}")
    elif load.progress is not None and load.progress.finished_per_h is not None:
        parts.append(f"{load.progress.finished_per_h:.3g} tasks done an hour")
    if has_gpu and (load.gpus or load.slots):
        parts += [f"GPU {text.load_text(load.gpu_load)}", text.gigabytes(load.gpu_memory_mib)]
    parts += [f"CPU {text.load_text(load.cpu_cores)}", f"memory {text.gigabytes(load.memory_mib)}"]
    if load.tasks_measured:
        parts.append(f"largest task {text.gigabytes(load.task_peak_mib)}")
    if (nppn := job_table.nppn(advice)) != text.NONE:
        parts.append(f"NPPN {nppn}")
    if load.memory_kills:
        parts.append((f"{load.memory_kills} ended out of memory", "H"))
    return facts(parts, width)


def jobs_on_node(picture: SurveyPicture, row: NodeRow, width: int) -> list[Content]:
    """Return a line for each job on a node; for a silent node the jobs that Slurm has there."""
    snapshot = row.node.snapshot
    if snapshot is None:
        there = [job for job in picture.survey.jobs if row.name in nodes_of(job)]
        return [facts([(f"job {job.id}", "strong"), job.name, f"of {text.named(job.user)}"], width) for job in there]
    return loads_on_node(picture, snapshot.jobs, width)


def loads_on_node(picture: SurveyPicture, loads: Sequence[JobLoad], width: int) -> list[Content]:
    """Return a line for each of these jobs of one node."""
    numbers = {load.job for load in loads}
    records = {job.job_id: job for job in picture.survey.jobs if job.job_id in numbers}
    advice = {one.job: one for one in picture.advice}
    found = []
    for load in loads:
        record = records.get(load.job)
        number = load.job if record is None else record.array or record.job_id
        found.append(_job_on_node(load, record, advice.get(number), width))
    return found


def flag_lines(row: NodeRow, most: int) -> list[Content]:
    """Return the reasons of a node's flags, a line each, and one line for all of its idle GPUs."""
    found = [(flag, flag.why) for flag in row.flags if flag.of != "i"]
    idle = [flag for flag in row.flags if flag.of == "i"]
    if len(idle) > 1:
        found.append((idle[0], f"{idle[0].why}; {counted(len(idle) - 1, 'more GPU')} like it"))
    else:
        found += [(flag, flag.why) for flag in idle]
    shown = found if len(found) <= most else found[: max(0, most - 1)]
    lines = [line((flag.code, text.mark(flag.code)), "  ", why) for flag, why in shown]
    left = len(found) - len(shown)
    return [*lines, line(f"... and {left} more")] if left and most > 0 else lines


def usage_charts(newest: Point | None, gpus: str, *, has_gpu: bool, rate: str = "") -> tuple[Chart, ...]:
    """Return the charts of a job or a user with the newest figure of each, the most important first. `gpus`: which GPUs
    the load refers to, as text. `rate`: of its tasks; empty: unknown now."""

    def now(of: Figure, whole: str) -> Chart:
        value: float | None = None if newest is None else getattr(newest, of)
        return Chart(of, f"{text.percent_text(value)} of {whole}")

    # Four charts stand in two rows of two.
    last = now("memory_percent", "the nodes' memory")
    host = (Chart("rate", rate or text.UNKNOWN), now("cpu_load_percent", "the nodes' CPUs"), *([] if rate else [last]))
    if not has_gpu:
        return host
    return now("gpu_load_percent", f"the {gpus}"), now("gpu_memory_percent", "these GPUs' memory"), *host


def node_charts(row: NodeRow) -> tuple[Chart, ...]:
    """Return the charts of a node, of its GPUs first if it has any, with the newest figure of each."""
    one = row.figures
    if row.node.snapshot is None:
        return ()
    cpus, gpus = text.core_text(one)[0], "?" if one.gpus is None else one.gpus
    memory = text.of_text(text.memory_text(one.memory_mib, one.memory_used_mib))
    gpu_memory = text.of_text(text.gpu_memory_text(one))
    load, gpu_load = text.percent_text(node_table.cpu_percent(row)), text.percent_text(node_table.gpu_percent(row))
    return (
        Chart("gpu_load_percent", f"{gpu_load} of {gpus} GPUs, {node_table.by(row)}"),
        Chart("gpu_memory_percent", f"{text.percent_text(node_table.gpu_memory_percent(row))}, {gpu_memory}"),
        Chart("cpu_load_percent", f"{load} of {cpus} CPUs, load {text.load_text(one.load)}"),
        Chart("memory_percent", f"{text.percent_text(node_table.memory_percent(row))}, {memory}"),
    )[2 if one.gpus == 0 else 0 :]


def gpu_charts(row: GpuRow) -> tuple[Chart, ...]:
    """Return the charts of a GPU with the newest figure of each."""
    if row.gpu is None:
        return ()
    return (
        Chart("gpu_load_percent", f"{text.percent_text(row.gpu.load_percent_5min)}, {gpu_table.by(row)}"),
        Chart("gpu_memory_percent", f"{text.percent_text(row.memory_percent)}, {gpu_table.memory(row)}"),
    )


def no_figures(picture: SurveyPicture, of: str, names: Sequence[str]) -> Content:
    """Return that there are no figures of a job or a user, all of whose nodes (`names`) are silent, and why."""
    row = picture.by_name.get(names[0])
    if len(names) > 1:
        why = f"none of its {len(names)} nodes answers"
    else:
        why = f"{names[0]} is silent" + ("" if row is None else f": {text.why_silent(row.node)}")
    return line((f"no figures of {of}: {why}", "H"))


def knows_jobs(picture: SurveyPicture) -> bool:
    return picture.survey.jobs_taken is not None or bool(picture.survey.jobs)


def no_jobs_text(picture: SurveyPicture) -> str:
    """Return why there is no job to show and what to do about it, as llload says it."""
    if not knows_jobs(picture):
        return "which jobs there are is not known: Slurm was not asked, or does not answer"
    waiting = sum(elements_of(job) for job in picture.survey.jobs if not job.nodes)
    if waiting and not picture.nodes:
        return f"no job has a node; {counted(waiting, 'job')} wait{'s' * (waiting == 1)} (3: jobs)"
    if picture.nodes or picture.survey.everybody:
        return "no job is on these nodes"
    return "you have no job running; llsub ./task.sh [1,4] or sbatch starts one, llstat shows what waits"
