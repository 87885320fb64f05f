"""Read and write the user's history, one file of JSON lines a month.

The files are `$XDG_STATE_HOME/slurm-share/tasks/<yyyy-mm>.jsonl`. Each line is a record with a tag: a finished task, a
measured pair, or the result of trials. Lines contain hashes and numbers, and no text of a command. Folder and files
belong to the user, with modes 0700 and 0600; links, and files that others own or can write, are not used. Any number of
processes may append at once.

No error here ends a run: lines that cannot be decoded are skipped and counted, and a failure to write stops the
learning with one sentence.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ..core import append_file, files
from ..core.errors import StateError
from ..core.text import counted
from .history_records import NOT_A_RECORD, UNIX_MOST_S, VERSION, Record, SiteFamily, TaskRun, is_sane
from .rules.fingerprint import tag
from .speed_records import PairRun, SearchRun

NEWEST: dict[type[Any], int] = {TaskRun: 5000, PairRun: 3000, SearchRun: 2500}
"""Number of newest records of each kind that are used."""
FILE_READ_BYTES = 8 << 20
"""Most bytes of records at the end of a file that are used: about 15,000 lines."""
SCAN_BYTES = 64 << 20
"""Most bytes of the end of a file that are read, with lines that are too long to be records."""
READ_BYTES = 16 << 20
"""Most bytes of all files together, so that the start of a run does not wait for a file system."""
LINE_BYTES = 16 * 1024
"""Longer lines are ignored: slurm-share does not write them."""
FILE_BYTES = 256 << 20
"""No file grows beyond this size: 500,000 tasks in a month are enough to learn from."""
FAMILY_RUNS = 1000
"""From then on, a launcher writes of a family's tasks only those that are larger than all before, or ran out of memory.
A list of many short tasks would otherwise push everything else out of what is read."""
LOCK_S = 2.0
OLDEST_S = 180 * 86400.0
AHEAD_S = 86400.0
"""A record that is further in the future than this was written with a wrong clock. It is ignored, since it would always
be the newest of its command."""
BAD_MOST = 10_000
"""After this many invalid lines the rest of a file is not read."""
SITE_BYTES = 16 << 20

_decode_record = msgspec.json.Decoder(Record).decode
_decode_site = msgspec.json.Decoder(SiteFamily).decode
_encode = msgspec.json.Encoder().encode
_MONTH = re.compile(r"[0-9]{4}-[0-9]{2}\.jsonl")
_TASK_START = b'{"record":"task"'
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class History(Struct, frozen=True):
    """The newest records of a user's history, oldest first."""

    runs: tuple[TaskRun, ...] = ()
    """Finished tasks."""
    pairs: tuple[PairRun, ...] = ()
    searches: tuple[SearchRun, ...] = ()
    passed_over: int = 0
    """Number of lines that are incomplete, of another version, or invalid."""
    notes: tuple[str, ...] = ()
    """Sentences for the log about files that were not used."""


def find_folder(state_home: str | None = None) -> Path:
    """Return the folder of the caller's history. `state_home`: in place of XDG_STATE_HOME; None: use the variable."""
    home = os.environ.get("XDG_STATE_HOME", "") if state_home is None else state_home
    # The XDG specification requires that relative paths are ignored.
    root = Path(home) if home.startswith("/") else Path(os.path.expanduser("~/.local/state"))  # noqa: PTH111
    return root / "slurm-share" / "tasks"


# ---- Reading ----


def read_history(folder: Path | None = None, *, now: float | None = None) -> History:
    """Return the newest records of the last 180 days. Raises no error.

    folder None: the caller's own. now: Unix time; None: the current time.
    """
    moment = time.time() if now is None else now
    place = folder or find_folder()
    oldest = time.strftime("%Y-%m", time.gmtime(max(moment - OLDEST_S, 0)))
    latest = time.strftime("%Y-%m.jsonl", time.gmtime(max(moment + AHEAD_S, 0)))
    reading = _Reading(moment)
    notes: list[str] = []
    left = READ_BYTES
    try:
        for descriptor, name in _every_file(place):
            if name > latest:
                continue
            if name < oldest or left <= 0:
                break
            try:
                lines = _read_end(descriptor, name, min(left, FILE_READ_BYTES))
            except FileNotFoundError:
                continue  # `pack history --forget` has just removed it
            except (OSError, StateError) as error:
                notes.append(f"history of earlier tasks: {_why_not(place / name, error)}; the file is ignored")
                continue
            left -= sum(len(line) + 1 for line in lines)
            # The text after the last newline is empty or torn by a crash. It counts if it can be decoded.
            reading.take(lines)
    except (OSError, StateError) as error:
        notes.append(f"no history of earlier tasks: {_why_not(place, error)}")
    return History(
        runs=reading.newest(TaskRun),
        pairs=reading.newest(PairRun),
        searches=reading.newest(SearchRun),
        passed_over=reading.bad,
        notes=tuple(notes),
    )


