"""Advise how many tasks a node should run (NPPN), and why.

    next = min(hard bounds, 4 x now, max(2 x now, load bound)), in multiples of the GPUs of a node

If the rates of work with fewer and with more tasks are known (`measured.py`), they decide first, within the hard
bounds.

A hard bound (GPU memory, host memory, MPS clients, cores) may lower NPPN: beyond it tasks fail. Load only stops a rise:
at 80 % SM activity more tasks wait for one another, and fewer gain nothing. Below that, NPPN may rise to what the load
shows room for, at most by a factor of four, from half load on by two. Load does not grow evenly with tasks, so it is
measured again after each step.

Some causes come before any number: more threads than CPUs, waiting for storage or locks, tasks that hardly use their
GPU, tasks on the wrong GPU, and frameworks that take a GPU's memory in advance. `thresholds.py` has the numbers and
their sources.

The advice of the survey before is an input, so that in a steady state neither verdict nor number follows noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ....core import nodelist
from ....core.settings import Settings
from ....share import queue, registry
from ....slurm.records import QueuedJob, SlurmNode, Submission
from ...snapshot import CONFIDENCES, Advice, Confidence, JobLoad, Snapshot, Survey
from .. import thresholds
from . import answers, bounds, causes, evidence, measured, resubmit, sentences, steadiness, unused
from .case import Case
from .causes import AdviceDraft
from .evidence import Evidence

DEFAULTS = Settings()


def advise_all(
    survey: Survey,
    settings: Settings = DEFAULTS,
    partitions: Mapping[str, Settings] | None = None,
    memory_failures: Mapping[int, int] | None = None,
    *,
    previous: Sequence[Advice] = (),
    submissions: Mapping[int, Submission] | None = None,
) -> tuple[Advice, ...]:
    """Return an advice for each running job of the viewer, or of all users for an operator's survey. The elements of an
    array have one advice together. `partitions`: settings of partitions that have their own. `memory_failures`,
    `submissions`: by job, as in `advise`. `previous`: the result for the survey before. Raises UsageError for a job
    whose nodes are no list."""
    failed, before = memory_failures or {}, {one.job: one for one in previous}
    snapshots = {node.name: node.snapshot for node in survey.nodes if node.snapshot is not None}
    silent = {node.name: node.why for node in survey.nodes if node.snapshot is None}
    slurm = {node.name: node.slurm for node in survey.nodes if node.slurm is not None}
    groups: dict[int, list[QueuedJob]] = {}
    for job in survey.jobs:
        if "RUNNING" in job.states and (survey.everybody or job.user == survey.user):
            groups.setdefault(job.array or job.job_id, []).append(job)
    view = sentences.view_options(survey, settings.load_source)
    found = []
    for jobs in groups.values():
        names = [name for job in jobs for name in nodelist.unfold(job.nodes)]
        here = [snapshots[name] for name in dict.fromkeys(names) if name in snapshots]
        gone = {name: silent[name] for name in names if name in silent}
        found.append(
            advise(
                jobs[0],
                here,
                (partitions or {}).get(jobs[0].partition, settings),
                elements=jobs[1:],
                slurm=slurm,
                silent=gone,
                memory_failures=sum(failed.get(job.job_id, 0) for job in jobs),
                previous=before.get(jobs[0].array or jobs[0].job_id),
                submission=(submissions or {}).get(jobs[0].job_id),
                now=survey.taken,
                view=view,
            )
        )
    return tuple(found)


def advise(
    job: QueuedJob | None,
    snapshots: Sequence[Snapshot],
    settings: Settings = DEFAULTS,
    *,
    elements: Sequence[QueuedJob] = (),
    slurm: Mapping[str, SlurmNode] | None = None,
    silent: Mapping[str, str] | None = None,
    memory_failures: int = 0,
    previous: Advice | None = None,
    submission: Submission | None = None,
    now: float | None = None,
    view: str | None = "",
) -> Advice:
    """Return the advice for one job, from the snapshots of its nodes; other jobs in them are ignored.

    `job` None: Slurm does not answer, and the snapshots hold a single job. `elements`: further elements of its array.
    `silent`: its nodes without a snapshot, and why. `memory_failures`: its tasks that ran out of GPU memory, by the
    results of a run of llsub. `previous`: the advice of the survey before. `submission`: how the job was submitted.
    `now`: Unix time of the survey; None: how long the job runs is not known. `view`: as `sentences.view_options`
    returns. Raises UsageError for a job whose nodes are no list.
    """
    jobs = () if job is None else (job, *elements)
    ids = {one.job_id for one in jobs} or {load.job for one in snapshots for load in one.jobs}
    seen = _seen(jobs, ids, snapshots, slurm or {})
    base = Advice(
        job=next(iter(ids)) if job is None and len(ids) == 1 else None if job is None else job.array or job.job_id,
        user=job.user if job is not None else next((load.user for one in snapshots for load in one.jobs), ""),
        nodes=tuple(node.node for node in seen) or tuple(snapshot.node for snapshot in snapshots) or _nodes_of(jobs),
        verdict="unknown",
        work="unknown",
        now=None,
        next=None,
    )
    found = unused.judged(jobs, snapshots, now)
    if found is not None:
        return sentences.unused(base, found)
    if not seen or (job is None and len(ids) != 1):
        # A node that does not answer is not measured by watching it.
        return sentences.unknown(base, sentences.why_unseen(snapshots, silent or {}), view if snapshots else None)
    unseen = _unseen(jobs, seen, snapshots, silent or {})
    case = _case(jobs, seen, settings, memory_failures, unseen)
    advice = _judged(base, case, settings, previous, submission, view)
    if advice.verdict != "unknown":
        return advice
    loads = [load for snapshot in snapshots for load in snapshot.jobs if load.job in ids]
    return replace(advice, evidence=(*advice.evidence, *unused.watched_text(jobs, loads)))


def advise_nodes(
    jobs: Sequence[QueuedJob],
    nodes: Sequence[Evidence],
    settings: Settings = DEFAULTS,
    *,
    memory_failures: int = 0,
    unseen: Mapping[str, str] | None = None,
    submission: Submission | None = None,
) -> Advice:
    """Return the advice for a job, or the elements of an array, from the evidence of its nodes over its whole time: the
    job may have ended. `unseen`: its nodes without evidence, and why. Raises UsageError for a job whose nodes are no
    list."""
    job = jobs[0] if jobs else None
    base = Advice(
        job=None if job is None else job.array or job.job_id,
        user="" if job is None else job.user,
        nodes=tuple(node.node for node in nodes) or _nodes_of(jobs),
        verdict="unknown",
        work="unknown",
        now=None,
        next=None,
    )
    if not nodes:
        return sentences.unknown(base, sentences.why_unseen((), unseen or {}), None)
    case = _case(jobs, nodes, settings, memory_failures, unseen or {})
    return _judged(base, case, settings, None, submission, None)


def _unseen(
    jobs: Sequence[QueuedJob], seen: Sequence[Evidence], snapshots: Sequence[Snapshot], silent: Mapping[str, str]
) -> dict[str, str]:
    """Return the job's nodes for which nothing is known, and why."""
    known, answered = {node.node for node in seen}, {snapshot.node for snapshot in snapshots}
    names = dict.fromkeys((*(name for job in jobs for name in nodelist.unfold(job.nodes)), *silent))
    return {
        name: silent.get(name) or ("the job was not measured there" if name in answered else "not read")
        for name in names
        if name not in known
    }


