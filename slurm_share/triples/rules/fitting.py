"""Decide which nodes a triple fits, and what its job requests on each node: GPUs, CPUs, a share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ...core import names, nodelist
from ...core.errors import OptionError, UsageError, shown
from ...core.gpu_option import gres
from ...core.records import ShareRequest
from ...core.text import counted, did_you_mean
from ...share import limits, option
from ...slurm.records import NodeKind
from ..records import Triple
from . import triple as rule_triple

_FEATURE = re.compile(r"[A-Za-z0-9_.:-]+")
"""A constraint with one feature, without operators or counts."""

# ---- Nodes ----


def of_partition(kinds: Sequence[NodeKind], partition: str | None) -> tuple[NodeKind, ...]:
    """Return the nodes of the partitions in `partition` (`a,b`), or of the default partition.

    Empty: there is no default partition, or it is not known. Raises UsageError for an unknown name.
    """
    if partition is None:
        return tuple(kind for kind in kinds if kind.is_default)
    known = sorted({kind.partition for kind in kinds})
    for name in partition.split(","):
        if name not in known:
            there = f"the partitions are {', '.join(known)}{did_you_mean(name, known)}"
            raise UsageError(f"there is no partition {shown(name)}: {there}")
    return tuple(kind for kind in kinds if kind.partition in partition.split(","))


def fits(kind: NodeKind, gpus: Sequence[tuple[str, int]]) -> bool:
    """Return whether a node of a kind has the requested GPUs."""
    have = dict(kind.gpus)
    typed_fit = all(have.get(name, 0) >= count for name, count in gpus if name)
    return typed_fit and kind.gpu_count >= sum(count for _, count in gpus)


def candidates(kinds: Sequence[NodeKind], triple: Triple, gpus: Sequence[tuple[str, int]]) -> tuple[NodeKind, ...]:
    """Return the kinds of nodes on which a job may run.

    If too few nodes are up, also nodes that are down or drained: the job waits for them. Raises UsageError, with the
    nodes that exist, if there are too few in all.
    """
    if not kinds:
        return ()
    where = "partition " + ",".join(sorted({kind.partition for kind in kinds}))
    fit = tuple(kind for kind in kinds if fits(kind, gpus))
    if not fit:
        have = "; ".join(
            sorted({f"{gres(kind.gpus) if kind.gpus else 'no GPU'} ({_fold(kind.nodes)})" for kind in kinds})
        )
        raise UsageError(
            f"no node of {where} has {gres(gpus)}: there are nodes with {have}; write -g with such a number"
        )
    count = _count(fit)
    such = f" with {gres(gpus)}" if gpus else ""
    if triple.nodes > count:
        raise UsageError(
            f"{triple} asks for {counted(triple.nodes, 'node')}{such}, and {where} has {count}; write "
            f"{replace(triple, nodes=count)}"
        )
    limits = [kind.max_nodes_per_job for kind in fit if kind.max_nodes_per_job is not None]
    if limits and len(limits) == len(fit) and triple.nodes > max(limits):
        raise UsageError(
            f"{triple} asks for {counted(triple.nodes, 'node')}, and {where} gives a job at most {max(limits)}; write "
            f"{replace(triple, nodes=max(limits))}"
        )
    usable = tuple(kind for kind in fit if kind.usable)
    return usable if triple.nodes <= _count(usable) else fit


def chosen(kinds: Sequence[NodeKind], triple: Triple, said: Mapping[str, str | None]) -> tuple[NodeKind, ...]:
    """Return the `candidates` that match the options of sbatch in `said`: nodelist, exclude, constraint.

    Ignores an option that it cannot parse, or that no node matches: sbatch decides about these.
    """
    left = tuple(kinds)
    constraint = said.get("constraint") or ""
    if _FEATURE.fullmatch(constraint):
        left = tuple(kind for kind in left if constraint in kind.features.split(",")) or left
    wanted, unwanted = _listed(said.get("nodelist")), _listed(said.get("exclude"))
    if len(wanted) >= triple.nodes:
        left = _only(left, wanted) or left
    everything = frozenset(node for kind in left for node in kind.nodes)
    return _only(left, everything - unwanted) or left


def _listed(text: str | None) -> frozenset[str]:
    """Return the nodes in an option's value; empty for a file name or a value that is not a list of nodes."""
    try:
        return frozenset(nodelist.parse(text)) if text and "/" not in text else frozenset()
    except UsageError:
        return frozenset()


def _only(kinds: Sequence[NodeKind], nodes: frozenset[str]) -> tuple[NodeKind, ...]:
    found = (replace(kind, nodes=tuple(node for node in kind.nodes if node in nodes)) for kind in kinds)
    return tuple(kind for kind in found if kind.nodes)


def waiting_notes(triple: Triple, kinds: Sequence[NodeKind]) -> tuple[str, ...]:
    """Return a note if a job has to wait for nodes of these kinds that are down or drained."""
    count, up = _count(kinds), _count(kind for kind in kinds if kind.usable)
    if triple.nodes <= up or not kinds:
        return ()
    some = "is down or drained: this job waits for it" if count - up == 1 else "are down or drained: it waits for them"
    return (f"{count - up} of {counted(count, 'node')} {some}; see sinfo -R",)


def _count(kinds: Iterable[NodeKind]) -> int:
    return len({node for kind in kinds for node in kind.nodes})


def _fold(nodes: Sequence[str]) -> str:
    return ",".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")


