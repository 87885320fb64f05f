"""The user's history of speed, in the folder of the sizes: `pairs.jsonl`, `tuned.jsonl`, `shares.jsonl`.

A file of lines of JSON for each kind of record, the newest last; lines that cannot be read are passed over. As with
sizes, a line holds hashes and numbers, no word of a command, and nothing here is ever fatal to a run.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ..core.errors import StateError
from . import history_files
from .speed_records import PairRun, ShareRun, TunedRun
from .task_history import AHEAD_S, OLDEST_S, UNIX_MOST_S, find_folder

VERSION = 1
NEWEST: dict[str, int] = {"pairs.jsonl": 3000, "tuned.jsonl": 500, "shares.jsonl": 2000}
"""File -> so many of its newest lines count. Pairs are most: bans, and what is learned of each two commands."""
KINDS: dict[str, type[PairRun] | type[TunedRun] | type[ShareRun]] = {
    "pairs.jsonl": PairRun,
    "tuned.jsonl": TunedRun,
    "shares.jsonl": ShareRun,
}
RATIO_MOST = 1e6
"""No slowdown or aggregate speed is above it."""
RATE_MOST = 1e15
"""Units of work a second; a program that counts bytes stays below."""
TASKS_MOST = 100_000
"""Tasks on a node."""
COUNT_MOST = 10**9
"""Windows, and GPUs. JSON has whole numbers that are larger than any float."""

Record = PairRun | TunedRun | ShareRun
_decoders: dict[str, msgspec.json.Decoder[Any]] = {name: msgspec.json.Decoder(kind) for name, kind in KINDS.items()}
_encode = msgspec.json.Encoder().encode
_NOT_A_RECORD = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class SpeedHistory(Struct, frozen=True):
    """What earlier runs have left, oldest first."""

    pairs: tuple[PairRun, ...] = ()
    tuned: tuple[TunedRun, ...] = ()
    shares: tuple[ShareRun, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences for the job's log."""


# ---- Reading ----


def read_speed_history(folder: Path | None = None, *, now: float) -> SpeedHistory:
    """Return the history; `folder` None: the caller's own. `now`: Unix time. What cannot be read is in the notes."""
    place = find_folder() if folder is None else folder
    try:
        fd = history_files.open_folder(place, makes=False)
    except FileNotFoundError:
        return SpeedHistory()
    except (OSError, StateError) as error:
        return SpeedHistory(notes=(f"no speeds of earlier tasks: {history_files.why_not(place, error)}",))
    found: dict[str, Any] = {}
    notes: list[str] = []
    try:
        for name in KINDS:
            try:
                lines = history_files.last_lines(fd, name)
            except FileNotFoundError:
                continue
            except (OSError, StateError) as error:
                notes.append(
                    f"speeds of earlier tasks: {history_files.why_not(place / name, error)}; it is passed over"
                )
                continue
            found[name.removesuffix(".jsonl")] = _parse(name, lines, now)
    finally:
        os.close(fd)
    return SpeedHistory(**found, notes=tuple(notes))


def _parse(name: str, lines: Sequence[bytes], now: float) -> tuple[Record, ...]:
    """Return the newest records of a file, oldest first."""
    most = NEWEST[name]
    records: list[Record] = []
    bad = 0
    for line in reversed(lines):
        if not line or line.isspace():
            continue
        if len(records) >= most or bad > 2 * most:
            break
        record = _decoded(name, line)
        if record is None or not is_sane(record) or record.when > now + AHEAD_S:
            bad += 1
        elif record.when >= now - OLDEST_S:
            records.append(record)
    # Several nodes append to one file; theirs differ by seconds.
    records.reverse()
    return tuple(sorted(records, key=lambda one: one.when))


def _decoded(name: str, line: bytes) -> Record | None:
    if len(line) > history_files.LINE_BYTES:
        return None
    try:
        record: Record = _decoders[name].decode(line)
    except _NOT_A_RECORD:
        return None
    return record


