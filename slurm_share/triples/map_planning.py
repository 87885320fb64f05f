"""Plan a run of llmapreduce: inputs, number of processes, and the nodes with room."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from ..core import gpu_option, names
from ..core.errors import CommandError, UsageError, shown
from ..core.records import ShareRequest
from ..core.text import counted
from ..share import option
from ..slurm import account_limits
from ..slurm import jobs as slurm_jobs
from ..slurm.records import NodeKind
from . import map_files, overwriting
from .records import Run, Triple
from .rules import fitting, mapreduce, submission
from .rules.fitting import Sharing
from .rules.mapreduce import InputSplit, Item, Request

PREFIX = "MAPRED"
INSIDE = ("LLMR_RANK", "LLSUB_RANK")
"""Variables of a task. If one of them is set, a task called llmapreduce."""


class MapPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A planned run of llmapreduce."""

    items: tuple[Item, ...]
    folders: tuple[str, ...]
    """Folders to be made below the output folder."""
    pairs: tuple[str, ...]
    """--apptype=mimo: for each start, the text of its file of inputs and outputs."""
    split: InputSplit
    share: ShareRequest | None
    is_share_computed: bool
    """As in records.Run."""
    options: tuple[str, ...] | None
    """Options of sbatch for the map, without the paths of logs and script; None: it runs here."""
    reduce: tuple[str, ...] | None

    @property
    def starts(self) -> int:
        return self.split.tasks(len(self.items))


def is_inside_a_task() -> bool:
    """Return whether a task of a run called this program, which then runs on the task's cores and GPU."""
    return any(name in os.environ for name in INSIDE)


def plan_map(request: Request, note: Callable[[str], None]) -> MapPlan:
    """Return the plan of a run. `note` gets sentences for the user. Raises UsageError for an invalid request."""
    inside = is_inside_a_task()
    for sentence in request.notes:
        note(sentence)
    reduce = (
        None
        if request.reducer is None
        else mapreduce.reducer_command(request.reducer, request.output, request.redout, request.redargs)
    )
    items, folders = _items(request, note)
    is_computed = False
    options: tuple[str, ...] | None = None
    if request.local or inside:
        split, share = _plan_local(request, len(items), inside, note)
    else:
        kinds = _read_kinds()
        split = _split(request, len(items), *_partition_room(request, kinds), note)
        if split.triple is None:
            written = submission.said((), request.wish).get(names.OPTION) or request.wish.share
            share = None if written is None else option.parse(written)
            plugin = written is not None and slurm_jobs.read_has_share_option()
            options = mapreduce.map_options(request.wish, split.processes, plugin)
        else:
            sharing, options = _triple_options(request, split.triple, kinds, note)
            share, is_computed = sharing.request, sharing.is_computed
    return MapPlan(
        items=items,
        folders=folders,
        pairs=tuple(mapreduce.pairs_text(items, group) for group in split.groups or ()),
        split=split,
        share=share,
        is_share_computed=is_computed,
        options=options,
        reduce=reduce,
    )


def _items(request: Request, note: Callable[[str], None]) -> tuple[tuple[Item, ...], tuple[str, ...]]:
    """Return the mapper's arguments for each input, and the folders to be made below the output folder."""
    source = request.input
    if Path(source).is_dir():
        found = map_files.files_below(source, request.subdir, request.extension, request.output)
        files, outside = found.files, found.outside
        if outside:
            more = ", ..." if len(outside) > 1 else ""
            note(f"{counted(len(outside), 'broken link')} in {source} ignored: {shown(outside[0])}{more}")
        if not files:
            which = "" if request.extension is None else f" that end in .{request.extension.removeprefix('.')}"
            deeper = "" if request.subdir else "; to search its sub-folders, write --subdir=true"
            raise UsageError(f"the input folder {source} contains no files{which}{deeper}")
        items = mapreduce.items_of_files(files, source, request.output, request.naming)
        same = overwriting.Identities()
        if same.of(request.output) == same.of(source):
            raise UsageError(
                "--output: this is the input folder, and its outputs would be inputs of the next run; write another "
                "folder"
            )
        below = {file.rpartition("/")[0] for file in files} - {""}
        folders = tuple(f"{request.output}/{folder}" for folder in sorted(below))
        overwriting.check_map(request, items, folders)
        return items, folders
    if not Path(source).exists():
        raise UsageError(f"--input: there is no folder or list {source}; check its name")
    items = mapreduce.items_of_list(map_files.lines_of(source), source, request.output, request.naming)
    if not items:
        raise UsageError(f"the list {source} is empty; write an input on each line")
    overwriting.check_map(request, items, ())
    return items, ()


