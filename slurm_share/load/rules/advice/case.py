"""The case of one job: the evidence and bounds from which its advice is made."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from msgspec import Struct

from ....share import queue
from ....slurm.records import QueuedJob
from ...snapshot import Bound
from .. import thresholds
from . import bounds
from .bounds import LoadBound
from .evidence import Evidence


class Case(Struct, frozen=True, kw_only=True, dict=True):
    """The evidence and the bounds from which an advice is made."""

    jobs: tuple[QueuedJob, ...]
    """The job, or the elements of an array; none: Slurm does not answer."""
    nodes: tuple[Evidence, ...]
    unseen: Mapping[str, str]
    """Nodes of the job for which nothing is known, and why."""
    gpus: int
    """GPUs of a node; if nodes differ, of the node with the fewest."""
    now: int
    hard: tuple[Bound, ...]
    memory_failures: int
    memory_unknown_on: tuple[str, ...]
    """Nodes for which the size of a GPU's memory, or a task's use of it, is not known."""
    are_unlike: bool
    """True: the tasks that run fit, but as many of the largest would not."""
    has_unlike_nodes: bool
    """True: the nodes have different numbers of GPUs."""
    works: bool = False
    """True: the measured rate of its tasks does not fall, so they wait for nothing that lasts."""
    emptier: float = thresholds.EMPTIER
    """Factor of `causes.placement`."""

    @property
    def most(self) -> int:
        """Return the NPPN that all hard bounds allow, in multiples of the GPUs."""
        return bounds.in_gpus(min(bound.nppn for bound in self.hard if bound.nppn is not None), self.gpus)

    @property
    def tightest(self) -> Bound:
        """Return the lowest hard bound."""
        return min(self.hard, key=lambda bound: bound.nppn if bound.nppn is not None else 1 << 30)

    @property
    def doubled(self) -> int:
        """Return twice as many tasks as now, and at least one on each GPU."""
        return max(bounds.in_gpus(thresholds.GROWTH * self.now, self.gpus), self.gpus)

    @cached_property
    def soft(self) -> tuple[LoadBound, ...]:
        """Return the bounds by GPU load and CPU load that are known."""
        by_gpus = bounds.gpu_load(self.nodes) if all(node.gpus for node in self.nodes) else None
        return tuple(one for one in (by_gpus, bounds.cpu_load(self.nodes)) if one is not None)

    @property
    def by_load(self) -> int:
        """Return the NPPN for which the loads have room, in multiples of the GPUs; 0 if no load is known."""
        return bounds.in_gpus(min(map(bounds.room, self.soft), default=0), self.gpus)

    @property
    def died(self) -> str | None:
        """Return the memory that tasks ran out of; None: none did."""
        if self.memory_failures:
            return "GPU memory"
        return "host memory" if any(node.kills for node in self.nodes) else None

    @property
    def is_run(self) -> bool:
        """Return whether llsub made the job, so that its tasks can report progress."""
        return any(queue.triple_of(job) for job in self.jobs) or any(node.progress is not None for node in self.nodes)

    @property
    def windows_disagree(self) -> bool:
        """Return whether the load of some node is not steady."""
        return any(node.windows_disagree for node in self.nodes)

    @property
    def growth(self) -> Bound:
        """Return the largest step allowed from what runs now."""
        many = max(bounds.in_gpus(thresholds.GROWTH_MOST * self.now, self.gpus), self.gpus)
        is_wide = self.by_load > self.doubled and not self.windows_disagree
        nppn = many if is_wide else self.doubled
        return _growth(self.now, nppn, is_wide=is_wide, is_steady=not self.windows_disagree)


def _growth(now: int, nppn: int, *, is_wide: bool, is_steady: bool) -> Bound:
    """Return the bound of the largest step from `now`. `is_wide`: load shows room for more than twice as many.
    `is_steady`: its means over all windows agree."""
    times = f"{thresholds.GROWTH_MOST} times" if is_wide else "twice"
    why = f"{times} the {now} of now at most, or one on each GPU, then look again"
    if not is_steady:
        why += "; no more while the load is not steady"
    return Bound(resource="growth", nppn=nppn, hard=False, why=why)
