"""Score policies on data given by path: measured pairs, sheets of measured memory, published job scripts."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ..core.errors import UsageError, shown
from ..core.text import counted
from ..packing.history_records import MIB_MOST
from . import measured, policies, report, sizes
from .measured import PairTable
from .records import Assumptions, ComparedPolicy, Result, SimTask, Trace
from .report import Column
from .world import simulate
from .worlds import SheetRow, WorldKind

BASES = ("exclusive", policies.RANDOM)
"""Policies with which the others are compared."""
COMPARED = tuple(name for name in (*BASES, "lug", "booked", "gain") if name in policies.NAMES)
KINDS_MOST = 10
"""Most kinds of tasks in one world of measured pairs."""
TASKS, TASKS_MOST = 100, 10_000
GPUS, GPUS_MOST = 4, 1024
RUNS_MOST = 1000
SECONDS_MEDIAN, SECONDS_SIGMA = 900.0, 0.6
"""Durations of tasks whose table has none: log-normal."""
LOAD = 1.5
"""With arrivals, this many times the work arrives that GPUs with one task at a time do."""
GPU_SIZES_MIB = (16_384, 24_576, 32_768, 40_960, 49_152, 81_920, 147_456)
ROOM_RATIO = 1.1
"""A GPU is chosen on which the largest task has this much room."""
UNKNOWN_RATIO = (0.05, 0.35)
"""Memory of a kind without a figure, as a part of the GPU: drawn evenly."""


class ScoreRequest(Struct, frozen=True, kw_only=True):
    """The data and the policies to score."""

    pairs: tuple[Path, ...] = ()
    sheets: tuple[Path, ...] = ()
    scripts: tuple[Path, ...] = ()
    numbers: tuple[str, ...] = ()
    """Columns of a sheet with numbers of the command; empty: all that look so."""
    policies: tuple[str, ...] = ()
    gpu_model: str = "v100"
    """In Gavel's matrix of rates."""
    gpus: int | None = None
    gpu_memory: str | None = None
    tasks: int = TASKS
    """Tasks of a world of pairs or of a sheet."""
    seed: int = 1
    runs: int = 3
    width: int | None = None


class _World(Struct, frozen=True):
    """A world to play, and where its data are from."""

    kind: WorldKind
    source: Path


def run_score(
    request: ScoreRequest, on_progress: Callable[[int, int], None] | None = None
) -> tuple[str, dict[str, Any]]:
    """Return the scores as text and for JSON. Raises UsageError, SimulationError."""
    _check(request)
    chosen = [policies.parse(text) for text in dict.fromkeys((*BASES, *(request.policies or COMPARED)))]
    seeds = range(request.seed, request.seed + request.runs)
    texts, records = [], []
    sheets = [(file, *measured.read_sheet(file, request.numbers)) for file in request.sheets]
    for file, rows, notes in sheets:
        text, record = _sizes(file, rows, notes, seeds)
        texts.append(text)
        records.append(record)
    found, notes_of = _worlds(request, [(file, rows) for file, rows, _ in sheets])
    for file, said in notes_of:
        texts.append("\n".join([f"{shown(str(file), 200)}: what was understood", *(f"  {note}" for note in said)]))
    played, every = 0, len(found) * len(seeds) * len(chosen)
    for world in found:
        results = []
        for result in _play(world.kind, chosen, seeds):
            results.append(result)
            played += 1
            if on_progress is not None:
                on_progress(played, every)
        text, record = _scores(world, results, seeds, request.width)
        texts.append(text)
        records.append(record)
    record = {
        "schema": 1,
        "note": NOTE,
        "understood": {str(file): list(said) for file, said in notes_of},
        "scores": records,
    }
    return "\n\n".join([NOTE, *texts]), record


NOTE = "simulated; each figure: median (lowest-highest) over the seeds; what the data lack is drawn by seed"


