"""Read measured pairs, sheets of measured memory and folders of published job scripts, to score policies on them.

The tables may have their columns in any order and under many names (`tables`); what was understood is said.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from msgspec import Struct

from . import tables, trace_files
from .log_text import TraceError
from .records import Trace
from .tables import CsvTable
from .worlds import SheetRow

SIDES = (("1", "2"), ("a", "b"), ("i", "j"), ("x", "y"), ("first", "second"), ("left", "right"))
"""Words in the names of two columns that say the same of both tasks of a pair: speed1 and speed2, job_a and job_b."""
ALONE = r"\b(alone|solo|isolat\w*|single|exclusive|base\w*|standalone)\b"
SPEED = r"\b(speeds?|norm\w*|relative|ratio|fraction|retain\w*|efficiency)\b"
SLOWDOWN = r"\b(slow\w*|stretch)\b"
RATE = r"\b(rates?|throughputs?|tput|iter\w*|steps?|samples?|images?|fps|qps|progress)\b"
TIME = r"\b(times?|seconds?|secs?|s|jct|duration|runtime|latency|minutes?|ms)\b"
MEMORY = r"\b(g?mem\w*|peak|vram|footprint|mib|gib)\b"
NO_MEMORY = r"\b(util\w*|bandwidth|bw|estimat\w*|predict\w*|fake\w*|horus|overhead|forward|backward|host|cpu|rss)\b"
USED = r"\b(util\w*|gract|smact|smocc|occupancy|power|energy|temp\w*|fp32\w*|bandwidth|bw|dram\w*)\b"
KIND = r"\b(kind|job|model|task|workload|program|app\w*|name|network|arch\w*|config\w*|script|file ?name|command)\b"
NEIGHBOUR = r"\b(neighbou?rs?|other|partner|with|beside|co\w*|background|peer)\b"
GPUS = r"\b(gpu num|num gpus?|gpus|n gpus?|gpu count)\b"
DERIVED = (
    r"\b(param\w*|activation\w*|flops?|macs?|total|avg|mean|std|accuracy|loss|status|index|unnamed|id|seed|date|day)\b"
)
"""Names of columns of numbers that are no number of a command."""
PERCENT_FROM = 3.0
"""Speeds with a larger median are percents if none is above 300."""
FITS = 100
"""Rounds in which the memory of kinds is fitted to sums of pairs."""


class PairTable(Struct, frozen=True):
    """Measured pairs of kinds of tasks."""

    speeds: Mapping[tuple[str, str], float]
    """(kind, neighbour) -> speed of the kind over its speed alone; missing pairs are filled."""
    memory_mib: Mapping[str, int]
    """Kind -> memory of a task, MiB, for the kinds whose memory is known."""
    notes: tuple[str, ...]

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(kind for kind, _ in self.speeds))


# ---- Pairs ----


class _Side(Struct):
    """The columns of one side of a pair."""

    kind: list[int] = []
    figure: int | None = None
    alone: int | None = None
    memory: int | None = None
    gpus: int | None = None


def read_pairs(file: Path, gpu_model: str = "v100") -> PairTable:
    """Return the measured pairs in a file: a table, or Gavel's matrix of rates (*.json). Raises TraceError."""
    if file.suffix == ".json":
        return _gavel(file, gpu_model)
    table = tables.read(file)
    if (matrix := _matrix(table)) is not None:
        return matrix
    sides = _sides(table)
    alone: dict[str, list[float]] = {}
    seen: dict[tuple[str, str], list[float]] = {}
    memory: dict[str, list[int]] = {}
    sums: list[tuple[str, str, int]] = []
    together = None
    if sides is None:
        rows = _one_sided(table, alone, seen, memory)
    else:
        together = _pair_memory(table, sides)
        rows = _two_sided(table, sides, alone, seen, memory)
        if together is not None:
            for (line, row), (a, b) in rows:
                if a and b and (size := table.mib(line, row, together)) is not None:
                    sums.append((a, b, size))
    form = _form(table, _figure_column(table, sides), seen, has_alone=bool(alone))
    speeds = _speeds(table, form, alone, seen)
    sizes = {kind: round(fmean(values)) for kind, values in memory.items()} or _fitted(sums)
    if together is not None and not memory:
        table.understood.append("the memory of each kind is fitted to the sums of its pairs")
    filled = _fill(speeds)
    notes = [*table.understood, f"{len(seen)} measured speeds of {len({kind for kind, _ in speeds})} kinds"]
    if filled:
        notes.append(f"{filled} speeds were not measured: the mean of the kind beside others is taken")
    return PairTable(speeds, sizes, tuple(dict.fromkeys(notes)))


