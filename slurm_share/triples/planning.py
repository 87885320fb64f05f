"""Plan a run of llsub: the run from the command line, and the nodes with room for it."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ..core import config, gpu_option, names
from ..core.errors import CommandError, ConfigError, DriverError, OptionError, UsageError
from ..core.settings import Settings
from ..node import topology
from ..node.memory import HostMemory
from ..node.records import Gpu
from ..packing import PackRequest, PackSettings, TaskSpec, check_parts
from ..share import limits, option, visible_devices, visible_gpus
from ..slurm import jobs as slurm_jobs
from ..slurm.records import NodeKind
from ..slurm.script import Script
from . import overwriting, task_reading
from .records import TASKS_MAX, Distribution, Run, Triple
from .rules import checkpoint, deal, failing, fitting, pack_options, packed, parts, submission, together, turns
from .rules.checkpoint import Checkpoint
from .rules.fitting import NodeRequest
from .rules.pack_options import PackOptions
from .rules.submission import SbatchOptions
from .rules.task_files import Tasks
from .task_reading import TaskSource


class TaskOptions(Struct, frozen=True, kw_only=True):
    """The options of the command line that describe the tasks."""

    tasks: str | None
    """The file of --tasks; `-`: standard input."""
    data: bytes | None = None
    """The contents of that file, if they are read already."""
    ntasks: int | None
    arguments: tuple[str, ...]
    distribution: Distribution | None
    retries: int
    max_failures: str | None
    bind: bool
    logs: Literal["task", "rank"] | None
    called: tuple[str, ...]
    progress: str | None = None
    """As in records.Run."""
    window_s: float | None = None
    checkpoint: Checkpoint | None = None
    until_done: int | None = None
    slot_s: float | None = None
    """Both as in records.Run."""
    pack: PackOptions = PackOptions()
    python: str | None = None
    """With `together`: the Python that runs the script; None: the script is executed itself."""
    together: bool = False
    keep_going: bool = False
    report: bool = False
    """Both as in records.Run."""
    spec: TaskSpec = TaskSpec()
    """The options of tasks without their own that need no --pack."""
    sweeps: tuple[str, ...] = ()
    """The values of --sweep, NAME=VALUES."""
    is_zip: bool = False

    @property
    def has_tasks(self) -> bool:
        """Return whether the options say which tasks there are; else each process has one."""
        return self.tasks is not None or self.ntasks is not None or bool(self.sweeps)


class RunPlan(Struct, frozen=True, kw_only=True):
    """A planned run, before any file is written."""

    run: Run
    tasks: Tasks
    kinds: tuple[NodeKind, ...]
    directives: tuple[submission.Directive, ...]
    grant: NodeRequest
    plugin: bool
    notes: tuple[str, ...]


class LocalPlan(Struct, frozen=True):
    """A planned run on this machine, without Slurm."""

    run: Run
    gpu_limit: int | None
    """Number of GPUs to use; None: all."""
    gpus: tuple[Gpu, ...] = ()
    """In a packed run: these GPUs; empty: not known."""
    notes: tuple[str, ...] = ()


def run_of(script: Script | None, triple: Triple, asked: TaskOptions) -> tuple[Run, Tasks]:
    """Return the run and the contents of its tasks file. Raises UsageError for options that conflict.

    `plan_run` or `plan_here` set the number of processes of an `auto` triple later.
    """
    pack = pack_options.request(asked.pack, asked.retries, is_auto=triple.is_auto)
    _check_pack(triple, asked, pack)
    if pack is not None:
        check_parts(pack)
    number = None if asked.checkpoint is None else int(asked.checkpoint.signal)
    turns.check(asked.slot_s, asked.checkpoint)
    checkpoint.check(asked.checkpoint, is_moving=_is_moving(pack))
    if pack is not None:
        pack = replace(pack, checkpoint_signal=number)
        own = asked.spec
        spec = replace(pack.spec, timeout_s=own.timeout_s, cpus=own.cpus, mem_mib=own.mem_mib)
        pack = replace(pack, spec=spec)
    if pack is not None and asked.window_s is not None:
        pack = replace(pack, settings=replace(pack.settings, rate_window_s=asked.window_s))
    source = TaskSource(
        tasks=asked.tasks,
        data=asked.data,
        sweeps=asked.sweeps,
        is_zip=asked.is_zip,
        ntasks=asked.ntasks,
        arguments=asked.arguments,
        has_script=script is not None,
        base=asked.spec if pack is None else pack.spec,
        is_packed=pack is not None,
    )
    if asked.tasks is not None and asked.ntasks is not None and not (asked.sweeps or source.is_table):
        raise UsageError("--tasks and --ntasks both define the tasks; write one of them")
    is_command = script is None and asked.tasks is None and bool(asked.sweeps and asked.arguments)
    if script is None and asked.tasks is None and not is_command:
        also = ", or a command after --" if asked.sweeps else ""
        raise UsageError(
            f"{triple} has no program to run: write a script before it, or --tasks FILE with commands{also}"
        )
    if script is None and asked.arguments and not is_command:
        raise UsageError("arguments after -- need a script, and there is none; write them into the commands")
    _check_processes(triple)
    processes = triple.nodes * triple.per_node
    read = task_reading.read(source)
    found = read.tasks
    tasks = len(found.lines) or asked.ntasks or processes
    distribution = asked.distribution if asked.has_tasks else None
    further = asked.has_tasks or pack is not None
    run = Run(
        name=script.name if script is not None else _name(asked),
        command=(script.path, *read.arguments) if script is not None else (),
        cwd=str(Path.cwd()),
        triple=triple,
        processes=processes,
        tasks=tasks,
        task_kind=read.kind,
        distribution=distribution or ("dynamic" if further else "block"),
        retries=asked.retries,
        bind=asked.bind and not _is_tried(pack),
        logs=asked.logs or ("task" if tasks <= submission.LOGS_PER_TASK_MAX else "rank"),
        called=asked.called,
        tasks_file=asked.tasks or "",
        other_lines=found.others,
        progress=asked.progress or "",
        rate_window_s=PackSettings().rate_window_s if asked.window_s is None else asked.window_s,
        order=_list_order(asked.pack.order),
        spec=asked.spec if pack is None else TaskSpec(),
        pack=pack,
        checkpoint_signal=number,
        until_done=asked.until_done,
        slot_s=asked.slot_s,
        together=asked.together,
        keep_going=asked.keep_going,
        report=asked.report,
    )
    if asked.max_failures is not None:
        run = failing.with_max_failures(run, asked.max_failures)
    if script is not None and asked.python is not None:
        run = replace(run, command=together.command_of(asked.python, *run.command))
    parts.check(run, found, is_tried=_is_tried(run.pack))
    return run, found


def _name(asked: TaskOptions) -> str:
    """Return the name of a run without a script."""
    if asked.tasks is None:
        return Path((asked.arguments[0].split() or [""])[0]).name or "tasks"
    return "tasks" if asked.tasks == "-" else Path(asked.tasks).name


def _list_order(written: str | None) -> str:
    """Return the order of the list for run.json. A random one has its seed, so that all launchers have the same."""
    if written == deal.RANDOM:
        return f"{deal.RANDOM}:{secrets.randbelow(10**6)}"
    return written if written is not None and written.startswith((deal.RANDOM, deal.REVERSED)) else ""


def _check_pack(triple: Triple, asked: TaskOptions, pack: PackRequest | None) -> None:
    """Raise UsageError for options that conflict with packing or trials."""
    if triple.is_auto and not asked.has_tasks:
        raise UsageError(
            f"{triple} does not set the number of tasks, only that as many as possible run at once; write --tasks "
            "FILE, --sweep or --ntasks M too"
        )
    if _is_tried(pack) and not asked.has_tasks:
        raise UsageError(
            "--compare-sharing needs more tasks than processes for its trials; write --tasks FILE, --sweep or --ntasks "
            "M too"
        )
    if pack is not None and asked.distribution not in (None, "dynamic"):
        raise UsageError(
            f"--distribution={asked.distribution} assigns tasks to processes before the run, but "
            f"{'a run with trials' if _is_tried(pack) else '--pack'} places tasks when they start; remove one of them"
        )


def _is_moving(pack: PackRequest | None) -> bool:
    """Return whether tasks may be told to save their state in order to move to another GPU."""
    return pack is not None and pack.settings.undo == "pause"


def _is_tried(pack: PackRequest | None) -> bool:
    """Return whether trials find the number of tasks or the sharing method; processes are then not bound to cores."""
    return pack is not None and (pack.is_tuned or pack.is_compared)


def check_job_files(
    script: Script | None, wishes: SbatchOptions, words: Sequence[str], *, tasks: str | None = None
) -> None:
    """Raise UsageError if the job's output would overwrite its script, its `tasks` file or a file among its `words`."""
    read = [] if script is None else [("the script", script.path)]
    read += [("the tasks file", tasks)] if tasks is not None else []
    read += [("the argument", word) for word in words if os.path.exists(word)]  # noqa: PTH110  # Path.exists raises for a long word
    overwriting.check_job_files(submission.job_files(wishes.options, wishes.output), read)