def is_sane(record: Record) -> bool:
    """Return whether a record is what we write: hashes and short names, which can be shown, and possible figures."""
    if record.version != VERSION or not 0 <= record.when <= UNIX_MOST_S:
        return False
    names = [record.gpu_model, *families(record)]
    match record:
        case PairRun():
            names += [record.a, record.b]
            counts = [record.windows]
            ratios = (record.slowdown_a, record.slowdown_b, record.predicted_a, record.predicted_b)
            is_possible = all(_is_within(ratio, 1 / RATIO_MOST, RATIO_MOST) for ratio in ratios)
            is_possible = is_possible and all(_is_within(x, 0, RATIO_MOST) for x in (record.stp, record.stp_error))
        case TunedRun():
            names += [record.exact, record.rate_source]
            counts = [record.gpus, *(level.windows for level in record.levels)]
            levels = [record.best, *(level.level for level in record.levels)]
            rates = [rate for level in record.levels for rate in (level.per_s, level.spread_per_s)]
            is_possible = all(1 <= level <= TASKS_MOST for level in levels)
            is_possible = is_possible and all(_is_within(rate, 0, RATE_MOST) for rate in rates)
        case ShareRun():
            names += [record.arm]
            counts = [record.windows]
            is_possible = all(_is_within(x, 0, RATIO_MOST) for x in (record.stp, record.antt))
    is_possible = is_possible and all(0 <= count <= COUNT_MOST for count in counts)
    return is_possible and all(len(name) <= 256 and name.isprintable() for name in names)


def _is_within(value: float, least: float, most: float) -> bool:
    return math.isfinite(value) and least <= value <= most


# ---- Writing ----


class SpeedWriter:
    """Appends to the user's history, from any number of processes."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder` None: the caller's own. Nothing is opened before there is something to write."""
        self.folder = find_folder() if folder is None else folder
        self._is_stopped = False

    def append(self, *records: Record) -> str | None:
        """Append records. Return a sentence where that fails for the first time; later ones are dropped in silence."""
        if self._is_stopped:
            return None
        try:
            for name, kind in KINDS.items():
                data = b"".join(_encode(one) + b"\n" for one in records if isinstance(one, kind))
                if data:
                    history_files.append(self.folder, name, data)
        except (OSError, StateError) as error:
            self._is_stopped = True
            why = history_files.why_not(self.folder, error)
            return f"the speeds of these tasks are not kept for the next run: {why}"
        return None


# ---- Forgetting ----


def families(record: Record) -> tuple[str, ...]:
    """Return the families that a record is about."""
    match record:
        case PairRun():
            return record.family_a, record.family_b
        case TunedRun():
            return (record.family,)
        case ShareRun():
            return record.family, *record.neighbours


def every_family(folder: Path | None = None) -> Iterator[str]:
    """Yield the families of all records on disk, also of those too old to count. Raises OSError, StateError."""
    place = find_folder() if folder is None else folder
    for fd, name in _files(place):
        opened = history_files.open_file(fd, name)
        try:
            history_files.own_file(opened, str(place / name))
            for line in history_files.every_line(opened):
                record = _decoded(name, line)
                yield from () if record is None else families(record)
        finally:
            os.close(opened)


def forget(gone: Collection[str], folder: Path | None = None) -> int:
    """Remove the records about any of these families, and return how many. Raises OSError, StateError."""

    def matcher(name: str) -> Callable[[bytes], bool]:
        def matches(line: bytes) -> bool:
            record = _decoded(name, line)
            return record is not None and any(family in gone for family in families(record))

        return matches

    place = find_folder() if folder is None else folder
    try:
        return sum(history_files.remove_lines(fd, name, matcher(name)) for fd, name in _files(place))
    except OSError as error:
        raise StateError(str(place / str(error.filename or "")), str(error.strerror)) from error


def forget_all(folder: Path | None = None) -> int:
    """Remove the files, and return how many. Raises OSError, StateError."""
    place = find_folder() if folder is None else folder
    count = 0
    try:
        for fd, name in _files(place):
            os.unlink(name, dir_fd=fd)
            count += 1
    except OSError as error:
        raise StateError(str(place / str(error.filename or "")), str(error.strerror)) from error
    return count


def _files(place: Path) -> Iterator[tuple[int, str]]:
    """Yield the files that are there: a descriptor of the folder, and the name. Raises OSError, StateError."""
    try:
        fd = history_files.open_folder(place, makes=False)
    except FileNotFoundError:
        return
    try:
        for name in _names(fd):
            yield fd, name
    finally:
        os.close(fd)


def _names(folder: int) -> list[str]:
    return sorted(KINDS.keys() & os.listdir(folder))