def _matrix(table: CsvTable) -> PairTable | None:
    """Return the pairs of a matrix, whose rows and columns are named by kinds; None: the table is none.

    A cell has the speed of its row's kind beside its column's.
    """
    names = [row[0] for _, row in table.rows]
    columns = {name: index for index, name in enumerate(table.header) if index and name in names}
    if len(columns) < 2 or len(columns) < len(set(names)) / 2:
        return None
    alone = next((index for index, name in enumerate(table.header) if index and re.search(ALONE, name.lower())), None)
    seen: dict[tuple[str, str], list[float]] = {}
    alone_of: dict[str, list[float]] = {}
    for line, row in table.rows:
        for name, index in columns.items():
            if (value := table.figure(line, row, index)) is not None:
                seen.setdefault((row[0], name), []).append(value)
        if alone is not None and (value := table.figure(line, row, alone)) is not None:
            alone_of.setdefault(row[0], []).append(value)
    table.understood.append(f"a matrix of {len(columns)} kinds: each row's kind beside each column's")
    values = [value for found in seen.values() for value in found]
    if alone is None and values and sum(value >= 1.0 for value in values) > 0.9 * len(values) and max(values) <= 20.0:
        form = "slowdown"
        table.understood.append("nearly all figures are 1 or more: they are slowdowns, speed = 1 / figure")
    else:
        form = _form(table, None, seen, has_alone=alone is not None)
    speeds = _speeds(table, form, alone_of, seen)
    filled = _fill(speeds)
    missing = (f"{filled} speeds were not measured: the mean of the kind beside others is taken",) if filled else ()
    return PairTable(speeds, {}, (*table.understood, f"{len(seen)} measured speeds of {len(columns)} kinds", *missing))


def _gavel(file: Path, gpu_model: str) -> PairTable:
    rates = trace_files.read_rates(file, gpu_model)
    speeds = {
        (job, other): rate / own
        for job, row in rates.items()
        if (own := row.get(None))
        for other, rate in row.items()
        if other is not None and rate > 0.0
    }
    if not speeds:
        raise TraceError(file, None, f"it has no pair on {gpu_model}")
    filled = _fill(speeds)
    sizes = {job: mib for job, (mib, _) in trace_files.GAVEL_SIZES.items() if any(job == one for one, _ in speeds)}
    notes = (f"Gavel's matrix of rates on {gpu_model}; memory is assumed", f"{filled} speeds were not measured")
    return PairTable(speeds, sizes, notes)


def _marked(name: str) -> list[tuple[int, int, str]]:
    """Return (set in SIDES, side, the name without it) for each word of a plain name that says a side."""
    words = re.sub(r"([a-z])([12])\b", r"\1 \2", name).split()
    found = []
    for number, marks in enumerate(SIDES):
        at = [index for index, word in enumerate(words) if word in marks]
        if at:
            rest = " ".join(word for word in words if word not in marks)
            found.append((number, marks.index(words[at[0]]), rest))
    return found


