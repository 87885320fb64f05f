"""Preview a packed run before its submission, from the user's history, and explain its decisions afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from .. import packing
from ..core.errors import StateError, UsageError
from ..core.records import MPS_CLIENTS_MIN
from ..core.settings import Settings
from ..node.records import Gpu
from ..packing import EVENTS, group_text, read_decisions, read_groups
from ..share import limits
from ..slurm.records import NodeKind
from . import planning, run_folder
from .planning import LocalPlan, RunPlan
from .records import Run
from .result_files import ResultFiles
from .rules import deal
from .rules.account import OUTCOME_TEXTS
from .rules.task_files import Tasks

TASKS_MOST = 10_000
"""Most tasks that are previewed, which takes a second or two."""
UNSIZED = "because Slurm does not report GPU sizes and your history has none; the launcher reads them on the node"
UNREAD = "because the GPUs cannot be read here; the launcher will print why"


class DryRun(Struct, frozen=True, kw_only=True):
    """A preview with its assumptions."""

    preview: packing.Preview
    tasks: int
    gpus: tuple[packing.GpuFacts, ...]
    """The GPUs of a node; empty: not known."""
    assumed: str = ""
    """How the GPUs were assumed; empty: they are the real ones."""
    why_no_gpus: str = ""
    notes: tuple[str, ...] = ()
    """Problems of the history."""


def preview_plan(plan: RunPlan) -> DryRun:
    """Return the preview of a planned run on a node of its first candidate kind.

    The sizes of its GPUs are assumed from the newest run in the user's history.
    """
    kind = plan.kinds[0] if plan.kinds else None
    settings = planning.read_settings(None if kind is None else kind.partition)
    return _preview(plan.run, plan.tasks, (), kind, planning.gpus_of_a_node(plan), settings)


def preview_here(here: LocalPlan, tasks: Tasks) -> DryRun:
    return _preview(here.run, tasks, here.gpus, None, 0, planning.read_settings(None))


def _preview(
    run: Run, tasks: Tasks, gpus: Sequence[Gpu], kind: NodeKind | None, count: int, settings: Settings
) -> DryRun:
    """Return the preview. `gpus`: of this machine; empty: the node has `count` GPUs of the types in `kind`."""
    assert run.pack is not None
    wants_history = run.pack.estimate != "none"
    history = packing.read_history() if wants_history else packing.History()
    facts, assumed = _facts(gpus, settings), ""
    if not facts and count:
        facts, assumed = _assumed(history.runs, kind, count, settings)
    asks = [_ask(run, tasks, task) for task in range(min(run.tasks, TASKS_MOST))]
    workers = run.processes if run.triple is None else run.triple.per_node
    now = time.time()
    estimator = packing.Estimator(history.runs, now=now)
    speeds = packing.Speeds(history.runs, history.pairs, now=now)
    policy = packing.policy_of(run.pack.settings)
    preview = packing.preview_run(asks, facts, workers, run.pack.settings, estimator, speeds, policy)
    return DryRun(
        preview=preview,
        tasks=len(asks),
        gpus=facts,
        assumed=assumed,
        why_no_gpus="" if facts else UNSIZED if kind is not None or count else UNREAD,
        notes=history.notes,
    )


def _ask(run: Run, tasks: Tasks, task: int) -> packing.TaskAsk:
    assert run.pack is not None
    spec = deal.spec_of(run, tasks.specs, task)
    argv = deal.task_argv(run, tasks.lines[task] if tasks.lines else "")
    key = packing.key_of(argv, Path(run.cwd), spec.name)
    return deal.ask_of(spec, task, key)


def _facts(gpus: Sequence[Gpu], settings: Settings) -> tuple[packing.GpuFacts, ...]:
    usable = [limits.usable_mib(gpu, settings) for gpu in gpus]
    return tuple(
        packing.GpuFacts.of(index, gpu, mib, MPS_CLIENTS_MIN, is_mps=True)
        for index, (gpu, mib) in enumerate(zip(gpus, usable, strict=True))
    )


def _assumed(
    runs: Sequence[packing.TaskRun], kind: NodeKind | None, count: int, settings: Settings
) -> tuple[tuple[packing.GpuFacts, ...], str]:
    """Return GPUs like those of the newest run on a GPU type of `kind`, or on any GPU, and how they were assumed."""
    seen = [run for run in reversed(runs) if run.gpu_total_mib and run.gpu_model]
    types = [_letters(name) for name, _ in (() if kind is None else kind.gpus) if name]
    alike = [run for run in seen if any(name in _letters(run.gpu_model) for name in types)]
    if not seen:
        return (), ""
    newest = (alike or seen)[0]
    one = Gpu(uuid="", index=0, minor=None, name=newest.gpu_model, memory_total_mib=newest.gpu_total_mib)
    gpus = [replace(one, uuid=str(index), index=index) for index in range(count)]
    return _facts(gpus, settings), "as in your last run on such a GPU" if alike else "as in your last run"


def _letters(text: str) -> str:
    """Return a normalized name, so that gres.conf's a100_80gb is contained in the driver's NVIDIA A100 80GB PCIe."""
    return "".join(character for character in text.casefold() if character.isalnum())


def explain_groups(folder: Path) -> Iterator[str]:
    """Yield a line for each group with measured speeds, in order of nodes and time. Raises UsageError, StateError."""
    run = _read_packed(folder, "groups")
    is_empty = True
    for data, where in _read_events(folder, run):
        for group in sorted(read_groups(data), key=lambda one: (one.from_s, one.gpu)):
            is_empty = False
            yield f"{where}{group_text(group)}"
    if is_empty:
        yield (
            "no group of tasks was measured: each of its tasks must report progress, for three windows together, and "
            "have a known rate alone"
        )


def explain_task(folder: Path, task: int) -> Iterator[str]:
    """Yield lines about a task: why it waited, where it started, how it ended. Raises UsageError, StateError."""
    run = _read_packed(folder, "decisions")
    if not 0 <= task < run.tasks:
        raise UsageError(f"{folder}: there is no task {task}; its tasks are 0 to {run.tasks - 1}")
    lines: list[tuple[float, str]] = []
    for data, where in _read_events(folder, run):
        for unix_s, said in packing.explain_task(read_decisions(data), task):
            lines += [(unix_s, f"{where}{sentence}") for sentence in said]
    for ended in ResultFiles(folder, run):
        if ended.task == task:
            why = f": {ended.why}" if ended.why else ""
            lines.append((ended.started + ended.seconds, f"{OUTCOME_TEXTS[ended.outcome]}{why}"))
    lines.sort(key=lambda line: line[0])
    if not lines:
        yield f"task {task}: it was part of no decision yet"
    for at, line in lines:
        yield f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(at))}  {line}"


def _read_packed(folder: Path, what: str) -> Run:
    try:
        run = run_folder.read_run(folder)
    except StateError as error:
        raise UsageError(run_folder.no_run_text(str(folder), folder, error)) from error
    if run.pack is None:
        raise UsageError(f"{folder}: its tasks were not packed; only runs with llsub --pack have {what}")
    return run


def _read_events(folder: Path, run: Run) -> Iterator[tuple[bytes, str]]:
    """Yield the events of each node, with a prefix for sentences if there are several nodes. Raises StateError."""
    files = [file for file in sorted((folder / run.log_folder).glob(f"p*_*/{EVENTS}")) if file.is_file()]
    for file in files:
        with run_folder.reading(file):
            data = file.read_bytes()
        yield data, f"{file.parent.name.partition('_')[2]}: " if len(files) > 1 else ""
