"""Choose the steps to start so that every GPU of a user's jobs is seen: jobs in, steps out.

A step sees all of a node, but under ConstrainDevices only the GPUs of its own job. The fewest steps are wanted that
together see every (node, GPU) of the jobs. That is a set cover; the greedy choice is at most a logarithmic factor worse
than the best, and here nearly always the best.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ...core import nodelist
from ...slurm.records import QueuedJob

NO_STEPS = {
    "SUSPENDED": "the job is suspended",
    "STOPPED": "the job is stopped",
    "CONFIGURING": "the job is starting",
    "COMPLETING": "the job is ending",
    "RESIZING": "the job's size is changing",
    "REQUEUED": "the job was put back into the queue",
}
"""State in which a job with nodes takes no step -> why its nodes are silent."""

_Seen = tuple[str, int | None]
"""A node's GPU; None: the node itself."""


class SurveyStep(Struct, frozen=True):
    """A step to start, with one task on each of its nodes."""

    job: int
    """The number for srun's --jobid; for a heterogeneous job, that of its first component."""
    component: int | None
    """Component of a heterogeneous job (--het-group); None for other jobs."""
    start: int | None
    """Start time of the job: a job that was requeued and runs again is another one."""
    nodes: tuple[str, ...]
    gres: str
    """The request on each node (--gres)."""


class _Choice(Struct, frozen=True):
    step: SurveyStep
    seen: frozenset[_Seen]


def is_ready(job: QueuedJob) -> bool:
    """Return whether a step can be started in the job."""
    return "RUNNING" in job.states and not NO_STEPS.keys() & set(job.states)


def choose(
    jobs: Iterable[QueuedJob],
    nodes: Collection[str],
    running: Collection[SurveyStep] = (),
    failed: Collection[SurveyStep] = (),
) -> tuple[SurveyStep, ...]:
    """Return the steps that see everything that `jobs` have on `nodes`. A `running` step is kept while it is useful. A
    `failed` step is not tried again; if possible, another job's step on its nodes takes its place."""
    wanted = frozenset(nodes)
    lost = {(_key(step), node) for step in failed for node in step.nodes}
    choices = [choice for job in jobs if is_ready(job) for choice in _choices(job, wanted, lost)]
    everything = frozenset(one for choice in choices for one in choice.seen)
    kept = _still_right(running, choices, wanted)
    chosen = [*kept, *_cover(choices, everything.difference(*(choice.seen for choice in kept)))]
    return tuple(choice.step for choice in _without_surplus(chosen, frozenset(running)))


_Key = tuple[int, int | None, int | None, str]


def _key(step: SurveyStep) -> _Key:
    """Return the fields that two steps of one job on different nodes may have in common."""
    return step.job, step.component, step.start, step.gres


def _choices(job: QueuedJob, wanted: frozenset[str], lost: Collection[tuple[_Key, str]]) -> Iterator[_Choice]:
    """Yield a choice for each number of GPUs that the job has on a node: a step has one request for all its nodes."""
    names = nodelist.unfold(job.nodes)
    indexes = _indexes(job, len(names))
    groups: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for name, gpus in zip(names, indexes, strict=True):
        if name in wanted:
            groups.setdefault(_gres(job, gpus), []).append((name, gpus))
    number, component = job.het or (job.job_id, None)
    for gres, members in groups.items():
        key = (number, component, job.start, gres)
        left = [(name, gpus) for name, gpus in members if (key, name) not in lost]
        if left:
            step = SurveyStep(number, component, job.start, tuple(name for name, _ in left), gres)
            seen = [(name, gpu) for name, gpus in left for gpu in (None, *gpus)]
            yield _Choice(step, frozenset(seen))


def _indexes(job: QueuedJob, count: int) -> Sequence[tuple[int, ...]]:
    if job.gpu_indexes and len(job.gpu_indexes) == count:
        return job.gpu_indexes
    if job.gpu_indexes is None and job.gpus and count and job.gpus % count == 0:
        # The GPUs are counted but not known: use numbers that no other job has.
        return [tuple(-(job.job_id * 64 + number) - 1 for number in range(job.gpus // count))] * count
    return [()] * count


def _gres(job: QueuedJob, gpus: Sequence[int]) -> str:
    if not gpus:
        return "none"  # without --gres, a step inherits the request of a job that asked for GPUs as a whole
    # A step of a job with shards cannot have a gpu. One shard opens its GPU, and a job has the shards of one GPU
    # (except with MULTIPLE_SHARING_GRES_PJ).
    return "shard:1" if job.has_shards else f"gpu:{len(gpus)}"


def _still_right(running: Collection[SurveyStep], choices: Sequence[_Choice], wanted: frozenset[str]) -> list[_Choice]:
    """Return the running steps that are still useful, also with nodes that are no longer wanted: a new step costs
    more."""
    right = []
    for step in running:
        for choice in choices:
            if _key(step) == _key(choice.step) and wanted.intersection(step.nodes) <= set(choice.step.nodes):
                right.append(_Choice(step, frozenset(one for one in choice.seen if one[0] in step.nodes)))
                break
    return right


def _cover(choices: Sequence[_Choice], missing: frozenset[_Seen]) -> Iterator[_Choice]:
    left = set(missing)
    # Most GPUs first; of equals the older job, which is nearer to its steady state.
    rest = sorted(choices, key=lambda choice: (-len(choice.seen), choice.step.job, choice.step.component or 0))
    while left:
        best = max(rest, key=lambda choice: len(choice.seen & left))
        left -= best.seen
        rest.remove(best)
        yield best


def _without_surplus(chosen: Sequence[_Choice], running: frozenset[SurveyStep]) -> list[_Choice]:
    """Return the choices without steps whose view others cover, and new steps without nodes that others cover."""
    kept = list(chosen)
    for choice in sorted(chosen, key=lambda one: (one.step in running, len(one.seen))):
        others = frozenset(seen for one in kept if one is not choice for seen in one.seen)
        if choice.seen <= others:
            kept.remove(choice)
        elif choice.step not in running:
            nodes = tuple(n for n in choice.step.nodes if any(one not in others for one in choice.seen if one[0] == n))
            smaller = replace(choice.step, nodes=nodes)
            kept[kept.index(choice)] = _Choice(smaller, frozenset(one for one in choice.seen if one[0] in nodes))
    return kept
