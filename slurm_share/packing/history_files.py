"""Read, append to, and remove lines of the JSON line files in the user's history folder.

The folder and its files belong to the user, with modes 0700 and 0600. Links and files of other users are not used. Any
number of processes may append at once: each append is one write under a lock.
"""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from ..core import files, locks, text_files
from ..core.errors import StateError
from ..core.process import Deadline
from .history_records import TaskRun
from .speed_records import PairRun, ShareRun, TunedRun

READ_BYTES = 8 << 20
"""This much of the end of a file is read: about 10,000 lines."""
LINE_BYTES = 16 * 1024
"""Longer lines are ignored: slurm-share does not write them."""
FILE_BYTES = 256 << 20
"""Nothing is appended to a larger file: 300,000 runs in a month are enough to learn from."""
LOCK_S = 2.0
OLDEST_S = 180 * 86400.0
AHEAD_S = 86400.0
"""A record that is further in the future than this was written with a wrong clock. It is ignored, since it would always
be the newest of its command."""
UNIX_MOST_S = 1e11
BAD_MOST = 10_000
"""After this many invalid lines the rest of a file is not read."""
NOT_A_RECORD = text_files.NOT_JSON

Record = TypeVar("Record", bound=TaskRun | PairRun | TunedRun | ShareRun)
Names = Callable[[list[str]], list[str]]
"""Returns those of a folder's file names that belong to a history, in the order in which they are read."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def find_folder(state_home: str | None = None) -> Path:
    """Return the folder of the caller's history. `state_home`: in place of XDG_STATE_HOME; None: use the variable."""
    home = os.environ.get("XDG_STATE_HOME", "") if state_home is None else state_home
    # The XDG specification requires that relative paths are ignored.
    root = Path(home) if home.startswith("/") else Path(os.path.expanduser("~/.local/state"))  # noqa: PTH111
    return root / "slurm-share" / "tasks"


# ---- Reading ----


def read_files(place: Path, what: str, names: Names, notes: list[str]) -> Iterator[tuple[str, list[bytes]]]:
    """Yield (name, lines at its end) of the selected files. Problems are added to `notes`; raises no error.

    what: the content of the files, for the notes.
    """
    try:
        for folder, name in every_file(place, names):
            try:
                lines = last_lines(folder, name)
            except FileNotFoundError:
                continue  # `pack history --forget` has just removed it
            except (OSError, StateError) as error:
                notes.append(f"{what} of earlier tasks: {why_not(place / name, error)}; the file is ignored")
                continue
            yield name, lines
    except (OSError, StateError) as error:
        notes.append(f"no {what} of earlier tasks: {why_not(place, error)}")


def newest(
    lines: Sequence[bytes], decode: Callable[[bytes], Record | None], most: int, now: float
) -> tuple[list[Record], int]:
    """Return the newest `most` records of the last 180 days, oldest first, and the number of invalid lines among them.

    decode: returns None for an invalid line.
    """
    records: list[Record] = []
    bad = 0
    for line in reversed(lines):
        if not line or line.isspace():
            continue
        if len(records) >= most or bad > BAD_MOST:
            break
        record = decode(line) if len(line) <= LINE_BYTES else None
        if record is None or record.when > now + AHEAD_S:
            bad += 1
        elif record.when >= now - OLDEST_S:
            records.append(record)
    # Several nodes append to one file, so lines may be out of order by seconds.
    records.reverse()
    records.sort(key=lambda one: one.when)
    return records, bad


def last_lines(folder: int, name: str) -> list[bytes]:
    """Return the lines at the end of a file, newest last, without an incomplete first line."""
    fd = open_file(folder, name)
    try:
        size = own_file(fd, name).st_size
        start = max(0, size - READ_BYTES)
        data = files.read_from(fd, start, READ_BYTES)
    finally:
        os.close(fd)
    lines = data.split(b"\n")
    # The text after the last newline is empty or torn by a crash. It counts if it can be decoded.
    return lines[1:] if start else lines


def open_file(folder: int, name: str) -> int:
    """Open a file for reading. Raises OSError. Check it with `own_file` before use."""
    return os.open(name, os.O_RDONLY | _FILE, dir_fd=folder)


