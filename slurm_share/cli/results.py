"""`slurm-share results`: a table of the tasks of a run, with their parameters, ends and results."""

from __future__ import annotations

import argparse
import math
import sys
from typing import TYPE_CHECKING, Any

from ..core import names, terminal
from ..core.terminal import TerminalColumn

if TYPE_CHECKING:
    from ..triples import result_rows, result_table

EPILOG = """\
A task reports results as lines of its output:
  LLSUB_RESULT loss=0.12 acc=0.9
The last value of each name is its column. Python programs may call
slurm_share.progress.result(loss=0.12, acc=0.9).

examples
  slurm-share results LLSUB.3                     a row for each task
  slurm-share results LLSUB.3 --min loss          the done task with the least loss
  slurm-share results LLSUB.3 --by lr --min loss  the learning rate with the least
                                                  mean loss
  slurm-share results LLSUB.3 --where outcome!=done --columns lr,seed,why
  slurm-share results LLSUB.3 --csv >results.csv

A table on a terminal leaves out columns that do not fit; --csv and --json have
all, with exact values. An empty cell is not known, or the task has no such
value. The parameters are those of --sweep or of the table of tasks; of other
runs the line of the tasks file.

exit codes
  0 done, 1 the run cannot be read, 2 invalid request
"""
WIDTHS = {"command": 20, "input": 12, "why": 16}
"""Column -> the least width to which its text is cut on a terminal."""
TEXT_MIN = 10
"""The same for other text."""
NUMBER_MAX = 8
"""Most characters of a number on a terminal; a longer one is shown with five digits."""
DEVIATION_GOES = 1000
"""Standard deviations are left out before other columns."""
HEADINGS = {
    "task": "TASK", "outcome": "OUTCOME", "seconds": "TIME", "why": "WHY", "peak_gpu_mib": "GPU MIB",
    "rate_per_s": "RATE", "node": "NODE", "gpu": "GPU", "peak_host_mib": "HOST MIB", "progress": "PROGRESS",
    "code": "CODE", "signal": "SIGNAL", "energy_j": "ENERGY", "tries": "TRIES", "tasks": "TASKS", "done": "DONE",
}  # fmt: skip
IN_WHY = ("code", "signal")
"""Columns that a terminal does not need: the column `why` has them."""


def add_to(commands: Any) -> None:
    """Add the parser of `results`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "results",
        help="a table of a run's tasks: parameters, ends, and the results that they printed",
        description="Show a row for each task of a run: parameters, outcome, results, time, memory.",
        epilog=EPILOG,
    )
    add = parser.add_argument
    add("folder", metavar="LLSUB.n", nargs="?", help="the run's folder (default: the newest in this folder)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print CSV with all columns")
    form.add_argument("--json", action="store_true", help="print JSON")
    add(
        "--where",
        metavar="CONDITION",
        action="append",
        default=[],
        help="only tasks with this value, such as outcome=done, lr!=1e-3 or loss<0.5; may be repeated",
    )
    add("--by", metavar="COLUMNS", help="one row for each value of these columns, with the means of its done tasks")
    add("--sort", metavar="COLUMN", help="sort the rows, smallest first")
    add("--reverse", action="store_true", help="with --sort: largest first")
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--min", metavar="COLUMN", help="only the done task with the least value")
    one.add_argument("--max", metavar="COLUMN", help="only the done task with the largest value")
    add("--columns", metavar="COLUMNS", help="these columns, separated by commas")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    # Import here: every command of slurm-share imports this module, including the launchers on all nodes.
    from ..triples import result_rows, result_table, submitting

    folder = (
        submitting.find_newest("slurm-share results")
        if arguments.folder is None
        else submitting.find_folder(arguments.folder)
    )
    read = result_rows.read(folder)
    found = result_table.where(result_table.table(read.rows), arguments.where)
    if arguments.by is not None:
        found = result_table.grouped(found, _listed(arguments.by))
    if arguments.min is not None or arguments.max is not None:
        wanted = arguments.max if arguments.min is None else arguments.min
        found = result_table.best(found, wanted, is_most=arguments.min is None)
        if not found.rows:
            _note(f"no done task of {folder.name} has a number in the column {wanted}")
    if arguments.sort is not None:
        found = result_table.ordered(found, arguments.sort, is_reverse=arguments.reverse)
    elif arguments.reverse:
        _note("--reverse ignored: it is for --sort COLUMN")
    if arguments.columns is not None:
        found = result_table.only(found, _listed(arguments.columns))
    for log in read.unread:
        _note(f"{terminal.safe(log)}; its results are missing")
    if arguments.csv:
        sys.stdout.buffer.write(result_table.csv(found).encode("utf-8", "surrogateescape"))
    elif arguments.json:
        sys.stdout.buffer.write(result_table.as_json(folder.name, read.run, found))
    else:
        terminal.print_lines(_lines(found, arguments))
        if arguments.by is None and arguments.columns is None:
            terminal.print_lines([_sentence(read)])
    return names.EXIT_OK


def _listed(text: str) -> list[str]:
    return [one.strip() for one in text.split(",")]


def _note(sentence: str) -> None:
    print(f"slurm-share: {sentence}", file=sys.stderr)


def _sentence(read: result_rows.RunRows) -> str:
    """Return the counts of the run's tasks."""
    from collections import Counter

    counts = Counter(str(row.fixed["outcome"]) for row in read.rows)
    said = ", ".join(f"{number} {outcome}" for outcome, number in counts.most_common())
    return f"{len(read.rows)} task{'' if len(read.rows) == 1 else 's'}: {said}"


