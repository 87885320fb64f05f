"""How many tasks a node should run (NPPN), and why.

    next = min(hard bounds, max(2 x now, load bound)), in multiples of the GPUs of a node

A hard bound (GPU memory, host memory, MPS clients, cores) is what tasks need or fail, and may lower NPPN. Load only
stops a rise: at 80 % SM activity more tasks wait for one another, fewer would gain nothing. Below that there may be
twice as many at a time, since load does not grow evenly with tasks, or as many as the load itself shows room for. The
load is read again with those, and so on: a rise of several looks. `thresholds.py` has the numbers and their sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ...records import QueuedJob
from ...settings import Settings
from ...snapshot import Advice, Bound, JobLoad, SlurmNode, Snapshot, Survey, Verdict
from .. import node_names, queue, thresholds
from . import bounds, evidence, resubmit, words, work_class
from .bounds import Soft
from .evidence import Evidence

DEFAULTS = Settings()


def advise_all(
    survey: Survey,
    settings: Settings = DEFAULTS,
    partitions: Mapping[str, Settings] | None = None,
    memory_failures: Mapping[int, int] | None = None,
) -> tuple[Advice, ...]:
    """One advice for each running job of the one who looks, of everybody's for an operator's look; all elements of an
    array together have one. `partitions`: settings of those that have their own. `memory_failures`: by job, as `advise`
    has it. Raises UsageError for nodes of a job that are no list."""
    failed = memory_failures or {}
    snapshots = {node.name: node.snapshot for node in survey.nodes if node.snapshot is not None}
    silent = {node.name: node.why for node in survey.nodes if node.snapshot is None}
    slurm = {node.name: node.slurm for node in survey.nodes if node.slurm is not None}
    groups: dict[int, list[QueuedJob]] = {}
    for job in survey.jobs:
        if "RUNNING" in job.states and (survey.everybody or job.user == survey.user):
            groups.setdefault(job.array or job.job_id, []).append(job)
    found = []
    for jobs in groups.values():
        names = [name for job in jobs for name in node_names.unfold(job.nodes)]
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
) -> Advice:
    """The advice for one job, by the snapshots of its nodes; other jobs in them are not meant.

    `job` None: Slurm does not answer, and the snapshots hold one job alone. `elements`: further elements of its array.
    `silent`: its nodes without a snapshot, and why; others without one were not asked. `memory_failures`: tasks of it
    that ended for want of GPU memory, as the results of a run of llsub have them. Raises UsageError for nodes of the
    job that are no list.
    """
    jobs = () if job is None else (job, *elements)
    ids = {one.job_id for one in jobs} or {load.job for one in snapshots for load in one.jobs}
    seen = _seen(jobs, ids, snapshots, slurm or {})
    base = Advice(
        job=next(iter(ids)) if job is None and len(ids) == 1 else None if job is None else job.array or job.job_id,
        user=job.user if job is not None else next((load.user for one in snapshots for load in one.jobs), ""),
        nodes=tuple(node.node for node in seen) or tuple(snapshot.node for snapshot in snapshots),
        verdict="unknown",
        work="unknown",
        now=None,
        next=None,
    )
    if not seen or (job is None and len(ids) != 1):
        return words.unknown(base, words.why_unseen(snapshots, silent or {}))
    unseen = _unseen(jobs, seen, snapshots, silent or {})
    case = _case(jobs, seen, settings, memory_failures, unseen)
    return _judged(base, case, settings)


def _unseen(
    jobs: Sequence[QueuedJob], seen: Sequence[Evidence], snapshots: Sequence[Snapshot], silent: Mapping[str, str]
) -> dict[str, str]:
    """Its nodes of which nothing is known, and why."""
    known, answered = {node.node for node in seen}, {snapshot.node for snapshot in snapshots}
    names = dict.fromkeys((*(name for job in jobs for name in node_names.unfold(job.nodes)), *silent))
    return {
        name: silent.get(name) or ("nothing of it was measured there" if name in answered else "not asked")
        for name in names
        if name not in known
    }


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
    """Of a job without GPUs nobody counts its tasks: they are those that it was started with."""
    if node.gpus or not jobs:
        return node
    count = declared(jobs[0])
    return node if count is None else evidence.with_tasks(node, count)


def declared(job: QueuedJob) -> int | None:
    """Processes of a node as the job was submitted: NPPN of its triple, else Slurm's tasks."""
    triple = queue.triple_of(job)
    if triple is not None:
        return int(triple.strip("[]").split(",")[1])
    return None if not job.tasks else -(-job.tasks // (job.node_count or 1))


class Case(Struct, frozen=True, kw_only=True):
    """All that the judgement rests on."""

    jobs: tuple[QueuedJob, ...]
    """The job, or the elements of an array; none: Slurm does not answer."""
    nodes: tuple[Evidence, ...]
    unseen: Mapping[str, str]
    """Nodes of it of which nothing is known, and why."""
    gpus: int
    """Of a node; of unlike nodes, of the one with the fewest."""
    now: int
    hard: tuple[Bound, ...]
    gpu_load: Soft | None
    cpu_load: Soft | None
    memory_failures: int
    memory_unknown_on: tuple[str, ...]
    """Nodes whose GPU memory, or what a task takes of it, is not known."""
    are_unlike: bool
    """Its tasks: those that run fit, and as many of the largest would not."""
    has_unlike_nodes: bool
    """By their GPUs."""

    @property
    def most(self) -> int:
        """What all hard bounds allow, in multiples of the GPUs."""
        return bounds.in_gpus(min(bound.nppn for bound in self.hard if bound.nppn is not None), self.gpus)

    @property
    def tightest(self) -> Bound:
        """The hard bound that is the lowest."""
        return min(self.hard, key=lambda bound: bound.nppn if bound.nppn is not None else 1 << 30)

    @property
    def doubled(self) -> int:
        """Twice as many as now, and at least one on each GPU."""
        return max(bounds.in_gpus(thresholds.GROWTH * self.now, self.gpus), self.gpus)

    @property
    def soft(self) -> tuple[Soft, ...]:
        """The loads that are known."""
        return tuple(one for one in (self.gpu_load, self.cpu_load) if one is not None)


def _case(
    jobs: Sequence[QueuedJob], nodes: Sequence[Evidence], settings: Settings, failures: int, unseen: Mapping[str, str]
) -> Case:
    share = resubmit.share_of(jobs[0] if jobs else None)
    numbers = {node.gpus for node in nodes}
    fewest = min(numbers)
    if fewest and not (jobs and queue.triple_of(jobs[0])):
        # A triple has as many tasks on each node; a share has as many on each GPU.
        nodes = [evidence.as_with(node, fewest) for node in nodes]
    with_gpus = [node for node in nodes if node.gpus]
    return Case(
        jobs=tuple(jobs),
        nodes=tuple(nodes),
        unseen=unseen,
        gpus=fewest,
        now=bounds.most_now(nodes),
        hard=bounds.hard(nodes, settings, uses_mps=share is None or share.mps is not False),
        gpu_load=bounds.gpu_load(nodes) if all(node.gpus for node in nodes) else None,
        cpu_load=bounds.cpu_load(nodes),
        memory_failures=failures,
        memory_unknown_on=tuple(node.node for node in with_gpus if bounds.gpu_memory(node, settings) is None),
        are_unlike=any(bounds.are_unlike(node, settings) for node in with_gpus),
        has_unlike_nodes=len(numbers) > 1,
    )


def _judged(base: Advice, case: Case, settings: Settings) -> Advice:
    known = [*case.hard, *(soft.bound for soft in case.soft)]
    if case.now:
        known.append(words.doubling(case.now, case.doubled, binds=_wanted(case) <= case.doubled))
    base = replace(
        base,
        work=work_class.of(case.nodes, case.hard, settings) if case.now else "unknown",
        now=case.now or None,
        gpus=case.gpus,
        bounds=tuple(known),
        memory_allows=_memory_allows(case, settings),
        evidence=words.evidence(
            case.nodes,
            case.unseen,
            are_unlike=case.are_unlike,
            has_unlike_nodes=case.has_unlike_nodes,
            memory_failures=case.memory_failures,
        ),
    )
    missing = _missing(case)
    fewer = _fewer(case) if case.now and _is_counted(case) else None
    if missing and fewer is None:
        return words.unknown(base, missing)
    # What does not fit does not fit, however short it was watched, however idle it is.
    verdict, nppn, decided_by = _next(case) if fewer is None else ("fewer", *fewer)
    advice = replace(
        base,
        verdict=verdict,
        next=nppn,
        decided_by=decided_by,
        confidence=_confidence(case),
        resubmit=() if verdict == "stay" else resubmit.lines(case.jobs, case.nodes, nppn, settings),
    )
    return words.known(advice, case.nodes, _died(case))


def _memory_allows(case: Case, settings: Settings) -> tuple[int, int] | None:
    """By GPU memory alone, on the node that has the least of it."""
    with_margin = [bounds.gpu_memory(node, settings) for node in case.nodes]
    without = [bounds.gpu_memory(node, settings, margin=False) for node in case.nodes]
    known = [one[0] for one in with_margin if one is not None]
    naive = [one[0] for one in without if one is not None]
    return (min(known), min(naive)) if known and naive else None


# ---- The judgement ----


def _is_counted(case: Case) -> bool:
    """Whether the GPUs of its nodes are known, and all have some or none has."""
    return all(node.gpus_sure for node in case.nodes) and len({node.gpus > 0 for node in case.nodes}) == 1


def _missing(case: Case) -> str:
    """Why nothing can be advised, and what to run; empty: there is evidence."""
    nodes = case.nodes
    watched = min(node.measured_s for node in nodes)
    if not _is_counted(case):
        return "how many GPUs it has on each of its nodes is not known, or some of them have none"
    if not case.now:
        return "none of its processes is on a GPU" if case.gpus else "how many tasks it runs is not known"
    if watched < thresholds.YOUNG_S:
        return f"it has been watched for {watched:.0f} s only, and its first minute is no measure"
    if not case.gpus:
        if case.cpu_load is None:
            return "its CPU load is not known"
        idle = all(100 * (node.cpu_load or 0.0) < thresholds.IDLE * node.cpus for node in nodes)
        return "its tasks have done nothing" if idle else ""
    if max(node.spans for node in nodes) > 1:
        return (
            f"a task of it works on {max(node.spans for node in nodes)} GPUs at once; shares are for tasks of one GPU"
        )
    if not all(node.running for node in nodes):
        return "none of its tasks is on a GPU at this moment, and load without tasks says nothing"
    if any(node.load is None for node in nodes):
        return "the load of its GPUs is not known (the driver does not tell it)"
    if case.memory_unknown_on:
        on = f" on {', '.join(case.memory_unknown_on)}" if len(nodes) > 1 else ""
        is_size = all(node.peak_mib for node in nodes if node.node in case.memory_unknown_on)
        what = "a GPU of it has" if is_size else "a task takes"
        return f"how much GPU memory {what} is not known{on}"
    if case.gpu_load is None or any(node.idle_gpus for node in nodes):
        which = sorted({index for node in nodes for index in node.idle_gpus})
        on = f"GPU {', '.join(map(str, which))}" if which else "its GPUs"
        return f"its tasks on {on} have done nothing there: see whether they use the GPU at all"
    return ""


def _next(case: Case) -> tuple[Verdict, int, str]:
    """(verdict, NPPN, the resource that decided) where what runs now is not too much."""
    died = _died(case)
    if died is not None:
        return "stay", case.now, died
    stops = next((soft.bound.resource for soft in case.soft if soft.stops), None)
    if stops is not None:
        return "stay", case.now, stops
    wanted = _wanted(case)
    if case.most <= case.now:
        return "stay", case.now, case.tightest.resource
    if wanted > case.most:
        return "more", case.most, case.tightest.resource
    if wanted > case.doubled:
        slowest = min(case.soft, key=lambda soft: soft.bound.nppn or 0)
        return "more", wanted, slowest.bound.resource
    return "more", wanted, "doubling"


def _wanted(case: Case) -> int:
    """NPPN that a rise would go to, whatever the hard bounds say: twice as many, or what the loads show room for."""
    by_load = min((soft.bound.nppn or 0 for soft in case.soft), default=0)
    return max(case.doubled, bounds.in_gpus(by_load, case.gpus))


def _fewer(case: Case) -> tuple[int, str] | None:
    """(NPPN, the resource) where what runs now is too much."""
    found: list[tuple[int, str]] = []
    if case.tightest.nppn is not None and case.now > case.tightest.nppn:
        found.append((max(1, case.most), case.tightest.resource))
    died = _died(case)
    if found and found[0][1] == died:
        return found[0]  # that they died is what the bound says
    least = max(1, case.gpus) if died == "GPU memory" else 1
    if died is not None and case.now > least:  # alone on its GPU, or on its node, fewer tasks would give it nothing
        found.append((max(1, bounds.in_gpus(min(case.most, case.now // thresholds.GROWTH), case.gpus)), died))
    return min(found, key=lambda one: one[0], default=None)


def _died(case: Case) -> str | None:
    """The memory that tasks died of."""
    if case.memory_failures:
        return "GPU memory"
    return "host memory" if any(node.kills for node in case.nodes) else None


def _confidence(case: Case) -> Literal["low", "medium", "high"]:
    """By how long was measured, how many tasks, and what is behind the word load."""
    watched = min(min(node.measured_s, node.load_window_s or node.measured_s) for node in case.nodes)
    if watched < thresholds.SHORT_S or case.are_unlike or not all(node.alone for node in case.nodes):
        return "low"
    if any(node.unknown for node in case.nodes):
        return "low"
    tasks = sum(node.tasks_measured for node in case.nodes)
    counters = all(node.is_sm for node in case.nodes) or not case.gpus
    whole = watched >= thresholds.LONG_S and tasks > 1 and counters and not case.unseen
    return "high" if whole and not words.peak_is_the_caps(case.nodes) else "medium"
