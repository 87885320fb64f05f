"""`llmapreduce`: one program over many inputs, then another one over its outputs.

The options are LLSC's, with their meanings (MIT SuperCloud documentation, "LLMapReduce");
`triples/rules/mapreduce.py` says what was decided where that is silent. Inputs and outputs are given to the mapper with
their whole paths, and so are the output folder and the reducer's file to the reducer.

Called by a task of llmapreduce or llsub, it is one of LLSC's nested calls: it runs in its caller's own place, in the
foreground, so that the caller's task is over when the inner map and its reducer are.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from ..core import gpu_words, names
from ..core.command import EXIT_FAILED, EXIT_INTERRUPTED, enter
from ..core.errors import CommandError, SlurmShareError, UsageError, shown
from ..core.process import attend
from ..core.records import ShareRequest
from ..share import option
from ..slurm import cpu_limits
from ..slurm import jobs as slurm_jobs
from ..slurm.records import NodeKind
from ..slurm.submit import submit
from ..triples import follow, inputs, mapreduce_folder, run_files
from ..triples.map_failures import failures
from ..triples.records import Run, Triple
from ..triples.rules import fitting, mapreduce, submission
from ..triples.rules.fitting import Sharing
from ..triples.rules.mapreduce import Folder, Item, Split
from ..triples.run_folder import JOBS, RUN
from .llmapreduce_options import PREFIX, Request, read
from .progress_line import Line

INSIDE = ("LLMR_RANK", "LLSUB_RANK")
"""One of these: a task's environment."""
OUTER = ("SLURM_", "LLSUB_", "LLMR")
"""Beginnings of what a task knows of the job around it, which is not the place of the runs that it makes itself."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 done (or submitted), 1 failed, 2 the caller's mistake."""
    return enter("llmapreduce", lambda: _run(read(sys.argv[1:] if argv is None else argv)))


