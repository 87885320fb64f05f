"""The parameters of a run's tasks, by which people know them: of a sweep, else the line of the tasks file."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

from ..core import numbers
from ..core.errors import StateError, UsageError, shown
from ..packing import TaskSpec
from . import run_folder
from .records import Run
from .rules import deal, sweeps, task_files, task_options, task_tables

SHOWN = 5
"""Most tasks that a sentence names."""


def read_params(folder: Path, run: Run) -> Sequence[Mapping[str, str]]:
    """Return the parameters of each task; without any, its line of the tasks file. Raises StateError.

    They are fewer than the tasks if the tasks file is not complete.
    """
    specs = run_folder.read_specs(folder, run)
    if any(spec.params for spec in specs):
        return [spec.params for spec in specs]
    if run.task_kind == "rank":
        return [{}] * run.tasks
    name = sweeps.COMMAND if run.task_kind == "command" else sweeps.INPUT
    lines = run_folder.read_lines(folder, run)
    if run.task_kind == "arguments":
        try:
            lines = [shlex.join(deal.arguments_in(line, least=0)) for line in lines]
        except ValueError as error:
            raise StateError(str(folder / run_folder.TASKS), str(error)) from error
    return [{name: line} for line in lines]


class Labels:
    """The parameters of each task as text, made when they are needed: a run may have a million tasks."""

    def __init__(self, specs: Sequence[TaskSpec]) -> None:
        self._specs = specs if any(spec.params for spec in specs) else ()

    def __len__(self) -> int:
        """Return the number of tasks; 0: they have no parameters."""
        return len(self._specs)

    def __getitem__(self, task: int) -> str:
        return sweeps.label(self._specs[task].params)


def command_text(run: Run, line: str) -> str:
    """Return the command of a task of a script, with the script's name for its path."""
    program, *arguments = deal.task_argv(run, line)
    return shlex.join([PurePath(program).name, *arguments])


def table_of(run: Run, specs: Sequence[TaskSpec], lines: Sequence[str], tasks: Sequence[int]) -> str:
    """Return some tasks of a run with parameters as a table for --tasks FILE.csv.

    A task waits for those of them that it waited for. Raises UsageError for a parameter that would be an option there.
    """
    wrong = next((name for task in tasks for name in specs[task].params if name in task_files.KEYS), None)
    if wrong is not None:
        raise UsageError(
            f"the parameter {wrong} cannot be a column of a table of tasks, where {wrong} is an option of the task; "
            "llsub --resume runs the failed tasks again"
        )
    rows = []
    failed_names = {specs[task].name for task in tasks}
    for task in tasks:
        spec = specs[task]
        texts = task_options.texts_of(spec, deal.base_spec(run), is_packed=run.pack is not None)
        row = {key: texts[option] for key, option in task_files.OPTIONS.items() if option in texts}
        row["after"] = ";".join(name for name in spec.after if name in failed_names)
        row |= {name: value for name, value in spec.params.items() if name not in (sweeps.INPUT, sweeps.COMMAND)}
        if run.task_kind == "command":
            row[task_files.RUN] = sweeps.escape(lines[task])
        elif sweeps.INPUT in spec.params:
            row[task_files.RUN] = spec.params[sweeps.INPUT]
        rows.append(row)
    names = list(dict.fromkeys(name for row in rows for name, text in row.items() if text))
    return task_tables.render(names, [[row.get(name, "") for name in names] for row in rows])


def find(folder: Path, run: Run, asked: str) -> int:
    """Return the number of the task that `asked` names: a number, or parameters such as `lr=1e-3,seed=4`.

    Raises UsageError if no task, or more than one, has these parameters.
    """
    number = numbers.whole(asked, 999_999_999)
    if number is not None:
        return number
    wanted = sweeps.parse_label(asked)
    params = [spec.params for spec in run_folder.read_specs(folder, run)]
    known = list(dict.fromkeys(name for one in params for name in one))
    if not wanted or not known:
        what = shown(asked) or repr(asked)
        raise UsageError(
            f"{what} is not the number of a task, which begin at 0"
            + ("" if known else f"; the tasks of {folder.name} have no parameters")
        )
    for name in wanted:
        if name not in known:
            raise UsageError(f"the tasks of {folder.name} have no parameter {name}; they have {', '.join(known)}")
    found = [task for task, one in enumerate(params) if all(one.get(name) == value for name, value in wanted.items())]
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(
            f"no task of {folder.name} has {sweeps.label(wanted)}; slurm-share results "
            f"{run_folder.typed(folder)} shows what they have"
        )
    some = ", ".join(f"task {task}: {sweeps.label(params[task])}" for task in found[:SHOWN])
    more = f", and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    raise UsageError(
        f"{len(found)} tasks of {folder.name} have {sweeps.label(wanted)} ({some}{more}); name one by its number, or "
        "by all of its parameters"
    )
