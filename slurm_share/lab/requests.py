"""Answer the requests of `slurm-share lab simulate` with text, records for JSON and a picture."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ..core.errors import StateError, UsageError, shown
from ..core.text import counted
from ..packing.history_records import MIB_MOST
from . import assumed_sizes, cluster_logs, policies, recorded, report, timeline, trace_files, traces
from .records import Assumptions, ComparedPolicy, Result, Sharing, Trace

TASKS_MOST = 200_000
RUNS_MOST = 10_000
GPUS_MOST = 1024


class SimulationRequest(Struct, frozen=True, kw_only=True):
    """A simulation as a user asks for it. None: the value of the trace, or the default assumption."""

    trace: str
    """A generator's name, or a path."""
    policies: tuple[str, ...] = ()
    format: str | None = None
    throughputs: Path | None = None
    rows: int | None = None
    """Most jobs that are read from a cluster log."""
    gpu_model: str = "v100"
    gpus: int | None = None
    nodes: int | None = None
    gpu_memory: str | None = None
    seed: int = 1
    runs: int = 1
    alphas: tuple[float, ...] = ()
    settles_s: tuple[float, ...] = ()
    sharing: Sharing = "mps"
    missing_ratio: float = 0.0
    has_picture: bool = False
    width: int | None = None
    """Width of the terminal; None: unlimited."""


class SimulationReport(Struct, frozen=True, kw_only=True):
    """The results of a request."""

    text: str
    record: dict[str, Any]
    """For JSON."""
    picture: str | None = None
    """An SVG of the first policy, at the setting that is nearest to SM activity as assumed."""


def run_simulation(
    request: SimulationRequest, on_progress: Callable[[int, int], None] | None = None
) -> SimulationReport:
    """Run the simulations. `on_progress` gets the numbers of finished and of all simulations. Raises UsageError,
    SimulationError."""
    _check(request)
    of_seed = _traces(request)
    seeds = range(request.seed, request.seed + request.runs)
    chosen = [policies.parse(text) for text in request.policies or policies.COMPARED]
    first = of_seed(seeds[0])
    chosen = [_fitted(policy, first) for policy in chosen]
    settings = report.assumptions(
        Assumptions(sharing=request.sharing, missing_ratio=request.missing_ratio),
        request.alphas or report.ALPHAS,
        request.settles_s or report.SETTLES_S,
    )
    every = len(seeds) * len(settings) * len(chosen)
    drawn_setting = min(settings, key=lambda one: (abs(one.alpha - 1.0), one.settle_s))
    results: list[Result] = []
    drawn: Result | None = None
    for result in report.compare(of_seed, chosen, seeds, settings, has_bars=request.has_picture):
        if drawn is None and result.assumptions == drawn_setting and result.policy == chosen[0].name:
            drawn = result
        results.append(msgspec.structs.replace(result, bars=(), runs=(), outcomes=()))
        if on_progress is not None:
            on_progress(len(results), every)
    return SimulationReport(
        text=report.text(first, results, request.width),
        record={
            "schema": 1,
            "note": report.NOTE,
            "trace": first.name,
            "tasks": len(first.tasks),
            "gpus": first.gpus * first.nodes,
            "gpu_mib": first.gpu_mib,
            "notes": list(first.notes),
            "results": report.rows(results),
        },
        picture=None if drawn is None else _picture(first, drawn),
    )


def _check(request: SimulationRequest) -> None:
    if not 1 <= request.runs <= RUNS_MOST:
        raise UsageError(f"--runs {request.runs}: a number from 1 to {RUNS_MOST}")
    for name, value in (("--gpus", request.gpus), ("--nodes", request.nodes)):
        if value is not None and not 1 <= value <= GPUS_MOST:
            raise UsageError(f"{name} {value}: a number from 1 to {GPUS_MOST}")
    for name, values in (("--alpha", request.alphas), ("--settle", request.settles_s)):
        for number in values:
            if not (0.0 < number <= 3600.0):
                raise UsageError(f"{name} {number:g}: a number above 0, at most 3600")


def _traces(request: SimulationRequest) -> Callable[[int], Trace]:
    """Return a function from seed to trace: a generator, a log with drawn sizes, or a constant. Raises UsageError."""
    generator = traces.GENERATORS.get(request.trace)
    if generator is not None and request.format is None:
        _without_rows(request)
        if request.throughputs is not None:
            raise UsageError(f"--throughputs {request.throughputs}: it goes with a trace of Gavel's")
        return lambda seed: _changed(generator(seed), request)
    if request.format is not None and request.format not in trace_files.FORMATS:
        raise UsageError(f"--format {request.format}: one of {', '.join(trace_files.FORMATS)}")
    form = request.format or trace_files.form_of(Path(request.trace))
    if form in cluster_logs.FORMATS and request.throughputs is None:
        log = cluster_logs.read(Path(request.trace), form, request.rows)
        return lambda seed: _changed(assumed_sizes.trace_of(log, seed), request)
    _without_rows(request)
    trace = _changed(
        trace_files.read(Path(request.trace), form, throughputs=request.throughputs, gpu_model=request.gpu_model),
        request,
    )
    return lambda seed: trace