# ---- The run ----


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to run, and how."""

    items: tuple[Item, ...]
    folders: tuple[str, ...]
    """Below the output folder, to be made."""
    split: Split
    share: ShareRequest | None
    is_share_computed: bool = False
    """As in work.Run."""
    words: tuple[str, ...] | None
    """What sbatch is told of the map, but for where logs and script are; None: it runs here."""
    reduce: tuple[str, ...] | None

    @property
    def starts(self) -> int:
        """Of the mapper."""
        return self.split.tasks(len(self.items))


def _run(request: Request) -> int:
    plan = _plan(request)
    groups = plan.split.groups
    pairs = [] if groups is None else [mapreduce.pairs_text(plan.items, group) for group in groups]
    if request.dry_run:
        return _show(request, plan)
    made = mapreduce_folder.make_output_folders(request.output, plan.folders)
    try:
        return _make_and_start(request, plan, pairs)
    except UsageError:
        mapreduce_folder.unmake(made)
        raise


def _make_and_start(request: Request, plan: _Plan, pairs: Sequence[str]) -> int:
    if plan.reduce is not None and not os.access(Path(request.redout).parent, os.W_OK):
        raise UsageError(f"--redout: {request.redout} cannot be written; name a file in a folder of yours")
    folder = _folder(request, len(pairs))
    path = Path(folder.path)
    files = {f"{mapreduce.PAIRS}{number}": text for number, text in enumerate(pairs, 1)}
    run = _as_run(request, plan)
    command = _map_command(request, plan, folder, run)
    try:
        lines = _lines(plan.items if not pairs else [(f"{folder.path}/{name}",) for name in files])
        if command is None:
            script = submission.local_script(folder.path, sys.executable)
        else:
            say_failures = (sys.executable, "-I", "-m", "slurm_share.triples.map_failures", folder.path)
            files[mapreduce.MAP_SCRIPT] = mapreduce.map_script(folder, plan.reduce is None, say_failures)
            script = _launch_script(request, plan, folder, run, command)
        if plan.reduce is not None:
            files[mapreduce.REDUCE_SCRIPT] = mapreduce.reduce_script(plan.reduce, folder)
        environ = submission.recorded_environment(os.environ)
        run_files.write(path, run, lines, script, command or (), environ=environ)
        mapreduce_folder.fill(path, files, mapreduce.LOGS)
        if command is None:
            return _in_the_foreground(request, folder, plan.reduce)
        return _in_the_queue(request, folder, run, command, plan.reduce is not None)
    except UsageError:
        mapreduce_folder.clear(path, folder.ours(), folder.is_ours)
        raise


def _plan(request: Request) -> _Plan:
    inside = any(name in os.environ for name in INSIDE)
    items, folders = _items(request)
    reduce = (
        None
        if request.reducer is None
        else mapreduce.reducer_command(request.reducer, request.output, request.redout, request.redargs)
    )
    if request.local or inside:
        split, share = _here(request, len(items), inside)
        return _Plan(items=items, folders=folders, split=split, share=share, words=None, reduce=reduce)
    kinds = _read_kinds()
    split = _split(request, len(items), *_room(request, kinds))
    is_computed = False
    if split.triple is None:
        written = request.wish.share
        share = None if written is None else option.parse(written)
        plugin = written is not None and slurm_jobs.read_has_share_option()
        words = mapreduce.map_options(request.wish, split.processes, plugin)
    else:
        sharing, words = _triple_words(request, split.triple, kinds)
        share, is_computed = sharing.request, sharing.is_computed
    return _Plan(
        items=items,
        folders=folders,
        split=split,
        share=share,
        is_share_computed=is_computed,
        words=words,
        reduce=reduce,
    )


def _items(request: Request) -> tuple[tuple[Item, ...], tuple[str, ...]]:
    """What the mapper is called with, input by input, and the folders below the output folder that this needs."""
    source = request.input
    if Path(source).is_dir():
        found = inputs.files_below(source, request.subdir, request.extension, request.output)
        files, astray = found.files, found.astray
        if astray:
            links = "1 link" if len(astray) == 1 else f"{len(astray)} links"
            more = ", ..." if len(astray) > 1 else ""
            _say(f"{links} in {source} to nothing that can be seen left out: {shown(astray[0])}{more}")
        if not files:
            which = "" if request.extension is None else f" that end in .{request.extension.removeprefix('.')}"
            deeper = "" if request.subdir else "; for those of its sub-folders write --subdir=true"
            raise UsageError(f"the input folder {source} has no files{which} in it{deeper}")
        items = mapreduce.items_of_files(files, source, request.output, request.naming)
        _refuse_overwriting(request, items)
        if inputs.is_same(source, request.output):
            raise UsageError(
                "--output: this is the input folder, and outputs in it would be inputs of the next run; name another "
                "folder"
            )
        below = {file.rpartition("/")[0] for file in files} - {""}
        return items, tuple(f"{request.output}/{folder}" for folder in sorted(below))
    if not Path(source).exists():
        raise UsageError(f"--input: there is no folder or list {source}; see its name")
    items = mapreduce.items_of_list(inputs.lines_of(source), source, request.output, request.naming)
    if not items:
        raise UsageError(f"the list {source} is empty; write an input on each line")
    _refuse_overwriting(request, items)
    return items, ()


def _refuse_overwriting(request: Request, items: Sequence[Item]) -> None:
    """Raises UsageError where an output would be written over an input. What a list's line of several words has the
    mapper write is not known."""
    sources = [request.input, *(item[0] for item in items)]
    below = f"{request.output}/"
    file = inputs.overwritten((item[1] for item in items if len(item) == 2 and item[1].startswith(below)), sources)
    if file is not None:
        raise UsageError(f"--output: this would overwrite the inputs ({shown(file, 200)}); name another folder")
    if request.reducer is not None and inputs.overwritten([request.redout], sources) is not None:
        raise UsageError(f"--redout: this would overwrite the input {shown(request.redout, 200)}; name another file")


def _split(request: Request, count: int, room: int | None, where: str) -> Split:
    gpus = request.wish.gpus
    if gpus is not None and not isinstance(request.np, Triple) and mapreduce.gpu_words(gpus)[1] > 1:
        raise UsageError(
            f"--gpuNameCount={gpus}: each process is given one GPU; write a count of 1, or a triple, whose count is "
            "of a node"
        )
    split = mapreduce.split(
        count,
        request.np,
        request.ndata,
        request.distribution,  # type: ignore[arg-type]  # looked at in _request
        request.apptype,  # type: ignore[arg-type]
        room,
        where,
    )
    for note in split.notes:
        _say(note)
    return split


def _here(request: Request, count: int, inside: bool) -> tuple[Split, ShareRequest | None]:
    """For a run on this machine. Who names a number of processes means it; else it is that of the cores."""
    cores = max(len(os.sched_getaffinity(0)) // request.wish.map_slots, 1)
    room = cores if request.np is None and request.ndata is None else None
    split = _split(request, count, room, "this machine")
    if split.triple is not None and split.triple.nodes > 1:
        whole = split.triple
        one = Triple(1, whole.nodes * whole.per_node, whole.threads)
        split = msgspec.structs.replace(split, triple=one)
        _say(f"{whole} on one machine is {one}")
    if request.wish.share is not None:
        return split, option.parse(request.wish.share)
    if inside and os.environ.get(names.ENV_VISIBLE_DEVICES, "NoDevFiles") not in ("", "NoDevFiles"):
        # The caller's GPU has a daemon already, where there is to be one: these are its clients like their caller.
        return split, ShareRequest(min(split.processes, names.SHARE_MAX), mps=False)
    return split, None


def _read_kinds() -> tuple[NodeKind, ...]:
    try:
        return slurm_jobs.read_node_kinds()
    except CommandError as error:
        if isinstance(error.__cause__, OSError):
            raise UsageError(f"{error}; submit where Slurm is, or run this here with --local") from error
        return ()  # a controller that is busy: sbatch waits for it


def _partition(request: Request) -> str | None:
    """The one that sbatch will take; None: the default one."""
    return request.wish.partition or os.environ.get("SBATCH_PARTITION")


def _room(request: Request, kinds: Sequence[NodeKind]) -> tuple[int | None, str]:
    partition = _partition(request)
    fitting.of_partition(kinds, partition if kinds else None)  # refuses a name that there is not
    named = partition or next((kind.partition for kind in kinds if kind.is_default), None)
    room = mapreduce.room(kinds, partition, request.wish)
    if request.np is None and request.ndata is None:
        limit = cpu_limits.read_cpu_limit(named)
        mine = None if limit is None else max(limit // request.wish.map_slots, 1)
        room = min((one for one in (room, mine) if one is not None), default=None)
    return room, f"the partition {named}"


def _triple_words(request: Request, triple: Triple, kinds: Sequence[NodeKind]) -> tuple[Sharing, tuple[str, ...]]:
    """The share of a triple's job, and what sbatch is told: as llsub does it."""
    try:
        sharing, words, notes = _as_llsub(request, triple, kinds)
    except UsageError as error:
        raise UsageError(mapreduce.in_own_words(str(error))) from error
    for note in notes:
        _say(mapreduce.in_own_words(note))
    return sharing, words


