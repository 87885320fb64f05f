"""Parse a tasks file: a task per line with `#LLSUB` lines between them, a JSON object per line, or a table.

`#LLSUB --task-time=10m` and JSON set the options of tasks. They override the command line, which applies to all tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from ...core import text_files
from ...core.errors import UsageError, shown
from ...core.text import did_you_mean
from ...packing import TaskSpec
from ..records import TASKS_MAX
from . import needs, pack_options, submission, task_options, task_tables

MAGIC = "#LLSUB"
LINE_MAX_BYTES = 8192
"""Most bytes of a task's line, far below the kernel's limit of one argument (128 KiB)."""
JSON_ENDING = ".jsonl"
OTHERS_MOST = 2000
"""Most lines that are not tasks of which the numbers are recorded in run.json."""
_EXAMPLE = '{"run": "python a.py", "gpu_mem": "6G"}'
_LAYOUT_BYTES = 4096
"""Bytes of a JSON line in addition to the longest task, for keys and other values."""


class Tasks(Struct, frozen=True):
    """The tasks of a file."""

    lines: tuple[str, ...] = ()
    """For each task, its command or its argument."""
    specs: tuple[TaskSpec, ...] = ()
    """For each task, its requests; empty: all tasks request the same."""
    numbers: tuple[int, ...] = ()
    """For each entry of `specs`, the number of its line in the file, from 1."""
    source: str = ""
    """Name of the file in messages."""
    others: tuple[int, ...] | None = ()
    """Numbers of the lines that are not tasks, from 1; None: there are more than OTHERS_MOST."""
    notes: tuple[str, ...] = ()
    """Notes for the user."""


class _JsonTask(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    run: str
    gpu_mem: str | UnsetType | None = UNSET
    """None: the size is learned."""
    gpus: int | float | UnsetType = UNSET
    name: str | UnsetType = UNSET
    timeout: str | UnsetType | None = UNSET
    """This and the next ones, None: no limit, or the part of its worker."""
    priority: int | UnsetType = UNSET
    cpus: int | UnsetType | None = UNSET
    mem: str | UnsetType | None = UNSET
    after: str | list[str] = []


RUN = "run"
_decoder = msgspec.json.Decoder(_JsonTask)
KEYS = tuple(field.name for field in msgspec.structs.fields(_JsonTask))
"""The keys of a task in FILE.jsonl; in a table, the columns that are options."""
OPTIONS = {
    "gpu_mem": "gpu-mem", "gpus": "gpus-per-task", "name": "name", "timeout": "task-time", "priority": "priority",
    "cpus": "task-cpus", "mem": "task-mem",
}  # fmt: skip
"""Key -> the option of the command line that sets the same."""
_AT = {"gpu_mem": "gpu_mem="}
"""Key -> its beginning of a message, where the message continues with the value."""
_KINDS = {
    "run": "text", "gpu_mem": 'text such as "6G" or "25%"', "gpus": "a number", "name": "text",
    "timeout": 'text such as "10m", or null', "priority": "a whole number", "cpus": "a whole number, or null",
    "mem": 'text such as "8G", or null', "after": 'a name, or a list such as ["prep"]',
}  # fmt: skip


def parse(
    data: bytes,
    source: str,
    base: TaskSpec,
    *,
    is_json: bool,
    is_packed: bool,
    known: Collection[str] = (),
    first: int = 1,
) -> Tasks:
    """Return the tasks of a file. Raises UsageError, with the line's number, for an invalid line.

    base: the options on the command line, for all tasks. known: the names of tasks that the run has already.
    first: the number of the first line.
    """
    found = list((_json_lines if is_json else _text_lines)(data, source, base, is_packed, first))
    if not found:
        raise UsageError(f"{source}: the file has only {MAGIC} lines; write a task below them")
    lines = tuple(line for _, line, _ in found)
    others = _others([number for number, _, _ in found], first)
    if all(spec == base for _, _, spec in found):
        return Tasks(lines, source=source, others=others)
    specs, numbers = tuple(spec for _, _, spec in found), tuple(number for number, _, _ in found)
    needs.check(specs, numbers, source, known)
    return Tasks(lines, specs, numbers, source, others)


def parse_table(
    data: bytes,
    source: str,
    base: TaskSpec,
    separator: str,
    *,
    has_script: bool,
    is_packed: bool,
    known: Collection[str] = (),
) -> Tasks:
    """Return the tasks of a table (`task_tables`). A task without a cell in the column `run` has an empty line.

    has_script: the cell is an argument of the script, and need not be there; else it is the command. The rest is as for
    `parse`.
    """
    lines = split_lines(data, source, 2 * LINE_MAX_BYTES + _LAYOUT_BYTES, "line of the table")
    names = task_tables.names_of(lines[0], source, separator)
    if not has_script and RUN not in names:
        raise UsageError(
            f"{source}: line 1 names no column {RUN}, the command of each task; add it, or write a script before the "
            "triple, which gets the columns as arguments"
        )
    texts, specs, numbers = [], [], []
    for row in task_tables.rows(lines, source, separator, KEYS):
        where = f"{source}: line {row.number}"
        run = row.options.get(RUN, "")
        if run or not has_script:
            _check_run(run, where)
        spec = base
        for key, option in OPTIONS.items():
            if key in row.options:
                _check_packed(key, option, where, is_packed=is_packed)
                with _located(where):
                    at = _AT.get(key, f'"{key}"')
                    spec = task_options.with_option(spec, option, row.options[key], at=at)
        if row.options.get("after"):
            spec = _with_after(spec, [name.strip() for name in row.options["after"].split(";")], where)
        texts.append(run)
        specs.append(replace(spec, params=row.params) if row.params else spec)
        numbers.append(row.number)
    needs.check(specs, numbers, source, known)
    return Tasks(tuple(texts), tuple(specs), tuple(numbers), source, _others(numbers))


def json_line(line: str, texts: Mapping[str, str], after: Sequence[str]) -> str:
    """Return a task as a line of FILE.jsonl. `texts`: its options, as `task_options.texts_of` returns them."""
    found: dict[str, object] = {RUN: line}
    for key, option in OPTIONS.items():
        text = texts.get(option)
        if text is None:
            continue
        if text == (pack_options.LEARNED if key == "gpu_mem" else task_options.NONE) and option != "name":
            found[key] = None
        elif key in ("gpus", "priority", "cpus"):
            found[key] = float(text) if "." in text else int(text)
        elif text:
            found[key] = text
    if after:
        found["after"] = list(after)
    return msgspec.json.encode(found).decode()


def _others(numbers: Sequence[int], first: int = 1) -> tuple[int, ...] | None:
    """Return the line numbers from `first` on that are not in `numbers`, up to its last one.

    None: they are more than OTHERS_MOST.
    """
    if numbers[-1] + 1 - first - len(numbers) > OTHERS_MOST:
        return None
    return tuple(sorted(set(range(first, numbers[-1])).difference(numbers)))


def line_number(task: int, others: Sequence[int] | None, first_line: int = 1) -> int | None:
    """Return the number of a task's line in its file, from 1; None: not known.

    `others`: as in Tasks. `first_line`: number of the first line that was read for task 0.
    """
    if others is None:
        return None
    number = task + first_line
    for other in others:
        if other > number:
            break
        number += 1
    return number


def parse_lines(data: bytes, source: str, first: int = 1) -> list[str]:
    """Return the tasks of a file, one per line. Raises UsageError, with the line's number, for an invalid line.

    first: the number of the first line.
    """
    lines = split_lines(data, source, LINE_MAX_BYTES, first=first)
    return [text_files.decode(line) for line in lines]


def split_lines(data: bytes, source: str, most_bytes: int, what: str = "task", first: int = 1) -> list[bytes]:
    """Return the lines of a tasks file. Raises UsageError, with the line's number, for an invalid line.

    what: what a line is, for messages. first: the number of the first line.
    """
    unreadable = text_files.why_not_text(data)
    if unreadable is not None:
        raise UsageError(f"{source}: the file {unreadable}")
    lines = text_files.split_lines(data)
    if not lines:
        raise UsageError(f"{source}: the file is empty; write one {what} per line")
    if len(lines) > TASKS_MAX:
        raise UsageError(
            f"{source}: the file has {len(lines)} lines, but a run has at most {TASKS_MAX} tasks; make several runs"
        )
    for number, line in enumerate(lines, first):
        why = None
        if not line.strip():
            why = "is empty; remove it" + (
                ": every line is a task, and the first line is task 0" if what == "task" else ""
            )
        elif len(line) > most_bytes:
            why = f"has {len(line)} bytes, but a {what} has at most {LINE_MAX_BYTES}"
            why += "; put it into a script of its own" if what == "task" else ""
        else:
            why = text_files.why_no_line(line)
        if why is not None:
            raise UsageError(f"{source}: line {number} {why}")
    return lines


def _text_lines(
    data: bytes, source: str, base: TaskSpec, is_packed: bool, first: int
) -> Iterator[tuple[int, str, TaskSpec]]:
    spec = base
    for number, line in enumerate(parse_lines(data, source, first), first):
        if line.startswith(MAGIC):
            text = line.removeprefix(MAGIC).strip()
            spec = _with_options(text, spec, f"{source}: line {number}", is_packed=is_packed)
        else:
            yield number, line, spec


def _with_options(text: str, spec: TaskSpec, where: str, *, is_packed: bool) -> TaskSpec:
    """Return the options of the lines below an `#LLSUB` line."""
    place = f"{where}: {MAGIC} {shown(text)}"
    for one in submission.parse_options(submission.split_words(text, place), place, "a tasks file"):
        if one.name not in task_options.LINE_OPTIONS or one.value is None:
            known = ", ".join(f"--{name}=" for name in task_options.LINE_OPTIONS)
            raise UsageError(f"{where}: --{shown(one.name)} is not an option of a tasks file: the options are {known}")
        if one.name in task_options.NEED_PACK and not is_packed:
            raise UsageError(f"{where}: --{one.name} needs --pack; write --pack too, or remove --{one.name}")
        with _located(where):
            spec = task_options.with_option(spec, one.name, one.value)
    return spec


@contextmanager
def _located(where: str) -> Iterator[None]:
    """Prefix UsageErrors with the file and line."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error


