"""Read and write the user's history of finished tasks, `$XDG_STATE_HOME/slurm-share/tasks/<yyyy-mm>.jsonl`.

Each line is the JSON of one task, with hashes and numbers, and no text of a command. No error here ends a run: lines
that cannot be decoded are skipped and counted, and a failure to write stops the learning with one sentence.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from ..core.errors import StateError
from ..core.text import counted
from . import history_files
from .history_records import SiteFamily, TaskRun
from .rules.fingerprint import tag

VERSION = 1
NEWEST_RUNS = 5000
OLDEST_S = 180 * 86400.0
SITE_BYTES = 16 << 20
MONTHS_MOST = 8
"""180 days span at most seven months; one more allows for a clock that is ahead."""
AHEAD_S = 86400.0
"""A run that ends further in the future than this was written with a wrong clock. It is ignored, since it would always
be the newest of its command."""
SECONDS_MOST = 1e9
"""Upper limit of a task's duration: 30 years."""
UNIX_MOST_S = 1e11
MIB_MOST = 1 << 24
"""16 TiB, more than any GPU has."""

_decode = msgspec.json.Decoder(TaskRun).decode
_decode_site = msgspec.json.Decoder(SiteFamily).decode
_encode = msgspec.json.Encoder().encode
_MONTH = re.compile(r"[0-9]{4}-[0-9]{2}\.jsonl")
_NOT_A_RUN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class History(Struct, frozen=True):
    """A user's finished tasks."""

    runs: tuple[TaskRun, ...] = ()
    """Oldest first."""
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
    """Return the newest 5,000 runs of the last 180 days, oldest first. Raises no error.

    folder None: the caller's own. now: Unix time; None: the current time.
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
    for name in [name for name in _months(os.listdir(fd)) if oldest <= name <= newest][:MONTHS_MOST]:
        try:
            lines = history_files.last_lines(fd, name)
        except (OSError, StateError) as error:
            notes.append(f"sizes of earlier tasks: {history_files.why_not(place / name, error)}; the file is ignored")
            continue
        found, bad = _parse(lines, NEWEST_RUNS - len(runs), now)
        passed_over += bad
        runs = found + runs
        if len(runs) >= NEWEST_RUNS:
            break
    # Several nodes append to one file, so lines may be out of order by seconds.
    runs.sort(key=lambda run: run.when)
    return History(tuple(runs[-NEWEST_RUNS:]), passed_over, tuple(notes))


def _months(names: list[str]) -> list[str]:
    """Return the names of history files, newest first."""
    return sorted(filter(_MONTH.fullmatch, names), reverse=True)


def _parse(lines: Sequence[bytes], most: int, now: float) -> tuple[list[TaskRun], int]:
    """Return the newest `most` runs, oldest first, and the number of invalid lines among them."""
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
    """Return whether a run is valid: printable hashes and short names, and possible figures."""
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
    """Appends finished tasks to the user's history. Several threads and processes may append at once."""

    def __init__(self, folder: Path | None = None) -> None:
        """Open nothing yet, so that a run without learning creates no folder. `folder` None: the caller's own."""
        self.folder = find_folder() if folder is None else folder
        self.written = 0
        self.failed = 0
        """Number of runs that were not written."""
        self._is_stopped = False

    def append(self, *runs: TaskRun) -> str | None:
        """Append runs in one write. Return a sentence if that fails for the first time; later calls do nothing."""
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
    """Return the line of a run, with hashes as the names of its numbers."""
    numbers = tuple((tag(name), x) for name, x in run.numbers)
    return _encode(msgspec.structs.replace(run, version=VERSION, numbers=numbers)) + b"\n"


# ---- Forgetting ----


def every_run(folder: Path | None = None) -> Iterator[TaskRun]:
    """Yield all runs on disk, including those that are too old to be used. Raises OSError, StateError."""
    for _, line in history_files.lines_of(find_folder() if folder is None else folder, _months):
        try:
            yield _decode(line)
        except _NOT_A_RUN:
            continue


def forget(matches: Callable[[TaskRun], bool], folder: Path | None = None) -> int:
    """Remove the runs that match, and return their number. Lines that cannot be decoded stay.

    Raises OSError, StateError.
    """

    def is_match(name: str, line: bytes) -> bool:
        try:
            return matches(_decode(line))
        except _NOT_A_RUN:
            return False

    return history_files.forget(find_folder() if folder is None else folder, _months, is_match)


def forget_all(folder: Path | None = None) -> int:
    """Remove all files of finished tasks, and return their number. Raises OSError, StateError."""
    return history_files.forget(find_folder() if folder is None else folder, _months)


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
        files = sorted(file for file in Path(folder).iterdir() if file.name.endswith(".jsonl"))
    except OSError as error:
        return (), (f"no sizes from the site: {history_files.why_not(Path(folder), error)}",)
    for file in files:
        try:
            data = _read_published(file, left)
        except (OSError, StateError) as error:
            notes.append(f"sizes from the site: {history_files.why_not(file, error)}; the file is ignored")
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
        notes.append(f"sizes from the site: {folder}: {counted(bad, 'line')} cannot be read")
    return tuple(found.values()), tuple(notes)


def _read_published(file: Path, most: int) -> bytes:
    fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise StateError(str(file), "is not a regular file")
        return history_files.read_all(fd, 0, most)
    finally:
        os.close(fd)