class _Reading:
    """The records found so far, of the newest file first."""

    def __init__(self, now: float) -> None:
        self.bad = 0
        self._now = now
        self._found: dict[type[Any], list[Any]] = {kind: [] for kind in NEWEST}

    def take(self, lines: Sequence[bytes]) -> None:
        """Add the lines of a file, the last of which is the newest."""
        bad = 0
        tasks = self._found[TaskRun]
        for line in reversed(lines):
            if not line or line.isspace() or (len(tasks) >= NEWEST[TaskRun] and line.startswith(_TASK_START)):
                continue
            record = _decoded(line)
            if record is None or not is_sane(record) or record.when > self._now + AHEAD_S:
                bad += 1
                if bad > BAD_MOST:
                    break
            elif record.when >= self._now - OLDEST_S and len(self._found[type(record)]) < NEWEST[type(record)]:
                self._found[type(record)].append(record)
        self.bad += bad

    def newest(self, kind: type[Any]) -> tuple[Any, ...]:
        found = self._found[kind]
        found.reverse()
        # Several nodes append to one file, so lines may be out of order by seconds.
        found.sort(key=lambda one: one.when)
        return tuple(found)


def _decoded(line: bytes) -> Record | None:
    """Return the record of a line; None: it cannot be decoded."""
    if len(line) > LINE_BYTES:
        return None
    try:
        record: Record = _decode_record(line)
    except NOT_A_RECORD:
        return None
    return record


def _read_end(folder: int, name: str, most_bytes: int) -> list[bytes]:
    """Return the last lines of a file. A line that is too long hides none before it. Raises OSError, StateError."""
    fd = _open_file(folder, name)
    try:
        size = at = os.fstat(fd).st_size
        found: list[bytes] = []
        rest = b""  # of the line that begins before `at`
        while at > max(0, size - SCAN_BYTES) and most_bytes > 0:
            start = max(0, at - min(most_bytes, 1 << 20))
            rest, *lines = (files.read_from(fd, start, at - start) + rest).split(b"\n")
            found += reversed(lines)
            most_bytes -= at - start
            at = start
            if len(rest) > LINE_BYTES:  # no record: drop all but what shows that, and read as much more
                most_bytes += len(rest) - LINE_BYTES
                rest = rest[: LINE_BYTES + 1]
        return [*([] if at else [rest]), *reversed(found)]
    finally:
        os.close(fd)


def _every_file(place: Path) -> Iterator[tuple[int, str]]:
    """Yield (folder descriptor, name) of the history's files, newest first. Raises OSError, StateError."""
    try:
        folder = _open_folder(place, makes=False)
    except FileNotFoundError:
        return
    try:
        for name in sorted(filter(_MONTH.fullmatch, os.listdir(folder)), reverse=True):  # noqa: PTH208 - a descriptor
            yield folder, name
    finally:
        os.close(folder)


# ---- Writing ----


class HistoryWriter:
    """Appends records to the user's history. One thread calls it; other processes may append at the same time."""

    def __init__(self, folder: Path | None = None) -> None:
        """Open nothing yet, so that a run without learning creates no folder. `folder` None: the caller's own."""
        self.folder = find_folder() if folder is None else folder
        self.failed = 0
        """Number of records that were not written."""
        self._is_stopped = False
        self._family_runs: dict[tuple[str, str], tuple[int, int]] = {}
        """(family, GPU model) -> number of tasks, and the largest peak among them."""

    def append(self, *records: Record) -> str | None:
        """Append records. Return a sentence if that fails for the first time; later records are dropped."""
        wanted = [one for one in records if not isinstance(one, TaskRun) or self._is_wanted(one)]
        if self._is_stopped or not wanted:
            self.failed += len(wanted)
            return None
        when = wanted[-1].when
        name = time.strftime("%Y-%m.jsonl", time.gmtime(when if 0 <= when < UNIX_MOST_S else 0))
        try:
            _append(self.folder, name, b"".join(map(render, wanted)))
        except (OSError, StateError) as error:
            self._is_stopped = True
            self.failed += len(wanted)
            why = _why_not(self.folder, error)
            return f"the sizes and speeds of these tasks are not kept for the next run: {why}"
        return None

    def _is_wanted(self, run: TaskRun) -> bool:
        what = run.family, run.gpu_model
        count, largest = self._family_runs.get(what, (0, 0))
        peak = run.peak_mib or 0
        self._family_runs[what] = count + 1, max(peak, largest)
        return count < FAMILY_RUNS or run.is_censored or peak > largest


def render(record: Record) -> bytes:
    """Return the line of a record, with hashes as the names of a task's numbers."""
    if isinstance(record, TaskRun):
        record = msgspec.structs.replace(record, numbers=tuple((tag(name), x) for name, x in record.numbers))
    return _encode(record) + b"\n"