def _check(request: ScoreRequest) -> None:
    if not (request.pairs or request.sheets or request.scripts):
        raise UsageError("nothing to score on; give --pairs CSV, --sheet CSV or --scripts FOLDER")
    for name, value, most in (
        ("--tasks", request.tasks, TASKS_MOST), ("--runs", request.runs, RUNS_MOST), ("--gpus", request.gpus, GPUS_MOST)
    ):  # fmt: skip
        if value is not None and not 1 <= value <= most:
            raise UsageError(f"{name} {value}: a number from 1 to {most}")


def _play(kind: WorldKind, chosen: Sequence[ComparedPolicy], seeds: Sequence[int]) -> Iterator[Result]:
    for seed in seeds:
        trace = kind.trace_of(seed)
        for policy in chosen:
            result = simulate(trace, policies.settled(policy, kind.assumed.settle_s), kind.assumed, seed)
            yield replace(result, bars=(), runs=(), outcomes=())


# ---- Worlds of the data ----


def _worlds(
    request: ScoreRequest, sheets: Sequence[tuple[Path, Sequence[SheetRow]]]
) -> tuple[list[_World], list[tuple[Path, Sequence[str]]]]:
    """Return the worlds of all data, and what was understood of each file but the sheets."""
    found: list[_World] = []
    notes_of: list[tuple[Path, Sequence[str]]] = []
    for file in request.pairs:
        table = measured.read_pairs(file, request.gpu_model)
        notes_of.append((file, table.notes))
        found += [_World(_pair_kind(table, request, is_at_once=is_at_once), file) for is_at_once in (True, False)]
    for file, rows in sheets:
        found += [_World(_sheet_kind(rows, request, is_at_once=is_at_once), file) for is_at_once in (True, False)]
    for folder in request.scripts:
        traces, notes = measured.read_scripts(folder)
        notes_of.append((folder, (*notes, *dict.fromkeys(note for trace in traces for note in trace.notes))))
        for trace in traces:
            given = _sized(trace, request)
            at_once = replace(given, tasks=tuple(replace(task, submitted_s=0.0) for task in given.tasks))
            found.append(_World(_constant(f"{trace.name} with arrivals", given), folder))
            found.append(_World(_constant(f"{trace.name} at once", at_once), folder))
    return found, notes_of


def _constant(name: str, trace: Trace) -> WorldKind:
    return WorldKind(name=name, trace_of=lambda seed: trace)


def _sized(trace: Trace, request: ScoreRequest) -> Trace:
    """Return a trace with the GPUs that were asked for, without tasks that want more GPUs than a node has."""
    if request.gpus is not None:
        trace = replace(trace, gpus=request.gpus)
    if request.gpu_memory is not None:
        trace = replace(trace, gpu_mib=_gpu_mib(request, 0))
    kept = [task for task in trace.tasks if task.gpus <= trace.gpus]
    if not kept:
        raise UsageError(f"{trace.name}: every task wants more GPUs than the {trace.gpus} of a node; see --gpus")
    return replace(trace, tasks=tuple(replace(task, task=number) for number, task in enumerate(kept)))


def _gpu_mib(request: ScoreRequest, largest_mib: float) -> int:
    """Return the memory of a GPU: as asked for, or the smallest usual one on which every task fits."""
    if request.gpu_memory is not None:
        size = policies.mib(f"--gpu-memory {request.gpu_memory}", request.gpu_memory)
        if size > MIB_MOST:
            raise UsageError(f"--gpu-memory {request.gpu_memory}: no GPU has so much")
        return size
    return next((size for size in GPU_SIZES_MIB if size >= ROOM_RATIO * largest_mib), GPU_SIZES_MIB[-1])


def _times(draw: random.Random, seconds: Sequence[float], gpus: int, *, is_at_once: bool) -> list[float]:
    if is_at_once:
        return [0.0] * len(seconds)
    gap_s = sum(seconds) / len(seconds) / gpus / LOAD
    times = [0.0]
    for _ in seconds[1:]:
        times.append(times[-1] + draw.expovariate(1.0 / gap_s))
    return times


def _how(*, is_at_once: bool) -> str:
    return "at once" if is_at_once else "with arrivals"


