"""Read a row for each task of a run, for `slurm-share results`: parameters, its end, and the results that it printed.

Works while the run runs, from its folder alone. A log is read once, also if it is of many tasks.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from msgspec import UNSET, Struct

from ..core import numbers
from ..core.errors import UsageError
from ..packing import ProgressReader
from . import run_folder, task_names
from .launcher import report
from .records import TASKS_MAX, Ended, Run
from .result_files import ResultFiles
from .rules import log_counts, result_lines, result_table
from .rules.account import Account
from .rules.result_lines import LogResults
from .rules.result_table import FIXED, Row, Value

LOG_BYTES = 256 * 1024 * 1024
"""Most bytes of a log that are read, from its end."""
TAIL_BYTES = 64 * 1024
"""Most bytes from the end of a running task's log that are searched for its progress."""
SILENT_S = 60.0
"""Seconds without progress after which a node's launcher counts as gone; it writes it once a second."""


class RunRows(Struct, frozen=True):
    """The rows of a run."""

    run: Run
    rows: tuple[Row, ...]
    account: Account
    running: int
    unread: tuple[str, ...] = ()
    """Logs that could not be read, with the reason."""


def read(folder: Path) -> RunRows:
    """Return the rows of a run, in the order of its tasks. Raises StateError."""
    run = run_folder.read_run(folder)
    results = ResultFiles(folder, run)
    account = report.count(results, run)
    ended = [None if place < 0 else results.ended(place) for place in account.places]
    homes = [None if place < 0 else results.folder_of(place) for place in account.places]
    live = _live_folders(folder, run)
    logs = _Logs(run, live)
    begun = logs.begun()
    params = task_names.read_params(folder, run)
    pattern = _progress_pattern(folder, run)
    rows, running = [], 0
    for task, one in enumerate(ended):
        home, again = homes[task], begun.get(task)
        fixed: dict[str, Value] = {"outcome": result_table.NOT_BEGUN, "tries": 0}
        found: Mapping[str, str] = {}
        if one is not None and home is not None:
            fixed = _fixed(one, account.tries[task])
            found, is_again = logs.results(home, one.rank, task, one.attempt, has_ended=True)
            if again is not None and again.attempt <= one.attempt:
                again = _Begun(home, one.rank, one.attempt + 1) if is_again and home in live else None
            if one.outcome == "done":
                again = None
        if again is not None:
            found = logs.results(again.home, again.rank, task, again.attempt)[0]
            fixed = {
                "outcome": result_table.RUNNING,
                "why": None if one is None else f"again after {one.why or one.outcome}",
                "node": again.home.name.partition("_")[2],
                "progress": None if pattern is None else logs.last_number(again.home, again.rank, task, pattern),
                "tries": account.tries[task],
            }
        running += fixed["outcome"] == result_table.RUNNING
        rows.append(Row(task=task, params=params[task] if task < len(params) else {}, results=found, fixed=fixed))
    return RunRows(run, tuple(rows), account, running, tuple(logs.unread))


def _fixed(ended: Ended, tries: int) -> dict[str, Value]:
    """Return the columns that all runs have, of a task with an attempt that counts."""
    values: tuple[Value, ...] = (
        ended.outcome,
        None if ended.outcome == "given up" else ended.seconds,  # it did not run
        ended.why or None,
        ended.peak_gpu_mib,
        None if ended.rate_per_s is UNSET else ended.rate_per_s,
        ended.node,
        ended.gpu,
        ended.peak_rss_mib,
        None if ended.units is UNSET else ended.units,
        ended.code,
        ended.signal,
        None if ended.energy_j is UNSET else ended.energy_j,
        tries,
    )
    return dict(zip(FIXED, values, strict=True))


def _progress_pattern(folder: Path, run: Run) -> re.Pattern[str] | None:
    """Return the expression of --progress; None: there is none, or another user wrote it, who may have made it slow."""
    if not run.progress or run_folder.read_foreign_owner(folder, os.geteuid()) is not None:
        return None
    try:
        return log_counts.parse_pattern(run.progress, "--progress")
    except UsageError:
        return None


def _live_folders(folder: Path, run: Run) -> list[Path]:
    """Return the folders of nodes whose launcher has written progress within SILENT_S."""
    parent, now = folder / run.log_folder, time.time()
    nodes = {one.node for one in ProgressReader(parent).read() if not one.ended and now - one.at < SILENT_S}
    return [path for path in sorted(parent.glob("p*-p*_*")) if path.name.partition("_")[2] in nodes]


class _Begun(Struct, frozen=True):
    """An attempt that has a log and may have no result yet."""

    home: Path
    """The folder of its node."""
    rank: int
    attempt: int


class _Logs:
    """The logs of a run, each read once."""

    def __init__(self, run: Run, live: Collection[Path]) -> None:
        """live: the folders of nodes whose launcher runs."""
        self._run = run
        self._live = live
        self._name = f"{run.name}.log."
        self._read: dict[str, LogResults] = {}
        """Path of the log of a process -> its results. Logs of single tasks are not kept."""
        self.unread: list[str] = []

    def results(
        self, home: Path, rank: int, task: int, attempt: int, *, has_ended: bool = False
    ) -> tuple[Mapping[str, str], bool]:
        """Return the results that an attempt printed, and whether the log has a later attempt.

        home: the folder of its node. has_ended: the attempt has ended.
        """
        file = f"{home}/{run_folder.log_name(self._run, rank, task)}"
        if self._run.logs == "task":
            log = self._of(file, task, is_ended=has_ended)
        else:
            if file not in self._read:
                self._read[file] = self._of(file, None, is_ended=home not in self._live)
            log = self._read[file]
        return log.of(task, attempt), (task, attempt + 1) in log.found

    def last_number(self, home: Path, rank: int, task: int, pattern: re.Pattern[str]) -> float | None:
        """Return the progress of a running task from the end of its log; None: there is none yet."""
        try:
            data = run_folder.read_end(f"{home}/{run_folder.log_name(self._run, rank, task)}", TAIL_BYTES)
        except OSError:
            return None
        numbers = log_counts.LogCounts(pattern).feed(result_lines.last_part(data))
        return numbers[-1] if numbers else None

    def begun(self) -> dict[int, _Begun]:
        """Return task -> its attempt, for tasks that have a log of their own, or are at the end of a process's log."""
        found = {}
        for home, number, file in self._files():
            if self._run.logs == "task":
                found[number] = _Begun(home, number, 1)
                continue
            log = self._read[file] = self._of(file, None, is_ended=False)
            if log.last is not None:
                task, attempt = log.last
                found[task] = _Begun(home, number, attempt)
        return found

    def _files(self) -> Iterator[tuple[Path, int, str]]:
        for folder in self._live:
            with os.scandir(folder) as entries:
                for entry in entries:
                    number = numbers.whole(entry.name.removeprefix(self._name), TASKS_MAX)
                    if number is not None and entry.name.startswith(self._name):
                        yield folder, number, entry.path

    def _of(self, file: str, task: int | None, *, is_ended: bool) -> LogResults:
        try:
            # without waiting for a pipe, which may be in the place of a log in another user's folder
            with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as opened:
                found = os.fstat(opened.fileno())
                size = found.st_size
                if not stat.S_ISREG(found.st_mode) or not size:
                    return LogResults()
                start = max(0, size - LOG_BYTES) // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
                with mmap.mmap(opened.fileno(), size - start, offset=start, access=mmap.ACCESS_READ) as data:
                    return result_lines.read(data, task, is_ended=is_ended)
        except FileNotFoundError:
            return LogResults()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            self.unread.append(f"{file}: {why}")
            return LogResults()
