"""`llsub --add`: add tasks to a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..triples import growing, submission, submitting

TAKES = ("tasks", "ntasks", "sweep", "zip")
"""Options of --add in addition to those of --resume."""


def add(
    folder: Path,
    arguments: argparse.Namespace,
    wishes: submission.SbatchOptions,
    asked: submitting.ResumeOptions,
    output: submitting.Output,
) -> growing.Addition:
    """Add the tasks that the arguments name to a run, and say which numbers they got."""
    run = growing.read_run(folder)
    found = growing.read_tasks(folder, run, arguments.tasks, arguments.ntasks, arguments.sweep or (), arguments.zip)
    count = len(found.lines) or arguments.ntasks
    added = growing.add(folder, run, found, count, arguments.tasks or "", wishes, asked, output)
    show(added, output, is_parsable=arguments.parsable and not asked.dry_run)
    return added


def show(added: growing.Addition, output: submitting.Output, *, is_parsable: bool) -> None:
    """Print the numbers of added tasks, and what runs them; `is_parsable`: the numbers, and a new job."""
    tasks = f"{'task' if added.count == 1 else 'tasks'} {added.numbers}"
    if not is_parsable:
        print(f"{'' if added.job is None else f'job {added.job}: '}{tasks} {added.sentence}", flush=True)
        return
    output.note(f"{tasks} {added.sentence}")
    print(added.numbers if added.job is None else f"{added.numbers} {added.job}", flush=True)