def plan_run(
    run: Run,
    triple: Triple,
    tasks: Tasks,
    script: Script | None,
    wishes: SbatchOptions,
    saved_on: Checkpoint | None = None,
    *,
    is_open: bool = False,
) -> RunPlan:
    """Plan a run on the cluster; without an answer of sinfo, sbatch decides whether it fits. Raises UsageError.

    is_open: further tasks come while it runs, so that the present ones do not limit the number of an `auto` triple.
    """
    submission.check_options(wishes.options)
    directives = submission.parse_directives(script.directives) if script is not None else ()
    said = {one.name: one.value for one in (*directives, *submission.parse_options(wishes.options, "--options"))}
    partition = said.get("partition") or wishes.partition or os.environ.get("SBATCH_PARTITION")
    gpus = _asked_gpus(said, wishes)
    pack_options.refuse_sm_tried(
        said.get(names.OPTION),
        "which the plugin cannot do; write it as option of llsub, not in #SBATCH lines or --options",
    )
    _check_raw_share(directives, wishes)
    written, run = _take_sm_tried(said.get(names.OPTION, wishes.share), run)
    notes: list[str] = []
    why_unknown = "there is no default partition; write one with -q"
    try:
        kinds = fitting.of_partition(slurm_jobs.read_node_kinds(), partition)
    except CommandError as error:
        kinds, why_unknown = (), f"the cluster's nodes cannot be read ({error})"
        notes.append(f"{why_unknown}; sbatch will decide whether this fits")
    if run.pack is not None:
        with_gpus = packed.with_gpus(kinds)
        if len(with_gpus) < len(kinds) and not set(said) & submission.GPU_OPTIONS and gpus is None:
            gpus = (("", min(kind.gpu_count for kind in with_gpus)),)  # otherwise the job may get a node without GPUs
        kinds = with_gpus
    kinds = fitting.candidates(kinds, triple, gpus or ())
    kinds = fitting.chosen(kinds, triple, submission.said(directives, wishes))
    cpus, memory = [kind.cpus for kind in kinds], [kind.memory_mib for kind in kinds]
    parts.check_room(run, tasks, max(cpus, default=None), max(memory, default=None))
    plugin = slurm_jobs.read_has_share_option()
    wanted = None if gpus is None else sum(count for _, count in gpus)
    of_a_node = min((kind.gpu_count for kind in kinds), default=None) if wanted is None else wanted
    if run.pack is None:
        sharing = fitting.sharing(triple, written, of_a_node, plugin=plugin)
    else:
        rooms = packed.rooms(kinds, wanted, is_shared=plugin and written != names.OPTION_OFF)
        pack = packed.with_limit(run.pack, written)
        settings = read_settings(partition)
        per_gpu = packed.most_per_gpu(pack, settings.max_share)
        triple = packed.sized(triple, rooms, TASKS_MAX if is_open else run.tasks, per_gpu, why_unknown)
        packed.check_gpus(pack.spec, tasks, max((there or 0 for _, there in rooms), default=None))
        sharing = packed.sharing(triple, pack, written, of_a_node, plugin=plugin)
        run = replace(_with_triple(run, triple), pack=pack)
        notes += packed.sm_notes(settings, sharing.request)
    if sharing.request is not None and not plugin:
        notes.append("this site has no --share-gpu: the launchers share the GPUs by themselves, as far as possible")
    run = replace(run, share=sharing.request, is_share_computed=sharing.is_computed)
    asked = fitting.grant(triple, gpus or (), kinds, sharing.request if plugin else None)
    notes += [*fitting.waiting_notes(triple, kinds), *sharing.notes, *asked.notes]
    if not triple.is_auto:
        notes += fitting.core_notes(triple, kinds if asked.tasks is None else ())
    written_signal = submission.said(directives, wishes).get("signal")
    notes += checkpoint.sbatch_notes(saved_on, written_signal, is_moving=_is_moving(run.pack))
    if script is not None:
        notes += submission.directive_notes(script.name, directives, wishes)
    return RunPlan(
        run=run, tasks=tasks, kinds=kinds, directives=directives, grant=asked, plugin=plugin, notes=tuple(notes)
    )


