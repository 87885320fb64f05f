"""Preview a packed run before its submission: sizes of tasks from the user's history, and the first starts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from .. import packing
from ..core.records import MPS_CLIENTS_MIN
from ..core.settings import Settings
from ..node.records import Gpu
from ..share import limits
from ..slurm.records import NodeKind
from . import planning
from .planning import LocalPlan, RunPlan
from .records import Run
from .rules import deal
from .rules.packed_gpus import gpu_facts
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
    spec: packing.TaskSpec = tasks.specs[task] if tasks.specs else run.pack.spec
    argv = deal.task_argv(run, tasks.lines[task] if tasks.lines else "")
    key = packing.key_of(argv, Path(run.cwd), spec.name)
    return packing.TaskAsk(task=task, gpus=spec.gpus, gpu_mem_mib=spec.gpu_mem_mib, name=spec.name, key=key)


def _facts(gpus: Sequence[Gpu], settings: Settings) -> tuple[packing.GpuFacts, ...]:
    usable = [limits.usable_mib(gpu, settings) for gpu in gpus]
    return tuple(
        gpu_facts(index, gpu, mib, MPS_CLIENTS_MIN, is_mps=True)
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
