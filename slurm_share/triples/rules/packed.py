"""Decide what a packed run requests of its nodes: tasks at once, share, and nodes.

A worker of a packed run may use another GPU for each task. So the share has slots on every GPU for all workers that may
meet there, with MPS on all GPUs. The launcher sets the memory cap of each start.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ...core import names, numbers
from ...core.errors import UsageError
from ...core.records import MPS_CLIENTS_MIN, ShareRequest
from ...core.settings import Settings
from ...core.text import counted
from ...packing import PackRequest, TaskSpec
from ...share import limits, option
from ...slurm.records import NodeKind
from ..records import Triple
from . import fitting, pack_options
from . import triple as rule_triple
from .fitting import Sharing
from .task_files import Tasks

PackRoom = tuple[int, int | None]
"""The cores and GPUs that one kind of node gives to a packed run; None: not known."""


def with_gpus(kinds: Sequence[NodeKind]) -> tuple[NodeKind, ...]:
    """Return the kinds of nodes that have a GPU. Raises UsageError if none of the known kinds has one."""
    found = tuple(kind for kind in kinds if kind.gpu_count)
    if kinds and not found:
        where = ",".join(sorted({kind.partition for kind in kinds}))
        raise UsageError(
            f"--pack places tasks on GPUs, but no node of partition {where} has one; write another partition with -q, "
            "or remove --pack"
        )
    return found


def rooms(kinds: Sequence[NodeKind], wanted: int | None, *, is_shared: bool) -> tuple[PackRoom, ...]:
    """Return the cores and GPUs of each kind of node. wanted: GPUs requested of each node; None: all.

    is_shared: a share on some GPUs of a node gets cores in proportion (`fitting.grant`).
    """
    found: list[PackRoom] = []
    for kind in kinds:
        gpus = kind.gpu_count if wanted is None else wanted
        is_part = is_shared and wanted is not None and wanted < kind.gpu_count
        found.append((max(1, kind.cores * gpus // kind.gpu_count) if is_part else kind.cores, gpus))
    return tuple(found)


def with_limit(pack: PackRequest, written: str | None) -> PackRequest:
    """Return the request with the number in --share-gpu= (`written`) as limit of tasks per GPU, if that is smaller."""
    given = numbers.whole((written or "").partition(",")[0], 999)
    if not given:
        return pack
    most = min(given, pack.settings.max_per_gpu or given)
    return replace(pack, settings=replace(pack.settings, max_per_gpu=most))


def most_per_gpu(pack: PackRequest, site: int) -> int:
    """Return the limit of tasks on a GPU at once. site: the site's max_share."""
    if pack.settings.policy == "exclusive":
        return 1
    return max(1, min(MPS_CLIENTS_MIN, pack.settings.max_per_gpu or MPS_CLIENTS_MIN, site))


def sized(triple: Triple, rooms: Sequence[PackRoom], tasks: int, per_gpu: int, why_unknown: str) -> Triple:
    """Return a triple with a number for `auto`. Raises UsageError, with `why_unknown`, if no node is known."""
    if not triple.is_auto:
        return triple
    if not rooms:
        raise UsageError(
            f"{triple}: the number of cores of a node is not known: {why_unknown}; write the number of processes, such "
            f"as {replace(triple, per_node=16, is_auto=False)}"
        )
    return rule_triple.with_cores(triple, rooms, tasks, per_gpu)


def sharing(triple: Triple, pack: PackRequest, written: str | None, gpus: int | None, *, plugin: bool) -> Sharing:
    """Return a packed run's share, as `fitting.sharing`. Raises UsageError for settings that --pack excludes."""
    if written is not None and written != names.OPTION_OFF:
        alone = option.parse(f"1,{written}" if written[:1].isalpha() else written)
        if alone is not None:
            check_share(alone)  # before an error about the missing number, with which these settings are invalid too
    slots = limits.tasks_per_gpu(triple.per_node, gpus) if gpus else 0
    if gpus and slots > names.SHARE_MAX and (plugin or written is not None):
        raise UsageError(
            f"{triple} needs {slots} slots on each of {counted(gpus, 'GPU')}, but a share has at most "
            f"{names.SHARE_MAX}; write {replace(triple, per_node=gpus * names.SHARE_MAX, is_auto=False)}"
        )
    found = fitting.sharing(triple, written, gpus, plugin=plugin)
    if found.request is None:
        return found
    check_share(found.request)
    request = found.request
    if request.sm == names.SM_STATIC and pack.is_tuned:
        raise UsageError(
            f"{triple} finds by trials how many tasks run at once, and --share-gpu=sm=static divides a GPU once into "
            "as many parts as it has slots; write a number of processes, or remove sm="
        )
    if found.is_computed and pack.settings.policy != "exclusive":
        # A GPU with one slot has no MPS, but two tasks may meet on a GPU even with as many GPUs as workers.
        request = replace(request, per_gpu=max(request.per_gpu, min(triple.per_node, 2)))
    return Sharing(request, found.notes)


