"""Explain a packed run: the decisions on one task, and the measured groups of tasks, as sentences."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from .. import packing
from ..core.errors import StateError, UsageError
from ..packing import EVENTS, group_text, read_decisions, read_groups
from . import run_folder
from .records import Run
from .result_files import ResultFiles
from .rules.account import OUTCOME_TEXTS


def explain_groups(folder: Path) -> Iterator[str]:
    """Yield a line for each group with measured speeds, in order of nodes and time. Raises UsageError, StateError."""
    run = _read_packed(folder, "groups")
    is_empty = True
    for data, where in _read_events(folder, run):
        for group in sorted(read_groups(data), key=lambda one: (one.from_s, one.gpu)):
            is_empty = False
            yield f"{where}{group_text(group)}"
    if is_empty:
        yield (
            "no group of tasks was measured: each of its tasks must report progress, for three windows together, and "
            "have a known rate alone"
        )


def explain_task(folder: Path, task: int) -> Iterator[str]:
    """Yield lines about a task: why it waited, where it started, how it ended. Raises UsageError, StateError."""
    run = _read_packed(folder, "decisions")
    if not 0 <= task < run.tasks:
        raise UsageError(f"{folder}: there is no task {task}; its tasks are 0 to {run.tasks - 1}")
    lines: list[tuple[float, str]] = []
    for data, where in _read_events(folder, run):
        for unix_s, said in packing.explain_task(read_decisions(data), task):
            lines += [(unix_s, f"{where}{sentence}") for sentence in said]
    for ended in ResultFiles(folder, run):
        if ended.task == task:
            why = f": {ended.why}" if ended.why else ""
            lines.append((ended.started + ended.seconds, f"{OUTCOME_TEXTS[ended.outcome]}{why}"))
    lines.sort(key=lambda line: line[0])
    if not lines:
        yield f"task {task}: it was part of no decision yet"
    for at, line in lines:
        yield f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(at))}  {line}"


def _read_packed(folder: Path, what: str) -> Run:
    try:
        run = run_folder.read_run(folder)
    except StateError as error:
        raise UsageError(run_folder.no_run_text(str(folder), folder, error)) from error
    if run.pack is None:
        raise UsageError(f"{folder}: its tasks were not packed; only runs with llsub --pack have {what}")
    return run


def _read_events(folder: Path, run: Run) -> Iterator[tuple[bytes, str]]:
    """Yield the events of each node, with a prefix for sentences if there are several nodes. Raises StateError."""
    files = [file for file in sorted((folder / run.log_folder).glob(f"p*_*/{EVENTS}")) if file.is_file()]
    for file in files:
        with run_folder.reading(file):
            data = file.read_bytes()
        yield data, f"{file.parent.name.partition('_')[2]}: " if len(files) > 1 else ""