def _check_raw_share(directives: Sequence[submission.Directive], wishes: SbatchOptions) -> None:
    """Raise UsageError, which says where it is written, for an invalid --share-gpu of an #SBATCH line or --options.

    sbatch reads these itself, so that settings without a number (mem=8G) are valid as option of llsub only.
    """
    places = [("the script's #SBATCH lines", one) for one in directives]
    places += [("--options", one) for one in submission.parse_options(wishes.options, "--options")]
    for where, one in places:
        if one.name == names.OPTION:
            try:
                option.parse(one.value or "")
            except OptionError as error:
                own = "; settings alone are for the option --share-gpu of llsub" * (one.value or "")[:1].isalpha()
                raise UsageError(f"{where}: {error}{own}") from error


def _take_sm_tried(written: str | None, run: Run) -> tuple[str | None, Run]:
    """Return --share-gpu= without sm=auto, and the run with it. Raises UsageError if the run is not packed."""
    if run.pack is None:
        pack_options.refuse_sm_tried(written, "which needs --pack; write --pack too, or sm=free")
        return written, run
    left, is_tried = pack_options.take_sm_tried(written)
    return left, replace(run, pack=replace(run.pack, is_sm_tried=True)) if is_tried else run


def _with_triple(run: Run, triple: Triple) -> Run:
    _check_processes(triple)
    return replace(run, triple=triple, processes=triple.nodes * triple.per_node)