def check_share(request: ShareRequest) -> None:
    """Raise UsageError for settings of --share-gpu that a packed run does not support."""
    if request.sharing == names.SHARING_EXCLUSIVE:
        raise UsageError(
            f"{names.OPTION_SHARING}={names.SHARING_EXCLUSIVE} is one task on each GPU, and --pack starts several "
            "where they fit; write --pack=exclusive instead"
        )
    if request.mem_mib is not None:
        least = "" if request.mem_least_mib is None else f"{request.mem_least_mib}M:"
        raise UsageError(
            "--share-gpu=mem= is one cap for all tasks, but --pack gives each task its own; write "
            f"--gpu-mem={least}{request.mem_mib}M instead, for all tasks or in the tasks file"
        )
    if request.sm == names.SM_EVEN:
        raise UsageError(
            "--share-gpu=sm=even divides a GPU by its slots, but with --pack there are more slots than running tasks; "
            "write a percentage, such as sm=50, or remove sm="
        )


def sm_notes(settings: Settings, request: ShareRequest | None) -> tuple[str, ...]:
    """Return a note if the site's setting `sm`, or the request, divides a GPU's multiprocessors by its slots."""
    if request is not None and request.sm == names.SM_STATIC:
        return (
            f"each task has one of {request.per_gpu} static partitions of its GPU, even if fewer tasks run there, and "
            "no more run there; with fewer processes per node a partition is larger",
        )
    if settings.sm != names.SM_EVEN or request is None or request.per_gpu < 2:
        return ()
    if option.sharing_of(request, settings.sharing) == "time-slicing":
        return ()
    return (
        f"this site gives a task an even part of the multiprocessors: {100 // request.per_gpu} % with "
        f"{request.per_gpu} slots on a GPU, even if fewer tasks run there; with fewer processes per node it is larger",
    )


def check_gpus(base: TaskSpec, tasks: Tasks, most: int | None) -> None:
    """Raise UsageError for a task that requests more GPUs than the largest node has (`most`; None: not known)."""
    if most is None:
        return
    for place, spec in enumerate(tasks.specs or (base,)):
        if spec.gpus > most:
            where = f"{tasks.source}: line {tasks.numbers[place]}" if tasks.numbers else f"--gpus-per-task={spec.gpus}"
            asks = f": it requests {spec.gpus} GPUs, but" if tasks.numbers else ":"
            raise UsageError(f"{where}{asks} a node of this job has {counted(most, 'GPU')}; write at most {most}")


def check_sizes(base: TaskSpec, tasks: Tasks, most_mib: int | None) -> None:
    """Raise UsageError for a task that requests more than `most_mib`, the largest GPU's memory for tasks."""
    if most_mib is None:
        return
    for place, spec in enumerate(tasks.specs or (base,)):
        booked_mib = spec.gpu_mem_least_mib or spec.gpu_mem_mib or 0
        if booked_mib > most_mib:
            where = f"{tasks.source}: line {tasks.numbers[place]}: its " if tasks.numbers else ""
            what = "" if spec.gpu_mem_least_mib is None else f"asks for {booked_mib}M at least, which "
            raise UsageError(
                f"{where}--gpu-mem={pack_options.gpu_mem_text(spec)} {what}is more than the {most_mib} MiB that tasks "
                f"can have on the largest GPU here; write at most --gpu-mem={most_mib}M, or remove it"
            )
