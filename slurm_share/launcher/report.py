"""The end of a run, for a person and as JSON."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
from rich.table import Table
from rich.text import Text

from .. import run_folder
from ..decide.account import WORDS, Account, account
from ..decide.ranges import fold
from ..decide.standing import Standing, in_words
from ..work import Ended, Progress, Run

ROWS = 200
"""More rows than that nobody reads in a log: then the table shows what is not done, and summary.json has all."""


def summarize(folder: Path, run: Run) -> Account:
    """Count what the nodes have written, and put it into summary.json. Raises StateError where that cannot be read.

    A summary.json that cannot be written (a full disk) is an OSError.
    """
    found = account(run.name, run.tasks, run_folder.read_attempts(folder, run))
    file = folder / run_folder.SUMMARY
    new = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        new.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
        new.replace(file)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    return found


def table(run: Run, found: Account) -> Table:
    """Task by task; of a large run what is not done."""
    moved = set(found.moved)
    rows = found.results if len(found.results) <= ROWS else [one for one in found.results if one.outcome != "done"]
    made = Table(box=None, pad_edge=False, header_style="")
    made.add_column("RANK" if run.tasks == run.processes else "TASK", justify="right")
    made.add_column("NODE")
    made.add_column("GPU", justify="right")
    made.add_column("CORES", overflow="fold")
    made.add_column("TIME", justify="right")
    made.add_column("PEAK GPU", justify="right")
    made.add_column("TRIES", justify="right")
    made.add_column("OUTCOME", overflow="fold")
    for ended in rows[:ROWS]:
        tries = found.tries.get(str(ended.task), 1)
        made.add_row(
            str(ended.task),
            Text(ended.node),
            "-" if ended.gpu is None else str(ended.gpu),
            ended.cpus or "-",
            duration(ended.seconds),
            "?" if ended.peak_gpu_mib is None and ended.gpu is not None else _mib(ended.peak_gpu_mib),
            str(tries),
            Text(_outcome(ended) + (", on another GPU than at first" if ended.task in moved else "")),
        )
    return made


def _outcome(ended: Ended) -> str:
    return WORDS[ended.outcome] if ended.outcome == "done" else f"{WORDS[ended.outcome]}: {ended.why}"


def _mib(value: int | None) -> str:
    return "-" if value is None else f"{value} MiB"


def sentences(run: Run, found: Account, folder: Path) -> list[str]:
    """How the run ended as a whole, and what to do about it."""
    what = "ranks" if run.tasks == run.processes else "tasks"
    lasted = "" if found.seconds is None else f" in {duration(found.seconds)}"
    said = [f"{found.done} of {found.tasks} {what} done{lasted}"]
    if found.tried_again:
        moved = f"; done on another GPU than at first: {fold(found.moved)}" if found.moved else ""
        said.append(f"tried again: {fold(found.tried_again)}{moved}")
    by_outcome: dict[str, list[int]] = {}
    failed = set(found.failed)
    for ended in found.results:
        if ended.task in failed:
            by_outcome.setdefault(WORDS[ended.outcome], []).append(ended.task)
    said += [f"{words}: {fold(tasks)}" for words, tasks in by_outcome.items()]
    if found.unfinished:
        said.append(f"unfinished: {fold(found.unfinished)}")
    if found.failed or found.unfinished:
        said.append(f"llsub --resume {folder} runs these {len(found.failed) + len(found.unfinished)}, and no other")
    return said


def duration(seconds: float) -> str:
    """1.2s, 3:04, 2:03:04."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class ProgressLine:
    """One line on a terminal, written over and over; nothing where nobody watches."""

    def __init__(self, total: int, stream: int = 2) -> None:
        self._total = total
        self._stream = stream
        self._watched = os.isatty(stream)
        self._since = time.monotonic()

    def show(self, progress: Progress) -> None:
        """Draw it; the last time with its line end."""
        if not self._watched:
            return
        over = progress.done + progress.failed
        standing = Standing(self._total, progress.done, progress.failed, progress.running)
        text = in_words(standing, over / max(time.monotonic() - self._since, 0.001) if over else None)
        end = "\n" if progress.ended else ""
        try:
            width = os.get_terminal_size(self._stream).columns
            os.write(self._stream, f"\r\x1b[K{text[: max(width - 1, 1)]}{end}".encode())
        except OSError:
            self._watched = False