def _sides(table: CsvTable) -> tuple[_Side, _Side] | None:
    """Return the columns of both sides; None: a row is about one task beside another."""
    by_set: dict[int, dict[str, dict[int, int]]] = {}
    for index, name in enumerate(table.header):
        for number, side, rest in _marked(tables.plain_name(name)):
            by_set.setdefault(number, {}).setdefault(rest, {})[side] = index
    whole = {number: {rest: at for rest, at in rests.items() if len(at) == 2} for number, rests in by_set.items()}
    best = max(whole.values(), key=len, default={})
    figures = [rest for rest in best if re.search("|".join((SPEED, SLOWDOWN, RATE, TIME)), rest)]
    if not figures or len(best) < 2:
        return None
    lone = [rest for rest in figures if re.search(ALONE, rest)]
    order = (SPEED, SLOWDOWN, RATE, TIME)
    beside = sorted(
        (rest for rest in figures if rest not in lone),
        key=lambda rest: next(number for number, form in enumerate(order) if re.search(form, rest)),
    )
    if not beside:
        return None
    sizes = [rest for rest in best if re.search(MEMORY, rest) and not re.search(NO_MEMORY, rest)]
    gpus = [rest for rest in best if re.search(GPUS, rest)]
    no_kind = {*figures, *sizes, *gpus, *(rest for rest in best if re.search(USED, rest))}
    kinds = [rest for rest in best if rest not in no_kind]
    if not kinds:
        return None
    made = []
    for side in (0, 1):
        made.append(
            _Side(
                kind=sorted(best[rest][side] for rest in kinds),
                figure=best[beside[0]][side],
                alone=best[lone[0]][side] if lone else None,
                memory=best[sizes[0]][side] if sizes else None,
                gpus=best[gpus[0]][side] if gpus else None,
            )
        )
    for which, one in zip(("a", "b"), made, strict=True):
        names = ", ".join(table.header[index] for index in one.kind)
        said = f"kind {which}: {names}; its speed: {table.header[one.figure or 0]}"
        if one.alone is not None:
            said += f" over {table.header[one.alone]}"
        if one.memory is not None:
            said += f"; its memory: {table.header[one.memory]}"
        table.understood.append(said)
    return made[0], made[1]


def _pair_memory(table: CsvTable, sides: tuple[_Side, _Side]) -> int | None:
    if sides[0].memory is not None:
        return None
    used = {index for side in sides for index in (*side.kind, side.figure, side.alone, side.gpus) if index is not None}
    return table.find("memory of both together", MEMORY, without=sorted(used), not_=NO_MEMORY)


def _kind_of(row: Sequence[str], columns: Iterable[int]) -> str:
    words = [row[index] for index in columns]
    return "" if all(word.lower() in (*tables.EMPTY, "alone", "none") for word in words) else " ".join(words)


def _two_sided(
    table: CsvTable,
    sides: tuple[_Side, _Side],
    alone: dict[str, list[float]],
    seen: dict[tuple[str, str], list[float]],
    memory: dict[str, list[int]],
) -> list[tuple[tuple[int, tuple[str, ...]], tuple[str, str]]]:
    """Collect the figures of rows about two tasks. Return the rows with their kinds."""
    found, left = [], 0
    for line, row in table.rows:
        if any(side.gpus is not None and row[side.gpus] not in ("1", "1.0", "") for side in sides):
            left += 1
            continue
        kinds = _kind_of(row, sides[0].kind), _kind_of(row, sides[1].kind)
        found.append(((line, row), kinds))
        for at, side in enumerate(sides):
            own, other = kinds[at], kinds[1 - at]
            figure = None if side.figure is None else table.figure(line, row, side.figure)
            if not own or figure is None:
                continue
            if side.alone is not None and (rate := table.figure(line, row, side.alone)) is not None:
                alone.setdefault(own, []).append(rate)
            if side.memory is not None and (size := table.mib(line, row, side.memory)) is not None:
                memory.setdefault(own, []).append(size)
            if other:
                seen.setdefault((own, other), []).append(figure)
            else:
                alone.setdefault(own, []).append(figure)
    if left:
        table.understood.append(f"{left} rows are about tasks of several GPUs and are left out")
    return found


