"""Compute the key of a command from its script and the configuration files that it names.

Hashes of files are cached by path, time of change, size and inode, so that the thousandth task of a sweep costs a few
`stat` calls. The rules are in `rules/fingerprint.py`.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from .records import TaskKey
from .rules import fingerprint

CONFIG_BYTES = 64 * 1024
"""A configuration file up to this size is hashed by its content, a larger one by its name."""
SCRIPT_BYTES = 1 << 20
"""For a larger script or program, its size and this many bytes of its beginning and of its end are hashed."""
CACHED = 4096
"""Number of files in each cache, so that a run with a hundred thousand files does not keep them all."""
INTERPRETED_PATH = "/usr/local/bin:/usr/bin:/bin"

_State = tuple[int, int, int]
_contents: dict[tuple[str, bool], tuple[_State, str | None]] = {}
"""(path, is_script) -> state and hash of the file; hash None: not usable as that kind of file."""
_real = lru_cache(CACHED)(os.path.realpath)


def key_of(
    argv: Sequence[str], cwd: Path, name: str = "", *, run_folder: Path | None = None, kept: Path | None = None
) -> TaskKey:
    """Return the key of a command that is started in `cwd`. If its script cannot be read, `exact` is empty.

    name: the user's name for the family. run_folder: removed from all arguments. kept: a copy of the program `argv[0]`
    whose content counts, because the program itself may have been edited since; None: there is none.
    """
    command = fingerprint.take_apart(argv)
    folder = os.path.join(cwd, os.path.expanduser(os.path.expandvars(command.folder)))  # noqa: PTH111, PTH118
    script_path, content = _script(command, folder, os.environ.get("PATH", INTERPRETED_PATH))
    if kept is not None and command.script == argv[0]:
        content = _content(str(kept), is_script=True)

    def read(argument: fingerprint.Argument) -> str | None:
        value = argument.value or ""
        is_config = fingerprint.CONFIG_NAME.fullmatch(value) or fingerprint.CONFIG_FLAG.fullmatch(argument.name)
        if not is_config or "\0" in value:
            return None
        return _content(os.path.join(folder, os.path.expanduser(value)), is_script=False)  # noqa: PTH111, PTH118

    return fingerprint.make_key(
        command,
        script_path=script_path,
        content=content,
        name=name,
        run_folder="" if run_folder is None else str(run_folder),
        read=read,
    )


def _script(command: fingerprint.Command, folder: str, search: str) -> tuple[str, str | None]:
    """Return the script's path, or a text in its place, and the hash of its content; None: it cannot be read."""
    if command.text:
        text = fingerprint.hash_text(command.text)
        return f"text {text}", text
    if not command.script:
        return "", None
    if command.is_module:
        return _module(command.script, folder)
    if "\0" in command.script:
        return "", None
    file = os.path.join(folder, command.script)  # noqa: PTH118 - called for each task; a Path costs more than the rest
    if "/" not in command.script and command.script.rpartition("/")[2] == command.program:
        file = _found(command.script, search) or file
    return _real(file), _content(file, is_script=True)


def _module(name: str, folder: str) -> tuple[str, str | None]:
    """Return the file and content hash of a module in the folder, where `python -m` searches first; for an installed
    module, its name."""
    base = os.path.join(folder, *name.split("."))  # noqa: PTH118
    for file in (f"{base}.py", f"{base}/__main__.py"):
        content = None if "\0" in file else _content(file, is_script=True)
        if content is not None:
            return file, content
    return f"module {name}", fingerprint.hash_text(f"module {name}")


@lru_cache(CACHED)
def _found(program: str, search: str) -> str | None:
    """Return the path of a program in a search path; None: it is not found."""
    files = (f"{folder}/{program}" for folder in search.split(":") if folder)
    return next((file for file in files if os.access(file, os.X_OK) and not os.path.isdir(file)), None)  # noqa: PTH112


def _content(file: str, *, is_script: bool) -> str | None:
    """Return the hash of a file's content; None: it is not a regular file or cannot be read. A file that is not a
    script also has to be short and text."""
    try:
        seen = os.stat(file)  # noqa: PTH116
    except (OSError, ValueError):
        return None
    state = (seen.st_mtime_ns, seen.st_size, seen.st_ino)
    known = _contents.get((file, is_script))
    if known is not None and known[0] == state:
        return known[1]
    if not stat.S_ISREG(seen.st_mode) or (not is_script and seen.st_size > CONFIG_BYTES):
        content = None
    else:
        content = _hash_file(file, is_script=is_script)
    if len(_contents) >= CACHED:
        _contents.clear()
    _contents[(file, is_script)] = (state, content)
    return content


def _hash_file(file: str, *, is_script: bool) -> str | None:
    data = hashlib.sha256()
    try:
        fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb", buffering=0) as opened:
            size = os.fstat(fd).st_size
            read = opened.read(SCRIPT_BYTES if is_script else CONFIG_BYTES + 1) or b""
            if not is_script and (len(read) > CONFIG_BYTES or b"\0" in read):
                return None
            data.update(b"%d:" % size)
            data.update(read)
            if is_script and size > 2 * SCRIPT_BYTES:
                opened.seek(-SCRIPT_BYTES, os.SEEK_END)
                data.update(opened.read(SCRIPT_BYTES) or b"")
            elif is_script:
                data.update(opened.read(SCRIPT_BYTES) or b"")
    except OSError:
        return None
    return data.hexdigest()[: fingerprint.HASH_DIGITS]