def _check_processes(triple: Triple) -> None:
    processes = triple.nodes * triple.per_node
    if processes > TASKS_MAX:
        raise UsageError(f"{triple} has {processes} processes, but a run has at most {TASKS_MAX}; write fewer")


def read_settings(partition: str | None) -> Settings:
    """Return the site's settings; the defaults on a host without a valid settings file, such as a login node."""
    try:
        return config.load().of(partition)
    except ConfigError:
        return Settings()


def plan_here(run: Run, triple: Triple, tasks: Tasks, wishes: SbatchOptions, *, is_open: bool = False) -> LocalPlan:
    """Plan a run on this machine; is_open: as for `plan_run`. Raises UsageError for a run that cannot start here."""
    if triple.nodes != 1:
        raise UsageError(f"--local runs on this machine only, but {triple} has {triple.nodes} nodes; write "
                         f"{replace(triple, nodes=1)}")  # fmt: skip
    gpus = None if wishes.gpus is None else sum(count for _, count in gpu_option.parse_gpus(wishes.gpus))
    written, run = _take_sm_tried(wishes.share, run)
    limit = HostMemory().limit()
    parts.check_room(run, tasks, len(os.sched_getaffinity(0)), None if limit is None else limit.mib)
    if run.pack is None:
        if written is None:
            return LocalPlan(replace(run, share=None), gpus)
        count = gpus if gpus is not None or not written[:1].isalpha() else len(_read_gpus(None)) or None
        sharing = fitting.sharing(triple, written, count, plugin=False)
        return LocalPlan(replace(run, share=sharing.request), gpus, notes=sharing.notes)
    pack, here = packed.with_limit(run.pack, written), _read_gpus(gpus)
    count = len(here) or gpus
    cores = len(topology.read_machine(os.sched_getaffinity(0)))
    settings = read_settings(None)
    per_gpu = packed.most_per_gpu(pack, settings.max_share)
    triple = packed.sized(triple, [(cores, count)], TASKS_MAX if is_open else run.tasks, per_gpu, "")
    run = replace(_with_triple(run, triple), pack=pack)
    packed.check_gpus(pack.spec, tasks, count)
    sizes = [size for gpu in here if (size := limits.usable_mib(gpu, settings)) is not None]
    packed.check_sizes(pack.spec, tasks, max(sizes) if sizes and len(sizes) == len(here) else None)
    sharing = packed.sharing(triple, pack, written, count, plugin=False)
    return LocalPlan(replace(run, share=sharing.request), gpus, here, sharing.notes)


