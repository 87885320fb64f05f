"""Name the failed tasks of a run with their lines, logs and last lines of output, and read the log of one task."""

from __future__ import annotations

import glob
import mmap
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath

from ..core import terminal
from ..core.errors import UsageError
from . import added_tasks, run_folder, task_names
from .launcher import report
from .records import Ended, Run
from .result_files import ResultFiles
from .rules import deal, task_files, task_options
from .rules.account import Account

MOST = 10
"""Most tasks that are listed at the end of a run; `llsub --failed` lists all."""
LINE_MAX = 200
TAIL_BYTES = 16 * 1024 * 1024
PIECE_BYTES = 1 << 20
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
    return f"{said}; first run llsub --resume {shlex.quote(str(folder))}"


# --- Failed tasks -----------------------------------------------------------------------------------------------------


def failures(folder: Path) -> list[str]:
    """Return a line for each of the first failed tasks of a run. Raises StateError."""
    return lines_of(folder, *read_account(folder))


def lines_of(folder: Path, run: Run, found: Account, most: int | None = MOST) -> list[str]:
    """Return a line for each of the first `most` failed tasks: its line, log, reason and last line of output.

    None: all of them. Raises StateError.
    """
    failed = found.failed
    if not failed:
        return []
    lines = _read_lines(folder, run)
    labels = task_names.Labels(run_folder.read_specs(folder, run))
    results = ResultFiles(folder, run)
    what = "input" if run.kind == "llmapreduce" else "task"
    said = [f"failed: {len(failed)} of {run.tasks}, as {what} -> log (why): its last line"]
    for task in failed[:most]:
        where = _where(folder, run, results.ended(found.places[task]))
        said.append(f"  {_name(folder, run, labels or lines, task)} -> {where}")
    if most is not None and len(failed) > most:
        said.append(f"  and {len(failed) - most} more: llsub --failed {shlex.quote(str(folder))}")
    return said


def bare_lines(folder: Path, run: Run, found: Account) -> list[str]:
    """Return the lines of the failed tasks as a tasks file (a list, for llmapreduce) takes them. Raises UsageError.

    `bare_ending` says which file. A task waits for those that it waited for and that have failed; the others are done.
    """
    lines = _read_lines(folder, run)
    if not lines and found.failed:
        raise UsageError(
            f"{folder.name} has no lines: all of its tasks are one command; llsub --resume "
            f"{run_folder.typed(folder)} runs those that failed again"
        )
    if run.kind == "llmapreduce":
        return [shlex.join(_arguments(lines[task])) for task in found.failed]
    specs = run_folder.read_specs(folder, run)
    ending = bare_ending(folder, run, found)
    if ending == task_files.JSON_ENDING:
        base, names = deal.base_spec(run), {specs[task].name for task in found.failed}
        return [
            task_files.json_line(
                lines[task],
                task_options.texts_of(specs[task], base, is_packed=run.pack is not None),
                [name for name in specs[task].after if name in names],
            )
            for task in found.failed
        ]
    if ending == ".csv":
        return task_names.table_of(run, specs, lines, found.failed).split("\n")[:-1]
    said: list[str] = []
    last = base = deal.base_spec(run)
    for task in found.failed:
        if specs and specs[task] != last:
            last = specs[task]
            options = task_options.line_of(last, base, is_packed=run.pack is not None)
            said.append(f"{task_files.MAGIC} {options}")
        said.append(lines[task])
    return said


def bare_ending(folder: Path, run: Run, found: Account) -> str:
    """Return how the name of a file with `bare_lines` has to end; empty: as one likes. Raises StateError.

    A run with parameters gives a table. Tasks that wait for other failed ones give JSON, because no other file says so.
    """
    specs = run_folder.read_specs(folder, run)
    if task_names.Labels(specs):
        return ".csv"
    names = {specs[task].name for task in found.failed} if specs else set()
    waits = any(not names.isdisjoint(specs[task].after) for task in found.failed) if specs else False
    return task_files.JSON_ENDING if waits else ""


def _read_lines(folder: Path, run: Run) -> list[str]:
    return [] if run.task_kind == "rank" else run_folder.read_lines(folder, run)


def _name(folder: Path, run: Run, lines: Sequence[str] | task_names.Labels, task: int) -> str:
    """Return a task as text: its input, or its number with the line of the user's file. `lines`: or the parameters."""
    if task >= len(lines):
        return f"{deal.noun(run)} {task}"  # no tasks file, or an incomplete one
    if run.kind == "llmapreduce":
        return terminal.shortened(shlex.join(_arguments(lines[task])), LINE_MAX)
    file, number = run.tasks_file, task_files.line_number(task, run.other_lines)
    if task >= run.first_tasks:
        head = added_tasks.find_head(folder, task)
        file = "" if head is None else head.source
        number = None if head is None else task_files.line_number(task - head.first, head.other_lines, head.first_line)
    source = "standard input" if file == "-" else terminal.safe(file)
    where = f", line {number} of {source}" if source and number is not None else ""
    return f"task {task}{where}: {terminal.shortened(lines[task], LINE_MAX)}"


