"""Name, read and write the files with records of use: `use-JOB.json` (JobUse) and `series-JOB.json` (UseSeries).

The launcher of a run has them in its node's folder of the run, one pair for each start of a job, so that a requeue or
the next job of a run keeps those of the one before. After the end of a job its node has one below /var/lib/slurm-share.
The agent keeps both of all starts in one file (load/agent/use_files.py).
A file is replaced whole, so a reader sees all of the old or all of the new one.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from ..core import files
from ..core.errors import StateError
from ..core.records import JobStart
from .records import VERSION, JobUse, UseSeries

MOST_BYTES = 16 << 20
"""Size above which a file is not read. One of 720 points and 16 GPUs has 0.5 MiB, a JobUse of 8 GPUs 4 KiB."""
USE, SERIES = "use", "series"
_BLOCK = 4096
"""Bytes of a block of the disk."""
_NAME = re.compile(r"(?:use|series)-(\d+(?:\.\d+)?)\.json", re.ASCII)
_ENCODER = msgspec.json.Encoder()

Record = TypeVar("Record", JobUse, UseSeries)


class _Versioned(Struct):
    """The part of a file that all versions have."""

    version: int = 1


def use_name(start: JobStart) -> str:
    """Return the name of the file with the JobUse of one start of a job: use-4711.json, use-4711.2.json."""
    return f"{USE}-{start}.json"


def series_name(start: JobStart) -> str:
    """Return the name of the file with its UseSeries: series-4711.json."""
    return f"{SERIES}-{start}.json"


def start_of(name: str) -> JobStart | None:
    """Return the start of a job that a file's name tells; None: it is none of these files."""
    found = _NAME.fullmatch(name)
    start = JobStart.parse(found[1]) if found else None
    return None if start is None or start.number is None else start


def encode(record: JobUse | UseSeries) -> bytes:
    """Return a record as JSON."""
    return _ENCODER.encode(record)


def decode(data: bytes, kind: type[Record], source: str) -> Record:
    """Return the record of type `kind` that JSON holds. `source`: the file or answer, for the message.

    Raises StateError if it is of a newer version, or none of ours.
    """
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
        if version > VERSION:
            raise StateError(
                source,
                f"a newer slurm-share wrote this (version {version} of its format; this one reads up to {VERSION}); "
                "use that slurm-share to read it",
            )
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StateError(source, f"is damaged: {error}") from error


def write(folder: Path, record: JobUse | UseSeries, *, mode: int = 0o600) -> Path:
    """Write a record into its file in that folder, in place of an older one, and return the file. Raises OSError."""
    start = JobStart(record.job, record.restarts or 0)
    file = folder / (use_name(start) if isinstance(record, JobUse) else series_name(start))
    files.write(file, encode(record), mode=mode)
    return file


def read(file: Path, kind: type[Record], *, uid: int | None = None) -> Record | None:
    """Return the record in a file; None: there is no such file, or it is not regular, or not the user's (`uid`).

    Raises StateError if it cannot be read, is damaged or of a newer version.
    """
    try:
        data = files.read_regular(file, MOST_BYTES + 1, uid=uid)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(str(file), f"cannot be read ({error.strerror})") from error
    if data is None:
        return None
    if len(data) > MOST_BYTES:
        raise StateError(str(file), f"is larger than {MOST_BYTES >> 20} MiB, so it is no record of use")
    return decode(data, kind, str(file))


def read_folder(
    folder: Path, kind: type[Record], *, jobs: Iterable[int] | None = None, uid: int | None = None
) -> tuple[list[Record], list[str]]:
    """Return the records of a type in a folder, by job and restart, and a sentence for each file that is unreadable.

    `jobs`: only of these; None: all. A folder that does not exist has none.
    """
    prefix = f"{USE if kind is JobUse else SERIES}-"
    wanted = None if jobs is None else set(jobs)
    found: list[Record] = []
    problems = []
    try:
        names = sorted(one.name for one in folder.iterdir() if one.name.startswith(prefix))
    except (FileNotFoundError, NotADirectoryError):
        return [], []
    except OSError as error:
        return [], [str(StateError(str(folder), f"cannot be read ({error.strerror})"))]
    for name in names:
        start = start_of(name)
        if start is None or (wanted is not None and start.number not in wanted):
            continue
        try:
            record = read(folder / name, kind, uid=uid)
        except StateError as error:
            problems.append(str(error))
        else:
            found += () if record is None else (record,)
    return sorted(found, key=lambda one: (one.job, one.restarts or 0)), problems


def prune(folder: Path, *, days: int, mib: int) -> None:
    """Remove files of a folder that are older than `days`, and the oldest ones while all take more than `mib` MiB.

    A file takes whole blocks of the disk, at least one. One that is gone meanwhile, or cannot be removed, is left.
    """
    now, left = time.time(), mib << 20
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                seen = entry.stat(follow_symlinks=False)
                found.append((seen.st_mtime, max(1, -(-seen.st_size // _BLOCK)) * _BLOCK, entry.path))
    for changed, size, path in sorted(found, reverse=True):
        left -= size
        if left < 0 or now - changed > 86400 * days:
            with contextlib.suppress(OSError):
                Path(path).unlink()
