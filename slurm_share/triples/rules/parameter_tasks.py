"""Make the tasks of a run with parameters: lines of a file, values of --sweep and repetitions, combined."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ...core.errors import UsageError, shown
from ...packing import TaskSpec
from ..records import TaskKind
from . import sweeps
from .sweeps import COMMAND, INPUT, REPEAT, Parameter
from .task_files import LINE_MAX_BYTES, Tasks, line_number

_COMMAND = "the command"


class ParameterTasks(Struct, frozen=True):
    """The tasks of a run with parameters."""

    tasks: Tasks
    kind: TaskKind
    arguments: tuple[str, ...]
    """Arguments of the script that all tasks have, before those of their own."""


def make(
    found: Tasks,
    parameters: Sequence[Parameter],
    arguments: Sequence[str],
    base: TaskSpec,
    *,
    has_script: bool,
    is_zip: bool = False,
    repeats: int | None = None,
) -> ParameterTasks:
    """Return the tasks, in the order of the file, then of the parameters as written, then of the repetitions.

    found: the tasks of a file, which may have parameters of their own; empty: there is no file. arguments: after `--`;
    without a script and without a file, the command. base: the options of tasks without their own. Raises UsageError.
    """
    words: Sequence[str] = ()
    is_file = bool(found.lines)
    if not (has_script or found.lines):
        words, arguments = arguments, ()
        found = Tasks((" ".join(words),), source=_COMMAND)
        columns, own_line = [], ""
    else:
        columns = list(dict.fromkeys(name for spec in found.specs for name in spec.params))
        own_line = "" if columns or not found.lines else INPUT if has_script else COMMAND
    if repeats is not None:
        parameters = [*parameters, Parameter(REPEAT, tuple(map(str, range(repeats))))]
    swept = [one.name for one in parameters]
    names = [*columns, *([own_line] if own_line else []), *swept]
    sweeps.check_names(names, sweeps.OPTION if parameters else found.source)
    outer = parameters if repeats is None else parameters[:-1]
    sweeps.count(outer, is_zip=is_zip, lines=max(1, len(found.lines)), repeats=repeats or 1)
    combined = [
        dict(zip(swept, (*values, *more), strict=True))
        for values in sweeps.combinations(outer, is_zip=is_zip)
        for more in ([()] if repeats is None else [(str(number),) for number in range(repeats)])
    ]
    made = _Script(arguments, names) if has_script else _Commands(found, words, names, swept)
    lines, specs, numbers = [], [], []
    for place in range(max(1, len(found.lines))):
        line = found.lines[place] if found.lines else ""
        _check_utf8(line, found, place)
        spec = found.specs[place] if found.specs else base
        number = _number(found, place)
        own = {**spec.params, **({own_line: line} if own_line else {})}
        for values in combined:
            params = {**own, **values}
            text = made.line(line, params)
            _check_length(text, params, f"{found.source}: line {number}" if is_file else sweeps.OPTION)
            lines.append(text)
            specs.append(replace(spec, params=params))
            numbers.append(number)
    others = found.others if len(combined) == 1 and is_file else None
    tasks = Tasks(
        lines=tuple(lines),
        specs=tuple(specs),
        numbers=tuple(numbers) if is_file else (),
        source=found.source or sweeps.OPTION,
        others=others,
        notes=tuple(made.notes(swept, columns)),
    )
    return ParameterTasks(tasks, "arguments" if has_script else "command", made.shared)


def _number(found: Tasks, place: int) -> int:
    """Return the number of a task's line in its file."""
    return found.numbers[place] if found.numbers else line_number(place, found.others) or place + 1


def _check_utf8(line: str, found: Tasks, place: int) -> None:
    if not line.isascii() and line != line.encode("utf-8", "replace").decode():
        number = _number(found, place)
        raise UsageError(f"{found.source}: line {number} is not UTF-8, which a task with parameters must be")


