"""The report at the end of a run, as text and as JSON."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec
from msgspec import UNSET, Struct
from rich.console import JustifyMethod, OverflowMethod
from rich.table import Table
from rich.text import Text

from ...core import terminal
from ...core.text import amount, counted, fold_some
from ...packing import TaskSpec
from ...usage import JobUse
from ...usage import files as usage_files
from .. import run_folder, task_names
from ..records import Ended, Run
from ..result_files import ResultFiles
from ..rules import deal, together, turns
from ..rules.account import OUTCOME_TEXTS, Account, Tally
from ..rules.energy_sums import EnergySums, EnergyTally
from ..rules.failing import failure_limit_text, is_too_much
from ..rules.progress import WorkTally
from ..rules.turns import TurnSums, TurnTally

ROWS = 200
"""Most rows of the table. A larger run shows only tasks that are not done; summary.json has all."""
SPANS = 200
"""Most parts of a list of tasks in a sentence, such as `0-3,8`; summary.json has the whole list."""
PIECE = 1024
"""Lines per write."""


class Summary(Struct, frozen=True):
    """The result of a run."""

    account: Account
    rows: tuple[Ended, ...]
    """The attempts that count, for the table."""
    labels: task_names.Labels = task_names.Labels(())
    """The parameters of each task as text; empty: they have none."""
    unwritten: str = ""
    """Why summary.json could not be written; empty: it was written."""
    work: str = ""
    """The measured rates as a sentence; empty: none."""
    turns: TurnSums | None = None
    """None: a run without turns."""
    energy: EnergySums | None = None
    """None: no energy was measured."""


def count(
    results: ResultFiles,
    run: Run,
    work: WorkTally | None = None,
    took_turns: TurnTally | None = None,
    energy: EnergyTally | None = None,
) -> Account:
    """Count all results of a run, and add up their rates in `work`, their turns in `took_turns`, and their energy.

    Raises StateError if results cannot be read.
    """
    tally = Tally(run.name, run.tasks)
    for number in range(len(results)):
        attempts = results.of_file(number)
        if took_turns is not None:
            attempts = took_turns.passed_on(attempts)
        if energy is not None:
            attempts = energy.passed_on(attempts)
        tally.add(number, attempts if work is None else work.passed_on(attempts))
    return tally.account()


def summarize(folder: Path, run: Run) -> Summary:
    """Count the results of all nodes, and write summary.json.

    A summary.json that cannot be written, for example to a full disk, is not an error. Raises StateError if results
    cannot be read.
    """
    results = ResultFiles(folder, run)
    work = WorkTally(is_alike=run.task_kind != "command")
    took_turns = None if run.slot_s is None else TurnTally(run.tasks)
    uses = tuple(use for node in results.folders for use in usage_files.read_folder(node, JobUse)[0])
    energy = EnergyTally(uses) if any(gpu.total_j for use in uses for gpu in use.others) else None
    found = count(results, run, work, took_turns, energy)
    used = None if energy is None else energy.sums()
    sums = None if took_turns is None else took_turns.sums()
    rows = tuple(results.ended(place) for place in found.shown(ROWS))
    specs = run_folder.read_specs(folder, run)
    unwritten = _write(folder, found, results, specs, sums, used)
    return Summary(found, rows, task_names.Labels(specs), unwritten, work.sentence(), sums, used)


def _write(
    folder: Path,
    found: Account,
    results: ResultFiles,
    specs: Sequence[TaskSpec],
    sums: TurnSums | None,
    used: EnergySums | None,
) -> str:
    """Write summary.json atomically; return why that failed, else empty."""
    file = folder / run_folder.SUMMARY
    new = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        with open(new, "wb") as opened:
            opened.writelines(_pieces(found, results, specs, sums, used))
            opened.flush()
            os.fsync(opened.fileno())  # a file system may report only here that it is full
        new.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):  # the folder itself is gone
            new.unlink(missing_ok=True)
        return str(error.strerror)
    return ""


def _pieces(
    found: Account,
    results: ResultFiles,
    specs: Sequence[TaskSpec],
    sums: TurnSums | None,
    used: EnergySums | None,
) -> Iterator[bytes]:
    """Yield summary.json in pieces; lines of results are copied unchanged."""
    head = {"version": found.version, "name": found.name, "tasks": found.tasks, "done": found.done}
    yield b"{\n" + b",\n".join(b' "%s": %s' % (name.encode(), msgspec.json.encode(one)) for name, one in head.items())
    for name in ("failed", "saved", "unfinished", "tried_again", "moved"):
        yield b',\n "%s": [' % name.encode()
        yield from _joined(str(task).encode() for task in getattr(found, name))
        yield b"]"
    if any(spec.params for spec in specs):
        yield b',\n "params": [\n'
        yield from _joined((msgspec.json.encode(spec.params) for spec in specs), b",\n")
        yield b"\n ]"
    if sums is not None:
        yield b',\n "turns": %s' % msgspec.json.encode(sums)
    if used is not None:
        yield b',\n "energy": %s' % msgspec.json.encode(used)
    yield b',\n "seconds": %s,\n "jobs": [' % msgspec.json.encode(found.seconds)
    jobs = ({"job": job, **msgspec.to_builtins(one)} for job, one in found.jobs.items())
    yield from _joined(msgspec.json.encode(one) for one in jobs)
    yield b'],\n "results": [\n'
    yield from _joined(results.lines(place for place in found.places if place >= 0), b",\n")
    yield b'\n ],\n "tries": {'
    yield from _joined(b'"%d":%d' % (task, found.tries[task]) for task in found.tried_again)
    yield b"}\n}\n"


def _joined(parts: Iterator[bytes], between: bytes = b",") -> Iterator[bytes]:
    """Yield `between.join(parts)` in pieces of some hundred kilobytes."""
    begun = False
    while some := list(islice(parts, PIECE)):
        yield (between if begun else b"") + between.join(some)
        begun = True


def table(run: Run, found: Summary) -> Table:
    """Return a table of the tasks; for a large run only of tasks that are not done."""
    moved = frozenset(found.account.moved)
    made = Table(box=None, pad_edge=False, header_style="")
    has_rates = any(ended.rate_per_s is not UNSET for ended in found.rows)
    columns = [deal.noun(run).upper(), "NODE", "GPU", "CORES", "TIME", "PEAK GPU"]
    if found.labels:
        columns.insert(1, "PARAMETERS")
    for name in (*columns, *(["RATE"] if has_rates else []), "TRIES", "OUTCOME"):
        justify: JustifyMethod = "left" if name in ("PARAMETERS", "NODE", "CORES", "OUTCOME") else "right"
        overflow: OverflowMethod = "fold" if name in ("PARAMETERS", "CORES", "OUTCOME") else "ellipsis"
        made.add_column(name, justify=justify, overflow=overflow)
    for ended in found.rows:
        outcome = OUTCOME_TEXTS[ended.outcome] + ("" if ended.outcome == "done" else f": {ended.why}")
        is_unknown = ended.peak_gpu_mib is None and ended.gpu is not None
        made.add_row(
            str(ended.task),
            *([Text(terminal.safe(found.labels[ended.task]))] if found.labels else []),
            Text(ended.node),
            "-" if ended.gpu is None else str(ended.gpu),
            ended.cpus or "-",
            duration(ended.seconds),
            "?" if is_unknown else "-" if ended.peak_gpu_mib is None else f"{ended.peak_gpu_mib} MiB",
            *(["-" if ended.rate_per_s is UNSET else f"{amount(ended.rate_per_s)}/s"] if has_rates else []),
            str(found.account.tries[ended.task]),
            Text(outcome + (", on another GPU than its first attempt" if ended.task in moved else "")),
        )
    return made


def sentences(run: Run, summary: Summary, folder: Path) -> list[str]:
    """Return sentences on how the run ended and how to run what is left."""
    found = summary.account
    what = deal.noun(run)
    lasted = "" if found.seconds is None else f" in {duration(found.seconds)}"
    if found.starts > 1:
        lasted += f" ({found.starts} starts added up, without the time between them)"
    said = [f"{found.done} of {counted(found.tasks, what)} done{lasted}"]
    if summary.work:
        said.append(summary.work)
    if summary.energy is not None:
        said.append(summary.energy.sentence(found.done))
    if summary.turns is not None:
        said += turns.sentences(summary.turns)
    if found.tried_again:
        moved = f"; done on another GPU than the first attempt: {_fold(found.moved)}" if found.moved else ""
        said.append(f"tried again: {_fold(found.tried_again)}{moved}")
    said += [f"{OUTCOME_TEXTS[outcome]}: {_fold(tasks)}" for outcome, tasks in found.by_outcome.items()]
    if found.saved:
        said.append(f"{OUTCOME_TEXTS['saved']}: {_fold(found.saved)}")
    if found.unfinished:
        said.append(f"unfinished: {_fold(found.unfinished)}")
    left = len(found.failed) + len(found.saved) + len(found.unfinished)
    failed = len(found.failed) - len(found.by_outcome.get("given up", ()))
    if found.unfinished and is_too_much(failed, run.max_failures):
        said.append(f"stopped by {failure_limit_text(run)}")
    if left and run.together:
        said += together.left_sentences(run, found.done, len(found.saved), shlex.quote(str(folder)))
    elif left and run.until_done is None:  # else next_job.py says what follows
        said.append(
            f"llsub --resume {shlex.quote(str(folder))} runs {'this one' if left == 1 else f'these {left}'} again"
        )
    if summary.unwritten:
        said.append(
            f"{folder / run_folder.SUMMARY} cannot be written ({summary.unwritten}); the outcome of every task is in "
            f"{folder / run.log_folder}/p*/{run_folder.RESULTS}"
        )
    return said


def _fold(tasks: Sequence[int]) -> str:
    return fold_some(tasks, SPANS)


def duration(seconds: float) -> str:
    """Return a duration as text: 1.2s, 3:04, 2:03:04."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
