"""Say which program a task runs, with which arguments."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..records import Run


def task_argv(run: Run, line: str) -> tuple[str, ...]:
    """Return program and arguments of a task; `line`: its line of the tasks file, empty where there is none."""
    if run.task_kind == "command":
        return ("/bin/sh", "-c", line)
    if run.task_kind == "input":
        return (*run.command, line)
    if run.task_kind == "arguments":
        return (*run.command, *msgspec.json.decode(line, type=tuple[str, ...]))
    return run.command


def argv_of(run: Run, lines: Sequence[str], task: int) -> tuple[str, ...]:
    """Return the same of the task with that number. `lines`: of the tasks file."""
    return task_argv(run, "" if run.task_kind == "rank" else lines[task])
