"""Make the folders of a run of llmapreduce, submit it, or run it in the foreground."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from ..core import names, text_files
from ..core.command import EXIT_FAILED
from ..core.errors import SlurmShareError, UsageError, shown
from ..core.process import attend
from ..slurm.submit import submit
from . import map_files, run_files, run_folder
from .failed_tasks import failures, read_account, saved_text
from .map_planning import INSIDE, PREFIX, MapPlan, bare_run
from .records import Run
from .rules import mapreduce, submission
from .rules.mapreduce import Folder, Item, Request
from .submitting import Output, note_job

OUTER = ("SLURM_", "LLSUB_", "LLMR")
"""Prefixes of a task's variables about its job, which are removed for a run that the task starts itself."""


_FAILURES = (sys.executable, "-I", "-X", "utf8", "-m", "slurm_share.cli.llmapreduce_failures")


class MapFolders(msgspec.Struct, frozen=True, kw_only=True):
    """The folders that were made for a map."""

    folder: Folder
    outputs: tuple[Path, ...]
    run: Run
    command: list[str] | None = None
    """The command that submits the map; None: it runs here."""


def make(request: Request, plan: MapPlan) -> MapFolders:
    """Make and fill the folders of a map. Raises UsageError, after removing them again, if that fails."""
    outputs = map_files.make_output_folders(request.output, plan.folders)
    try:
        if plan.reduce is not None and not os.access(Path(request.redout).parent, os.W_OK):
            raise UsageError(f"--redout: {request.redout} cannot be written; write a file in a folder of yours")
        folder = _folder(request, len(plan.pairs))
        made = MapFolders(
            folder=folder, outputs=outputs, run=run_files.identified(as_run(request, plan), Path(folder.path))
        )
    except UsageError:
        map_files.unmake(outputs)
        raise
    try:
        return _filled(request, plan, made)
    except UsageError:
        unmake(made)
        raise


def unmake(made: MapFolders) -> None:
    """Remove everything that `make` made. Other files stay."""
    run_files.remove(Path(made.folder.path), made.folder.ours(), and_itself=made.folder.is_ours)
    map_files.unmake(made.outputs)


def _filled(request: Request, plan: MapPlan, made: MapFolders) -> MapFolders:
    folder, path = made.folder, Path(made.folder.path)
    files = {f"{mapreduce.PAIRS}{number}": text for number, text in enumerate(plan.pairs, 1)}
    command = map_command(plan, folder, made.run)
    lines = _lines(plan.items if not plan.pairs else [(f"{folder.path}/{name}",) for name in files])
    if command is None:
        script = submission.local_script(sys.executable)
    else:
        script_text = mapreduce.map_script(folder, plan.reduce is None, _FAILURES, made.run.id)
        files[run_folder.MAP_SCRIPT] = script_text
        script = _launch_script(request, plan, folder, made.run, command)
    if plan.reduce is not None:
        files[run_folder.REDUCE_SCRIPT] = mapreduce.reduce_script(
            plan.reduce, folder, (*_FAILURES, "--saved"), made.run.id
        )
    environ = submission.recorded_environment(os.environ)
    run_files.write(path, made.run, lines, script, command or (), environ=environ)
    map_files.fill(path, files, mapreduce.LOGS)
    return msgspec.structs.replace(made, command=command)


def _folder(request: Request, pairs: int) -> Folder:
    if request.tempdir is None:
        path = run_files.make_folder(Path.cwd(), PREFIX)
        return Folder(str(path), True, request.keep, pairs)
    is_new, there = map_files.take(request.tempdir)
    taken = mapreduce.taken(there, pairs > 0)
    if taken:
        raise UsageError(
            f"--tempdir: in {request.tempdir} there is already {', '.join(taken[:3])}, a name that the run needs for a "
            "file of its own; write another folder"
        )
    return Folder(request.tempdir, is_new, request.keep, pairs)


def as_run(request: Request, plan: MapPlan) -> Run:
    return msgspec.structs.replace(
        bare_run(request),
        triple=plan.split.triple,
        processes=plan.split.processes,
        tasks=plan.starts,
        distribution=plan.split.distribution,
        per_process=plan.split.per_process,
        share=plan.share,
        is_share_computed=plan.is_share_computed,
    )


def _launch_script(request: Request, plan: MapPlan, folder: Folder, run: Run, command: Sequence[str]) -> str:
    gpus = request.wish.gpus
    if run.triple is None:
        total = None if gpus is None else mapreduce.gpus_of(gpus, run.processes)
        return submission.launch_script(run, folder.path, sys.executable, command, gpus_of_job=total)
    asked = next((argument.partition("=")[2] for argument in plan.options or () if argument.startswith("--gres=")), "")
    return submission.launch_script(run, folder.path, sys.executable, command, gpus=asked)


