"""The user's file of finished tasks: one line of JSON for each, in `$XDG_STATE_HOME/slurm-share/tasks/<yyyy-mm>.jsonl`.

A line holds hashes and numbers, no word of a command. Nothing here is ever fatal to a run: what cannot be read is
passed over and counted, and where nothing can be written, learning stops with one sentence.

The folder and the file are the user's, 0700 and 0600. A link, and a file of another user, is not followed and not used.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from ..core import locks
from ..core.errors import StateError
from ..core.process import Deadline
from .records import SiteFamily, TaskRun
from .rules.fingerprint import tag

VERSION = 1
NEWEST_RUNS = 5000
OLDEST_S = 180 * 86400.0
READ_BYTES = 8 << 20
"""Of one month's file, so much of its end is read: 10,000 lines, whatever the file holds before."""
LINE_BYTES = 16 * 1024
"""A longer line is none of ours."""
FILE_BYTES = 256 << 20
"""A file above this takes no further lines: 300,000 runs in a month are enough to learn from."""
LOCK_S = 2.0
SITE_BYTES = 16 << 20
MONTHS_MOST = 8
"""180 days lie in at most seven months; one more for a clock that is ahead."""
AHEAD_S = 86400.0
"""A run whose end lies further ahead than this was written while the clock was wrong. It is passed over: it would count
as the newest of its command for ever."""
SECONDS_MOST = 1e9
"""Of a task; 30 years."""
UNIX_MOST_S = 1e11
MIB_MOST = 1 << 24
"""16 TiB; no GPU has more memory."""

_decode = msgspec.json.Decoder(TaskRun).decode
_decode_site = msgspec.json.Decoder(SiteFamily).decode
_encode = msgspec.json.Encoder().encode
_NOT_A_RUN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class History(Struct, frozen=True):
    """What is known of a user's finished tasks."""

    runs: tuple[TaskRun, ...] = ()
    """Oldest first."""
    passed_over: int = 0
    """Lines that are torn, of another version, or none of ours."""
    notes: tuple[str, ...] = ()
    """Sentences for the log: files that were not used."""


def find_folder(state_home: str | None = None) -> Path:
    """Return the folder of the caller's history. `state_home`: the value of XDG_STATE_HOME; None: as it is set."""
    home = os.environ.get("XDG_STATE_HOME", "") if state_home is None else state_home
    # The specification ignores a path that is not absolute.
    root = Path(home) if home.startswith("/") else Path(os.path.expanduser("~/.local/state"))  # noqa: PTH111
    return root / "slurm-share" / "tasks"


# ---- Reading ----


def read_history(folder: Path | None = None, *, now: float | None = None) -> History:
    """Return the newest 5,000 runs of the last 180 days, oldest first. It never fails.

    folder: None: the caller's own. now: Unix time; None: now.
    """
    place = find_folder() if folder is None else folder
    moment = time.time() if now is None else now
    try:
        fd = _open_folder(place, makes=False)
    except FileNotFoundError:
        return History()
    except (OSError, StateError) as error:
        return History(notes=(f"no sizes of earlier tasks: {_why(place, error)}",))
    try:
        return _read_folder(fd, place, moment)
    except OSError as error:
        return History(notes=(f"no sizes of earlier tasks: {_why(place, error)}",))
    finally:
        os.close(fd)


def _read_folder(fd: int, place: Path, now: float) -> History:
    runs: list[TaskRun] = []
    notes: list[str] = []
    passed_over = 0
    oldest = time.strftime("%Y-%m", time.gmtime(max(now - OLDEST_S, 0)))
    newest = time.strftime("%Y-%m.jsonl", time.gmtime(max(now + AHEAD_S, 0)))
    for name in [name for name in _months(fd) if oldest <= name <= newest][:MONTHS_MOST]:
        try:
            lines = _last_lines(fd, name)
        except (OSError, StateError) as error:
            notes.append(f"sizes of earlier tasks: {_why(place / name, error)}; it is passed over")
            continue
        found, bad = _parse(lines, NEWEST_RUNS - len(runs), now)
        passed_over += bad
        runs = found + runs
        if len(runs) >= NEWEST_RUNS:
            break
    # Several nodes append to one file; theirs differ by seconds.
    runs.sort(key=lambda run: run.when)
    return History(tuple(runs[-NEWEST_RUNS:]), passed_over, tuple(notes))