def _one_sided(
    table: CsvTable,
    alone: dict[str, list[float]],
    seen: dict[tuple[str, str], list[float]],
    memory: dict[str, list[int]],
) -> list[tuple[tuple[int, tuple[str, ...]], tuple[str, str]]]:
    """Collect the figures of rows about one task beside another."""
    neighbour = table.need(
        "the neighbour",
        table.find("neighbour", NEIGHBOUR, not_=f"{SPEED}|{RATE}|{TIME}|{SLOWDOWN}"),
        "neighbour, beside, other",
    )
    kind = table.need(
        "the kind of task",
        table.find("kind", KIND, without=(neighbour,), not_=f"{SPEED}|{RATE}|{TIME}|{SLOWDOWN}|{MEMORY}"),
        "kind, job, model, task",
    )
    figure = table.need(
        "the speed", _figure_column(table, None), "speed, slowdown, rate with alone, or time with alone"
    )
    own = table.find("alone", ALONE, without=(kind, neighbour, figure))
    size = table.find("memory", MEMORY, without=(kind, neighbour, figure), not_=NO_MEMORY)
    for line, row in table.rows:
        value = table.figure(line, row, figure)
        name, other = _kind_of(row, [kind]), _kind_of(row, [neighbour])
        if not name or value is None:
            continue
        if own is not None and (rate := table.figure(line, row, own)) is not None:
            alone.setdefault(name, []).append(rate)
        if size is not None and (mib := table.mib(line, row, size)) is not None:
            memory.setdefault(name, []).append(mib)
        if other:
            seen.setdefault((name, other), []).append(value)
        else:
            alone.setdefault(name, []).append(value)
    return []


def _figure_column(table: CsvTable, sides: tuple[_Side, _Side] | None) -> int | None:
    if sides is not None:
        return sides[0].figure
    return table.find("speed", SPEED, SLOWDOWN, RATE, TIME, not_=f"{ALONE}|{USED}|{NEIGHBOUR}|{KIND}") or table.find(
        "speed", SPEED, SLOWDOWN, RATE, TIME, not_=f"{ALONE}|{USED}"
    )