def _without_rows(request: SimulationRequest) -> None:
    if request.rows is not None:
        raise UsageError(f"--rows {request.rows}: it goes with the log of a cluster: {', '.join(cluster_logs.FORMATS)}")


def _changed(trace: Trace, request: SimulationRequest) -> Trace:
    changes: dict[str, Any] = {}
    if request.gpus is not None:
        changes["gpus"] = request.gpus
    if request.nodes is not None:
        changes["nodes"] = request.nodes
    if request.gpu_memory is not None:
        changes["gpu_mib"] = policies.mib(f"--gpu-memory {request.gpu_memory}", request.gpu_memory)
        if changes["gpu_mib"] > MIB_MOST:
            raise UsageError(f"--gpu-memory {request.gpu_memory}: no GPU has so much")
    trace = msgspec.structs.replace(trace, **changes)
    if len(trace.tasks) > TASKS_MOST:
        raise UsageError(f"{trace.name}: {len(trace.tasks)} tasks; at most {TASKS_MOST} are simulated")
    wide = sum(task.gpus > trace.gpus for task in trace.tasks)
    if wide:
        kept = tuple(task for task in trace.tasks if task.gpus <= trace.gpus)
        if not kept:
            raise UsageError(f"{trace.name}: every task wants more GPUs than the {trace.gpus} of a node; see --gpus")
        trace = msgspec.structs.replace(
            trace,
            tasks=tuple(msgspec.structs.replace(task, task=number) for number, task in enumerate(kept)),
            notes=(*trace.notes, f"{wide} tasks want more GPUs than the {trace.gpus} of a node and are left out"),
        )
    return trace


def _fitted(policy: ComparedPolicy, trace: Trace) -> ComparedPolicy:
    """Return a policy with at most two tasks on a GPU if the trace has measured interference of pairs."""
    if not trace.speeds or policy.settings.max_per_gpu is not None:
        return policy
    return msgspec.structs.replace(policy, settings=msgspec.structs.replace(policy.settings, max_per_gpu=2))


def _picture(trace: Trace, result: Result) -> str:
    names = [f"GPU {index}" for index in range(trace.gpus * trace.nodes)]
    if trace.nodes > 1:
        names = [f"node {node} GPU {index}" for node in range(trace.nodes) for index in range(trace.gpus)]
    title = (
        f"{trace.name}, {result.policy}, seed {result.seed}, SM activity x {result.assumptions.alpha:g}: "
        f"{result.make_span_s / 3600:.2f} h, {result.oom_own + result.oom_neighbour} out of memory"
    )
    return timeline.draw(
        result.bars, [gpu.mib for gpu in trace.node_gpus] * trace.nodes, title, is_simulated=True, gpu_names=names
    )


def draw_run(folder: Path) -> str:
    """Return an SVG of a recorded run, without simulation. Raises TraceError."""
    run = recorded.read(folder)
    bars = recorded.bars(run)
    lost = sum(one.outcome not in timeline.DONE for one in run.attempts)
    tasks = len({one.task for one in run.attempts})
    is_simulated = any(gpu.is_simulated for gpu in run.gpus)
    return timeline.draw(
        bars,
        recorded.sizes_mib(run, bars),
        f"{folder.name}{' on simulated GPUs' if is_simulated else ''}: {counted(tasks, 'task')}, "
        f"{counted(lost, 'lost attempt')}",
        is_simulated=False,
        gpu_names=[f"GPU {gpu.index}" for gpu in run.gpus],
    )


def check_picture(file: Path) -> None:
    """Raise UsageError if a picture cannot be written to this file. Call it before a long simulation."""
    if os.path.isdir(file):  # noqa: PTH112 - Path.is_dir() raises where a name is too long
        raise UsageError(f"--picture {shown(str(file))}: this is a folder; write a file's name")
    if not os.path.isdir(file.parent):  # noqa: PTH112
        raise UsageError(f"--picture {shown(str(file))}: there is no folder {shown(str(file.parent))}")


def write_picture(picture: str, file: Path) -> None:
    """Write an SVG. Raises StateError."""
    try:
        file.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise StateError(str(file), f"the picture cannot be written ({error.strerror})") from error
