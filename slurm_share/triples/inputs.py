"""The inputs of a map: the files of a folder, or the lines of a list."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from ..core.errors import UsageError

LIST_MAX_BYTES = 256 * 1024 * 1024
"""A million lines of 256 characters; more is data that was taken for a list."""


class Files(Struct, frozen=True):
    """The input files that a folder has for a map."""

    files: tuple[str, ...]
    """Paths below the folder, sorted by the bytes of their names."""
    outside: tuple[str, ...] = ()
    """Links that would be inputs, and lead to nothing that can be seen."""


def files_below(folder: str, recursive: bool, extension: str | None, leave_out: str) -> Files:
    """Return the files of `folder`; with `recursive` those of its subfolders too, but never those of `leave_out`,
    under whatever name: a second run is not to map the outputs of the first.

    Names that begin with a dot are not inputs, and links to folders are not followed: they can lead in a circle.
    `extension`: only files whose names end so. Raises UsageError.
    """
    found: list[str] = []
    outside: list[str] = []
    real, real_out = os.path.realpath(folder), os.path.realpath(leave_out)
    ending = None if extension is None else f".{extension.removeprefix('.')}"

    def refuse(error: OSError) -> None:
        raise UsageError(
            f"cannot read the input folder {error.filename or folder} ({error.strerror}); see its name and rights"
        ) from error

    for path, folders, names in os.walk(folder, onerror=refuse):
        below = os.path.relpath(path, folder)
        folders[:] = (
            [
                name
                for name in folders
                if not name.startswith(".") and os.path.normpath(f"{real}/{below}/{name}") != real_out
            ]
            if recursive
            else []
        )
        for name in names:
            if name.startswith(".") or not (ending is None or name.endswith(ending)):
                continue
            file = f"{path}/{name}"
            if os.path.isfile(file):  # noqa: PTH113  # Path.is_file raises where a link leads into a closed folder
                found.append(name if below == "." else f"{below}/{name}")
            elif not os.path.exists(file):  # noqa: PTH110
                outside.append(name if below == "." else f"{below}/{name}")
    return Files(tuple(sorted(found, key=os.fsencode)), tuple(sorted(outside, key=os.fsencode)))


def overwritten(outputs: Iterable[str], sources: Iterable[str]) -> str | None:
    """Return the first output that is one of the sources: the same file, whatever its name or links."""
    there = {found: output for output in outputs if (found := _identity(output)) is not None}
    if not there:
        return None
    return next((there[found] for source in sources if (found := _identity(source)) in there), None)


def is_same(one: str, other: str) -> bool:
    """Return whether two paths lead to the same file or folder; False if either does not exist."""
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
            raise UsageError(f"the list {file} has {size} bytes, which is no list of inputs; name a text file")
        text = Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the list {file} ({error.strerror}); see its name and rights") from error
    if b"\0" in text:
        raise UsageError(f"the list {file} is no text; --input is a folder of files, or a text file that lists them")
    return tuple(line.removesuffix("\r") for line in text.decode("utf-8", "surrogateescape").split("\n"))
