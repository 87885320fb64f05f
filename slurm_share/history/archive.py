"""The archive: a file of samples for each day, which is appended to, and read however its lines came to be broken; and
the drafts that a report makes of it."""

from __future__ import annotations

import grp
import gzip
import os
import stat
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from ..core import locks
from ..core.errors import StateError, UsageError, shown
from ..core.process import Deadline
from ..core.settings import Settings
from . import records
from .records import Sample

LOCK_PAUSE_S = 0.05
_BLOCK = 1 << 20
_REGULAR_FILE = os.O_NOFOLLOW | os.O_NONBLOCK
"""Flags: follow no link, and do not wait for the other end of a pipe."""
_COLUMNS = records.HEAD.splitlines(keepends=True)[1].encode()


# --- Appending ------------------------------------------------------------------------------------------------------


class Appended(Struct, frozen=True):
    """The result of appending samples."""

    file: str
    added: int
    there: int
    """That the file had already."""
    torn_bytes: int
    """Cut off at its end: half a line that a crash or a full disk had left."""


def find_folder(given: Path | None, settings: Settings) -> Path:
    """Return the folder of the archive. Raises UsageError where there is none."""
    if given is None and not settings.archive_folder:
        raise UsageError("archive_folder is empty in the configuration: this site keeps no archive")
    return given or Path(settings.archive_folder)


def prepare(folder: Path, group: str) -> None:
    """Make the folder, 0750 whatever the umask is, for its owner and the operators' group; one that is there keeps its
    mode. Raises StateError."""
    is_new = True
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir(mode=0o750)
        except FileExistsError:
            is_new = False
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise StateError(str(folder), f"cannot be made: {error.strerror or error}") from error
    try:
        if is_new:
            os.fchmod(fd, 0o750)
        _give_to_group(fd, folder, group)
    except OSError as error:
        raise StateError(str(folder), f"cannot be made: {error.strerror or error}") from error
    finally:
        os.close(fd)


def _give_to_group(fd: int, place: Path, group: str) -> None:
    """What is our own; somebody else's is as they want it."""
    gid, stat = _group_id(group), os.fstat(fd)
    if gid is None or stat.st_gid == gid or stat.st_uid != os.geteuid():
        return
    try:
        os.fchown(fd, -1, gid)
    except OSError as error:
        why = f"cannot be given to the group {group} (operators_group): {error.strerror or error}"
        raise StateError(str(place), f"{why}; root can, or a user who is in it") from error


def append(folder: Path, samples: Sequence[Sample], group: str, deadline: Deadline) -> Appended:
    """Add the samples, all of one interval, to the file of its day; those of a node and user that it has of that
    interval are left as they are. All of them, or none: a disk that is full leaves the file as it was.

    Raises StateError where it cannot be written, another process holds it until the deadline, or another release of
    slurm-share began it.
    """
    file = folder / records.file_name(samples[0].time)
    try:
        fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | _REGULAR_FILE, 0o640)
    except OSError as error:
        raise _failed(file, error) from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise StateError(str(file), "is not a file; move it away")
        if not locks.take(fd, deadline, LOCK_PAUSE_S):
            raise StateError(str(file), "another archiver has held it all the time")
        return _append(fd, file, samples, group)
    except OSError as error:
        raise _failed(file, error) from error
    finally:
        os.close(fd)


def _append(fd: int, file: Path, samples: Sequence[Sample], group: str) -> Appended:
    size = os.fstat(fd).st_size
    first, newline, _ = os.pread(fd, 100, 0).partition(b"\n")
    version = records.foreign_version(first.decode("utf-8", "replace")) if newline else None
    if version is not None:
        why = f"was begun by a newer slurm-share (form {shown(version)}; this one knows {records.VERSION})"
        raise StateError(str(file), f"{why}; nothing was added")
    whole = _whole(fd, size)
    if whole < size:
        os.ftruncate(fd, whole)
    if whole == 0:
        os.fchmod(fd, 0o640)
        _give_to_group(fd, file, group)
    there = _keys(fd, whole, samples[0].time)
    new = [one for one in samples if (one.node, one.user) not in there]
    text = "".join(map(records.render, new))
    data = ((records.HEAD if whole == 0 else "") + text).encode()
    if new:
        _write(fd, data, whole)
    return Appended(str(file), len(new), len(samples) - len(new), size - whole)


def _write(fd: int, data: bytes, size: int) -> None:
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.fsync(fd)
    except OSError:
        os.ftruncate(fd, size)
        raise


def _whole(fd: int, size: int) -> int:
    """Bytes up to the end of the last whole line."""
    end = size
    while end > 0:
        start = max(0, end - _BLOCK)
        found = os.pread(fd, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _keys(fd: int, size: int, time: int) -> set[tuple[str, str]]:
    """(node, user) of the file's samples of that interval."""
    found = set()
    begin = records.time_text(time).encode() + b"\t"
    with open(os.dup(fd), "rb") as opened:
        opened.seek(0)
        for line in opened:
            if line.startswith(begin):
                try:
                    sample = records.parse(line[:-1].decode())
                except ValueError:
                    continue  # the sample is not there
                found.add((sample.node, sample.user))
    return found


def _group_id(name: str) -> int | None:
    try:
        return grp.getgrnam(name).gr_gid if name else None
    except KeyError:
        return None


def _failed(file: Path, error: OSError) -> StateError:
    return StateError(str(file), f"cannot be written: {error.strerror or error}; nothing was added")


# --- Reading --------------------------------------------------------------------------------------------------------


class Archive:
    """A folder of day files, `2026-11-21.tsv` or, kept smaller by the administrator, `2026-11-21.tsv.gz`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.skipped = 0
        """Lines that hold no sample, so far: torn by a power cut, or written by something else."""

    def days(self) -> tuple[str, ...]:
        """Return the days in the archive, such as 2026-11-21, in order.

        Raises StateError for a folder that is not there or not for this user to read.
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
                self.skipped += 1  # cut off, or none of gzip's: what came before it counts
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
    """Raises OSError, and StateError for what is no file: of a pipe, somebody would wait for ever."""
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
    """One file a user and period, `alice-2026-W47.txt`, 0600, so that none of another week looks new; the same drafts
    again change nothing. Users whose name is no file's name are left out, and returned. Raises StateError."""
    left_out = []
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for user, text in drafts.items():
            if user.startswith(".") or "/" in user or "\0" in user or len(user.encode()) > 200:
                left_out.append(user)
                continue
            aside = folder / f".{user}.{os.getpid()}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            try:
                with open(os.open(aside, flags, 0o600), "w", encoding="utf-8") as stream:
                    stream.write(text)
                aside.replace(folder / f"{user}-{period}.txt")
            except BaseException:
                aside.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise StateError(str(folder), f"cannot be written: {error.strerror or error}") from error
    return tuple(left_out)
