"""Build the program and arguments of a task."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..records import Run


def task_argv(run: Run, line: str) -> tuple[str, ...]:
    """Return program and arguments of a task. `line`: its line of the tasks file; empty: there is no file."""
    if run.task_kind == "command":
        return ("/bin/sh", "-c", line)
    if run.task_kind == "input":
        return (*run.command, line)
    if run.task_kind == "arguments":
        return (*run.command, *msgspec.json.decode(line, type=tuple[str, ...]))
    return run.command


def argv_of(run: Run, lines: Sequence[str], task: int) -> tuple[str, ...]:
    """Return program and arguments of task number `task`. `lines`: the tasks file."""
    return task_argv(run, "" if run.task_kind == "rank" else lines[task])