def _as_llsub(
    request: Request, triple: Triple, kinds: Sequence[NodeKind]
) -> tuple[Sharing, tuple[str, ...], tuple[str, ...]]:
    wish = request.wish
    plugin = slurm_jobs.read_has_share_option()
    gpus = () if wish.gpus is None else gpu_words.parse_gpus(wish.gpus)
    found = fitting.candidates(fitting.of_partition(kinds, _partition(request) if kinds else None), triple, gpus)
    wishes = submission.Wishes(
        partition=wish.partition,
        constraint=wish.constraint,
        reservation=wish.reservation,
        options=wish.options,
        output="-",
    )
    found = fitting.chosen(found, triple, submission.said((), wishes))
    each = sum(count for _, count in gpus) or min((kind.gpu_count for kind in found), default=None)
    sharing = fitting.sharing(triple, wish.share, each, plugin=plugin)
    asked = fitting.grant(triple, gpus, found, sharing.request if plugin else None)
    run = msgspec.structs.replace(_bare_run(request), triple=triple, share=sharing.request)
    words = submission.triple_words(run, "-", wishes, (), asked, plugin=plugin)
    ours = ("sbatch", "--parsable", "--output=-", "-/launch.sh")
    waiting = fitting.waiting_notes(triple, found)
    notes = (*waiting, *fitting.core_notes(triple, found), *sharing.notes, *asked.notes)
    notes += fitting.assumed_notes(triple, gpus, found, sharing)
    left = tuple(word for word in words if word not in ours and not word.startswith("--job-name="))
    return sharing, left, notes