def _nodes_of(jobs: Sequence[QueuedJob]) -> tuple[str, ...]:
    """Return the nodes that Slurm gave these jobs."""
    return tuple(dict.fromkeys(name for job in jobs for name in nodelist.unfold(job.nodes)))


def _seen(
    jobs: Sequence[QueuedJob], ids: set[int], snapshots: Sequence[Snapshot], slurm: Mapping[str, SlurmNode]
) -> list[Evidence]:
    found = []
    for snapshot in snapshots:
        loads: list[JobLoad] = [load for load in snapshot.jobs if load.job in ids]
        if loads:
            here = [one for one in jobs if one.job_id in {load.job for load in loads}]
            found.append(evidence.of_job(snapshot, here, loads, slurm.get(snapshot.node)))
    return [_with_processes(jobs, one) for one in found]


def _with_processes(jobs: Sequence[QueuedJob], node: Evidence) -> Evidence:
    """Fill in the number of tasks of a job without GPUs, which no sampler counts, from its submission."""
    if node.gpus or not jobs:
        return node
    count = declared(jobs[0])
    return node if count is None else evidence.with_tasks(node, count)


def declared(job: QueuedJob) -> int | None:
    """Return the tasks per node with which the job was submitted: NPPN of its triple, else Slurm's tasks."""
    triple = queue.triple_of(job)
    if triple is not None:
        return int(triple.strip("[]").split(",")[1])
    return None if not job.tasks else -(-job.tasks // (job.node_count or 1))


def _case(
    jobs: Sequence[QueuedJob], nodes: Sequence[Evidence], settings: Settings, failures: int, unseen: Mapping[str, str]
) -> Case:
    share = resubmit.share_of(jobs[0] if jobs else None)
    numbers = {node.gpus for node in nodes}
    fewest = min(numbers)
    if fewest and not (jobs and queue.triple_of(jobs[0])):
        # A triple has the same number of tasks on each node; a share has the same number on each GPU.
        nodes = [evidence.scaled_to_gpus(node, fewest) for node in nodes]
    with_gpus = [node for node in nodes if node.gpus]
    return Case(
        jobs=tuple(jobs),
        nodes=tuple(nodes),
        unseen=unseen,
        gpus=fewest,
        now=bounds.most_now(nodes),
        hard=bounds.hard(nodes, settings, registry.wanted(share, settings)[0]),
        memory_failures=failures,
        memory_unknown_on=tuple(node.node for node in with_gpus if bounds.gpu_memory(node, settings) is None),
        are_unlike=any(bounds.are_unlike(node, settings) for node in with_gpus),
        has_unlike_nodes=len(numbers) > 1,
    )


def _judged(
    base: Advice,
    case: Case,
    settings: Settings,
    previous: Advice | None,
    submission: Submission | None,
    view: str | None,
) -> Advice:
    known = measured.measured(case.nodes, case.now, previous)
    judged = measured.judged(known, case.now)
    case = replace(case, works=measured.does_not_fall(case.nodes, case.now, previous))
    if previous is not None and (previous.now, previous.gpus) != (case.now or None, case.gpus):
        previous = None  # it was about other tasks
    case, loads = steadiness.steadied(case, previous)
    base = replace(
        base,
        work=bounds.work_class(case.nodes, case.hard, settings) if case.now else "unknown",
        now=case.now or None,
        gpus=case.gpus,
        bounds=(*case.hard, *(soft.bound for soft in case.soft), *((case.growth,) if case.now else ())),
        memory_allows=_memory_allows(case, settings),
        gpu_percents=loads.gpu_percents,
        cpu_percent=loads.cpu_percent,
        load_average_percent=loads.average_percent,
        dram_percent=loads.dram_percent,
        rates=known.levels,
        rate_source=known.source,
        rate_family=known.family,
        evidence=(
            *sentences.evidence(case),
            *sentences.rates(known, case),
            *((ways,) if (ways := measured.ways_of_sharing(case.nodes)) else ()),
        ),
    )
    missing = _missing(case)
    fewer, is_kept = steadiness.fewer_kept(case, previous) if case.now and _is_counted(case) else (None, False)
    if missing and fewer is None:
        return sentences.unknown(base, missing, view if _can_come(case) else None)
    # Tasks that do not fit are too many, even if the job was watched for a short time or is idle.
    answer = answers.answer_of(case) if fewer is None else AdviceDraft("fewer", *fewer)
    if is_kept:
        base = replace(base, evidence=(*base.evidence, sentences.KEPT))
    if fewer is None and judged is not None and case.died is None:
        by_load, answer = answer, answers.by_rates(case, judged)
        base = replace(
            base,
            bounds=(*base.bounds, sentences.rate_bound(judged, answer)),
            evidence=(*base.evidence, *sentences.contradicts(by_load, answer)),
        )
    elif previous is not None:
        answer, is_kept = steadiness.kept(answer, case, previous)
        if is_kept:
            base = replace(base, evidence=(*base.evidence, sentences.KEPT))
        base = replace(base, work=steadiness.kept_class(base, case, settings, previous))
    cautions = resubmit.cautions(answer, case.jobs, case.nodes, settings)
    changes = resubmit.changes(answer, case.jobs, case.nodes, settings, submission)
    again = resubmit.lines(changes, submission)
    if again and submission is not None and submission.program == "sbatch" and len(submission.rest) > 1:
        base = replace(base, evidence=(*base.evidence, sentences.NO_QUOTES))
    advice = replace(
        base,
        verdict=answer.verdict,
        next=answer.nppn,
        decided_by=answer.decided_by,
        confidence=_lowered(_confidence(case, answer)) if cautions else _confidence(case, answer),
        change=tuple(str(one) for one in changes),
        resubmit=again,
    )
    return sentences.known(advice, case, answer, cautions)


def _memory_allows(case: Case, settings: Settings) -> tuple[int, int] | None:
    """Return the NPPN that GPU memory alone allows with and without margin, on the node with the least of it."""
    known, naive = (
        [found[0] for node in case.nodes if (found := bounds.gpu_memory(node, settings, margin=margin)) is not None]
        for margin in (True, False)
    )
    return (min(known), min(naive)) if known and naive else None


# ---- The judgement ----


def _is_counted(case: Case) -> bool:
    """Return whether the GPUs of all nodes are known, and all nodes have GPUs or none has."""
    return all(node.gpus_sure for node in case.nodes) and len({node.gpus > 0 for node in case.nodes}) == 1


def _missing(case: Case) -> str:
    """Return why nothing can be advised; empty if there is evidence."""
    nodes = case.nodes
    watched = min(node.measured_s for node in nodes)
    if not _is_counted(case):
        return "how many GPUs it has on each of its nodes is not known, or some of them have none"
    broken = next((node for node in nodes if node.broken), None)
    if broken is not None:
        return (
            f"{' and '.join(broken.broken)} of {broken.node} cannot be used, which an administrator has to repair; "
            f"--exclude={broken.node} leaves that node out"
        )
    if not case.now:
        return "none of its processes is on a GPU" if case.gpus else "how many tasks it runs is not known"
    if watched < thresholds.YOUNG_S:
        return f"it has been watched for {watched:.0f} s only, and the first minute does not count"
    if not case.gpus:
        return "" if case.soft else "its CPU load is not known"
    if max(node.spans for node in nodes) > 1:
        widest = max(nodes, key=lambda node: node.spans)
        who = causes.named(widest.spanning)
        if widest.spanning_processes > 1:
            return (
                f"{who} of it has {widest.spanning_processes} processes, on {widest.spans} GPUs: if they belong "
                "together, as those of torchrun do, a share is not for them; if not, start each as a task with srun or "
                "llsub"
            )
        return f"{who} of it works on {widest.spans} GPUs at once; shares are for tasks on one GPU"
    if not all(node.running for node in nodes):
        return "none of its tasks is on a GPU at this moment, and load without tasks says nothing"
    if any(node.load is None for node in nodes):
        return "the load of its GPUs is not known (the driver does not tell it)"
    if case.memory_unknown_on:
        on = f" on {', '.join(case.memory_unknown_on)}" if len(nodes) > 1 else ""
        is_size = all(node.peak_mib for node in nodes if node.node in case.memory_unknown_on)
        what = "its GPU has" if is_size else "a task takes"
        return f"how much GPU memory {what} is not known{on}"
    return ""


def _can_come(case: Case) -> bool:
    """Return whether what is missing may be known later. The driver tells no load of MIG without counters. A broken
    GPU, how a task uses GPUs, and how many a node has, stay as they are."""
    if not _is_counted(case) or any(node.broken or node.spans > 1 for node in case.nodes):
        return False
    return not any(node.is_mig and node.running and node.load is None for node in case.nodes)


def _confidence(case: Case, answer: AdviceDraft) -> Confidence:
    """Return the confidence that the evidence gives, and the answer allows."""
    return min(_by_evidence(case, answer), answer.surest, key=CONFIDENCES.index)


def _lowered(confidence: Confidence) -> Confidence:
    return CONFIDENCES[max(CONFIDENCES.index("low"), CONFIDENCES.index(confidence) - 1)]


def _by_evidence(case: Case, answer: AdviceDraft) -> Confidence:
    """Return the confidence: by the time measured, the number of tasks, and how steady and exact the load is; if rates
    decided, by their windows."""
    if answer.rate_windows and all(node.alone for node in case.nodes) and not case.unseen:
        return "high" if answer.rate_windows >= thresholds.RATE_WINDOWS_LONG else "medium"
    watched = min(min(node.measured_s, node.load_window_s or node.measured_s) for node in case.nodes)
    if watched < thresholds.SHORT_S or case.are_unlike or not all(node.alone for node in case.nodes):
        return "low"
    if any(node.unknown for node in case.nodes) or case.windows_disagree:
        return "low"
    tasks = sum(node.tasks_measured for node in case.nodes)
    counters = all(node.is_sm for node in case.nodes) or not case.gpus
    # The load of some tasks, or the mean of unlike nodes, does not show for sure what all of them will do.
    alike = all(node.running >= (node.now or 0) for node in case.nodes) and not bounds.nodes_disagree(case.nodes)
    whole = watched >= thresholds.LONG_S and tasks > 1 and counters and alike and not case.unseen
    return "high" if whole and not sentences.peak_is_the_caps(case.nodes) else "medium"
