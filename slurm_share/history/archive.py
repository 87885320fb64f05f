"""The archive: append samples to one file per day, read them past broken lines, and write the drafts of a report."""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from ..core import append_file, files
from ..core.append_file import AppendFile
from ..core.errors import StateError, UsageError, shown
from ..core.process import Deadline
from ..core.settings import Settings
from . import records
from .records import Sample

_COLUMNS = records.HEAD.splitlines(keepends=True)[1].encode()


# --- Appending ------------------------------------------------------------------------------------------------------


class AppendResult(Struct, frozen=True):
    """The result of appending samples."""

    file: str
    added: int
    there: int
    """Samples that the file had already."""
    torn_bytes: int
    """Bytes cut off at the file's end: half a line that a crash or a full disk had left."""


def find_folder(given: Path | None, settings: Settings) -> Path:
    """Return the folder of the archive. Raises UsageError if none is given and none configured."""
    if given is None and not settings.archive_folder:
        raise UsageError("archive_folder is empty in the configuration: this site keeps no archive")
    return given or Path(settings.archive_folder)


def prepare(folder: Path, group: str) -> None:
    """Make the folder with mode 0750, whatever the umask, and give it to the operators' group.

    An existing folder keeps its mode. Raises StateError.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        is_new = not folder.is_dir()
        folder.mkdir(mode=0o750, exist_ok=True)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if is_new:
                os.fchmod(fd, 0o750)
            _give_to_group(fd, folder, group)
        finally:
            os.close(fd)
    except OSError as error:
        raise StateError(str(folder), f"cannot be made: {error.strerror or error}") from error


def _give_to_group(fd: int, place: Path, group: str) -> None:
    """Give a file or folder to the group if this user owns it; leave another owner's as it is. Raises StateError."""
    gid, stat = files.group_id(group), os.fstat(fd)
    if gid is None or stat.st_gid == gid or stat.st_uid != os.geteuid():
        return
    try:
        os.fchown(fd, -1, gid)
    except OSError as error:
        why = f"cannot be given to the group {group} (operators_group): {error.strerror or error}"
        who = f"root can, or a user who is in it (a systemd unit: SupplementaryGroups={group})"
        raise StateError(str(place), f"{why}; {who}") from error


def append(folder: Path, samples: Sequence[Sample], group: str, deadline: Deadline) -> AppendResult:
    """Add the samples, all of one interval, to the file of their day, or none if the disk is full.

    A sample whose node, user and interval are already in the file is left out. Raises StateError if the file cannot be
    written, another process holds its lock until the deadline, or a newer release of slurm-share began it.
    """
    file = folder / records.file_name(samples[0].time)
    try:
        with append_file.opened(file, mode=0o640, lock_s=deadline.left(), torn="cut", flush=True) as out:
            return _append(out, file, samples, group)
    except BlockingIOError as error:
        raise StateError(str(file), "is locked by another archiver; try again") from error
    except OSError as error:
        raise StateError(str(file), f"cannot be written: {error.strerror or error}; nothing was added") from error


def _append(out: AppendFile, file: Path, samples: Sequence[Sample], group: str) -> AppendResult:
    first, newline, _ = os.pread(out.fd, 100, 0).partition(b"\n")
    version = records.foreign_version(first.decode("utf-8", "replace")) if newline else None
    if version is not None:
        why = f"was begun by a newer slurm-share (form {shown(version)}; this one knows {records.VERSION})"
        raise StateError(str(file), f"{why}; nothing was added")
    if not newline:  # a new file, or half its first line
        os.fchmod(out.fd, 0o640)
        _give_to_group(out.fd, file, group)
    there = _keys(out.fd, samples[0].time)
    new = [one for one in samples if (one.node, one.user) not in there]
    head = "" if newline else records.HEAD
    torn = out.append((head + "".join(map(records.render, new))).encode()) if new else 0
    return AppendResult(str(file), len(new), len(samples) - len(new), torn)


