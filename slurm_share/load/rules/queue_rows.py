"""Make the rows of the queue: waiting jobs in groups, and nodes out of service. Values in, values out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from msgspec import Struct

from ...core.records import Count, Moment
from ...slurm.records import UNUSABLE_STATES, QueuedJob, SlurmNode
from ...slurm.rules.free import FreeGpus
from ..snapshot import Survey
from .job_rows import elements_of, requested_mib

OUT_STATES = (UNUSABLE_STATES | {"NOT_RESPONDING", "FAILING", "MAINTENANCE"}) - {"FUTURE"}
"""States of nodes that are listed as out of service."""


class QueueState(Struct, frozen=True, gc=False, kw_only=True):
    """The waiting jobs of the whole cluster, its free GPUs and its nodes out of service, at one moment."""

    taken: Moment
    waiting: tuple[QueuedJob, ...] = ()
    """Those of the highest priority."""
    more: Count = 0
    """Waiting jobs that were not read."""
    gpus: tuple[FreeGpus, ...] = ()
    out: tuple[SlurmNode, ...] = ()
    """Nodes out of service."""
    problem: str = ""
    """Why it is not known; empty: it is."""
    is_part: bool = False
    """True: of the nodes and jobs of one survey only, not of the whole cluster."""


@dataclass(frozen=True)
class WaitingRow:
    """Waiting jobs with the same reason, partition and number of GPUs."""

    reason: str
    """Slurm's word, without what follows a comma, or its sentence; empty: Slurm has not looked at them yet."""
    partition: str
    gpus: int | None
    """GPUs that each job asks for; None: whole nodes, or not known."""
    jobs: tuple[QueuedJob, ...]
    """In Slurm's order, the highest priority first."""
    now: float
    user: str
    """The viewer."""

    @cached_property
    def count(self) -> int:
        """Return the number of jobs; each element of an array counts."""
        return sum(map(elements_of, self.jobs))

    @cached_property
    def own(self) -> int:
        """Return how many of them are the viewer's."""
        return sum(elements_of(job) for job in self.jobs if job.user == self.user)

    @cached_property
    def users(self) -> tuple[str, ...]:
        """Return their users, those with most jobs first."""
        counts: Counter[str] = Counter()
        for job in self.jobs:
            counts[job.user] += elements_of(job)
        return tuple(user for user, _ in counts.most_common())

    @property
    def gpus_asked(self) -> int | None:
        """Return the GPUs that all of them ask for together."""
        return None if self.gpus is None else self.gpus * self.count

    @property
    def cpus_asked(self) -> int | None:
        """Return the CPUs that all of them ask for together; None: not known of one."""
        known = [job.cpus * elements_of(job) for job in self.jobs if job.cpus is not None]
        return sum(known) if len(known) == len(self.jobs) else None

    @property
    def memory_mib(self) -> int | None:
        """Return the memory that all of them ask for together; None: not known of one."""
        known = [mib * elements_of(job) for job in self.jobs if (mib := requested_mib(job)) is not None]
        return sum(known) if len(known) == len(self.jobs) else None

    @property
    def waited_s(self) -> float | None:
        """Return for how long the oldest has waited, seconds."""
        return max((self.now - job.submitted for job in self.jobs if job.submitted is not None), default=None)

    @property
    def starts(self) -> float | None:
        """Return when Slurm expects the first of them to start, Unix time; None: it has planned none."""
        return min((job.start for job in self.jobs if job.start is not None), default=None)


def waiting_rows(state: QueueState, user: str) -> list[WaitingRow]:
    """Return the groups of waiting jobs, the largest first. `user`: the viewer."""
    groups: dict[tuple[str, str, int | None], list[QueuedJob]] = {}
    for job in state.waiting:
        groups.setdefault((_reason(job), job.partition, job.gpus), []).append(job)
    rows = (WaitingRow(*key, jobs=tuple(jobs), now=state.taken, user=user) for key, jobs in groups.items())
    return sorted(rows, key=lambda row: (-row.count, row.reason, row.partition))


def _reason(job: QueuedJob) -> str:
    """Return Slurm's word without what it adds, as `ReqNodeNotAvail, UnavailableNodes:n4`; a sentence of Slurm's as it
    is."""
    word = job.reason.partition(",")[0].strip()
    return job.reason.strip() if " " in word else word


def is_out(node: SlurmNode) -> bool:
    """Return whether a node is listed as out of service."""
    return bool(OUT_STATES & set(node.states))


def of_survey(survey: Survey) -> QueueState:
    """Return the queue as one survey knows it: of a recording."""
    nodes = [node for node in survey.nodes if node.slurm is not None]
    types: dict[str, tuple[int, int, int]] = {}
    for node in nodes:
        slurm = node.slurm
        if slurm is None or not slurm.gpus:
            continue
        names = [] if node.snapshot is None else [gpu.name for gpu in node.snapshot.whole_gpus]
        name = names[0] if names else ""
        count, free, unusable = types.get(name, (0, 0, 0))
        out = is_out(slurm)
        free += 0 if out else max(0, slurm.gpus - slurm.gpus_allocated)
        types[name] = (count + slurm.gpus, free, unusable + (slurm.gpus if out else 0))
    return QueueState(
        taken=survey.taken,
        waiting=tuple(job for job in survey.jobs if not job.nodes),
        gpus=tuple(
            FreeGpus(name=name, count=count, free=free, unusable=unusable)
            for name, (count, free, unusable) in sorted(types.items(), key=lambda one: -one[1][0])
        ),
        out=out_nodes(node.slurm for node in nodes if node.slurm is not None),
        is_part=True,
    )


def out_nodes(nodes: Iterable[SlurmNode]) -> tuple[SlurmNode, ...]:
    """Return the nodes out of service."""
    return tuple(node for node in nodes if is_out(node))
