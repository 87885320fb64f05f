"""Read what a user wants to run: a script with its #SBATCH and #LLSUB lines, and a file of tasks."""

from __future__ import annotations

import os
import shlex
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from ..core import text_files
from ..core.errors import UsageError, shown

HEAD_BYTES = 1024 * 1024
"""Most bytes of a script that are read: its #SBATCH lines come before its first command."""
TASKS_BYTES_MAX = 1024 * 1024 * 1024
MAGIC = "#SBATCH"
OWN_MAGIC = "#LLSUB"


class Script(Struct, frozen=True):
    """A user's script or program."""

    path: str
    """Absolute, symbolic links as they are."""
    name: str
    directives: tuple[str, ...] = ()
    """The text after #SBATCH, line by line."""
    own_lines: tuple[tuple[int, str], ...] = ()
    """The number of each #LLSUB line, from 1, and the text after that word."""


def read_script(given: str, *, to_execute: bool) -> Script:
    """Return the script of that name. Raises UsageError where it does not exist, is no file or not readable, or,
    with `to_execute`, not executable."""
    if not given:
        raise UsageError("the script's name is empty; give its path (is a variable of the shell not set?)")
    path = Path(os.path.abspath(Path(given).expanduser()))  # noqa: PTH100  # resolve() would follow links
    try:
        kind = path.stat().st_mode
    except OSError as error:
        there = " (a triple is the second word, after the script)" if given.startswith("[") else ""
        raise UsageError(f"cannot run {shown(given, 200)}: {error.strerror}{there}; give the script's path") from error
    if not stat.S_ISREG(kind):
        what = "a folder" if stat.S_ISDIR(kind) else "no file"
        raise UsageError(f"cannot run {shown(given, 200)}: it is {what}; give a script or program")
    if to_execute and not os.access(path, os.X_OK):
        raise UsageError(
            f"cannot run {shown(given, 200)}: it is not executable; write: chmod +x {shown(given, 200)} (and begin it "
            "with a line such as #!/bin/bash)"
        )
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        if to_execute:
            return Script(str(path), path.name)  # a program may be there to be executed and not to be read
        raise UsageError(f"cannot read {shown(given, 200)}: {error.strerror}") from error
    _check_first_line(given, head, to_execute=to_execute)
    return Script(str(path), path.name, parse_directives(head), tuple(_lines_behind(OWN_MAGIC, head)))


def _check_first_line(given: str, head: bytes, *, to_execute: bool) -> None:
    """Raise UsageError for a script that the kernel would not start. A batch script is started on a node, so that an
    interpreter that is missing here is refused with `to_execute` only."""
    if head.startswith(text_files.BOM + b"#!"):
        raise UsageError(
            f"cannot run {shown(given, 200)}: it begins with a byte order mark, and so not with #!; write: "
            f"sed -i '1s/^\\xef\\xbb\\xbf//' {shown(given, 200)}"
        )
    unreadable = text_files.why_not_text(head)
    if unreadable is not None:
        raise UsageError(f"cannot run {shown(given, 200)}: it {unreadable}")
    if not head.startswith(b"#!"):
        return
    line = head[2:].partition(b"\n")[0]
    name = shown(given, 200)
    if b"\r" in line[:-1]:
        raise UsageError(f"cannot run {name}: its first line contains a CR; if the script has {text_files.OLD_MAC}")
    if line.endswith(b"\r"):
        named = shown(text_files.decode(line).strip(" "))
        raise UsageError(
            f"cannot run {name}: its first line names {named}: DOS line ends; write: sed -i 's/\\r$//' {name}"
        )
    interpreter = text_files.decode(line.split()[0]) if line.split() else ""
    if to_execute and not os.access(interpreter, os.X_OK):
        raise UsageError(
            f"cannot run {name}: its first line names {shown(interpreter) or 'no program'}, and there is no such "
            "program here; put another one there, such as #!/bin/bash"
        )


def parse_directives(head: bytes) -> tuple[str, ...]:
    """Return the text after each #SBATCH before the first command, as sbatch reads it; none in a file without #!."""
    return tuple(text for _, text in _lines_behind(MAGIC, head))


def _lines_behind(magic: str, head: bytes) -> Iterator[tuple[int, str]]:
    if not head.startswith(b"#!"):
        return
    for number, line in enumerate(map(text_files.decode, text_files.split_lines(head)), 1):
        if line.startswith(magic):
            yield number, line.removeprefix(magic).strip()
        elif line.strip() and not line.lstrip().startswith("#"):
            return


def read_task_bytes(given: str, option: str = "") -> bytes:
    """Return the content of a file of tasks, or of standard input for `-`. Raises UsageError, which begins with
    `option`, where it cannot be read."""
    option = option or f"--tasks {shown(given, 200)}"
    if given == "-" and sys.stdin is None:
        raise UsageError(f"{option}: standard input is closed; write a file, or a pipe before llsub")
    try:
        if given == "-":
            data = sys.stdin.buffer.read(TASKS_BYTES_MAX + 1)
        else:
            path = Path(given).expanduser()
            kind = path.stat().st_mode  # before it is opened: some devices do something then
            if stat.S_ISDIR(kind):
                raise UsageError(
                    f"{option}: it is a folder; write a file with a task on each line, such as the "
                    f"output of: ls -d {shown(shlex.quote(given.rstrip('/')), 200)}/*"
                )
            if not (stat.S_ISREG(kind) or stat.S_ISFIFO(kind)):
                raise UsageError(f"{option}: it is neither a file nor a pipe; name one, or write -")
            with path.open("rb") as file:
                data = file.read(TASKS_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"{option}: cannot read it ({error.strerror})") from error
    if len(data) > TASKS_BYTES_MAX:
        raise UsageError(f"{option}: it is larger than {TASKS_BYTES_MAX >> 30} GiB; make several runs of it")
    return data
