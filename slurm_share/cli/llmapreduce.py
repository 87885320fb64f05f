"""`llmapreduce`: one program over many inputs, then another one over its outputs.

The options are LLSC's, with their meanings (MIT SuperCloud documentation, "LLMapReduce");
`triples/rules/mapreduce.py` says what was decided where that is silent. Inputs and outputs are given to the mapper with
their whole paths, and so are the output folder and the reducer's file to the reducer.

Called by a task of llmapreduce or llsub, it is one of LLSC's nested calls: it runs in its caller's own place, in the
foreground, so that the caller's task is over when the inner map and its reducer are.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from ..core import names
from ..core.command import EXIT_FAILED, EXIT_INTERRUPTED, enter
from ..core.errors import SlurmShareError, UsageError
from ..slurm.submit import submit
from ..triples import follow, map_submitting, run_files
from ..triples.map_failures import failures
from ..triples.map_planning import PREFIX, MapPlan, Request, plan_map
from ..triples.map_submitting import Made
from ..triples.records import Run
from ..triples.rules import mapreduce
from ..triples.rules.mapreduce import Folder
from ..triples.run_folder import JOBS, RUN
from .llmapreduce_options import read
from .progress_line import Line


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 done (or submitted), 1 failed, 2 the caller's mistake."""
    return enter("llmapreduce", lambda: _run(read(sys.argv[1:] if argv is None else argv)))


def _run(request: Request) -> int:
    plan = plan_map(request, _say)
    if request.dry_run:
        return _show(request, plan)
    made = map_submitting.make(request, plan)
    try:
        if made.command is None:
            return _in_the_foreground(request, made, plan.reduce)
        return _in_the_queue(request, made, made.command, plan.reduce is not None)
    except UsageError:
        map_submitting.unmake(made)
        raise


def _show(request: Request, plan: MapPlan) -> int:
    """--dry-run."""
    folder = Folder(request.tempdir or f"{Path.cwd()}/{PREFIX}.<n>", True, request.keep)
    print(f"{len(plan.items)} inputs, {plan.starts} starts of the mapper, {plan.split.processes} processes")
    first = plan.items[0] if plan.split.groups is None else (f"{folder.path}/{mapreduce.PAIRS}1",)
    print(f"the first one: {shlex.join((request.mapper, *first))}")
    command = map_submitting.map_command(plan, folder, map_submitting.as_run(request, plan))
    if command is not None:
        print(shlex.join(command))
    if plan.reduce is not None:
        print(f"then: {shlex.join(plan.reduce)}")
        if command is not None:
            print(shlex.join(map_submitting.reduce_command(request, folder, "<map>")))
    return names.EXIT_OK


# ---- With the scheduler ----


def _in_the_queue(request: Request, made: Made, command: Sequence[str], reduces: bool) -> int:
    path = Path(made.folder.path)
    print(shlex.join(command))
    job = submit(command, say=_pass_on)
    try:
        run_files.note_job(path, job)
    except OSError as error:
        _say(f"job {job} is submitted, but cannot be noted in {path / JOBS} ({error.strerror})")
    jobs = [job]
    print(f"Submitted map job {job}; logs: {path / mapreduce.LOGS}")
    if reduces:
        command = map_submitting.reduce_command(request, made.folder, str(job))
        print(shlex.join(command))
        try:
            jobs.append(submit(command, say=_pass_on))
        except SlurmShareError as error:
            raise SlurmShareError(
                f"{error}\nThe map job {job} is submitted all the same; scancel {job} takes it back, or reduce later "
                f"with sbatch {path / mapreduce.REDUCE_SCRIPT}"
            ) from error
        print(f"Submitted reduce job {jobs[1]}, which waits for it")
    sys.stdout.flush()
    return _wait(made.folder, made.run, jobs) if request.wait else names.EXIT_OK


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


def _in_the_foreground(request: Request, made: Made, reduce: Sequence[str] | None) -> int:
    code = map_submitting.run_here(request, made.folder, reduce, _say)
    if code == 0:
        return names.EXIT_OK
    _say_unfinished(Path(made.folder.path))
    return code if code > 128 else EXIT_FAILED


def _say(sentence: str) -> None:
    print(f"llmapreduce: {sentence}", file=sys.stderr)


def _pass_on(text: str) -> None:
    """What sbatch and its plugins say, as it is."""
    sys.stderr.write(text)
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