def _months(fd: int) -> list[str]:
    """Return the names of the files, the newest first."""
    names = [name for name in os.listdir(fd) if _is_month(name)]
    return sorted(names, reverse=True)


def _is_month(name: str) -> bool:
    stem, dot, end = name.partition(".")
    year, dash, month = stem.partition("-")
    digits = year + month
    return (
        dot + end == ".jsonl" and dash == "-" and len(year) == 4 and len(month) == 2
        and digits.isascii() and digits.isdecimal()
    )  # fmt: skip


def _last_lines(folder: int, name: str) -> list[bytes]:
    """Return the lines at the end of a file, the newest last; without the half line with which such an end begins."""
    fd = os.open(name, os.O_RDONLY | _FILE, dir_fd=folder)
    try:
        size = _own_file(fd, name).st_size
        start = max(0, size - READ_BYTES)
        data = _read_all(fd, start, READ_BYTES)
    finally:
        os.close(fd)
    lines = data.split(b"\n")
    # What stands behind the last line's end is half a line: nothing, or torn by a crash. It counts if it is whole.
    return lines[1:] if start else lines


def _read_all(fd: int, start: int, most: int) -> bytes:
    parts = []
    while most > 0 and (part := os.pread(fd, min(most, 1 << 20), start)):
        parts.append(part)
        start += len(part)
        most -= len(part)
    return b"".join(parts)


def _parse(lines: Sequence[bytes], most: int, now: float) -> tuple[list[TaskRun], int]:
    """Return the newest `most` runs, oldest first, and how many lines were passed over until they were found."""
    runs: list[TaskRun] = []
    bad = 0
    for line in reversed(lines):
        if not line or line.isspace():
            continue
        if len(runs) >= most or bad > 2 * NEWEST_RUNS:
            break
        if len(line) > LINE_BYTES:
            bad += 1
            continue
        try:
            run = _decode(line)
        except _NOT_A_RUN:
            bad += 1
            continue
        if run.version != VERSION or not is_sane(run) or run.when > now + AHEAD_S:
            bad += 1
        elif run.when >= now - OLDEST_S:
            runs.append(run)
    runs.reverse()
    return runs, bad


def is_sane(run: TaskRun) -> bool:
    """Return whether a run is what we write: hashes, tags and short names, which can be shown, and possible figures."""
    return (
        all(len(text) <= 128 and text.isprintable() for text in (run.exact, run.family, run.series, run.script))
        and all(len(text) <= 256 and text.isprintable() for text in (run.gpu_model, run.sharing, run.software))
        and 0 <= run.when <= UNIX_MOST_S
        and 0 <= run.seconds <= SECONDS_MOST
        and all(
            mib is None or 0 <= mib <= MIB_MOST
            for mib in (run.peak_mib, run.gpu_total_mib, run.reserved_mib, run.cap_mib)
        )
    )


