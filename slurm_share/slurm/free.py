"""Read which nodes, cores and GPUs of the cluster are free."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..core import nodelist
from ..core.errors import UsageError, shown
from . import jobs
from .records import ClusterName
from .rules import free
from .rules.free import FreeKind


def read_free(partitions: Sequence[str] | None = None) -> tuple[ClusterName, tuple[FreeKind, ...]]:
    """Return the cluster, and the kinds of nodes of these partitions, or of all, with what is free for the caller.
    Raises UsageError for a partition that does not exist, CommandError where Slurm does not answer."""
    held = free.held_by_others(jobs.read_queue()[1], os.getuid())
    kinds = free.summarize(jobs.read_node_kinds(), frozenset(name for nodes in held for name in nodelist.unfold(nodes)))
    there = list(dict.fromkeys(kind.partition for kind in kinds))
    for name in partitions or ():
        if name not in there:
            raise UsageError(f"there is no partition {shown(name) or repr(name)}; there are {', '.join(there)}")
    wanted = there if partitions is None else partitions
    return jobs.read_cluster(), tuple(kind for kind in kinds if kind.partition in wanted)
