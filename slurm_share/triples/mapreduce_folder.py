"""The folders of a map: where its outputs go, and the temporary one with scripts and logs."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..core.errors import UsageError


def make_output_folders(output: str, folders: Iterable[str]) -> tuple[Path, ...]:
    """Make the output folder and those below it; return the new ones, each after its parent.

    Raises UsageError for what cannot be made, or not be written; what was made by then is gone again.
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
                if not path.is_dir():  # else somebody has made it just now
                    raise
            else:
                made.append(path)
    except FileExistsError as error:
        raise UsageError(f"--output: {folder} is there, and is no folder; name another one") from error
    except OSError as error:
        raise UsageError(
            f"cannot make the output folder {folder} ({error.strerror}); name one that you may write to"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"the output folder {folder} is not yours to write; name one that is")


def unmake(folders: Sequence[Path]) -> None:
    """Remove these folders if they are empty."""
    for folder in reversed(folders):
        with contextlib.suppress(OSError):
            folder.rmdir()


def take(folder: str) -> tuple[bool, tuple[str, ...]]:
    """Make the folder of --tempdir; return whether it is new, and what is in it otherwise. Raises UsageError."""
    try:
        Path(folder).mkdir(parents=True)
        return True, ()
    except FileExistsError:
        pass
    except OSError as error:
        raise UsageError(f"cannot make {folder} ({error.strerror}); name another one with --tempdir") from error
    try:
        return False, tuple(path.name for path in Path(folder).iterdir())
    except OSError as error:
        raise UsageError(f"--tempdir: {folder} cannot be used as a folder ({error.strerror}); name another") from error


def fill(folder: Path, files: Mapping[str, str], logs: str) -> None:
    """Write further files, and make the folder of the logs. Raises UsageError."""
    try:
        (folder / logs).mkdir(exist_ok=True)
        for name, text in files.items():
            with open(folder / name, "w", encoding="utf-8") as file:
                file.write(text)
                if text.startswith("#!"):
                    os.fchmod(file.fileno(), 0o755)
    except OSError as error:
        raise UsageError(f"cannot write to {folder} ({error.strerror}); make room, or name another folder") from error


def clear(folder: Path, ours: Iterable[str], and_itself: bool) -> None:
    """Remove what a run has put there, and the folder, if it was made for the run and nothing else is in it."""
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
    """Create an empty file. Raises OSError."""
    (folder / name).touch()