def _folder(request: Request, pairs: int) -> Folder:
    if request.tempdir is None:
        path = run_files.make_folder(Path.cwd(), PREFIX)
        return Folder(str(path), True, request.keep, pairs)
    is_new, there = mapreduce_folder.take(request.tempdir)
    taken = mapreduce.taken(there, pairs > 0)
    if taken:
        raise UsageError(
            f"--tempdir: {request.tempdir} has {', '.join(taken[:3])} of another run in it; remove that, or name "
            "another folder"
        )
    return Folder(request.tempdir, is_new, request.keep, pairs)


def _bare_run(request: Request) -> Run:
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
        logs="rank",
        log_folder=mapreduce.LOGS,
    )


def _as_run(request: Request, plan: _Plan) -> Run:
    return msgspec.structs.replace(
        _bare_run(request),
        triple=plan.split.triple,
        processes=plan.split.processes,
        tasks=plan.starts,
        distribution=plan.split.distribution,
        per_process=plan.split.per_process,
        share=plan.share,
        is_share_computed=plan.is_share_computed,
    )


def _launch_script(request: Request, plan: _Plan, folder: Folder, run: Run, command: Sequence[str]) -> str:
    gpus = request.wish.gpus
    if run.triple is None:
        total = None if gpus is None else mapreduce.gpus_of(gpus, run.processes)
        return submission.launch_script(run, folder.path, sys.executable, command, gpus_of_job=total)
    asked = next((word.partition("=")[2] for word in plan.words or () if word.startswith("--gres=")), "")
    return submission.launch_script(run, folder.path, sys.executable, command, gpus=asked)


def _lines(items: Sequence[Item]) -> list[str]:
    try:
        return [msgspec.json.encode(item).decode() for item in items]
    except UnicodeEncodeError as error:
        raise UsageError(
            f"an input's name is not text in UTF-8 ({shown(str(error.object))}); give it another name"
        ) from error


def _log(folder: Folder, name: str) -> str:
    """sbatch's option for a job's output. A percent sign of the folder's own is no pattern."""
    return f"--output={folder.path.replace('%', '%%')}/{mapreduce.LOGS}/{name}%j"


def _map_command(request: Request, plan: _Plan, folder: Folder, run: Run) -> list[str] | None:
    """What submits the map; None: it runs here."""
    if plan.words is None:
        return None
    return [
        "sbatch",
        "--parsable",
        f"--job-name={run.name}",
        _log(folder, mapreduce.MAP_LOG),
        *plan.words,
        f"{folder.path}/{mapreduce.MAP_SCRIPT}",
    ]


def _reduce_command(request: Request, folder: Folder, job: str) -> list[str]:
    return [
        "sbatch",
        "--parsable",
        f"--job-name={Path(request.reducer or '').name}",
        _log(folder, mapreduce.REDUCE_LOG),
        *mapreduce.reduce_options(request.wish, job, request.whatever),
        f"{folder.path}/{mapreduce.REDUCE_SCRIPT}",
    ]


def _show(request: Request, plan: _Plan) -> int:
    """--dry-run."""
    folder = Folder(request.tempdir or f"{Path.cwd()}/{PREFIX}.<n>", True, request.keep)
    print(f"{len(plan.items)} inputs, {plan.starts} starts of the mapper, {plan.split.processes} processes")
    first = plan.items[0] if plan.split.groups is None else (f"{folder.path}/{mapreduce.PAIRS}1",)
    print(f"the first one: {shlex.join((request.mapper, *first))}")
    command = _map_command(request, plan, folder, _as_run(request, plan))
    if command is not None:
        print(shlex.join(command))
    if plan.reduce is not None:
        print(f"then: {shlex.join(plan.reduce)}")
        if command is not None:
            print(shlex.join(_reduce_command(request, folder, "<map>")))
    return names.EXIT_OK


