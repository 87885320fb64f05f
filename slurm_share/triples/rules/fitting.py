"""Decide which nodes a triple fits, and what its job requests on each: GPUs, CPUs, a share."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ...core import names, nodelist
from ...core.errors import UsageError, shown
from ...core.gpu_option import gres
from ...core.records import ShareRequest
from ...share import limits, option
from ...slurm.records import NodeKind
from ..records import Triple
from . import triple as rule_triple

_FEATURE = re.compile(r"[A-Za-z0-9_.:-]+")
"""A constraint that is one feature, without an operator or a count."""

# ---- What the cluster has ----


def of_partition(kinds: Sequence[NodeKind], partition: str | None) -> tuple[NodeKind, ...]:
    """Return the nodes of the partitions in `partition` (`a,b`), or of the default one.

    Raises UsageError for an unknown name.

    Empty where there is no default that the cluster told of: nothing is then known of what a job may get.
    """
    if partition is None:
        return tuple(kind for kind in kinds if kind.is_default)
    known = sorted({kind.partition for kind in kinds})
    for name in partition.split(","):
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise UsageError(f"there is no partition {shown(name)} here: there are {', '.join(known)}{hint}")
    return tuple(kind for kind in kinds if kind.partition in partition.split(","))


def fits(kind: NodeKind, gpus: Sequence[tuple[str, int]]) -> bool:
    """Return whether a node of that kind has these GPUs."""
    have = dict(kind.gpus)
    typed_fit = all(have.get(name, 0) >= count for name, count in gpus if name)
    return typed_fit and kind.gpu_count >= sum(count for _, count in gpus)


def candidates(kinds: Sequence[NodeKind], triple: Triple, gpus: Sequence[tuple[str, int]]) -> tuple[NodeKind, ...]:
    """Return the kinds of nodes, of one or more partitions, that a job may run on. Where too few of them are up, those
    that are down or drained too: the job waits for them. Raises UsageError where there are too few at all, with what
    there is."""
    if not kinds:
        return ()
    where = "partition " + ",".join(sorted({kind.partition for kind in kinds}))
    fit = tuple(kind for kind in kinds if fits(kind, gpus))
    if not fit:
        have = "; ".join(sorted({f"{_gpu_text(kind)} ({_fold(kind.nodes)})" for kind in kinds}))
        raise UsageError(f"no node of {where} has {gres(gpus)}: there are nodes with {have}; write -g with as many")
    count = _count(fit)
    such = f" with {gres(gpus)}" if gpus else ""
    if triple.nodes > count:
        raise UsageError(
            f"{triple} asks for {_nodes(triple.nodes)}{such}, and {where} has {count}; write "
            f"{replace(triple, nodes=count)}"
        )
    limits = [kind.max_nodes_per_job for kind in fit if kind.max_nodes_per_job is not None]
    if limits and len(limits) == len(fit) and triple.nodes > max(limits):
        raise UsageError(
            f"{triple} asks for {_nodes(triple.nodes)}, and {where} gives a job at most {max(limits)}; write "
            f"{replace(triple, nodes=max(limits))}"
        )
    usable = tuple(kind for kind in fit if kind.usable)
    return usable if triple.nodes <= _count(usable) else fit


def chosen(kinds: Sequence[NodeKind], triple: Triple, said: Mapping[str, str | None]) -> tuple[NodeKind, ...]:
    """Return of these `candidates` those that the options of sbatch in `said` leave: nodelist, exclude, constraint.

    What is not understood here leaves all, and so does what would leave none: sbatch judges it.
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
    """Return the nodes in an option's value; none if it is the name of a file, or not a list of nodes."""
    try:
        return frozenset(nodelist.parse(text)) if text and "/" not in text else frozenset()
    except UsageError:
        return frozenset()


def _only(kinds: Sequence[NodeKind], nodes: frozenset[str]) -> tuple[NodeKind, ...]:
    found = (replace(kind, nodes=tuple(node for node in kind.nodes if node in nodes)) for kind in kinds)
    return tuple(kind for kind in found if kind.nodes)


def waiting_notes(triple: Triple, kinds: Sequence[NodeKind]) -> tuple[str, ...]:
    """Return a note if a job on nodes of these kinds begins only when some are back."""
    count, up = _count(kinds), _count(kind for kind in kinds if kind.usable)
    if triple.nodes <= up or not kinds:
        return ()
    some = "is down or drained: this job waits for it" if count - up == 1 else "are down or drained: it waits for them"
    return (f"{count - up} of {_nodes(count)} {some}; see sinfo -R",)


def _count(kinds: Iterable[NodeKind]) -> int:
    return len({node for kind in kinds for node in kind.nodes})


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _gpu_text(kind: NodeKind) -> str:
    return gres(kind.gpus) if kind.gpus else "no GPU"


def _fold(nodes: Sequence[str]) -> str:
    return ",".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")


