"""`llmapreduce`: runs a mapper over many inputs, then a reducer over its outputs.

The options and their meanings are LLSC's (MIT SuperCloud documentation, "LLMapReduce"); `triples/rules/mapreduce.py`
lists our decisions on points that it leaves open. Mapper and reducer get absolute paths.

When a task of llmapreduce or llsub calls it (LLSC's nested calls), it runs in the foreground with the caller's cores
and GPU, so the caller's task ends after the inner map and reducer.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from ..core import names
from ..core.command import EXIT_INTERRUPTED, enter
from ..core.errors import UsageError
from ..core.text import counted
from ..triples import MapPlan, Request, Run, follow, map_planning, map_submitting, mapreduce, plan_map, submitting
from .llmapreduce_options import read
from .progress_line import ProgressLine


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code: 0 done or submitted, 1 failed, 2 invalid request."""
    return enter("llmapreduce", lambda: _run(read(sys.argv[1:] if argv is None else argv)))


def _run(request: Request) -> int:
    plan = plan_map(request, _say)
    if request.dry_run:
        return _show(request, plan)
    made = map_submitting.make(request, plan)
    try:
        if made.command is None:
            return _in_the_foreground(request, made, plan.reduce)
        return _in_the_queue(request, made, plan.reduce is not None)
    except UsageError:
        map_submitting.unmake(made)
        raise


def _show(request: Request, plan: MapPlan) -> int:
    """Print the commands that would run, for --dry-run."""
    folder = mapreduce.Folder(request.tempdir or f"{Path.cwd()}/{map_planning.PREFIX}.<n>", True, request.keep)
    starts = f"{counted(plan.starts, 'start')} of the mapper"
    print(f"{counted(len(plan.items), 'input')}, {starts}, {counted(plan.split.processes, 'process')}")
    first = plan.items[0] if plan.split.groups is None else (f"{folder.path}/{mapreduce.PAIRS}1",)
    print(f"the first start: {shlex.join((request.mapper, *first))}")
    command = map_submitting.map_command(plan, folder, map_submitting.as_run(request, plan))
    if command is not None:
        print(shlex.join(command))
    if plan.reduce is not None:
        print(f"then: {shlex.join(plan.reduce)}")
        if command is not None:
            print(shlex.join(map_submitting.reduce_command(request, folder, "<map>")))
    return names.EXIT_OK


# ---- With the scheduler ----


def _in_the_queue(request: Request, made: map_submitting.MapFolders, reduces: bool) -> int:
    output, stream = (QUIET, sys.stderr) if request.parsable else (OUTPUT, None)
    jobs = [map_submitting.submit_map(made, output)]
    print(f"Submitted map job {jobs[0]}; logs: {Path(made.folder.path) / mapreduce.LOGS}", file=stream)
    if reduces:
        jobs.append(map_submitting.submit_reduce(request, made, jobs[0], output))
        print(f"Submitted reduce job {jobs[1]}, which starts after the map job", file=stream)
    if request.parsable:
        print(jobs[-1])
    sys.stdout.flush()
    return _wait(made.folder, made.run, jobs, stream) if request.wait else names.EXIT_OK


def _wait(folder: mapreduce.Folder, run: Run, jobs: Sequence[int], stream: TextIO | None = None) -> int:
    path = Path(folder.path)
    line = ProgressLine(stream)
    try:
        follow.follow_map(path, run, jobs, line.show)
    except KeyboardInterrupt:
        line.end()
        numbers = ",".join(map(str, jobs))
        run_on = f"job {numbers} continues" if len(jobs) == 1 else f"jobs {numbers} continue"
        _say(f"{run_on}: llsub --watch {path} shows the progress of the map, llkill {numbers} ends all")
        return EXIT_INTERRUPTED
    line.end()
    if map_submitting.is_finished(path):
        print("all done")
        return names.EXIT_OK
    return _say_unfinished(path)


def _say_unfinished(path: Path) -> int:
    """Print what is left and how to run it; return the exit code."""
    code, sentence, failed = map_submitting.read_unfinished(path)
    _say(sentence)
    for one in failed:
        print(one, file=sys.stderr)
    return code


# ---- Without the scheduler ----


def _in_the_foreground(request: Request, made: map_submitting.MapFolders, reduce: Sequence[str] | None) -> int:
    code = map_submitting.run_here(request, made.folder, reduce, _say)
    if code == 0:
        return names.EXIT_OK
    ended = _say_unfinished(Path(made.folder.path))
    return code if code > 128 else ended


def _say(sentence: str) -> None:
    print(f"llmapreduce: {sentence}", file=sys.stderr)


def _show_command(argv: Sequence[str]) -> None:
    print(shlex.join(argv))


OUTPUT = submitting.Output(command=_show_command, note=_say)
QUIET = submitting.Output(command=lambda _: None, note=_say)
"""For --parsable."""


if __name__ == "__main__":
    sys.exit(main())