def core_notes(triple: Triple, kinds: Sequence[NodeKind]) -> tuple[str, ...]:
    """Return LLSC's warnings for the candidate nodes with the fewest and the most cores."""
    cores = sorted({kind.cores for kind in kinds})
    found = [
        rule_triple.notes(triple.nodes, triple.per_node, triple.threads, count) for count in {*cores[:1], *cores[-1:]}
    ]
    return tuple(dict.fromkeys(note for notes in found for note in notes))


# ---- The share ----


class Sharing(Struct, frozen=True):
    """The share of a triple's job, as computed from --share-gpu."""

    request: ShareRequest | None = None
    notes: tuple[str, ...] = ()
    is_computed: bool = False
    """True: the user wrote no number of tasks per GPU, and `request` has the one for nodes with the fewest GPUs."""


def sharing(triple: Triple, written: str | None, gpus: int | None, *, plugin: bool) -> Sharing:
    """Return the share of a triple's job on nodes with `gpus` GPUs each (None: not known; 0: some have none).

    `written`: complete (`4,mem=8G`), or settings only (`mem=8G`); the number is then ceil(NPPN / GPUs). None: that
    number at a site with the plugin, else no share. Raises UsageError for an invalid value, and for a number without
    room for the triple.
    """
    if written == names.OPTION_OFF:
        return Sharing()
    if written is not None and not written[:1].isalpha():
        request = option.parse(written)
        if request is not None and request.sharing == names.SHARING_EXCLUSIVE and gpus and gpus < triple.per_node:
            raise UsageError(_alone(triple, gpus))
        if request is not None and gpus and request.per_gpu * gpus < triple.per_node:
            raise UsageError(
                f"--share-gpu={written} on {counted(gpus, 'GPU')} has room for {request.per_gpu * gpus} processes, but "
                f"{triple} has {triple.per_node} on each node; write "
                f"--share-gpu={limits.tasks_per_gpu(triple.per_node, gpus)}, or only its settings"
            )
        return Sharing(request)
    if written is None and (not plugin or not gpus):
        why = (
            "the number of GPUs of a node is not known, so the job does not request --share-gpu and the launchers "
            "assign the GPUs; write -g COUNT to request a share"
        )
        return Sharing(notes=(why,) if plugin and gpus is None else ())
    if not gpus:
        _check_settings(written)
        raise UsageError(
            f"--share-gpu={written}: the number of tasks per GPU cannot be computed, because the nodes' GPUs are not "
            f"known or some nodes have none; write the number too, for example --share-gpu=4,{written}, or -g COUNT"
        )
    per_gpu = limits.tasks_per_gpu(triple.per_node, gpus)
    if per_gpu > names.SHARE_MAX:
        if written is not None:
            _check_settings(written)
        return Sharing(notes=(
            f"{triple} puts {per_gpu} processes on a GPU, but a share has at most {names.SHARE_MAX}: the GPUs are "
            "assigned in turn, without MPS and without caps",
        ))  # fmt: skip
    if written is not None:
        _check_settings(written)
        if f"{names.OPTION_SHARING}={names.SHARING_EXCLUSIVE}" in written.split(",") and per_gpu > 1:
            raise UsageError(_alone(triple, gpus))
    request = option.parse(str(per_gpu) if written is None else f"{per_gpu},{written}")
    return Sharing(request, is_computed=True)


def _alone(triple: Triple, gpus: int) -> str:
    return (
        f"{names.OPTION_SHARING}={names.SHARING_EXCLUSIVE} gives each process a GPU of its own, and {triple} has "
        f"{triple.per_node} processes for {counted(gpus, 'GPU')} of a node; write {replace(triple, per_node=gpus)}"
    )


def _check_settings(written: str | None) -> None:
    """Raise OptionError, with the text as the user wrote it, for invalid settings of a share."""
    try:
        option.parse(f"1,{written}")
    except OptionError as error:
        raise OptionError(written or "", error.why) from error


class NodeRequest(Struct, frozen=True):
    """The request of a job on each of its nodes."""

    gpus: tuple[tuple[str, int], ...] = ()
    """Types and counts; empty: all GPUs of the node."""
    tasks: int | None = None
    """Number of one-CPU tasks, for the CPUs in proportion to the GPUs; None: the whole node."""
    notes: tuple[str, ...] = ()


def grant(
    triple: Triple, gpus: tuple[tuple[str, int], ...], kinds: Sequence[NodeKind], request: ShareRequest | None
) -> NodeRequest:
    """Return the request for whole nodes or, for a share on some of their GPUs, for these GPUs and CPUs in proportion.

    A share keeps other users off its nodes, so further jobs of the same user can have the rest; --exclusive would give
    the job all GPUs. CPUs are requested as tasks, because one task with one GPU means a part of a GPU. A site that only
    observes (mode = "observe") gives the same GPUs and CPUs, not shared.
    """
    if request is None or not kinds:
        return NodeRequest(gpus)
    counts = {kind.gpu_count for kind in kinds}
    notes: tuple[str, ...] = ()
    if not gpus and len(counts) > 1 and triple.nodes > 1:
        gpus = (("", min(counts)),)
        enough = [n for n in counts if _count(kind for kind in kinds if kind.gpu_count >= n) >= triple.nodes]
        more = f"; -g {max(enough)} is for nodes with more" if max(enough, default=0) > min(counts) else ""
        notes = (f"nodes have {min(counts)} to {max(counts)} GPUs: this job uses {min(counts)} on each{more}",)
    wanted = sum(count for _, count in gpus)
    cpus = min((kind.cpus * wanted // kind.gpu_count for kind in kinds if kind.gpu_count), default=0)
    if not gpus or counts == {wanted} or cpus < 2:
        return NodeRequest(gpus, notes=notes)
    return NodeRequest(gpus, cpus, notes)
