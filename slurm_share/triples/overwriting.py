"""Refuse what would overwrite a file that the command line names: outputs of a map, output files of a job."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence

from ..core.errors import UsageError, shown
from .rules import mapreduce, submission
from .rules.mapreduce import Item, Request

LONGEST = 200
"""Most characters of a path in a message."""


Identity = tuple[int, int] | str
"""(device, inode) of an existing file, else its path without links."""


class Identities:
    """Tells whether two paths are one file, also through links, and also before the file exists."""

    def __init__(self) -> None:
        self._folders: dict[str, str] = {}

    def of(self, path: str) -> Identity:
        """Return what a path names."""
        try:
            found = os.stat(path)  # noqa: PTH116
        except OSError:
            return self.real(path)
        except ValueError:
            return path  # it has a NUL byte, so no file has that name
        return found.st_dev, found.st_ino

    def real(self, path: str) -> str:
        """Return the absolute path without links, also of a file that does not exist."""
        if os.path.islink(path):  # noqa: PTH114
            return os.path.realpath(path)
        folder, _, name = os.path.abspath(path).rpartition("/")  # noqa: PTH100
        if folder not in self._folders:  # thousands of outputs are in few folders
            self._folders[folder] = os.path.realpath(folder or "/")
        return f"{self._folders[folder].rstrip('/')}/{name}"


def check_map(request: Request, items: Sequence[Item], folders: Sequence[str]) -> None:
    """Raise UsageError if a file would be written that the command line names, or written twice.

    Links count as the files that they lead to. `folders`: the folders that will be made below the output folder.
    """
    same = Identities()
    read = _read(request, items, same)
    outputs = _outputs(request, items, read, same)
    below = {same.of(folder): folder for folder in folders}
    for key in below.keys() & outputs.keys():
        raise UsageError(
            f"the output {_path(below[key])} of {_path(outputs[key])} would have the name of the output folder for "
            "another input's folder; rename the input or that folder, or write another --ext"
        )
    if request.reducer is not None:
        _check_redout(request, folders, read, outputs, same)
    if request.tempdir is not None:
        _check_tempdir(request, items, same)
    _check_job_files(submission.job_files(request.wish.options), read, same)


def check_job_files(files: Sequence[tuple[str, str]], read: Sequence[tuple[str, str]]) -> None:
    """Raise UsageError if Slurm would write one of `files` (option, path) over one of `read` (words, path)."""
    same = Identities()
    _check_job_files(files, {same.of(path): f"{what} {_path(path)}" for what, path in read}, same)


def _check_job_files(files: Sequence[tuple[str, str]], read: Mapping[Identity, str], same: Identities) -> None:
    for option, path in files:
        if (key := same.of(path)) in read:
            raise UsageError(f"{option} {_path(path)} would overwrite {read[key]}; write another file")
        if os.path.isdir(path):  # noqa: PTH112
            raise UsageError(f"{option} {_path(path)} is a folder; write the name of a file")


def _read(request: Request, items: Sequence[Item], same: Identities) -> dict[Identity, str]:
    """Return the existing files that a map needs, each with words that name it."""

    def named() -> Iterator[tuple[str, str]]:
        yield "the mapper", request.mapper
        if request.reducer is not None:
            yield "the reducer", request.reducer
            yield from (("the file of --redargs", word) for word in shlex.split(request.redargs))
        yield "the list", request.input
        for item in items:
            yield from (("the input", word) for word in (item[:1] if _output_of(request, item) else item))

    read: dict[Identity, str] = {}
    for what, path in named():
        key = same.of(path)
        if isinstance(key, tuple):
            read.setdefault(key, f"{what} {_path(path)}")
    return read


def _output_of(request: Request, item: Item) -> str | None:
    """Return the output of an input; None for a line of a list with other arguments, whose meaning only the mapper
    knows."""
    return item[1] if len(item) == 2 and os.path.abspath(item[1]).startswith(f"{request.output}/") else None  # noqa: PTH100


def _outputs(
    request: Request, items: Sequence[Item], read: dict[Identity, str], same: Identities
) -> dict[Identity, str]:
    """Return the outputs, each with its input. Raises UsageError."""
    outputs: dict[Identity, str] = {}
    for item in items:
        path = _output_of(request, item)
        if path is None:
            continue
        key = same.of(path)
        if key in read:
            raise UsageError(f"--output: {_path(path)} would overwrite {read[key]}; write another folder")
        if key in outputs:
            raise UsageError(
                f"{_path(outputs[key])} and {_path(item[0])} would have the same output {_path(path)}, by its name or "
                "through a link; give each input an output of its own"
            )
        outputs[key] = item[0]
    return outputs


def _check_redout(
    request: Request,
    folders: Sequence[str],
    read: dict[Identity, str],
    outputs: dict[Identity, str],
    same: Identities,
) -> None:
    redout, key = request.redout, same.of(request.redout)
    will_be = [same.real(path) for path in (request.output, request.tempdir, *folders) if path is not None]
    own = same.real(redout)
    if os.path.isdir(redout) or any(f"{path}/".startswith(f"{own}/") for path in will_be):  # noqa: PTH112
        raise UsageError(f"--redout: {_path(redout)} is a folder; write the name of a file")
    if key in read:
        raise UsageError(f"--redout: {_path(redout)} would overwrite {read[key]}; write another file")
    if key in outputs:
        raise UsageError(f"--redout: {_path(redout)} is the output of {_path(outputs[key])}; write another file")


def _check_tempdir(request: Request, items: Sequence[Item], same: Identities) -> None:
    """Refuse outputs under a name of the run's own files, which it writes and at its end removes."""
    assert request.tempdir is not None
    folder = f"{same.real(request.tempdir)}/"
    paths = [path for item in items if (path := _output_of(request, item))]
    if request.reducer is not None:
        paths.append(request.redout)
    for path in paths:
        real = same.real(path)
        if real.startswith(folder):
            first = real.removeprefix(folder).partition("/")[0]
            if mapreduce.taken([first], request.apptype == "mimo"):
                raise UsageError(
                    f"--tempdir: the run has a file or folder {_path(folder + first)} of its own, which it removes at "
                    f"its end, and {_path(path)} would be written there; write another folder"
                )


def _path(path: str) -> str:
    return shown(path, LONGEST)