def _check_length(text: str, params: Mapping[str, str], where: str) -> None:
    size = len(text.encode("utf-8", "surrogateescape"))
    if size > LINE_MAX_BYTES:
        raise UsageError(
            f"{where}: with {shown(sweeps.label(params), 60)} the task's line has {size} bytes, but a task has at most "
            f"{LINE_MAX_BYTES}; make the values shorter, or write file names"
        )


class _Script:
    """Makes the arguments of a script's tasks."""

    def __init__(self, arguments: Sequence[str], names: Sequence[str]) -> None:
        self._used: set[str] = set()
        for one in arguments:
            self._used |= sweeps.check_fields(one, names, f"the argument {shown(one, 60)}")
        self._arguments = arguments if self._used else ()
        self.shared = () if self._used else tuple(sweeps.fill(one, {}) for one in arguments)

    def line(self, line: str, params: Mapping[str, str]) -> str:
        found = [sweeps.fill(one, params) for one in self._arguments]
        if line and INPUT not in self._used:
            found.append(line)
        if not self._used:
            found += sweeps.arguments_of(params)
        return sweeps.line_of(found)

    def notes(self, swept: Sequence[str], columns: Sequence[str]) -> Iterator[str]:
        return _notes(self._used, [*columns, *swept])


class _Commands:
    """Makes the commands of a run without a script."""

    shared: tuple[str, ...] = ()

    def __init__(self, found: Tasks, words: Sequence[str], names: Sequence[str], swept: Sequence[str]) -> None:
        """words: the command after `--`; several words are not for the shell, and are quoted."""
        self._used: set[str] = set()
        self._words = words if len(words) > 1 else ()
        self._is_appended = bool(words)
        self._quoted: dict[str, set[str]] = {}
        """Line -> its parameters inside quotes."""
        for place, line in enumerate(found.lines):
            number = _number(found, place)
            where = found.source if words else f"{found.source}: line {number}"
            used = sweeps.check_fields(line, names, where)
            self._used |= used
            self._quoted[line] = sweeps.quoted_fields(line) if used and not self._words else set()
            asked = [name for name in swept if name != REPEAT]
            is_there = any(name in used or sweeps.variable(name) in line for name in asked)
            if asked and not (is_there or words):
                raise UsageError(
                    f"{where}: the command has none of the parameters; write where they go, such as "
                    f"--{asked[0]}={{{asked[0]}}}, or ${sweeps.variable(asked[0])}"
                )
            self._is_appended = self._is_appended and not is_there

    def line(self, line: str, params: Mapping[str, str]) -> str:
        if self._words:
            filled = shlex.join([sweeps.fill(word, params) for word in self._words])
        else:
            for name in self._quoted[line]:
                _check_quoted(name, params.get(name, ""), line)
            filled = sweeps.fill(line, params, for_shell=True)
        return f"{filled} {shlex.join(sweeps.arguments_of(params))}" if self._is_appended else filled

    def notes(self, swept: Sequence[str], columns: Sequence[str]) -> Iterator[str]:
        return _notes(self._used, swept)


def _check_quoted(name: str, value: str, line: str) -> None:
    """Raise UsageError for a value that needs quotes and stands inside quotes, where a shell might run it."""
    if value and shlex.quote(value) != value:
        raise UsageError(
            f"the command {shown(line, 60)}: {{{name}}} is inside quotes, and its value {shown(value, 40)} gets quotes "
            f'of its own; write it outside of them, or "${sweeps.variable(name)}"'
        )


def _notes(used: set[str], names: Sequence[str]) -> Iterator[str]:
    """Yield a note on parameters that a command with `{name}` does not mention."""
    left = [name for name in names if name not in used and name not in sweeps.NOT_PASSED]
    if used and left:
        variables = ", ".join(map(sweeps.variable, left))
        missing = ", ".join(f"{{{name}}}" for name in left)
        yield f"the command has no {missing}: its tasks find {'it' if len(left) == 1 else 'them'} in {variables} only"