def core_notes(triple: Triple, kinds: Sequence[NodeKind]) -> tuple[str, ...]:
    """Return LLSC's warnings for the nodes that the job may get: those with the fewest and the most cores."""
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
    """True: nobody wrote how many tasks a GPU gets, and `request` has the number for nodes with the fewest GPUs."""


def sharing(triple: Triple, written: str | None, gpus: int | None, *, plugin: bool) -> Sharing:
    """Return the share of a triple's job on nodes with `gpus` GPUs each (None: not known; 0: some have none).

    `written` is whole (`4,mem=8G`), or settings alone (`mem=8G`), whose number is then ceil(NPPN/GPUs). Without it a
    site with the plugin gets that number by itself. Raises UsageError for a value in no valid form, and for a number
    that does not have room for the triple.
    """
    if written == names.OPTION_OFF:
        return Sharing()
    if written is not None and not written[:1].isalpha():
        request = option.parse(written)
        if request is not None and gpus and request.per_gpu * gpus < triple.per_node:
            raise UsageError(
                f"--share-gpu={written} on {gpus} GPU{'s' * (gpus > 1)} makes room for {request.per_gpu * gpus} "
                f"processes, and {triple} has {triple.per_node} on each node; write "
                f"--share-gpu={limits.tasks_per_gpu(triple.per_node, gpus)}, or only its settings"
            )
        return Sharing(request)
    if written is None and (not plugin or not gpus):
        why = (
            "it is not known how many GPUs a node has, so --share-gpu is left out, and the launchers deal the GPUs by "
            "themselves; with -g COUNT it is known"
        )
        return Sharing(notes=(why,) if plugin and gpus is None else ())
    if not gpus:
        option.parse(f"1,{written}")
        raise UsageError(
            f"--share-gpu={written}: how many tasks a GPU gets cannot be told, because the nodes' GPUs are not known "
            f"or some have none; write the number too, for example --share-gpu=4,{written}, or -g COUNT"
        )
    per_gpu = limits.tasks_per_gpu(triple.per_node, gpus)
    if per_gpu > names.SHARE_MAX:
        if written is not None:
            option.parse(f"1,{written}")
        return Sharing(notes=(
            f"{triple} puts {per_gpu} processes on a GPU, and a share has at most {names.SHARE_MAX}: the GPUs are "
            "dealt in turn, without MPS and without caps",
        ))  # fmt: skip
    request = option.parse(str(per_gpu) if written is None else f"{per_gpu},{written}")
    return Sharing(request, is_computed=True)


def assumed_notes(
    triple: Triple, gpus: Sequence[tuple[str, int]], kinds: Sequence[NodeKind], sharing: Sharing
) -> tuple[str, ...]:
    """Return what a computed number of tasks assumes of the node, where the job can start on nodes with unlike GPUs."""
    counts = sorted({kind.gpu_count for kind in kinds})
    request = sharing.request
    if request is None or not sharing.is_computed or gpus or triple.nodes > 1 or len(counts) < 2:
        return ()
    part = " and each of them a larger part" if request.mem_mib is None else ""
    return (
        f"nodes here have {counts[0]} to {counts[-1]} GPUs: --{names.OPTION}={option.render(request)} is for one "
        f"with {counts[0]}; on a node with more, a GPU gets fewer processes{part}",
    )


class Grant(Struct, frozen=True):
    """The request of a job on each of its nodes."""

    gpus: tuple[tuple[str, int], ...] = ()
    """Empty: all there are."""
    tasks: int | None = None
    """None: the whole node. Else so many tasks of one CPU: the CPUs that go with its GPUs."""
    notes: tuple[str, ...] = ()


def grant(
    triple: Triple, gpus: tuple[tuple[str, int], ...], kinds: Sequence[NodeKind], request: ShareRequest | None
) -> Grant:
    """Return the whole node; for a share on only some of its GPUs, those GPUs and CPUs in proportion.

    A share takes its nodes for its user alone, so that others of his jobs can have the rest; with --exclusive the site
    would give it all GPUs. The CPUs are asked for as tasks, because one task with one GPU means a part of a GPU. A site
    that has --share-gpu and does not share (mode = "observe") gives the same GPUs and CPUs, unshared.
    """
    if request is None or not kinds:
        return Grant(gpus)
    counts = {kind.gpu_count for kind in kinds}
    notes: tuple[str, ...] = ()
    if not gpus and len(counts) > 1 and triple.nodes > 1:
        gpus = (("", min(counts)),)
        enough = [n for n in counts if _count(kind for kind in kinds if kind.gpu_count >= n) >= triple.nodes]
        more = f"; -g {max(enough)} is for nodes with more" if max(enough, default=0) > min(counts) else ""
        notes = (f"nodes here have {min(counts)} to {max(counts)} GPUs: this job has {min(counts)} on each{more}",)
    wanted = sum(count for _, count in gpus)
    cpus = min((kind.cpus * wanted // kind.gpu_count for kind in kinds if kind.gpu_count), default=0)
    if not gpus or counts == {wanted} or cpus < 2:
        return Grant(gpus, notes=notes)
    return Grant(gpus, cpus, notes)