def _json_lines(
    data: bytes, source: str, base: TaskSpec, is_packed: bool, first: int
) -> Iterator[tuple[int, str, TaskSpec]]:
    most = 2 * LINE_MAX_BYTES + _LAYOUT_BYTES
    for number, line in enumerate(split_lines(data, source, most, first=first), first):
        where = f"{source}: line {number}"
        try:
            task = _decoder.decode(line)
        except text_files.NOT_JSON as error:
            raise UsageError(f"{where} {_why_no_task(line, str(error))}") from error
        _check_run(task.run, where)
        yield number, task.run, _json_spec(task, base, where, is_packed=is_packed)


def _why_no_task(line: bytes, said: str) -> str:
    """Return why a line could not be decoded as a task. `said`: the decoder's message."""
    try:
        found = msgspec.json.decode(line)
    except text_files.NOT_JSON as error:
        return (
            f"is not JSON ({error}); in a file *{JSON_ENDING} a line is an object such as {_EXAMPLE}; for commands, "
            "use another file extension"
        )
    if not isinstance(found, dict):
        return f"is not a JSON object; write one such as {_EXAMPLE}"
    for key in found:
        if key not in KEYS:
            hint = did_you_mean(key, KEYS)
            return f"has the key {shown(key) or repr('')}, but the keys of a task are {', '.join(KEYS)}{hint}"
    if "run" not in found:
        return f'has no "run", the command; write an object such as {_EXAMPLE}'
    wrong = next((key for key in KEYS if f"$.{key}" in said), "run")
    return f'has "{wrong}": {shown(msgspec.json.encode(found[wrong]).decode(), 40)}, but it must be {_KINDS[wrong]}'


