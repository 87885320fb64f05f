"""Read the tasks of a run as its user writes them: a file of lines, JSON or a table, and parameters (`--sweep`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct

from ..core import text_files
from ..core.errors import UsageError, shown
from ..packing import TaskSpec
from ..slurm import script as script_reader
from .records import TaskKind
from .rules import parameter_tasks, sweeps, task_files, task_tables
from .rules.sweeps import Parameter
from .rules.task_files import Tasks


class TaskSource(Struct, frozen=True, kw_only=True):
    """Where the tasks of a run come from, as written."""

    tasks: str | None = None
    """The file of --tasks; `-`: standard input."""
    data: bytes | None = None
    """The contents of that file, if they are read already."""
    sweeps: Sequence[str] = ()
    """The values of --sweep, NAME=VALUES."""
    is_zip: bool = False
    """--zip: the first value of each, then the second, in place of all combinations."""
    ntasks: int | None = None
    """How often each task of a run with parameters runs."""
    arguments: tuple[str, ...] = ()
    """The arguments after `--`."""
    has_script: bool
    base: TaskSpec = TaskSpec()
    """The options of tasks without their own."""
    is_packed: bool = False
    known: Collection[str] = ()
    """The names of tasks that the run has already, for which further ones may wait."""

    @property
    def is_table(self) -> bool:
        """Return whether the file is a table, by its name."""
        return self.tasks is not None and task_tables.separator_of(self.tasks) is not None


class ReadTasks(Struct, frozen=True, kw_only=True):
    """The tasks of a run; without a file and parameters there are none."""

    tasks: Tasks = Tasks()
    kind: TaskKind = "rank"
    arguments: tuple[str, ...] = ()
    """The arguments of the script that all tasks have."""


def read(source: TaskSource) -> ReadTasks:
    """Read the tasks of a run. Raises UsageError."""
    if source.is_zip and not source.sweeps:
        raise UsageError(
            "--zip is for --sweep: it takes the first value of each, then the second; write --sweep, or remove it"
        )
    parameters = [_read_parameter(written) for written in source.sweeps]
    found = Tasks() if source.tasks is None else _read_file(source.tasks, source)
    is_plain = not (parameters or any(spec.params for spec in found.specs) or not all(found.lines))
    if is_plain:
        kind: TaskKind = "rank" if source.tasks is None else "input" if source.has_script else "command"
        return ReadTasks(tasks=found, kind=kind, arguments=source.arguments)
    made = parameter_tasks.make(
        found,
        parameters,
        source.arguments,
        source.base,
        has_script=source.has_script,
        is_zip=source.is_zip,
        repeats=source.ntasks,
    )
    return ReadTasks(tasks=made.tasks, kind=made.kind, arguments=made.arguments)


def _read_file(file: str, source: TaskSource) -> Tasks:
    name = f"--tasks {'standard input' if file == '-' else file}"
    data = script_reader.read_task_bytes(file) if source.data is None else source.data
    separator = task_tables.separator_of(file)
    if separator is not None:
        return task_files.parse_table(
            data,
            name,
            source.base,
            separator,
            has_script=source.has_script,
            is_packed=source.is_packed,
            known=source.known,
        )
    is_json = file.endswith(task_files.JSON_ENDING)
    return task_files.parse(data, name, source.base, is_json=is_json, is_packed=source.is_packed, known=source.known)


def _read_parameter(written: str) -> Parameter:
    """Return a parameter with its values, of the command line or of a file. Raises UsageError."""
    name, values = sweeps.name_of(written)
    if not values.startswith(sweeps.FILE_MARK):
        return Parameter(name, sweeps.values_of(name, values))
    file = values.removeprefix(sweeps.FILE_MARK)
    where = f"{sweeps.OPTION} {name}=@{shown(file, 200)}"
    lines = task_files.split_lines(
        script_reader.read_task_bytes(file, where), where, task_files.LINE_MAX_BYTES, "value"
    )
    for number, line in enumerate(lines, 1):
        why = text_files.why_not_utf8(text_files.decode(line))
        if why is not None:
            raise UsageError(f"{where}: line {number} is not UTF-8; save the file as UTF-8")
    return Parameter(name, tuple(text_files.decode(line) for line in lines))