def _why(place: Path, error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{place}: {error.strerror or error}"
    if isinstance(error, StateError) and not error.file.startswith("/"):
        return f"{place}: {error.why}"
    return str(error)


# ---- Writing ----


class Writer:
    """Appends finished tasks to the user's history, from any thread of one process and any number of processes."""

    def __init__(self, folder: Path | None = None) -> None:
        """Open nothing yet: a run that learns nothing leaves no folder behind. `folder`: None: the caller's own."""
        self.folder = find_folder() if folder is None else folder
        self.written = 0
        self.failed = 0
        """Runs that were not written."""
        self._is_stopped = False

    def append(self, *runs: TaskRun) -> str | None:
        """Append runs in one write. Return a sentence where that fails for the first time; learning has stopped then,
        and every later call does nothing."""
        if self._is_stopped or not runs:
            self.failed += len(runs) if self._is_stopped else 0
            return None
        try:
            self._append(runs)
        except (OSError, StateError) as error:
            self._is_stopped = True
            self.failed += len(runs)
            return f"the sizes of these tasks are not kept for the next run: {_why(self.folder, error)}"
        self.written += len(runs)
        return None

    def _append(self, runs: Sequence[TaskRun]) -> None:
        data = b"".join(render(run) for run in runs)
        name = time.strftime("%Y-%m.jsonl", time.gmtime(runs[-1].when if 0 <= runs[-1].when < 1e11 else 0))
        folder = _open_folder(self.folder, makes=True)
        try:
            fd = _open_locked(folder, name)
            try:
                size = _own_file(fd, str(self.folder / name)).st_size
                if size > FILE_BYTES:
                    raise StateError(str(self.folder / name), "it is too large; remove it, or parts of it")
                torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
                _write_whole(fd, b"\n" + data if torn else data, size)
            finally:
                os.close(fd)
        finally:
            os.close(folder)


def render(run: TaskRun) -> bytes:
    """Return the line of a run: the names of its numbers are hashes, too."""
    numbers = tuple((tag(name), x) for name, x in run.numbers)
    return _encode(msgspec.structs.replace(run, version=VERSION, numbers=numbers)) + b"\n"


def _write_whole(fd: int, data: bytes, size: int) -> None:
    """Append all of the data, or nothing: half a line at the end is taken back. Raises OSError."""
    written = 0
    try:
        while written < len(data):
            written += os.write(fd, data[written:])
    except OSError:
        if written:
            os.ftruncate(fd, size)
        raise


def _open_folder(place: Path, *, makes: bool) -> int:
    """Return a descriptor of the folder. Raises OSError, StateError for a link or a folder that is not the caller's
    alone. Links above `slurm-share` are the user's affair: a home may be one."""
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


def _own_file(fd: int, name: str) -> os.stat_result:
    """Return what is known of an open file. Raises StateError unless it is a file that the caller alone can write."""
    seen = os.fstat(fd)
    if not stat.S_ISREG(seen.st_mode) or seen.st_uid != os.geteuid() or seen.st_mode & 0o022:
        mode = stat.S_IMODE(seen.st_mode)
        raise StateError(name, f"is no file of yours alone (uid {seen.st_uid}, mode {mode:04o})")
    return seen


def _open_locked(folder: int, name: str) -> int:
    """Open a file for appending, and lock it. Another process may put a new file in its place meanwhile (`forget`):
    then that one is opened. Raises OSError, StateError where another holds it for too long."""
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
    """Lock an open file. On NFS without a lock server that fails: a line is one write, which is all that is left
    then. Raises StateError where another holds it for too long."""
    try:
        is_held = locks.take(fd, deadline, 0.01)
    except OSError:
        return
    if not is_held:
        raise StateError(name, f"another process has held it for {LOCK_S:g} s")


# ---- Forgetting ----


def every_run(folder: Path | None = None) -> Iterator[TaskRun]:
    """Yield all runs on disk, also those that are too old or too many to count. Raises OSError, StateError."""
    place = find_folder() if folder is None else folder
    try:
        fd = _open_folder(place, makes=False)
    except FileNotFoundError:
        return
    try:
        for name in _months(fd):
            opened = os.open(name, os.O_RDONLY | _FILE, dir_fd=fd)
            try:
                _own_file(opened, str(place / name))
                for line in _lines(opened):
                    try:
                        yield _decode(line)
                    except _NOT_A_RUN:
                        continue
            finally:
                os.close(opened)
    finally:
        os.close(fd)


def forget(matches: Callable[[TaskRun], bool], folder: Path | None = None) -> int:
    """Remove the runs that match, and return how many. Lines that cannot be read stay.

    Raises OSError, StateError.
    """
    place = find_folder() if folder is None else folder
    try:
        fd = _open_folder(place, makes=False)
    except FileNotFoundError:
        return 0
    try:
        return sum(_forget_in(fd, name, matches) for name in _months(fd))
    except OSError as error:
        raise StateError(str(place / str(error.filename or "")), str(error.strerror)) from error
    finally:
        os.close(fd)


def forget_all(folder: Path | None = None) -> int:
    """Remove every file of the history, and return how many. Raises OSError, StateError."""
    place = find_folder() if folder is None else folder
    try:
        fd = _open_folder(place, makes=False)
    except FileNotFoundError:
        return 0
    try:
        names = _months(fd)
        for name in names:
            os.unlink(name, dir_fd=fd)
        return len(names)
    except OSError as error:
        raise StateError(str(place / str(error.filename or "")), str(error.strerror)) from error
    finally:
        os.close(fd)


def _forget_in(folder: int, name: str, matches: Callable[[TaskRun], bool]) -> int:
    fd = _open_locked(folder, name)
    try:
        _own_file(fd, name)
        kept, dropped = [], 0
        for line in _lines(fd):
            if _is_match(line, matches):
                dropped += 1
            else:
                kept.append(line)
        if not dropped:
            return 0
        if not kept:
            os.unlink(name, dir_fd=folder)
            return dropped
        new = f"{name}.{os.getpid()}.new"
        out = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o600, dir_fd=folder)
        try:
            with open(out, "wb") as opened:
                opened.writelines(kept)
                opened.flush()
                os.fsync(out)
            os.replace(new, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(new, dir_fd=folder)
            raise
        return dropped
    finally:
        os.close(fd)


def _lines(fd: int) -> Iterator[bytes]:
    with open(fd, "rb", closefd=False) as opened:
        opened.seek(0)
        yield from opened


def _is_match(line: bytes, matches: Callable[[TaskRun], bool]) -> bool:
    try:
        return matches(_decode(line))
    except _NOT_A_RUN:
        return False


# ---- What the site publishes ----


def read_site(folder: str) -> tuple[tuple[SiteFamily, ...], tuple[str, ...]]:
    """Return the site's figures of families, and sentences on what could not be read. It never fails.

    folder: the setting `estimate_history`; its files end in `.jsonl`. Empty: none.
    """
    if not folder:
        return (), ()
    found: dict[tuple[str, str], SiteFamily] = {}
    notes: list[str] = []
    left = SITE_BYTES
    bad = 0
    try:
        files = sorted(file for file in Path(folder).iterdir() if file.name.endswith(".jsonl"))
    except OSError as error:
        return (), (f"no sizes from the site: {_why(Path(folder), error)}",)
    for file in files:
        try:
            data = _read_published(file, left)
        except (OSError, StateError) as error:
            notes.append(f"sizes from the site: {_why(file, error)}; it is passed over")
            continue
        left -= len(data)
        for line in data.splitlines():
            try:
                one = _decode_site(line)
            except _NOT_A_RUN:
                bad += bool(line.strip())
                continue
            if one.version == VERSION and one.runs > 0 and one.p90_mib > 0 and 0 < one.ratio < 100:
                found[(one.family, one.gpu_model)] = one
            else:
                bad += 1
    if bad:
        notes.append(f"sizes from the site: {folder}: {bad} lines passed over")
    return tuple(found.values()), tuple(notes)


def _read_published(file: Path, most: int) -> bytes:
    fd = os.open(file, os.O_RDONLY | _FILE)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise StateError(str(file), "is no file")
        return _read_all(fd, 0, most)
    finally:
        os.close(fd)
