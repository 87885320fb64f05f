"""Read and write the user's history of speed: `pairs.jsonl`, `tuned.jsonl` and `shares.jsonl`.

The files are in the folder of the sizes. Each has lines of JSON of one kind of record, newest last; lines that cannot
be decoded are skipped. Lines contain hashes and numbers, no text of a command. No error here ends a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from . import history_files
from .history_files import NOT_A_RECORD, UNIX_MOST_S, HistoryFiles, RecordWriter, find_folder
from .speed_records import PairRun, ShareRun, TunedRun

VERSION = 1
NEWEST: dict[str, int] = {"pairs.jsonl": 3000, "tuned.jsonl": 500, "shares.jsonl": 2000}
"""File -> number of newest lines that are used. There are most pairs, since bans are among them."""
KINDS: dict[str, type[PairRun] | type[TunedRun] | type[ShareRun]] = {
    "pairs.jsonl": PairRun,
    "tuned.jsonl": TunedRun,
    "shares.jsonl": ShareRun,
}
RATIO_MOST = 1e6
"""Upper limit of slowdowns and aggregate speeds."""
RATE_MOST = 1e15
"""Upper limit of rates in units a second; a program that counts bytes stays below."""
TASKS_MOST = 100_000
"""Upper limit of tasks on a node."""
COUNT_MOST = 10**9
"""Upper limit of windows and GPUs, since JSON integers can be larger than any float."""

Record = PairRun | TunedRun | ShareRun
_decoders: dict[str, msgspec.json.Decoder[Any]] = {name: msgspec.json.Decoder(kind) for name, kind in KINDS.items()}
_encode = msgspec.json.Encoder().encode


class SpeedHistory(Struct, frozen=True):
    """The records of earlier runs, oldest first."""

    pairs: tuple[PairRun, ...] = ()
    tuned: tuple[TunedRun, ...] = ()
    shares: tuple[ShareRun, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences for the job's log."""


# ---- Reading ----


def read_speed_history(folder: Path | None = None, *, now: float) -> SpeedHistory:
    """Return the history. `folder` None: the caller's own. `now`: Unix time. Errors are reported in the notes."""
    notes: list[str] = []
    found: dict[str, Any] = {}
    for name, lines in history_files.read_files(folder or find_folder(), "speeds", _names, notes):
        records, _ = history_files.newest(lines, partial(_valid, name), NEWEST[name], now)
        found[name.removesuffix(".jsonl")] = tuple(records)
    return SpeedHistory(**found, notes=tuple(notes))


def _decoded(name: str, line: bytes) -> Record | None:
    if len(line) > history_files.LINE_BYTES:
        return None
    try:
        record: Record = _decoders[name].decode(line)
    except NOT_A_RECORD:
        return None
    return record


def _valid(name: str, line: bytes) -> Record | None:
    record = _decoded(name, line)
    return record if record is not None and is_sane(record) else None


def is_sane(record: Record) -> bool:
    """Return whether a record is valid: printable hashes and short names, and possible figures."""
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
            is_possible = all(1 <= level <= TASKS_MOST for level in levels) and 0 <= record.next <= TASKS_MOST
            is_possible = is_possible and record.best in levels[1:]
            is_possible = is_possible and all(_is_within(rate, 0, RATE_MOST) for rate in rates)
        case ShareRun():
            names += [record.arm]
            counts = [record.windows]
            is_possible = all(_is_within(x, 0, RATIO_MOST) for x in (record.stp, record.antt))
            predicted = (record.predicted_stp, record.predicted_antt)
            is_possible = is_possible and all(_is_within(x, 1 / RATIO_MOST, RATIO_MOST) for x in predicted)
    is_possible = is_possible and all(0 <= count <= COUNT_MOST for count in counts)
    return is_possible and all(len(name) <= 256 and name.isprintable() for name in names)


def _is_within(value: float, least: float, most: float) -> bool:
    return math.isfinite(value) and least <= value <= most


# ---- Writing ----


class SpeedWriter(RecordWriter[Record]):
    """Appends records of speed to the user's history."""

    what = "speeds"

    def _files(self, records: Sequence[Record]) -> Iterator[tuple[str, bytes]]:
        for name, kind in KINDS.items():
            if data := b"".join(_encode(one) + b"\n" for one in records if isinstance(one, kind)):
                yield name, data


# ---- All records ----


def families(record: Record) -> tuple[str, ...]:
    match record:
        case PairRun():
            return record.family_a, record.family_b
        case TunedRun():
            return (record.family,)
        case ShareRun():
            return record.family, *record.neighbours


def _names(names: list[str]) -> list[str]:
    return sorted(KINDS.keys() & names)


FILES: HistoryFiles[Record] = HistoryFiles(_names, _decoded)
