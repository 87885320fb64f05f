"""The user's file of finished tasks: one line of JSON for each, in `$XDG_STATE_HOME/slurm-share/tasks/<yyyy-mm>.jsonl`.

A line holds hashes and numbers, no word of a command. Nothing here is ever fatal to a run: what cannot be read is
passed over and counted, and where nothing can be written, learning stops with one sentence.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from ..core.errors import StateError
from . import history_files
from .history_records import SiteFamily, TaskRun
from .rules.fingerprint import tag

VERSION = 1
NEWEST_RUNS = 5000
OLDEST_S = 180 * 86400.0
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
        fd = history_files.open_folder(place, makes=False)
    except FileNotFoundError:
        return History()
    except (OSError, StateError) as error:
        return History(notes=(f"no sizes of earlier tasks: {history_files.why_not(place, error)}",))
    try:
        return _read_folder(fd, place, moment)
    except OSError as error:
        return History(notes=(f"no sizes of earlier tasks: {history_files.why_not(place, error)}",))
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
            lines = history_files.last_lines(fd, name)
        except (OSError, StateError) as error:
            notes.append(f"sizes of earlier tasks: {history_files.why_not(place / name, error)}; it is passed over")
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


def _parse(lines: Sequence[bytes], most: int, now: float) -> tuple[list[TaskRun], int]:
    """Return the newest `most` runs, oldest first, and how many lines were passed over until they were found."""
    runs: list[TaskRun] = []
    bad = 0
    for line in reversed(lines):
        if not line or line.isspace():
            continue
        if len(runs) >= most or bad > 2 * NEWEST_RUNS:
            break
        if len(line) > history_files.LINE_BYTES:
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
        and 0 <= run.alone_seconds <= SECONDS_MOST
        and all(
            mib is None or 0 <= mib <= MIB_MOST
            for mib in (run.peak_mib, run.gpu_total_mib, run.reserved_mib, run.cap_mib)
        )
    )


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
            return (
                f"the sizes of these tasks are not kept for the next run: {history_files.why_not(self.folder, error)}"
            )
        self.written += len(runs)
        return None

    def _append(self, runs: Sequence[TaskRun]) -> None:
        name = time.strftime("%Y-%m.jsonl", time.gmtime(runs[-1].when if 0 <= runs[-1].when < 1e11 else 0))
        history_files.append(self.folder, name, b"".join(render(run) for run in runs))


def render(run: TaskRun) -> bytes:
    """Return the line of a run: the names of its numbers are hashes, too."""
    numbers = tuple((tag(name), x) for name, x in run.numbers)
    return _encode(msgspec.structs.replace(run, version=VERSION, numbers=numbers)) + b"\n"


# ---- Forgetting ----


def every_run(folder: Path | None = None) -> Iterator[TaskRun]:
    """Yield all runs on disk, also those that are too old or too many to count. Raises OSError, StateError."""
    place = find_folder() if folder is None else folder
    try:
        fd = history_files.open_folder(place, makes=False)
    except FileNotFoundError:
        return
    try:
        for name in _months(fd):
            opened = history_files.open_file(fd, name)
            try:
                history_files.own_file(opened, str(place / name))
                for line in history_files.every_line(opened):
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
        fd = history_files.open_folder(place, makes=False)
    except FileNotFoundError:
        return 0
    try:
        return sum(history_files.remove_lines(fd, name, lambda line: _is_match(line, matches)) for name in _months(fd))
    except OSError as error:
        raise StateError(str(place / str(error.filename or "")), str(error.strerror)) from error
    finally:
        os.close(fd)


def forget_all(folder: Path | None = None) -> int:
    """Remove every file of finished tasks, and return how many. Raises OSError, StateError."""
    place = find_folder() if folder is None else folder
    try:
        fd = history_files.open_folder(place, makes=False)
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
        return (), (f"no sizes from the site: {history_files.why_not(Path(folder), error)}",)
    for file in files:
        try:
            data = _read_published(file, left)
        except (OSError, StateError) as error:
            notes.append(f"sizes from the site: {history_files.why_not(file, error)}; it is passed over")
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
    fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise StateError(str(file), "is no file")
        return history_files.read_all(fd, 0, most)
    finally:
        os.close(fd)
