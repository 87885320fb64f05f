"""Read and write the user's history of finished tasks, `$XDG_STATE_HOME/slurm-share/tasks/<yyyy-mm>.jsonl`.

Each line is the JSON of one task, with hashes and numbers, and no text of a command. No error here ends a run: lines
that cannot be decoded are skipped and counted, and a failure to write stops the learning with one sentence.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from ..core import files
from ..core.errors import StateError
from ..core.text import counted
from . import history_files
from .history_files import AHEAD_S, NOT_A_RECORD, OLDEST_S, UNIX_MOST_S, HistoryFiles, RecordWriter, find_folder
from .history_records import SiteFamily, TaskRun
from .rules.fingerprint import tag

VERSION = 1
NEWEST_RUNS = 5000
SITE_BYTES = 16 << 20
MONTHS_MOST = 8
"""180 days span at most seven months; one more allows for a clock that is ahead."""
SECONDS_MOST = 1e9
"""Upper limit of a task's duration: 30 years."""
MIB_MOST = 1 << 24
"""16 TiB, more than any GPU has."""

_decode = msgspec.json.Decoder(TaskRun).decode
_decode_site = msgspec.json.Decoder(SiteFamily).decode
_encode = msgspec.json.Encoder().encode
_MONTH = re.compile(r"[0-9]{4}-[0-9]{2}\.jsonl")


class History(Struct, frozen=True):
    """A user's finished tasks."""

    runs: tuple[TaskRun, ...] = ()
    """Oldest first."""
    passed_over: int = 0
    """Number of lines that are incomplete, of another version, or invalid."""
    notes: tuple[str, ...] = ()
    """Sentences for the log about files that were not used."""


# ---- Reading ----


def read_history(folder: Path | None = None, *, now: float | None = None) -> History:
    """Return the newest 5,000 runs of the last 180 days, oldest first. Raises no error.

    folder None: the caller's own. now: Unix time; None: the current time.
    """
    moment = time.time() if now is None else now
    runs: list[TaskRun] = []
    notes: list[str] = []
    passed_over = 0
    oldest = time.strftime("%Y-%m", time.gmtime(max(moment - OLDEST_S, 0)))
    latest = time.strftime("%Y-%m.jsonl", time.gmtime(max(moment + AHEAD_S, 0)))

    def recent(names: list[str]) -> list[str]:
        return [name for name in _months(names) if oldest <= name <= latest][:MONTHS_MOST]

    for _, lines in history_files.read_files(folder or find_folder(), "sizes", recent, notes):
        found, bad = history_files.newest(lines, _valid, NEWEST_RUNS - len(runs), moment)
        passed_over += bad
        runs = found + runs
        if len(runs) >= NEWEST_RUNS:
            break
    runs.sort(key=lambda run: run.when)
    return History(tuple(runs), passed_over, tuple(notes))


def _months(names: list[str]) -> list[str]:
    """Return the names of history files, newest first."""
    return sorted(filter(_MONTH.fullmatch, names), reverse=True)


def _decoded(name: str, line: bytes) -> TaskRun | None:
    try:
        return _decode(line)
    except NOT_A_RECORD:
        return None


FILES: HistoryFiles[TaskRun] = HistoryFiles(_months, _decoded)


def _valid(line: bytes) -> TaskRun | None:
    run = _decoded("", line)
    return run if run is not None and run.version == VERSION and is_sane(run) else None


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


class Writer(RecordWriter[TaskRun]):
    """Appends finished tasks to the user's history."""

    what = "sizes"

    def _files(self, records: Sequence[TaskRun]) -> Iterable[tuple[str, bytes]]:
        when = records[-1].when
        name = time.strftime("%Y-%m.jsonl", time.gmtime(when if 0 <= when < UNIX_MOST_S else 0))
        return [(name, b"".join(render(run) for run in records))]


def render(run: TaskRun) -> bytes:
    """Return the line of a run, with hashes as the names of its numbers."""
    numbers = tuple((tag(name), x) for name, x in run.numbers)
    return _encode(msgspec.structs.replace(run, version=VERSION, numbers=numbers)) + b"\n"


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
        return (), (f"no sizes from the site: {history_files.why_not(Path(folder), error)}",)
    for file in published:
        try:
            data = files.read_regular(file, left)
            if data is None:
                raise StateError(str(file), "is not a regular file")
        except (OSError, StateError) as error:
            notes.append(f"sizes from the site: {history_files.why_not(file, error)}; the file is ignored")
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