def _pair_kind(table: PairTable, request: ScoreRequest, *, is_at_once: bool) -> WorldKind:
    """Return worlds of a few of the kinds in a table, with their measured speeds."""
    largest = max(table.memory_mib.values(), default=0)
    gpu_mib, gpus = _gpu_mib(request, largest or GPU_SIZES_MIB[3] / ROOM_RATIO), request.gpus or GPUS

    def trace_of(seed: int) -> Trace:
        draw = random.Random(f"pairs {seed}")
        kinds = sorted(table.kinds)
        kinds = draw.sample(kinds, min(KINDS_MOST, len(kinds)))
        made = []
        for kind in kinds:
            mib = table.memory_mib.get(kind) or round(gpu_mib * draw.uniform(*UNKNOWN_RATIO))
            slowest = min(table.speeds[kind, other] for other in kinds)
            seconds = SECONDS_MEDIAN * math.exp(draw.gauss(0.0, SECONDS_SIGMA))
            made.append((kind, mib, min(1.0, max(0.1, 1.0 - slowest)), seconds))
        chosen = [draw.choice(made) for _ in range(request.tasks)]
        work = [seconds * math.exp(draw.gauss(0.0, 0.2)) for *_, seconds in chosen]
        tasks = tuple(
            SimTask(
                task=number, name=kind, submitted_s=at, work_s=work_s, memory_mib=min(mib, gpu_mib), sm_ratio=sm,
                command=kind, family=kind,
            )
            for number, ((kind, mib, sm, _), work_s, at) in enumerate(
                zip(chosen, work, _times(draw, work, gpus, is_at_once=is_at_once), strict=True)
            )
        )  # fmt: skip
        speeds = {(one, other): table.speeds[one, other] for one in kinds for other in kinds}
        return Trace(name="pairs", tasks=tasks, gpus=gpus, gpu_mib=gpu_mib, speeds=speeds)

    return WorldKind(name=_how(is_at_once=is_at_once), trace_of=trace_of)


def _sheet_kind(rows: Sequence[SheetRow], request: ScoreRequest, *, is_at_once: bool) -> WorldKind:
    """Return worlds of runs drawn from a sheet, with its memory and, if it has them, its durations."""
    gpu_mib, gpus = _gpu_mib(request, max(row.peak_mib for row in rows)), request.gpus or GPUS

    def trace_of(seed: int) -> Trace:
        draw = random.Random(f"sheet {seed}")
        chosen = [draw.choice(rows) for _ in range(request.tasks)]
        loads = {row.model: draw.uniform(0.15, 0.7) for row in rows}
        work = [row.seconds or SECONDS_MEDIAN * math.exp(draw.gauss(0.0, SECONDS_SIGMA)) for row in chosen]
        tasks = []
        for number, (row, work_s, at) in enumerate(
            zip(chosen, work, _times(draw, work, gpus, is_at_once=is_at_once), strict=True)
        ):
            key = sizes.key_of(row)
            tasks.append(
                SimTask(
                    task=number, name=key.exact, submitted_s=at, work_s=work_s, memory_mib=min(row.peak_mib, gpu_mib),
                    sm_ratio=loads[row.model], command=key.exact, family=key.family, numbers=row.numbers,
                )
            )  # fmt: skip
        return Trace(name="sheet", tasks=tuple(tasks), gpus=gpus, gpu_mib=gpu_mib)

    return WorldKind(name=_how(is_at_once=is_at_once), trace_of=trace_of, assumed=Assumptions())


# ---- Results ----