def _read_gpus(most: int | None) -> tuple[Gpu, ...]:
    """Return the GPUs that a launcher on this machine would use, at most `most`; empty: not known."""
    from ..node.gpus import binding  # imported here: not needed on a login node

    try:
        found = visible_gpus(visible_devices(os.environ), binding.read_driver().gpus)
    except (DriverError, ValueError):
        return ()
    return tuple(gpu for gpu in found if gpu.problem is None)[:most]


def _asked_gpus(said: dict[str, str | None], wishes: SbatchOptions) -> tuple[tuple[str, int], ...] | None:
    """Return the requested GPUs; None: none, or in a form that only Slurm parses."""
    text = said.get("gres") or said.get("gpus-per-node")
    if text is not None:
        try:
            return gpu_option.parse_gpus(text)
        except UsageError:
            return None  # such as `gpu:2,shard:1` or `lustre`, valid for sbatch
    return None if wishes.gpus is None else gpu_option.parse_gpus(wishes.gpus)


def waits_for_nodes(plan: RunPlan) -> bool:
    """Return whether the job would wait for nodes that are down or drained."""
    return plan.run.triple is not None and bool(fitting.waiting_notes(plan.run.triple, plan.kinds))


def gpus_of_a_node(plan: RunPlan) -> int:
    """Return the number of GPUs that the run has on a node of its first candidate kind; 0: none, or not known."""
    return sum(count for _, count in plan.grant.gpus) or (plan.kinds[0].gpu_count if plan.kinds else 0)


def scheduler_command(plan: RunPlan, folder: str, wishes: SbatchOptions) -> list[str]:
    """Return the command that submits the run in `folder`."""
    return submission.triple_argv(plan.run, folder, wishes, plan.directives, plan.grant, plugin=plan.plugin)


def launch_script(plan: RunPlan, folder: str, argv: Sequence[str]) -> str:
    """Return the script of the run's job. `argv`: the command that submits it."""
    carried = [str(directive) for directive in plan.directives if directive.name not in submission.LEFT_OUT]
    gpus = gpu_option.gres(plan.grant.gpus)
    return submission.launch_script(plan.run, folder, sys.executable, argv, carried, gpus)