# ---- With the scheduler ----


def _in_the_queue(request: Request, folder: Folder, run: Run, command: Sequence[str], reduces: bool) -> int:
    path = Path(folder.path)
    print(shlex.join(command))
    job = submit(command)
    try:
        run_files.note_job(path, job)
    except OSError as error:
        _say(f"job {job} is submitted, but cannot be noted in {path / JOBS} ({error.strerror})")
    jobs = [job]
    print(f"Submitted map job {job}; logs: {path / mapreduce.LOGS}")
    if reduces:
        command = _reduce_command(request, folder, str(job))
        print(shlex.join(command))
        try:
            jobs.append(submit(command))
        except SlurmShareError as error:
            raise SlurmShareError(
                f"{error}\nThe map job {job} is submitted all the same; scancel {job} takes it back, or reduce later "
                f"with sbatch {path / mapreduce.REDUCE_SCRIPT}"
            ) from error
        print(f"Submitted reduce job {jobs[1]}, which waits for it")
    sys.stdout.flush()
    return _wait(folder, run, jobs) if request.wait else names.EXIT_OK


def _wait(folder: Folder, run: Run, jobs: Sequence[int]) -> int:
    path = Path(folder.path)
    line = Line()
    try:
        follow.follow_map(path, run, jobs, line.show)
    except KeyboardInterrupt:
        line.end()
        numbers = ",".join(map(str, jobs))
        run_on = f"job {numbers} runs on" if len(jobs) == 1 else f"jobs {numbers} run on"
        _say(f"{run_on}: llsub --watch {path} shows how far the map is, llkill {numbers} ends all")
        return EXIT_INTERRUPTED
    line.end()
    if (path / mapreduce.FINISHED).exists() or not (path / RUN).exists():
        print("all done")
        return names.EXIT_OK
    _say_unfinished(path)
    return EXIT_FAILED


def _say_unfinished(path: Path) -> None:
    resume = ""
    if not (path / mapreduce.MAPPED).exists():
        resume = f"; llsub --resume {path} runs what is unfinished"
    if (path / mapreduce.REDUCE_SCRIPT).exists():
        resume += f"{', then' if resume else ';'} sbatch {path / mapreduce.REDUCE_SCRIPT} reduces"
    _say(f"not everything was done; see {path / mapreduce.LOGS}{resume}")
    try:
        lines = failures(path)
    except SlurmShareError:
        return  # a folder that others have taken away meanwhile
    for one in lines:
        print(one, file=sys.stderr)


# ---- Without ----


def _in_the_foreground(request: Request, folder: Folder, reduce: Sequence[str] | None) -> int:
    path = Path(folder.path)
    launcher = [sys.executable, "-I", "-m", "slurm_share.cli.main", "launch", folder.path]
    code = attend(launcher, env=_environment(os.environ))
    if code == 0:
        mapreduce_folder.mark(path, mapreduce.MAPPED)
    if reduce is not None and (code == 0 or (code == EXIT_FAILED and request.whatever)):
        done = attend(reduce)
        if done != 0:
            _say(f"the reducer ended with {done}")
        code = code or done
    if code != 0:
        _say_unfinished(path)
        return code if code > 128 else EXIT_FAILED
    if folder.keep:
        mapreduce_folder.mark(path, mapreduce.FINISHED)
    else:
        mapreduce_folder.clear(path, folder.ours(), folder.is_ours)
    return names.EXIT_OK


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """For a launcher that is to know nothing of the job it is in. The GPU it may use is in CUDA_VISIBLE_DEVICES."""
    found = {name: value for name, value in environ.items() if not name.startswith(OUTER)}
    if any(name in environ for name in INSIDE):
        found.setdefault(names.ENV_VISIBLE_DEVICES, "")  # a task without a GPU is not to find the node's
    if found.get(names.ENV_THREADS) == str(len(os.sched_getaffinity(0))):
        del found[names.ENV_THREADS]  # the outer launcher's, for one process on all of these cores
    return found


def _say(sentence: str) -> None:
    print(f"llmapreduce: {sentence}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
