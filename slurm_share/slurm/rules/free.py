"""Compute which nodes, cores and GPUs are free, for each kind of node."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from msgspec import Struct

from ..records import NodeKind, QueuedJob, SlurmNode

KEPT_BACK = frozenset(
    {"RESERVED", "MAINTENANCE", "NOT_RESPONDING", "POWERING_DOWN", "REBOOT_ISSUED", "REBOOT_REQUESTED", "BLOCKED"}
)
"""States in which a node gets no ordinary job, even if it is idle."""
_TAKES_JOBS = {"IDLE", "MIXED", "ALLOCATED", "COMPLETING"}
_TAKES_NONE = {"DOWN", "DRAIN", "FAIL", "FAILING", "NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP",
               "MAINTENANCE", "RESERVED", "PLANNED", "REBOOT_ISSUED", "REBOOT_REQUESTED"}  # fmt: skip


class FreeKind(Struct, frozen=True, kw_only=True):
    """Nodes of one partition with the same features, cores and GPUs."""

    partition: str
    features: str
    gpus_each: tuple[tuple[str, int], ...]
    """(type, count) of the GPUs of one node."""
    cores_each: int
    cores: int
    free_cores: int
    nodes: int
    free_nodes: int
    """Nodes without any job."""
    gpus: int
    free_gpus: int
    """GPUs of which no job has the whole or a part."""


class FreeGpus(Struct, frozen=True, kw_only=True):
    """The GPUs of one type in the cluster, each node counted once."""

    name: str
    """The type as gres.conf names it; empty: it names none."""
    count: int
    free: int
    """GPUs of which no job has the whole or a part, on nodes that take jobs."""
    unusable: int = 0
    """GPUs on nodes that are down, drained or kept back."""


def gpus_by_type(kinds: Iterable[NodeKind], held: Collection[str] = ()) -> tuple[FreeGpus, ...]:
    """Return the GPUs of the cluster by type, most first. `held` as for `summarize`."""
    counted: set[str] = set()
    found: dict[str, tuple[int, int, int]] = {}
    for kind in kinds:
        nodes = [node for node in kind.nodes if node not in counted]
        counted.update(nodes)
        taken, in_parts = dict(kind.gpus_allocated), kind.gpus_in_parts
        for name, each in kind.gpus:
            free = max(0, each - taken.get(name, 0))
            in_parts, free = max(0, in_parts - free), max(0, free - in_parts)
            count, all_free, unusable = found.get(name, (0, 0, 0))
            open_nodes = sum(node not in held for node in nodes) if _is_open(kind) else 0
            found[name] = (
                count + each * len(nodes),
                all_free + free * open_nodes,
                unusable + (0 if _is_open(kind) else each * len(nodes)),
            )
    parts = (FreeGpus(name=name, count=count, free=free, unusable=out) for name, (count, free, out) in found.items())
    return tuple(sorted(parts, key=lambda one: -one.count))


def summarize(kinds: Iterable[NodeKind], held: Collection[str] = ()) -> tuple[FreeKind, ...]:
    """Return the kinds of nodes, in the order of `kinds`. `held`: nodes that other users have for themselves, of which
    nothing is free."""
    groups: dict[tuple[str, str, tuple[tuple[str, int], ...], int], list[NodeKind]] = {}
    for kind in kinds:
        groups.setdefault((kind.partition, kind.features, kind.gpus, kind.cores), []).append(kind)
    return tuple(
        FreeKind(
            partition=partition,
            features=features,
            gpus_each=gpus,
            cores_each=cores,
            cores=sum(cores * len(kind.nodes) for kind in group),
            free_cores=sum(_free_cores(kind) * _count(kind, held) for kind in group),
            nodes=sum(len(kind.nodes) for kind in group),
            free_nodes=sum(_count(kind, held) for kind in group if _is_open(kind) and _is_idle(kind)),
            gpus=sum(kind.gpu_count * len(kind.nodes) for kind in group),
            free_gpus=sum(_free_gpus(kind) * _count(kind, held) for kind in group),
        )
        for (partition, features, gpus, cores), group in groups.items()
    )


def held_by_others(jobs: Iterable[QueuedJob], uid: int) -> Iterator[str]:
    """Return the folded nodes of other users' jobs that let nobody else start there."""
    for job in jobs:
        if job.keeps_others_out and job.nodes and job.uid != uid:
            yield job.nodes


def partition_now(node: SlurmNode) -> str | None:
    """Return a partition in which a job can start on the node now; None: there is none."""
    states = set(node.states)
    return node.partitions[0] if node.partitions and states & _TAKES_JOBS and not states & _TAKES_NONE else None


def _count(kind: NodeKind, held: Collection[str]) -> int:
    return sum(node not in held for node in kind.nodes)


def _is_open(kind: NodeKind) -> bool:
    return kind.usable and not KEPT_BACK & set(kind.states)


def _is_idle(kind: NodeKind) -> bool:
    return "IDLE" in kind.states and "COMPLETING" not in kind.states


def _free_cores(kind: NodeKind) -> int:
    """Return the free cores. A core of which one hardware thread is taken is not free."""
    return kind.cpus_idle * kind.cores // kind.cpus if _is_open(kind) and kind.cpus else 0


def _free_gpus(kind: NodeKind) -> int:
    taken = sum(count for _, count in kind.gpus_allocated) + kind.gpus_in_parts
    return max(0, kind.gpu_count - taken) if _is_open(kind) else 0