def _split(request: Request, count: int, room: int | None, where: str, note: Callable[[str], None]) -> InputSplit:
    gpus = request.wish.gpus
    if gpus is not None and not isinstance(request.np, Triple) and mapreduce.gpu_text(gpus)[1] > 1:
        raise UsageError(
            f"--gpuNameCount={gpus}: each process gets one GPU; write a count of 1, or a triple, for which the count "
            "is per node"
        )
    split = mapreduce.split(
        count,
        request.np,
        request.ndata,
        request.distribution,  # type: ignore[arg-type]  # checked in llmapreduce_options.read
        request.apptype,  # type: ignore[arg-type]
        room,
        where,
    )
    for sentence in split.notes:
        note(sentence)
    return split


def _plan_local(
    request: Request, count: int, inside: bool, note: Callable[[str], None]
) -> tuple[InputSplit, ShareRequest | None]:
    """Plan for this machine: as many processes as requested, else as many as there are cores."""
    cores = max(len(os.sched_getaffinity(0)) // request.wish.map_slots, 1)
    room = cores if request.np is None and request.ndata is None else None
    split = _split(request, count, room, "this machine", note)
    if split.triple is not None and split.triple.nodes > 1:
        whole = split.triple
        one = Triple(1, whole.nodes * whole.per_node, whole.threads)
        split = msgspec.structs.replace(split, triple=one)
        note(f"{whole} on one machine is {one}")
    if request.wish.share is not None:
        return split, option.parse(request.wish.share)
    if inside and os.environ.get(names.ENV_VISIBLE_DEVICES, "NoDevFiles") not in ("", "NoDevFiles"):
        # The caller's GPU already has a daemon if it needs one, and these processes become its clients too.
        return split, ShareRequest(min(split.processes, names.SHARE_MAX), sharing="time-slicing")
    return split, None


def _read_kinds() -> tuple[NodeKind, ...]:
    try:
        return slurm_jobs.read_node_kinds()
    except CommandError as error:
        if isinstance(error.__cause__, OSError):
            raise UsageError(f"{error}; submit on a host with Slurm, or run this here with --local") from error
        return ()  # the controller is busy: sbatch waits for it


def _partition(request: Request) -> str | None:
    """Return the partition that sbatch will use; None: the default partition."""
    return submission.said((), request.wish).get("partition") or os.environ.get("SBATCH_PARTITION")


def _partition_room(request: Request, kinds: Sequence[NodeKind]) -> tuple[int | None, str]:
    partition = _partition(request)
    fitting.of_partition(kinds, partition if kinds else None)  # raises UsageError for an unknown name
    named = partition or next((kind.partition for kind in kinds if kind.is_default), None)
    room = mapreduce.room(kinds, partition, request.wish)
    if request.np is None and request.ndata is None:
        limit = account_limits.read_cpu_limit(named)
        mine = None if limit is None else max(limit // request.wish.map_slots, 1)
        room = min((one for one in (room, mine) if one is not None), default=None)
    return room, f"the partition {named}"


def _triple_options(
    request: Request, triple: Triple, kinds: Sequence[NodeKind], note: Callable[[str], None]
) -> tuple[Sharing, tuple[str, ...]]:
    """Return the share of a triple's job and the options of sbatch, as llsub plans them."""
    wish = request.wish
    plugin = slurm_jobs.read_has_share_option()
    try:
        gpus = () if wish.gpus is None else gpu_option.parse_gpus(wish.gpus)
        found = fitting.candidates(fitting.of_partition(kinds, _partition(request) if kinds else None), triple, gpus)
        said = submission.said((), wish)
        found = fitting.chosen(found, triple, said)
        each = sum(count for _, count in gpus) or min((kind.gpu_count for kind in found), default=None)
        sharing = fitting.sharing(triple, said.get(names.OPTION) or wish.share, each, plugin=plugin)
        asked = fitting.grant(triple, gpus, found, sharing.request if plugin else None)
        run = msgspec.structs.replace(bare_run(request), triple=triple, share=sharing.request)
        options = submission.triple_argv(run, "", msgspec.structs.replace(wish, output="-"), (), asked, plugin=plugin)
    except UsageError as error:
        raise UsageError(mapreduce.in_own_options(str(error))) from error
    for sentence in (
        *fitting.waiting_notes(triple, found),
        *fitting.core_notes(triple, found),
        *sharing.notes,
        *asked.notes,
    ):
        note(mapreduce.in_own_options(sentence))
    ours = ("sbatch", "--parsable", "--output=-", "/launch.sh")
    left = tuple(argument for argument in options if argument not in ours and not argument.startswith("--job-name="))
    return sharing, left


def bare_run(request: Request) -> Run:
    """Return the run with the fields that the command line determines."""
    return Run(
        kind="llmapreduce",
        name=Path(request.mapper).name,
        command=(request.mapper,),
        cwd=str(Path.cwd()),
        triple=None,
        processes=1,
        tasks=1,
        task_kind="arguments",
        retries=request.retries,
        progress=request.progress,
        rate_window_s=request.window_s,
        checkpoint_signal=request.checkpoint_signal,
        logs="rank",
        log_folder=mapreduce.LOGS,
    )