def _sizes(
    file: Path, rows: Sequence[SheetRow], notes: Sequence[str], seeds: Sequence[int]
) -> tuple[str, dict[str, Any]]:
    """Return the score of sizes on a sheet as a user's history in random order."""
    scores = []
    for seed in seeds:
        shuffled = list(rows)
        random.Random(f"order {seed}").shuffle(shuffled)
        scores.append(sizes.score(shuffled))
    coverages = [one.coverage for one in scores if one.coverage is not None]
    wastes = [one.waste for one in scores if one.waste is not None]
    known = [1.0 - one.unknown / one.runs for one in scores]
    lines = [
        f"{shown(str(file), 200)}: {len(rows)} measured runs as a user's history in random order",
        *(f"  {note}" for note in notes),
        f"coverage   {report.cell(coverages, '.3f')}   part of the estimated runs within their size",
        f"waste      {report.cell(wastes, '.2f')}   (size - peak) / peak, median of the covered runs",
        f"estimated  {report.cell(known, '.0%')}   the others are the first of their kind",
    ]
    sources: dict[str, list[int]] = {}
    for one in scores:
        for source, runs, right in one.sources:
            sums = sources.setdefault(source, [0, 0])
            sums[0], sums[1] = sums[0] + runs, sums[1] + right
    lines += [
        f"  by {source}: {right / runs:.3f} of {runs} estimates"
        for source, (runs, right) in sorted(sources.items(), key=lambda item: -item[1][0])
    ]
    record = {
        "source": str(file), "world": "sizes", "runs": len(rows), "understood": list(notes),
        "coverage": coverages, "waste": wastes, "estimated": known,
        "by_source": {source: {"estimates": runs, "covered": right} for source, (runs, right) in sources.items()},
    }  # fmt: skip
    return "\n".join(lines), record


def _scores(
    world: _World, results: Sequence[Result], seeds: Sequence[int], width: int | None
) -> tuple[str, dict[str, Any]]:
    bases = {(one.policy, one.seed): one for one in results if one.policy in BASES}

    def ratio(base: str, figure: str) -> Callable[[Result], Sequence[float]]:
        def of(result: Result) -> Sequence[float]:
            other = getattr(bases[base, result.seed], figure)
            return (getattr(result, figure) / other,) if other else ()

        return of

    columns: tuple[Column, ...] = (
        ("MAKE-SPAN s", ".0f", lambda one: (one.make_span_s,)),
        ("WAITING s", ".0f", lambda one: (one.wait_s,)),
        ("JCT s", ".0f", lambda one: (one.jct_s,)),
        ("OOM OWN", ".0f", lambda one: (one.oom_own,)),
        ("HARMFUL", ".0%", lambda one: (report.harmful_ratio(one),)),
        ("COVERED", ".2f", lambda one: (one.covered / one.sized,) if one.sized else ()),
        ("WASTE", ".2f", lambda one: () if one.waste is None else (one.waste,)),
        *(
            (f"{title} / {base.upper()}", ".2f", ratio(base, figure))
            for base in BASES
            for title, figure in (("SPAN", "make_span_s"), ("JCT", "jct_s"))
        ),
    )
    trace = world.kind.trace_of(seeds[0])
    gpus = counted(trace.gpus * trace.nodes, "GPU")
    head = (
        f"{shown(str(world.source), 200)}, {world.kind.name}: {counted(len(trace.tasks), 'task')} on {gpus} of "
        f"{trace.gpu_mib} MiB, {counted(len(seeds), 'seed')} from {seeds[0]}"
    )
    unfinished = [
        f"{name}: {count} tasks did not end as done"
        for name in dict.fromkeys(one.policy for one in results)
        if (count := max(one.unfinished for one in results if one.policy == name))
    ]
    record = {
        "source": str(world.source),
        "world": world.kind.name,
        "tasks": len(trace.tasks),
        "gpus": trace.gpus * trace.nodes,
        "gpu_mib": trace.gpu_mib,
        "policies": {name: _figures(columns, results, name) for name in dict.fromkeys(one.policy for one in results)},
    }
    return "\n".join([head, report.table(results, width, columns), *unfinished]), record


def _figures(columns: Sequence[Column], results: Sequence[Result], name: str) -> dict[str, Any]:
    """Return the median and the values by seed of each figure of a policy."""
    own = [one for one in results if one.policy == name]
    found: dict[str, Any] = {}
    for title, _, values in columns:
        all_values = [round(value, 4) for one in own for value in values(one)]
        key = title.lower().replace(" / ", "_over_").replace("-", "_").replace(" ", "_")
        found[key] = {"median": median(all_values) if all_values else None, "by_seed": all_values}
    found["harmful_s"] = {"median": median(one.harmful_s for one in own), "by_seed": [one.harmful_s for one in own]}
    found["unfinished"] = max(one.unfinished for one in own)
    return found