def _check_run(run: str, where: str) -> None:
    why = None
    if not run.strip():
        why = "is empty"
    elif len(run.encode("utf-8", "surrogateescape")) > LINE_MAX_BYTES:
        why = f"is longer than {LINE_MAX_BYTES} bytes; put it into a script of its own"
    elif "\n" in run or "\0" in run:
        why = "contains a line end or a NUL; put it into a script of its own"
    if why is not None:
        raise UsageError(f'{where}: "run" {why}')


def _json_spec(task: _JsonTask, base: TaskSpec, where: str, *, is_packed: bool) -> TaskSpec:
    spec = base
    for key, option in OPTIONS.items():
        value = getattr(task, key)
        if value is UNSET:
            continue
        _check_packed(key, option, where, is_packed=is_packed)
        if value is None:
            value = pack_options.LEARNED if key == "gpu_mem" else task_options.NONE
        with _located(where):
            spec = task_options.with_option(spec, option, str(value)[:40], at=_AT.get(key, f'"{key}"'))
    after = [task.after] if isinstance(task.after, str) else task.after
    return _with_after(spec, after, where) if after else spec


def _with_after(spec: TaskSpec, after: Sequence[str], where: str) -> TaskSpec:
    if len(after) > needs.NAMES_MOST:
        raise UsageError(
            f"{where}: a task waits for at most {needs.NAMES_MOST} names; give the lines that it waits for one name"
        )
    with _located(where):
        names = tuple(dict.fromkeys(pack_options.parse_name(name, '"after"') for name in after))
    if "" in names:
        raise UsageError(f'{where}: "after" has an empty name; write the "name" of another line, or remove it')
    return replace(spec, after=names)


def _check_packed(key: str, option: str, where: str, *, is_packed: bool) -> None:
    if option in task_options.NEED_PACK and not is_packed:
        raise UsageError(f'{where}: "{key}" needs --pack; write --pack too, or remove the key')
