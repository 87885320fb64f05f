"""Plan a run of llsub: what to run by the command line, and which nodes have room for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ..core import gpu_option, names
from ..core.errors import CommandError, UsageError
from ..slurm import jobs as slurm_jobs
from ..slurm import script as script_reader
from ..slurm.records import NodeKind
from ..slurm.script import Script
from .records import Distribution, Run, Triple
from .rules import failing, fitting, submission
from .rules.fitting import Grant, Sharing
from .rules.submission import Wishes


class Work(Struct, frozen=True, kw_only=True):
    """The command line's description of the tasks."""

    tasks: str | None
    """The file of --tasks; `-`: standard input."""
    ntasks: int | None
    arguments: tuple[str, ...]
    """Arguments of the script."""
    distribution: Distribution | None
    retries: int
    max_failures: str | None
    bind: bool
    logs: Literal["task", "rank"] | None
    called: tuple[str, ...]
    """All words of the command line."""


class Plan(Struct, frozen=True, kw_only=True):
    """A planned run, before any file is written."""

    run: Run
    tasks: tuple[str, ...]
    kinds: tuple[NodeKind, ...]
    directives: tuple[submission.Directive, ...]
    grant: Grant
    plugin: bool
    notes: tuple[str, ...]


def run_of(script: Script | None, triple: Triple, asked: Work) -> tuple[Run, tuple[str, ...]]:
    """Return the run, and the lines of its tasks' file. Raises UsageError for what does not go together."""
    if asked.tasks is not None and asked.ntasks is not None:
        raise UsageError("--tasks and --ntasks both say what the tasks are; write one of them")
    if script is None and asked.tasks is None:
        raise UsageError(
            f"{triple} says how many and not what: write a script before it, or --tasks FILE with commands"
        )
    if script is None and asked.arguments:
        raise UsageError("arguments behind -- are a script's, and there is none; write them into the commands")
    processes = triple.nodes * triple.per_node
    if processes > submission.TASKS_MAX:
        raise UsageError(f"{triple} has {processes} processes, and a run at most {submission.TASKS_MAX}; write fewer")
    lines: tuple[str, ...] = ()
    if asked.tasks is not None:
        source = "standard input" if asked.tasks == "-" else asked.tasks
        lines = tuple(submission.parse_tasks(script_reader.read_task_bytes(asked.tasks), f"--tasks {source}"))
    elif asked.distribution and asked.ntasks is None:
        raise UsageError("--distribution is for more work than processes; write --tasks FILE or --ntasks M too")
    tasks = len(lines) or asked.ntasks or processes
    further = bool(lines) or asked.ntasks is not None
    run = Run(
        name=script.name if script is not None else _name_of(asked.tasks or "-"),
        command=(script.path, *asked.arguments) if script is not None else (),
        cwd=str(Path.cwd()),
        triple=triple,
        processes=processes,
        tasks=tasks,
        task_kind="rank" if not lines else "input" if script is not None else "command",
        distribution=asked.distribution or ("dynamic" if further else "block"),
        retries=asked.retries,
        max_failures=None if asked.max_failures is None else failing.parse_max_failures(asked.max_failures, tasks),
        bind=asked.bind,
        logs=asked.logs or ("task" if tasks <= submission.LOGS_PER_TASK_MAX else "rank"),
        called=asked.called,
    )
    return run, lines


def _name_of(tasks: str) -> str:
    return "tasks" if tasks == "-" else Path(tasks).name


def plan_run(run: Run, triple: Triple, tasks: tuple[str, ...], script: Script | None, wishes: Wishes) -> Plan:
    """Look at the cluster, and plan the run there; where sinfo does not answer, sbatch decides.

    Raises UsageError for what cannot be.
    """
    submission.check_options(wishes.options)
    directives = submission.parse_directives(script.directives) if script is not None else ()
    said = {directive.name: directive.value for directive in directives}
    partition = said.get("partition") or wishes.partition or os.environ.get("SBATCH_PARTITION")
    gpus = _asked_gpus(said, wishes)
    written = said.get(names.OPTION, wishes.share)
    notes: list[str] = []
    try:
        kinds = fitting.of_partition(slurm_jobs.read_node_kinds(), partition)
    except CommandError as error:
        kinds = ()
        notes.append(f"cannot look at the cluster ({error}); sbatch will say whether this fits")
    kinds = fitting.candidates(kinds, triple, gpus or ())
    kinds = fitting.chosen(kinds, triple, submission.said(directives, wishes))
    plugin = slurm_jobs.read_has_share_option()
    sharing = fitting.sharing(triple, written, _gpus_of_a_node(gpus, kinds), plugin=plugin)
    if sharing.request is not None and not plugin:
        notes.append("this site has no --share-gpu: the launchers do as much of it by themselves as they can")
    run = replace(run, share=sharing.request, is_share_computed=sharing.is_computed)
    asked = fitting.grant(triple, gpus or (), kinds, sharing.request if plugin else None)
    notes += [*fitting.waiting_notes(triple, kinds), *sharing.notes, *asked.notes]
    notes += fitting.assumed_notes(triple, gpus or (), kinds, sharing)
    notes += fitting.core_notes(triple, kinds if asked.tasks is None else ())
    if script is not None:
        notes += submission.directive_notes(script.name, directives, wishes)
    return Plan(
        run=run, tasks=tasks, kinds=kinds, directives=directives, grant=asked, plugin=plugin, notes=tuple(notes)
    )


def plan_here(run: Run, triple: Triple, wishes: Wishes) -> tuple[Run, int | None, tuple[str, ...]]:
    """Return the run as it is on this machine, the number of its GPUs (None: all that there are), and notes."""
    if triple.nodes != 1:
        raise UsageError(f"--local runs on this one machine, and {triple} has {triple.nodes} nodes; write "
                         f"{Triple(1, triple.per_node, triple.threads)}")  # fmt: skip
    gpus = None if wishes.gpus is None else sum(count for _, count in gpu_option.parse_gpus(wishes.gpus))
    sharing = Sharing() if wishes.share is None else fitting.sharing(triple, wishes.share, gpus, plugin=False)
    return replace(run, share=sharing.request), gpus, sharing.notes


def _asked_gpus(said: dict[str, str | None], wishes: Wishes) -> tuple[tuple[str, int], ...] | None:
    """Return the GPUs asked for; None: none were, or in a form that is left to Slurm."""
    text = said.get("gres") or said.get("gpus-per-node")
    if text is not None:
        try:
            return gpu_option.parse_gpus(text)
        except UsageError:
            return None  # `gpu:2,shard:1`, `lustre`: correct for sbatch, and no number of GPUs for us
    return None if wishes.gpus is None else gpu_option.parse_gpus(wishes.gpus)


def _gpus_of_a_node(gpus: tuple[tuple[str, int], ...] | None, kinds: Sequence[NodeKind]) -> int | None:
    if gpus is not None:
        return sum(count for _, count in gpus)
    return min((kind.gpu_count for kind in kinds), default=None)


def scheduler_command(plan: Plan, folder: str, wishes: Wishes) -> list[str]:
    """Return the command that submits the run in `folder`."""
    return submission.triple_argv(plan.run, folder, wishes, plan.directives, plan.grant, plugin=plan.plugin)


def launch_script(plan: Plan, folder: str, argv: Sequence[str]) -> str:
    """Return the script of the run's job; `argv`: what submits it."""
    carried = [str(directive) for directive in plan.directives if directive.name not in submission.LEFT_OUT]
    gpus = gpu_option.gres(plan.grant.gpus)
    return submission.launch_script(plan.run, folder, sys.executable, argv, carried, gpus)
