"""Check of the accounting's limits on GPUs, which do not count parts of a GPU."""

from __future__ import annotations

from collections.abc import Sequence

from ...slurm import gpu_limits
from ..facts.records import Facts, Verdict
from .base import CONTROLLER, check, configuration, listed_values, ok, seen, seen_or, warn

MOST = 6
"""Limits that are named one by one: associations may be thousands."""
TRACKED = "gres/shard"


@check(
    "gpu-limits",
    CONTROLLER,
    asks="each limit on gres/gpu of a QOS or an association has one on gres/shard beside it",
    why="a part of a GPU (--share-gpu with -n1) is gres/shard: a highest number of GPUs lets any number of parts pass, "
    "and with a lowest one they pend for ever",
    fix="sacctmgr modify: the same limit with gres/shard = GPUs x shards_per_gpu",
)
def limits(facts: Facts) -> Sequence[Verdict]:
    per_gpu = configuration(facts).settings.shards_per_gpu
    if not per_gpu:
        return ok("no jobs on parts of a GPU here")
    found: list[Verdict] = []
    without = seen(facts.slurm.gpu_limits)
    is_tracked = TRACKED in seen_or(listed_values(facts, "AccountingStorageTRES"), (TRACKED,))
    first = "" if is_tracked else f"slurm.conf: add {TRACKED} to AccountingStorageTRES and restart slurmctld; then "
    for limit in without[:MOST]:
        said, fix = gpu_limits.explain(limit, per_gpu)
        found += warn(said, first + fix)
    if len(without) > MOST:
        found += warn(f"{len(without) - MOST} more limits on gres/gpu have none on {TRACKED}")
    return found or ok(f"no limit on gres/gpu without one on {TRACKED}")


CHECKS = (limits,)