def why_not(place: Path, error: Exception) -> str:
    """Return a sentence that says why a file or folder was not used."""
    if isinstance(error, OSError):
        return f"{place}: {error.strerror or error}"
    if isinstance(error, StateError) and not error.file.startswith("/"):
        return f"{place}: {error.why}"
    return str(error)


# ---- Writing ----


class RecordWriter(ABC, Generic[Record]):
    """Appends records to files of a user's history. Several threads and processes may append at once."""

    what = ""
    """The content of the records, for the sentence about a failure."""

    def __init__(self, folder: Path | None = None) -> None:
        """Open nothing yet, so that a run without learning creates no folder. `folder` None: the caller's own."""
        self.folder = find_folder() if folder is None else folder
        self.written = 0
        self.failed = 0
        """Number of records that were not written."""
        self._is_stopped = False

    @abstractmethod
    def _files(self, records: Sequence[Record]) -> Iterable[tuple[str, bytes]]:
        """Return (name, data) of each file to which records are appended, in one write each."""

    def append(self, *records: Record) -> str | None:
        """Append records. Return a sentence if that fails for the first time; later records are dropped."""
        if self._is_stopped or not records:
            self.failed += len(records)
            return None
        try:
            for name, data in self._files(records):
                append(self.folder, name, data)
        except (OSError, StateError) as error:
            self._is_stopped = True
            self.failed += len(records)
            return f"the {self.what} of these tasks are not kept for the next run: {why_not(self.folder, error)}"
        self.written += len(records)
        return None


def append(place: Path, name: str, data: bytes) -> None:
    """Append whole lines to a file of the folder `place`, all or nothing. Raises OSError, StateError."""
    folder = open_folder(place, makes=True)
    try:
        fd = _open_locked(folder, name)
        try:
            size = own_file(fd, str(place / name)).st_size
            if size > FILE_BYTES:
                raise StateError(str(place / name), "it is too large; remove it, or parts of it")
            torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
            _write_whole(fd, b"\n" + data if torn else data, size)
        finally:
            os.close(fd)
    finally:
        os.close(folder)


def _write_whole(fd: int, data: bytes, size: int) -> None:
    """Append all of the data, or on failure nothing: a part is truncated again. Raises OSError."""
    written = 0
    try:
        while written < len(data):
            written += os.write(fd, data[written:])
    except OSError:
        if written:
            os.ftruncate(fd, size)
        raise


