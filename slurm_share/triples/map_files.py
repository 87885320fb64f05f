"""The files of a map: its inputs, its output folders, and the temporary folder with scripts and logs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from ..core import text_files
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
    unreadable = text_files.why_not_text(text)
    if unreadable is not None:
        raise UsageError(f"the list {file} {unreadable}")
    if b"\0" in text:
        raise UsageError(f"the list {file} is not text; --input is a folder of files, or a text file that lists inputs")
    lines = text_files.split_lines(text)
    for number, line in enumerate(lines, 1):
        why = text_files.why_no_line(line)
        if why is not None:
            raise UsageError(f"line {number} of {file} {why}")
    return tuple(map(text_files.decode, lines))


# ---- Folders ----


def make_output_folders(output: str, folders: Iterable[str]) -> tuple[Path, ...]:
    """Make the output folder and the folders below it; return the new ones, parents first.

    Raises UsageError, after removing the new folders, if one cannot be made or written.
    """
    made: list[Path] = []
    try:
        for folder in (output, *folders):
            _make(Path(folder), made)
    except UsageError:
        unmake(made)
        raise
    return tuple(made)


def _make(folder: Path, made: list[Path]) -> None:
    try:
        missing = [folder]
        while not missing[-1].parent.exists():
            missing.append(missing[-1].parent)
        for path in reversed(missing):
            if path.is_dir():
                continue
            try:
                path.mkdir()
            except FileExistsError:
                if not path.is_dir():  # otherwise another process has just made it
                    raise
            else:
                made.append(path)
    except FileExistsError as error:
        raise UsageError(f"--output: {folder} exists and is not a folder; write another one") from error
    except OSError as error:
        raise UsageError(
            f"cannot make the output folder {folder} ({error.strerror}); write a folder in which you may create files"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"you may not write to the output folder {folder}; write a folder to which you may")


def unmake(folders: Sequence[Path]) -> None:
    """Remove these folders if they are empty."""
    for folder in reversed(folders):
        with contextlib.suppress(OSError):
            folder.rmdir()


def take(folder: str) -> tuple[bool, tuple[str, ...]]:
    """Make the folder of --tempdir; return whether it is new, and the names in an existing one. Raises UsageError."""
    try:
        with contextlib.suppress(FileExistsError):
            Path(folder).mkdir(parents=True)
            return True, ()
    except OSError as error:
        raise UsageError(f"cannot make {folder} ({error.strerror}); write another folder with --tempdir") from error
    try:
        return False, tuple(path.name for path in Path(folder).iterdir())
    except OSError as error:
        raise UsageError(f"--tempdir: {folder} cannot be used as a folder ({error.strerror}); write another") from error


def fill(folder: Path, files: Mapping[str, str], logs: str) -> None:
    """Write the files (text by name), and make the folder `logs`. Raises UsageError."""
    try:
        (folder / logs).mkdir(exist_ok=True)
        for name, text in files.items():
            with open(folder / name, "w", encoding="utf-8") as file:
                file.write(text)
                if text.startswith("#!"):
                    os.fchmod(file.fileno(), 0o755)
    except OSError as error:
        raise UsageError(f"cannot write to {folder} ({error.strerror}); free space, or write another folder") from error
