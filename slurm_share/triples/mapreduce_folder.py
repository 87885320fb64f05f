"""The folders of a map: the output folder, and the temporary folder with scripts and logs."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..core.errors import UsageError


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
        Path(folder).mkdir(parents=True)
        return True, ()
    except FileExistsError:
        pass
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


def clear(folder: Path, ours: Iterable[str], and_itself: bool) -> None:
    """Remove the files `ours` of a run, and with `and_itself` the folder, if it is then empty."""
    for name in ours:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()
    if and_itself:
        with contextlib.suppress(OSError):
            folder.rmdir()


def mark(folder: Path, name: str) -> None:
    """Create the empty file `name`. Raises OSError."""
    (folder / name).touch()