def open_folder(place: Path, *, makes: bool) -> int:
    """Return a descriptor of the folder. Raises OSError; StateError for a link, or a folder that others own or can
    write. Links above `slurm-share` are allowed: a home may be one."""
    if makes:
        place.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    outer = os.open(place.parent.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        middle = _step(outer, place.parent, makes=makes)
    finally:
        os.close(outer)
    try:
        return _step(middle, place, makes=makes)
    finally:
        os.close(middle)


def _step(parent: int, place: Path, *, makes: bool) -> int:
    if makes:
        try:
            os.mkdir(place.name, 0o700, dir_fd=parent)
        except FileExistsError:
            pass
    try:
        fd = os.open(place.name, _DIRECTORY, dir_fd=parent)
    except NotADirectoryError as error:
        raise StateError(str(place), "is a link or no folder; put a folder of yours there") from error
    seen = os.fstat(fd)
    if seen.st_uid != os.geteuid() or seen.st_mode & 0o022:
        os.close(fd)
        mode = stat.S_IMODE(seen.st_mode)
        raise StateError(str(place), f"is not yours alone (uid {seen.st_uid}, mode {mode:04o}); chmod 700 it")
    return fd


def own_file(fd: int, name: str) -> os.stat_result:
    """Return the status of an open file. Raises StateError unless it is regular and only the caller can write it."""
    seen = os.fstat(fd)
    if not stat.S_ISREG(seen.st_mode) or seen.st_uid != os.geteuid() or seen.st_mode & 0o022:
        mode = stat.S_IMODE(seen.st_mode)
        raise StateError(
            name, f"is not a regular file that only you can write (uid {seen.st_uid}, mode {mode:04o}); remove it"
        )
    return seen


def _open_locked(folder: int, name: str) -> int:
    """Open a file for appending, and lock it. If `remove_lines` of another process replaces it meanwhile, open the new
    file. Raises OSError; StateError if another process holds it for too long."""
    deadline = Deadline.after(LOCK_S)
    while True:
        fd = os.open(name, os.O_RDWR | os.O_APPEND | os.O_CREAT | _FILE, 0o600, dir_fd=folder)
        try:
            _lock(fd, name, deadline)
            try:
                there = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                there = None
            if there is not None and (there.st_dev, there.st_ino) == (os.fstat(fd).st_dev, os.fstat(fd).st_ino):
                return fd
            if deadline.left() <= 0:
                raise StateError(name, "another process replaces it again and again")
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _lock(fd: int, name: str, deadline: Deadline) -> None:
    """Lock an open file. Raises StateError if another process holds it for too long. On NFS without a lock server there
    is no lock: then only the single write per line protects the file."""
    try:
        is_held = locks.take(fd, deadline, 0.01)
    except OSError:
        return
    if not is_held:
        raise StateError(name, f"another process has held it for {LOCK_S:g} s")


# ---- Forgetting ----


def remove_lines(folder: int, name: str, matches: Callable[[bytes], bool]) -> int:
    """Remove the lines that match, or the file if no line is left. Return their number. Raises OSError, StateError."""
    fd = _open_locked(folder, name)
    try:
        own_file(fd, name)
        kept, dropped = [], 0
        for line in every_line(fd):
            if matches(line):
                dropped += 1
            else:
                kept.append(line)
        if not dropped:
            return 0
        if not kept:
            os.unlink(name, dir_fd=folder)
            return dropped
        files.write(Path(name), b"".join(kept), folder=folder, flush=True)
        return dropped
    finally:
        os.close(fd)


def every_file(place: Path, names: Names) -> Iterator[tuple[int, str]]:
    """Yield (folder descriptor, name) of the files that `names` selects. Raises OSError, StateError."""
    try:
        folder = open_folder(place, makes=False)
    except FileNotFoundError:
        return
    try:
        for name in names(os.listdir(folder)):  # noqa: PTH208 - a descriptor
            yield folder, name
    finally:
        os.close(folder)


class HistoryFiles(Generic[Record]):
    """The files of one history, with all their records, including those that are too old to be used."""

    def __init__(self, names: Names, decode: Callable[[str, bytes], Record | None]) -> None:
        """`decode`: returns the record of a file's line; None: it cannot be decoded."""
        self._names = names
        self._decode = decode

    def records(self, folder: Path | None = None) -> Iterator[Record]:
        """Yield all records on disk. `folder` None: the caller's own. Raises OSError, StateError."""
        place = folder or find_folder()
        for descriptor, name in every_file(place, self._names):
            fd = open_file(descriptor, name)
            try:
                own_file(fd, str(place / name))
                for line in every_line(fd):
                    if (record := self._decode(name, line)) is not None:
                        yield record
            finally:
                os.close(fd)

    def forget(self, matches: Callable[[Record], bool] | None, folder: Path | None = None) -> int:
        """Remove the matching records, or the files (`matches` None). Return their number. Lines that cannot be decoded
        stay. Raises OSError, StateError."""
        place = folder or find_folder()
        count = 0
        try:
            for descriptor, name in every_file(place, self._names):
                if matches is None:
                    os.unlink(name, dir_fd=descriptor)
                    count += 1
                else:
                    count += remove_lines(descriptor, name, partial(self._matches, matches, name))
        except OSError as error:
            raise StateError(str(place / str(error.filename or "")), str(error.strerror)) from error
        return count

    def _matches(self, matches: Callable[[Record], bool], name: str, line: bytes) -> bool:
        record = self._decode(name, line)
        return record is not None and matches(record)


def every_line(fd: int) -> Iterator[bytes]:
    """Yield all lines of an open file from its beginning."""
    with open(fd, "rb", closefd=False) as opened:
        opened.seek(0)
        yield from opened
