"""Report the failed inputs of a map with their logs.

Printed by `--wait`, by `--local`, and at the end of map.sh (cli/llmapreduce_failures.py).
"""

from __future__ import annotations

import glob
import re
import shlex
from pathlib import Path, PurePath

import msgspec

from ..core import terminal
from . import run_folder
from .launcher import report
from .records import Ended, Run
from .result_files import ResultFiles
from .rules.account import Account

MOST = 10
"""Most inputs that are listed; summary.json has all."""
LINE_MAX = 200
TAIL_BYTES = 16 * 1024 * 1024
_BEGINNING = rb"--- task (?:[0-9]+)(?:, attempt [0-9]+)?\n"
"""The launcher's line before each task's output, in the log of a process."""


def read_account(folder: Path) -> tuple[Run, Account]:
    """Return a run and the counts of its tasks. Raises StateError."""
    run = run_folder.read_run(folder)
    return run, report.count(ResultFiles(folder, run), run)


def saved_text(folder: Path) -> str:
    """Return why a reducer must not run yet; empty: no input was saved without being finished. Raises StateError."""
    run, found = read_account(folder)
    if not found.saved:
        return ""
    count = len(found.saved)
    have = "has saved its state and is" if count == 1 else "have saved their state and are"
    said = f"{count} of {run.tasks} inputs {have} not finished, so the reducer does not run"
    return f"{said}; first run llsub --resume {folder}"


def failures(folder: Path) -> list[str]:
    """Return a line for each of the first failed tasks: input, log, reason, last line of output. Raises StateError."""
    run = run_folder.read_run(folder)
    results = ResultFiles(folder, run)
    found = report.count(results, run)
    failed = found.failed
    if not failed:
        return []
    lines = run_folder.read_tasks(folder)
    said = [f"failed: {len(failed)} of {run.tasks}, as input -> log (why): its last line"]
    for task in failed[:MOST]:
        said.append(f"  {_input(lines, task)} -> {_where(folder, run, results.ended(found.places[task]))}")
    if len(failed) > MOST:
        said.append(f"  and {len(failed) - MOST} more: {folder / run_folder.SUMMARY}")
    return said


def _input(lines: list[str], task: int) -> str:
    if task >= len(lines):
        return f"task {task}"  # the tasks file is incomplete
    item = msgspec.json.decode(lines[task], type=tuple[str, ...])
    source, output = item[0], item[-1]
    if len(item) == 2 and output.startswith("/") and PurePath(source).name in PurePath(output).name:
        item = (source,)  # the other argument is the output, which repeats the name
    return terminal.shortened(shlex.join(item), LINE_MAX)


def _where(folder: Path, run: Run, ended: Ended) -> str:
    log = _log(folder, run, ended)
    if log is None:
        return f"no log ({ended.why})"
    line = _last_line(log, ended.task)
    return f"{terminal.safe(str(log))} ({ended.why})" + (f": {line}" if line else "")


def _log(folder: Path, run: Run, ended: Ended) -> Path | None:
    """Return the newest log of a process on a node, as earlier submissions may have left others; None: no log."""
    name = run_folder.log_name(run, ended.rank, ended.task)
    found = (folder / run.log_folder).glob(f"p*-p*_{glob.escape(ended.node)}/{glob.escape(name)}")
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _last_line(log: Path, task: int) -> str:
    """Return the last non-blank line of a task's last attempt; empty: there is none."""
    try:
        data = run_folder.read_end(log, TAIL_BYTES)
    except OSError:
        return ""
    begun = list(re.finditer(rb"--- task %d(?:, attempt [0-9]+)?\n" % task, data))
    if not begun:
        return ""
    own = re.split(_BEGINNING, data[begun[-1].end() :], maxsplit=1)[0]
    lines = [line for line in own.splitlines() if line.strip()]
    return terminal.shortened(lines[-1].decode("utf-8", "replace").strip(), LINE_MAX) if lines else ""