def _form(
    table: CsvTable, column: int | None, seen: Mapping[tuple[str, str], Sequence[float]], *, has_alone: bool
) -> str:
    """Return what the figures are: speed, percent, slowdown, rate or time. Raises TraceError."""
    name = "" if column is None else tables.plain_name(table.header[column])
    values = sorted(value for found in seen.values() for value in found)
    if not values:
        raise TraceError(table.file, None, "no row has two kinds and a speed")
    middle, most = values[len(values) // 2], values[-1]
    if re.search(SLOWDOWN, name):
        form = "slowdown"
    elif has_alone:
        form = "time" if re.search(TIME, name) and not re.search(f"{SPEED}|{RATE}", name) else "rate"
    elif middle <= PERCENT_FROM and not re.search(TIME, name):
        form = "speed"
    elif most <= 100.0 * PERCENT_FROM and (re.search(SPEED, name) or column is None):
        form = "percent"
    else:
        what = "a cell" if column is None else f"column {table.header[column]!r}"
        why = f"{what} is no speed over the speed alone (median {middle:g})"
        raise TraceError(table.file, 1, f"{why}, and no column or row has the figure alone; add one called alone")
    table.understood.append(
        {
            "slowdown": "figures are slowdowns: speed = 1 / figure",
            "rate": "figures are rates: speed = figure / figure alone",
            "time": "figures are times: speed = figure alone / figure",
            "speed": "figures are speeds, 1 as alone",
            "percent": "figures are percents of the speed alone",
        }[form]
    )
    return form


def _speeds(
    table: CsvTable, form: str, alone: Mapping[str, Sequence[float]], seen: Mapping[tuple[str, str], Sequence[float]]
) -> dict[tuple[str, str], float]:
    speeds, without = {}, set()
    for (kind, other), values in seen.items():
        figure = fmean(values)
        own = fmean(alone[kind]) if kind in alone else 0.0
        if form in ("rate", "time") and not own:
            without.add(kind)
        elif form == "slowdown":
            speeds[kind, other] = 1.0 / max(figure, 0.01)
        elif form == "time":
            speeds[kind, other] = own / max(figure, 1e-9)
        else:
            speeds[kind, other] = figure / {"rate": own, "percent": 100.0}.get(form, 1.0)
    if without:
        table.understood.append(f"{len(without)} kinds have no figure alone and are left out")
    if not speeds:
        raise TraceError(table.file, None, "no kind has a figure alone; add a column called alone")
    return {pair: min(max(speed, 0.01), 1.2) for pair, speed in speeds.items()}


def _fitted(sums: Sequence[tuple[str, str, int]]) -> dict[str, int]:
    """Return the memory of each kind, from the memory of pairs, which is additive (Lucid's 1,388 pairs: 1.004)."""
    sizes = {kind: total / 2 for a, b, total in sums for kind in (a, b)}
    for _ in range(FITS):
        found: dict[str, list[float]] = {}
        for a, b, total in sums:
            off = (total - sizes[a] - sizes[b]) / 2
            found.setdefault(a, []).append(sizes[a] + off)
            found.setdefault(b, []).append(sizes[b] + off)
        sizes = {kind: max(fmean(values), 300.0) for kind, values in found.items()}
    return {kind: round(mib) for kind, mib in sizes.items()}


def _fill(speeds: dict[tuple[str, str], float]) -> int:
    """Add the pairs that were not measured; return their number."""
    kinds = {kind for pair in speeds for kind in pair}
    every = fmean(speeds.values())
    means: dict[str, list[float]] = {}
    for (kind, _), speed in speeds.items():
        means.setdefault(kind, []).append(speed)
    missing = [(kind, other) for kind in kinds for other in kinds if (kind, other) not in speeds]
    for kind, other in sorted(missing):
        speeds[kind, other] = fmean(means.get(kind, [every]))
    return len(missing)


# ---- Sheets ----


def read_sheet(file: Path, numbers: Sequence[str] = ()) -> tuple[list[SheetRow], tuple[str, ...]]:
    """Return the measured runs of a sheet, and notes. Raises TraceError.

    numbers: the columns with numbers of the command; empty: all that look so.
    """
    table = tables.read(file)
    peak = table.need(
        "the measured memory",
        table.find("memory", r"\b(max|peak|measured|actual|used)\b.*" + MEMORY, MEMORY, not_=f"{NO_MEMORY}|{USED}"),
        "peak, memory, max GPU memory",
    )
    model = table.find(
        "model", r"^(model|network|kind|program|job|arch\w*)( name)?$", KIND, without=(peak,), not_=DERIVED
    )
    seconds = table.find("duration", r"\b(seconds?|duration|runtime)\b", r"\btime s\b", without=(peak,), not_=NO_MEMORY)
    chosen = _numbers(table, numbers, [one for one in (peak, model, seconds) if one is not None])
    texts = [] if model is not None else _texts(table, {peak, *chosen})
    commands = [
        index
        for index in range(len(table.header))
        if index not in (model, *texts, *chosen) and any(_options_in(row[index]) for _, row in table.rows)
    ]
    if commands:
        table.understood.append(f"options of the command: {', '.join(table.header[index] for index in commands)}")
    rows, empty = [], 0
    for line, row in table.rows:
        mib = table.mib(line, row, peak)
        if mib is None:
            empty += 1
            continue
        name = row[model] if model is not None else " ".join(row[index] for index in texts)
        name, inside = _numbers_in(name)
        inside += [option for index in commands for option in _options_in(row[index])]
        own = [
            (f"--{tables.plain_name(table.header[index])}", table.figure(line, row, index, -1e12)) for index in chosen
        ]
        taken = None if seconds is None else table.figure(line, row, seconds)
        given = tuple(dict([*inside, *((word, value) for word, value in own if value is not None)]).items())
        rows.append(SheetRow(name or file.stem, given, mib, taken or None))
    if not rows:
        raise TraceError(file, None, "no row has a measured memory")
    said = ", ".join(table.header[index] for index in chosen) or "none"
    models = len({row.model for row in rows})
    notes = [*table.understood, f"numbers of the command: {said}", f"{len(rows)} runs of {models} models"]
    if empty:
        notes.append(f"{empty} rows have no measured memory and are left out")
    return rows, tuple(dict.fromkeys(notes))


def _numbers(table: CsvTable, names: Sequence[str], without: Sequence[int]) -> list[int]:
    """Return the columns with numbers of a command. Raises TraceError for a name that is no column."""
    plain = [tables.plain_name(name) for name in table.header]
    for name in names:
        if tables.plain_name(name) not in plain:
            raise TraceError(
                table.file, 1, f"--numbers {name}: there is no such column; it has {', '.join(table.header)}"
            )
    if names:
        return [plain.index(tables.plain_name(name)) for name in names]
    no_number = "|".join((MEMORY, NO_MEMORY, USED, TIME, RATE, SLOWDOWN, DERIVED, r"\b(gb|hours?|epochs?|gputl)\b"))
    return [
        index
        for index, name in enumerate(plain)
        if index not in without and name and not re.search(no_number, name) and _is_numeric(table, index)
    ]


def _is_numeric(table: CsvTable, index: int) -> bool:
    values = [row[index] for _, row in table.rows if row[index].lower() not in tables.EMPTY]
    return bool(values) and all(re.fullmatch(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?", value, re.I) for value in values)


def _texts(table: CsvTable, without: set[int]) -> list[int]:
    found = [index for index in range(len(table.header)) if index not in without and not _is_numeric(table, index)]
    if found:
        table.understood.append(f"model: columns {', '.join(table.header[index] for index in found)}")
    return found


def _numbers_in(name: str) -> tuple[str, list[tuple[str, float]]]:
    """Return a name without its numbers, and these: "input:12_arch:wide_batch:8.out" has input and batch."""
    found = re.findall(r"([A-Za-z]+)[:=]([0-9]+(?:\.[0-9]+)?)(?![0-9A-Za-z])", name)
    if not found:
        return name, []
    return re.sub(r"([:=])[0-9]+(\.[0-9]+)?", r"\1N", name), [(f"--{word}", float(value)) for word, value in found]


def _options_in(text: str) -> list[tuple[str, float]]:
    """Return the options with numbers in a command or in a name made of one: "--batch 8", "train.py_--batch_size_8"."""
    found = re.findall(r"--([A-Za-z][A-Za-z_-]*?)[ =_]([0-9]+(?:\.[0-9]+)?)(?![^ _])", text)
    return [(f"--{name}", float(value)) for name, value in found]


# ---- Folders of job scripts ----


def read_scripts(folder: Path) -> tuple[list[Trace], tuple[str, ...]]:
    """Return the traces in a folder and the folders in it, by name, and notes on files that are none.

    A file alone is one trace. Raises TraceError if there is none.
    """
    if not os.path.isdir(folder):  # noqa: PTH112 - Path.is_dir() raises where a name is too long
        return [trace_files.read(folder)], ()
    files = sorted(
        Path(path) / name
        for path, _, names in os.walk(folder)
        for name in names
        if name.endswith((".sh", ".trace", ".jsonl"))
    )
    found, left = [], []
    for file in files:
        try:
            found.append(trace_files.read(file))
        except TraceError as error:
            left.append(error)
    if not found:
        why = str(left[0]) if left else "it has no *.sh, *.trace or *.jsonl"
        raise TraceError(folder, None, f"no file in it is a trace: {why}")
    notes = (
        [f"{len(left)} of {len(files)} files are no traces and are left out, the first one: {left[0]}"] if left else []
    )
    return found, tuple(notes)
