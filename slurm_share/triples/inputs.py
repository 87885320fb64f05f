"""The inputs of a map: the files of a folder, or the lines of a list."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from ..core.errors import UsageError

LIST_MAX_BYTES = 256 * 1024 * 1024
"""Most bytes of a list: a million lines of 256 characters. A larger file is probably data."""


class Files(Struct, frozen=True):
    """The input files of a map in a folder."""

    files: tuple[str, ...]
    """Paths below the folder, sorted by the bytes of their names."""
    outside: tuple[str, ...] = ()
    """Broken links that would otherwise be inputs."""


def files_below(folder: str, recursive: bool, extension: str | None, leave_out: str) -> Files:
    """Return the files of `folder`, with `recursive` also of its subfolders. Raises UsageError.

    Skips the folder `leave_out` under any name (a second run must not map the outputs of the first), names that begin
    with a dot, and links to folders, which may form a loop. `extension`: only files with this extension.
    """
    found: list[str] = []
    outside: list[str] = []
    real, real_out = os.path.realpath(folder), os.path.realpath(leave_out)
    ending = None if extension is None else f".{extension.removeprefix('.')}"

    def refuse(error: OSError) -> None:
        raise UsageError(
            f"cannot read the input folder {error.filename or folder} ({error.strerror}); check name and permissions"
        ) from error

    for path, folders, names in os.walk(folder, onerror=refuse):
        below = os.path.relpath(path, folder)
        visible = [name for name in folders if recursive and not name.startswith(".")]
        folders[:] = [name for name in visible if os.path.normpath(f"{real}/{below}/{name}") != real_out]
        for name in names:
            if name.startswith(".") or not (ending is None or name.endswith(ending)):
                continue
            file = f"{path}/{name}"
            if os.path.isfile(file):  # noqa: PTH113  # Path.is_file raises for a link into an inaccessible folder
                found.append(name if below == "." else f"{below}/{name}")
            elif not os.path.exists(file):  # noqa: PTH110
                outside.append(name if below == "." else f"{below}/{name}")
    return Files(tuple(sorted(found, key=os.fsencode)), tuple(sorted(outside, key=os.fsencode)))


def overwritten(outputs: Iterable[str], sources: Iterable[str]) -> str | None:
    """Return the first output that is the same file as one of the sources, also through links; None: there is none."""
    there = {found: output for output in outputs if (found := _identity(output)) is not None}
    if not there:
        return None
    return next((there[found] for source in sources if (found := _identity(source)) in there), None)


def is_same(one: str, other: str) -> bool:
    """Return whether two paths are the same file or folder; False if one does not exist."""
    found = _identity(one)
    return found is not None and found == _identity(other)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


def lines_of(file: str) -> tuple[str, ...]:
    """Return the lines of a list file. Raises UsageError for a file that is not text."""
    try:
        size = Path(file).stat().st_size
        if size > LIST_MAX_BYTES:
            raise UsageError(
                f"the list {file} has {size} bytes, but a list has at most {LIST_MAX_BYTES}; write the name of a text "
                "file with an input on each line"
            )
        text = Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the list {file} ({error.strerror}); check its name and permissions") from error
    if b"\0" in text:
        raise UsageError(f"the list {file} is not text; --input is a folder of files, or a text file that lists inputs")
    return tuple(line.removesuffix("\r") for line in text.decode("utf-8", "surrogateescape").split("\n"))
