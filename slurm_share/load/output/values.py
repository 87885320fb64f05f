"""llload for programs: raw numbers in TSV or CSV, one row for each node, GPU or process. Unknown is an empty field."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from ...core import terminal
from ..rules import figures as numbers
from ..rules import flags as flagging
from ..snapshot import NodeLoad, Survey

Of = Literal["nodes", "gpus", "processes"]
Value = str | int | float | bool | None

_START = ("time", "cluster", "node")
_END = ("source", "taken", "simulated")
HEADINGS: dict[Of, tuple[str, ...]] = {
    "nodes": (
        *_START,
        *("answered", "why", "states", "cpus", "cpus_used", "cpus_free", "load1", "load5", "load15", "cpu_cores"),
        *("memory_mib", "memory_used_mib", "memory_free_mib", "gpus", "gpus_used", "gpus_free", "gpus_idle"),
        *("gpu_load1", "gpu_load5", "gpu_load15", "gpu_load_by", "gpu_load_over_s"),
        *("gpu_memory_mib", "gpu_memory_used_mib", "gpu_memory_free_mib", "hidden_gpus", "users", "jobs", "flags"),
        *_END,
    ),
    "gpus": (
        *_START,
        *("gpu", "uuid", "name", "mig_of", "load1", "load5", "load15", "load_by", "load_over_s"),
        *("utilization_percent", "sm_percent", "occupancy_percent", "tensor_percent", "dram_percent"),
        *("fp64_percent", "fp32_percent", "fp16_percent"),
        *("memory_mib", "memory_used_mib", "memory_free_mib", "others_mib", "clients", "power_w", "energy_j"),
        *("temperature_c", "users", "jobs", "idle", "problem"),
        *_END,
    ),
    "processes": (
        *_START,
        *("pid", "name", "user", "uid", "job", "step", "task", "slot", "gpu", "uuid", "sm_percent"),
        *("gpu_memory_mib", "gpu_memory_peak_mib", "cap_mib", "cpu_cores", "memory_mib"),
        *_END,
    ),
}
_FORMULA = ("=", "+", "-", "@")
"""What a spreadsheet takes for the beginning of a formula (OWASP, "CSV Injection")."""


def rows(survey: Survey, of: Of) -> Iterator[tuple[Value, ...]]:
    """One for each thing; nodes that did not answer are among the nodes, and nowhere else."""
    make = {"nodes": _node, "gpus": _gpus, "processes": _processes}[of]
    when = _time(survey.taken)
    for node in survey.nodes:
        start = (when, survey.cluster, node.name)
        end: tuple[Value, ...] = (survey.source, None, None)
        if node.snapshot is not None:
            simulated = node.snapshot.simulated or "demo" in (survey.source, node.snapshot.source)
            end = (node.snapshot.source, _time(node.snapshot.taken), simulated)
        elif survey.source == "demo":
            end = (survey.source, None, True)
        for row in make(node):
            yield (*start, *row, *end)


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(seconds))


def _node(node: NodeLoad) -> Iterable[tuple[Value, ...]]:
    one, snapshot = numbers.figures(node), node.snapshot
    loads = (None, None, None) if snapshot is None or snapshot.load is None else snapshot.load
    gpu_load1 = gpu_load15 = None
    if snapshot is not None and snapshot.whole_gpus and not one.partial_gpu_load:
        means = [gpu.load_percent_windows for gpu in snapshot.whole_gpus]
        gpu_load1 = sum(mean.m1 for mean in means if mean) / 100 if all(means) else None
        gpu_load15 = sum(mean.m15 for mean in means if mean) / 100 if all(means) else None
    users = () if snapshot is None else tuple(user.user for user in snapshot.users)
    jobs = () if snapshot is None else tuple(job.job for job in snapshot.jobs)
    yield (
        snapshot is not None,
        node.why or None,
        None if node.slurm is None else "+".join(node.slurm.states),
        one.cpus,
        one.cpus_used,
        one.cpus_free,
        loads[0],
        one.load,
        loads[2],
        None if snapshot is None else snapshot.cpu_cores,
        one.memory_mib,
        one.memory_used_mib,
        one.memory_free_mib,
        one.gpus,
        one.gpus_used,
        one.gpus_free,
        None if one.partial_gpus_idle else one.gpus_idle,
        gpu_load1,
        None if one.partial_gpu_load else one.gpu_load,
        gpu_load15,
        one.gpu_load_by or None,
        one.gpu_load_over_s or None,
        one.gpu_memory_mib,
        None if one.partial_gpu_memory else one.gpu_memory_used_mib,
        None if one.partial_gpu_memory else one.gpu_memory_free_mib,
        None if snapshot is None else snapshot.hidden_gpus,
        ",".join(users) or None,
        ",".join(map(str, jobs)) or None,
        " ".join(flagging.codes(flagging.flags(node, one))) or None,
    )


def _gpus(node: NodeLoad) -> Iterator[tuple[Value, ...]]:
    snapshot = node.snapshot
    if snapshot is None:
        return
    idle: dict[str, bool | None] = {}
    for held in node.held_gpus or ():
        idle[held.uuid] = idle.get(held.uuid) if held.idle is None else held.idle
    for gpu in snapshot.gpus:
        here = numbers.tasks_on(snapshot, gpu)
        load, activity, now = gpu.load_percent_windows, gpu.activity, gpu.load_percent_5min
        total, used = gpu.memory_total_mib, gpu.memory_used_mib
        yield (
            gpu.index,
            gpu.uuid,
            gpu.name,
            gpu.mig_of,
            None if load is None else load.m1 / 100,
            None if now is None else now / 100,
            None if load is None else load.m15 / 100,
            "sm" if gpu.sm_percent_windows is not None else "util" if now is not None else None,
            None if load is None else load.over_s,
            gpu.utilization_percent,
            activity.sm_percent,
            activity.occupancy_percent,
            activity.tensor_percent,
            activity.dram_percent,
            activity.fp64_percent,
            activity.fp32_percent,
            activity.fp16_percent,
            total,
            used,
            None if total is None or used is None else total - used,
            gpu.others_mib,
            gpu.clients,
            gpu.power_w,
            gpu.energy_j,
            gpu.temperature_c,
            ",".join(sorted({one.user for one in here})) or None,
            ",".join(map(str, sorted({one.job for one in here if one.job is not None}))) or None,
            idle.get(gpu.uuid),
            gpu.problem,
        )


def _processes(node: NodeLoad) -> Iterator[tuple[Value, ...]]:
    snapshot = node.snapshot
    if snapshot is None:
        return
    index = {gpu.uuid: gpu.index for gpu in snapshot.gpus}
    for one in snapshot.processes:
        start = (one.pid, one.name, one.user, one.uid, one.job, one.step, one.task, one.slot)
        end = (one.cap_mib, one.cpu_cores, one.memory_mib)
        for on in one.gpus:
            yield (*start, index.get(on.uuid), on.uuid, on.sm_percent, on.memory_mib, on.peak_mib, *end)
        if not one.gpus:
            yield (*start, *[None] * 5, *end)


def as_tsv(found: Iterable[Sequence[Value]]) -> Iterator[str]:
    """A line for each row; what would break a line or a field is written as an escape."""
    for row in found:
        yield "\t".join(terminal.safe(_text(value)) for value in row)


def as_csv(found: Iterable[Sequence[Value]]) -> Iterator[str]:
    """The same with commas and quotes; a text that a spreadsheet would calculate gets an apostrophe in front."""
    for row in found:
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow([_harmless(value) for value in row])
        yield line.getvalue()


def _harmless(value: Value) -> str:
    text = terminal.safe(_text(value))
    return f"'{text}" if isinstance(value, str) and text.lstrip().startswith(_FORMULA) else text


def _text(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (
        f"{value:.4g}"
        if isinstance(value, float) and abs(value) < 1000
        else f"{value:.1f}"
        if isinstance(value, float)
        else str(value)
    )