def _append(place: Path, name: str, data: bytes) -> None:
    """Append whole lines to a file of the folder `place`, all or nothing. Raises OSError, StateError."""
    folder = _open_folder(place, makes=True)
    try:
        with append_file.opened(name, mode=0o600, folder=folder, lock_s=LOCK_S, most_bytes=FILE_BYTES) as out:
            _check_own(out.fd, str(place / name))
            out.append(data)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        what = f"it has {FILE_BYTES >> 20} MiB, which is too large; remove it, or parts of it"
        raise StateError(str(place / name), what) from error
    finally:
        os.close(folder)


# ---- All records ----


def read_all(folder: Path | None = None) -> Iterator[Record]:
    """Yield all records on disk, also those too old to be used. `folder` None: the caller's own.

    Raises OSError, StateError.
    """
    for descriptor, name in _every_file(folder or find_folder()):
        fd = _open_file(descriptor, name)
        with open(fd, "rb") as opened:
            for line in opened:
                if (record := _decoded(line)) is not None:
                    yield record


def forget(matches: Callable[[Record], bool] | None, folder: Path | None = None) -> int:
    """Remove the matching records, or the files (`matches` None). Return their number. Lines that cannot be decoded
    stay. `folder` None: the caller's own. Raises OSError, StateError."""
    place = folder or find_folder()
    count = 0
    try:
        for descriptor, name in _every_file(place):
            if matches is None:
                os.unlink(name, dir_fd=descriptor)
                count += 1
            else:
                count += _remove_lines(descriptor, name, matches)
    except OSError as error:
        raise StateError(str(place / str(error.filename or "")), str(error.strerror)) from error
    return count


def _remove_lines(folder: int, name: str, matches: Callable[[Record], bool]) -> int:
    """Remove the records of a file that match, or the file if no line is left. Return their number."""
    with append_file.opened(name, mode=0o600, folder=folder, lock_s=LOCK_S) as locked:
        _check_own(locked.fd, name)
        kept, dropped = [], 0
        with open(locked.fd, "rb", closefd=False) as opened:
            opened.seek(0)
            for line in opened:
                record = _decoded(line)
                if record is not None and matches(record):
                    dropped += 1
                else:
                    kept.append(line)
        if dropped and not kept:
            os.unlink(name, dir_fd=folder)
        elif dropped:
            files.write(Path(name), b"".join(kept), folder=folder, flush=True)
        return dropped


# ---- Folder and files ----


def _open_folder(place: Path, *, makes: bool) -> int:
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


def _open_file(folder: int, name: str) -> int:
    """Open a file for reading. Raises OSError; StateError if it is not the caller's alone."""
    fd = os.open(name, _FILE, dir_fd=folder)
    try:
        _check_own(fd, name)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_own(fd: int, name: str) -> None:
    """Raise StateError unless an open file is regular and only the caller can write it."""
    seen = os.fstat(fd)
    if not stat.S_ISREG(seen.st_mode) or seen.st_uid != os.geteuid() or seen.st_mode & 0o022:
        mode = stat.S_IMODE(seen.st_mode)
        raise StateError(
            name, f"is not a regular file that only you can write (uid {seen.st_uid}, mode {mode:04o}); remove it"
        )


def _why_not(place: Path, error: Exception) -> str:
    """Return a sentence that says why a file or folder was not used."""
    if isinstance(error, OSError):
        return f"{place}: {error.strerror or error}"
    if isinstance(error, StateError) and not error.file.startswith("/"):
        return f"{place}: {error.why}"
    return str(error)


# ---- Published by the site ----


def read_site(folder: str) -> tuple[tuple[SiteFamily, ...], tuple[str, ...]]:
    """Return the site's figures of families, and sentences about files that cannot be read. Raises no error.

    folder: the setting `estimate_history`, whose files end in `.jsonl`; empty: there is none.
    """
    if not folder:
        return (), ()
    found: dict[tuple[str, str], SiteFamily] = {}
    notes: list[str] = []
    left = SITE_BYTES
    bad = 0
    try:
        published = sorted(file for file in Path(folder).iterdir() if file.name.endswith(".jsonl"))
    except OSError as error:
        return (), (f"no sizes from the site: {_why_not(Path(folder), error)}",)
    for file in published:
        try:
            data = files.read_regular(file, left)
            if data is None:
                raise StateError(str(file), "is not a regular file")
        except (OSError, StateError) as error:
            notes.append(f"sizes from the site: {_why_not(file, error)}; the file is ignored")
            continue
        left -= len(data)
        for line in data.splitlines():
            try:
                one = _decode_site(line)
            except NOT_A_RECORD:
                bad += bool(line.strip())
                continue
            if one.version == VERSION and one.runs > 0 and one.p90_mib > 0 and 0 < one.ratio < 100:
                found[(one.family, one.gpu_model)] = one
            else:
                bad += 1
    if bad:
        notes.append(f"sizes from the site: {folder}: {counted(bad, 'line')} cannot be read")
    return tuple(found.values()), tuple(notes)