def _arguments(line: str) -> tuple[str, ...]:
    """Return the arguments of an input of llmapreduce, without an output that only repeats the input's name. Raises
    UsageError for a damaged line."""
    try:
        item = deal.arguments_in(line)
    except ValueError as error:
        raise UsageError(f"{error}; submit the run again") from error
    source, output = item[0], item[-1]
    is_named_after = len(item) == 2 and output.startswith("/") and PurePath(source).name in PurePath(output).name
    return (source,) if is_named_after else item


def _where(folder: Path, run: Run, ended: Ended) -> str:
    log = _log(folder, run, ended)
    if log is None:
        return f"no log ({ended.why})"
    line = _last_line(log, ended.task, is_shared=run.logs == "rank")
    return f"{terminal.safe(str(log))} ({ended.why})" + (f": {line}" if line else "")


def _log(folder: Path, run: Run, ended: Ended) -> Path | None:
    """Return the newest log of a process on a node, as earlier submissions may have left others; None: no log."""
    name = run_folder.log_name(run, ended.rank, ended.task)
    found = (folder / run.log_folder).glob(f"p*-p*_{glob.escape(ended.node)}/{glob.escape(name)}")
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _last_line(log: Path, task: int, *, is_shared: bool) -> str:
    """Return the last non-blank line of a task's last attempt; empty: none. `is_shared`: the log of a process."""
    try:
        data = run_folder.read_end(log, TAIL_BYTES)
    except OSError:
        return ""
    begun = list(re.finditer(rb"--- task %d(?:, attempt [0-9]+)?\n" % task, data))
    if not begun and is_shared:
        return ""
    own = re.split(_BEGINNING, data[begun[-1].end() :], maxsplit=1)[0] if begun else data
    lines = [line for line in own.decode("utf-8", "replace").splitlines() if line.strip()]
    return terminal.shortened(lines[-1].strip(), LINE_MAX) if lines else ""


# --- The log of one task ----------------------------------------------------------------------------------------------


def read_log(folder: Path, run: Run, task: int) -> Iterator[bytes]:
    """Yield the output of all attempts of a task in pieces. Raises UsageError for a task without a log, StateError."""
    if not 0 <= task < run.tasks:
        has = "only task 0" if run.tasks == 1 else f"the tasks 0 to {run.tasks - 1}"
        raise UsageError(f"{folder.name} has {has}, and no task {task}")
    parent = folder / run.log_folder
    if run.logs == "task":
        names = {run_folder.log_name(run, task, task)}
    else:
        ranks = {ended.rank for ended in ResultFiles(folder, run) if ended.task == task}
        # Without a result it may still run, in any process.
        names = {run_folder.log_name(run, rank, task) for rank in ranks or range(run.processes)}
    files = [path for path in parent.glob(f"p*-p*_*/{glob.escape(run.name)}.log.*") if path.name in names]
    pieces = _pieces(sorted(files, key=lambda path: path.stat().st_mtime), None if run.logs == "task" else task)
    first = next(pieces, None)
    if first is None:
        raise UsageError(f"task {task} of {folder.name} has written nothing, or has not started")
    yield first
    yield from pieces


def _pieces(files: Sequence[Path], task: int | None) -> Iterator[bytes]:
    """Yield the parts of files that a task wrote. `task` None: all of it."""
    for file in files:
        with run_folder.reading(file), open(file, "rb") as opened:
            if not opened.seek(0, 2):
                continue  # an empty file cannot be mapped
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
                for start, end in [(0, len(data))] if task is None else _spans(data, task):
                    for at in range(start, end, PIECE_BYTES):
                        yield data[at : min(at + PIECE_BYTES, end)]


def _spans(data: mmap.mmap, task: int) -> list[tuple[int, int]]:
    """Return where the output of each attempt of a task begins and ends in the log of a process."""
    own = re.compile(rb"--- task %d(?:, attempt [0-9]+)?\n" % task)
    begun = [(found.start(), own.fullmatch(found[0]) is not None) for found in re.finditer(_BEGINNING, data)]
    ends = [start for start, _ in begun[1:]] + [len(data)]
    return [(start, end) for (start, is_own), end in zip(begun, ends, strict=True) if is_own]