def _lines(items: Sequence[Item]) -> list[str]:
    try:
        return [msgspec.json.encode(item).decode() for item in items]
    except UnicodeEncodeError as error:
        name = str(error.object)
        why = text_files.why_not_utf8(name) or ""
        other = ", or list the other inputs in a file: --input=LIST" if why.endswith("rename it") else ""
        raise UsageError(f"the name of the input {shown(name)} {why}{other}") from error


def _command(folder: Folder, name: str, log: str, options: Sequence[str], script: str) -> list[str]:
    """Return the command that submits a script of the folder; a percent sign in the folder's name is escaped."""
    output = f"--output={folder.path.replace('%', '%%')}/{mapreduce.LOGS}/{log}%j"
    return ["sbatch", "--parsable", f"--job-name={name}", output, *options, f"{folder.path}/{script}"]


def map_command(plan: MapPlan, folder: Folder, run: Run) -> list[str] | None:
    """Return the command that submits the map; None: it runs here."""
    if plan.options is None:
        return None
    return _command(folder, run.name, mapreduce.MAP_LOG, plan.options, run_folder.MAP_SCRIPT)


def reduce_command(request: Request, folder: Folder, job: str) -> list[str]:
    """Return the command that submits the reducer, which depends on the map's `job`."""
    options = mapreduce.reduce_options(request.wish, job, request.whatever)
    name = Path(request.reducer or "").name
    return _command(folder, name, mapreduce.REDUCE_LOG, options, run_folder.REDUCE_SCRIPT)


# ---- With the scheduler ----


def submit_map(made: MapFolders, output: Output) -> int:
    """Submit the map; return its job id.

    Raises UsageError if sbatch refuses, SlurmShareError if it is not known whether there is a job now.
    """
    assert made.command is not None
    output.command(made.command)
    job = submit(made.command, say=output.sbatch)
    note_job(Path(made.folder.path), job, output)
    return job


def submit_reduce(request: Request, made: MapFolders, job: int, output: Output) -> int:
    """Submit the reducer, which depends on the map's `job`; return its job id. Raises SlurmShareError."""
    command = reduce_command(request, made.folder, str(job))
    output.command(command)
    try:
        return submit(command, say=output.sbatch)
    except SlurmShareError as error:
        raise SlurmShareError(
            f"{error}\nThe map job {job} is submitted nevertheless; cancel it with scancel {job}, or reduce later with "
            f"sbatch {Path(made.folder.path) / run_folder.REDUCE_SCRIPT}"
        ) from error


def is_finished(folder: Path) -> bool:
    """Return whether an ended map and its reducer succeeded: their folder is marked as finished, or was removed."""
    return (folder / mapreduce.FINISHED).exists() or not (folder / run_folder.RUN).exists()


def read_unfinished(folder: Path) -> tuple[int, str, list[str]]:
    """Return the exit code of a map that is not finished, how to finish it, and a line for each failed task."""
    resume = ""
    if not (folder / mapreduce.MAPPED).exists():
        resume = f"; llsub --resume {shlex.quote(str(folder))} runs what is unfinished"
    if (folder / run_folder.REDUCE_SCRIPT).exists():
        resume += f"{', then' if resume else ';'} sbatch {shlex.quote(str(folder / run_folder.REDUCE_SCRIPT))} reduces"
    sentence = f"not everything was done; see {folder / mapreduce.LOGS}{resume}"
    try:
        return read_account(folder)[1].exit_code or EXIT_FAILED, sentence, failures(folder)
    except SlurmShareError:
        return EXIT_FAILED, sentence, []  # the folder was removed in the meantime


# ---- Without a scheduler ----


def run_here(request: Request, folder: Folder, reduce: Sequence[str] | None, note: Callable[[str], None]) -> int:
    """Run a map and its reducer in the foreground; return the first exit code that is not 0.

    `note` gets a sentence about a reducer that failed.
    """
    path = Path(folder.path)
    launcher = [sys.executable, "-I", "-X", "utf8", "-m", "slurm_share.cli.main", "launch", folder.path]
    code = attend(launcher, env=_environment(os.environ))
    if code == 0:
        (path / mapreduce.MAPPED).touch()
    saved = saved_text(path) if reduce is not None and code else ""
    if saved:
        note(saved)
    elif reduce is not None and (code == 0 or (code == EXIT_FAILED and request.whatever)):
        done = attend(reduce)
        if done != 0:
            note(f"the reducer ended with {done}")
        code = code or done
    if code != 0:
        return code
    if folder.keep:
        (path / mapreduce.FINISHED).touch()
    else:
        run_files.remove(path, folder.ours(), and_itself=folder.is_ours)
    return code


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a launcher inside a job or task, without those of the job.

    CUDA_VISIBLE_DEVICES names the GPU that it may use.
    """
    found = {name: value for name, value in environ.items() if not name.startswith(OUTER)}
    if any(name in environ for name in INSIDE):
        found.setdefault(names.ENV_VISIBLE_DEVICES, "")  # a task without a GPU must not use the node's GPUs
    return found