def _lines(found: result_table.ResultTable, arguments: argparse.Namespace) -> list[str]:
    """Return the table for people: with the chosen columns, or as many as fit."""
    chosen = arguments.columns is not None
    kept = {"task", "outcome", arguments.min, arguments.max, arguments.sort, *_listed(arguments.by or "")}
    places = [place for place in range(len(found.columns)) if chosen or _is_needed(found, place)]
    cells = [[_text(found.columns[place], row[place]) for place in places] for row in found.rows]
    columns = []
    for place in places:
        name = found.columns[place]
        is_text = any(not _is_number(row[place]) for row in found.rows)
        shrinks_to = WIDTHS.get(name, TEXT_MIN) if is_text and name not in ("outcome", "node") else None
        goes = 0 if chosen or name in kept else place + 1 + DEVIATION_GOES * name.endswith("_sd")
        columns.append(TerminalColumn(HEADINGS.get(name, name), right=not is_text, goes=goes, shrinks_to=shrinks_to))
    lines, gone = terminal.lay_out(columns, cells, terminal.width())
    if not gone:
        return lines
    names_of = {heading: name for name, heading in HEADINGS.items()}
    left_out = ",".join(names_of.get(heading, heading) for heading in gone)
    return [*lines, terminal.cut(f"not shown (--columns chooses, --csv has all): {left_out}", terminal.width(), "list")]


def _is_needed(found: result_table.ResultTable, place: int) -> bool:
    """Return whether a column says something: a value that not every task has."""
    name = found.columns[place]
    if place <= found.params + found.results:
        return True
    values = {row[place] for row in found.rows}
    return name not in IN_WHY and bool(values - ({0, 1} if name == "tries" else {None, ""}))


def _is_number(value: result_table.Value) -> bool:
    from ..triples import result_table

    return value is None or result_table.number_of(value) is not None


def _text(name: str, value: result_table.Value) -> str:
    """Return a cell for people."""
    from ..core.text import amount, joules_text
    from ..triples import report, result_table

    if value is None:
        return "-"
    if name == "seconds" and isinstance(value, float):
        return report.duration(value)
    if name == "rate_per_s" and isinstance(value, float):
        return f"{amount(value)}/s"
    if name == "energy_j" and isinstance(value, float):
        return joules_text(value)
    number = result_table.number_of(value)
    text = str(value)
    return text if number is None or len(text) <= NUMBER_MAX or not math.isfinite(number) else f"{number:.5g}"