def _keys(fd: int, time: int) -> set[tuple[str, str]]:
    """Return (node, user) of each sample that the file has for that interval in a whole line."""
    found = set()
    begin = records.time_text(time).encode() + b"\t"
    with open(os.dup(fd), "rb") as opened:
        opened.seek(0)
        for line in opened:
            if line.startswith(begin) and line.endswith(b"\n"):
                try:
                    sample = records.parse(line[:-1].decode())
                except ValueError:
                    continue  # a broken line is no sample
                found.add((sample.node, sample.user))
    return found


# --- Reading --------------------------------------------------------------------------------------------------------


class Archive:
    """A folder of day files: `2026-11-21.tsv`, or `2026-11-21.tsv.gz` if the administrator compressed it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.skipped = 0
        """Lines without a sample so far: torn by a power cut, or written by another program."""

    def days(self) -> tuple[str, ...]:
        """Return the days in the archive, such as 2026-11-21, in order.

        Raises StateError if this user cannot read the folder.
        """
        try:
            names = [file.name for file in self.folder.iterdir()]
        except OSError as error:
            raise _refused(self.folder, error) from error
        return tuple(sorted({name.partition(".")[0] for name in names if name.endswith((".tsv", ".tsv.gz"))}))

    def read(self, since: int, until: int) -> Iterator[Sample]:
        """Yield the samples whose interval begins in [since, until), Unix time.

        Raises StateError as `days` does, and for a file that cannot be read.
        """
        first, last = records.time_text(since)[:10], records.time_text(until - 1)[:10]
        for day in self.days():
            if first <= day <= last:
                found = [one for one in self._of_day(day) if since <= one.time < until]
                yield from sorted(found, key=lambda one: one.time)

    def _of_day(self, day: str) -> Iterator[Sample]:
        for suffix in (".tsv.gz", ".tsv"):
            file = self.folder / f"{day}{suffix}"
            try:
                with _opened(file) as raw, gzip.open(raw) if suffix.endswith("gz") else raw as opened:
                    for line in opened:
                        _check_version(file, line)
                        sample = self._sample(line)
                        if sample is not None:
                            yield sample
            except FileNotFoundError:
                continue
            except (EOFError, zlib.error, gzip.BadGzipFile):
                self.skipped += 1  # cut off, or not gzip: the lines before count
            except OSError as error:
                raise _refused(file, error) from error

    def _sample(self, line: bytes) -> Sample | None:
        if line.startswith(b"#") or line == _COLUMNS:
            return None
        try:
            if not line.endswith(b"\n"):
                raise ValueError("torn")
            return records.parse(line[:-1].decode("utf-8"))
        except ValueError:
            self.skipped += 1
            return None


def _opened(file: Path) -> BinaryIO:
    """Open a regular file. Raises OSError; StateError for a pipe or device, which could block for ever."""
    fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise StateError(str(file), "is not a file; move it away")
    return os.fdopen(fd, "rb")


def _check_version(file: Path, line: bytes) -> None:
    is_whole = line.startswith(b"#") and line.endswith(b"\n")
    version = records.foreign_version(line.decode("utf-8", "replace")) if is_whole else None
    if version is not None:
        why = f"was written by a newer slurm-share (form {shown(version)}; this one knows {records.VERSION})"
        raise StateError(str(file), why)


def _refused(file: Path, error: OSError) -> StateError:
    hint = "; it is for root and the operators' group" if isinstance(error, PermissionError) else ""
    if isinstance(error, FileNotFoundError):
        hint = "; slurm-share archive makes it (archive_folder in the configuration says where)"
    return StateError(str(file), f"cannot be read: {error.strerror or error}{hint}")


# --- Drafts ---------------------------------------------------------------------------------------------------------


def write_drafts(folder: Path, drafts: Mapping[str, str], period: str) -> tuple[str, ...]:
    """Write one file per user and period, such as `alice-2026-W47.txt`, mode 0600.

    Return the users who are left out because their name cannot be part of a file's name. Raises StateError.
    """
    left_out = []
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for user, text in drafts.items():
            if user.startswith(".") or "/" in user or "\0" in user or len(user.encode()) > 200:
                left_out.append(user)
                continue
            files.write(folder / f"{user}-{period}.txt", text.encode())
    except OSError as error:
        raise StateError(str(folder), f"cannot be written: {error.strerror or error}") from error
    return tuple(left_out)
