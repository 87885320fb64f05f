"""Make the record of an ended job from the counters at its start and end, and from the driver's accounting mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ...node.gpus.counters import AccountedProcess
from ..note import NotedGpu, UseNote
from ..records import EnergyUse, GpuUse, JobUse
from .energy import COUNTER_LAG_S, MOST_W

WAS_RESET = "the GPU's energy counter was reset in the job's time (a GPU reset, or the driver was loaded anew)"
WAS_SHARED = (
    "other jobs had parts of the GPU in the same time, and only the node's agent can divide its energy (load_source = "
    '"agents", slurm-share agent)'
)
NO_END = "no Epilog noted the counter at the job's end"
NO_SAMPLES = "nobody measured it: slurm-share agent does, or the driver with gpu_accounting = true"


def job_use(note: UseNote) -> JobUse:
    """Return what the counters tell of a job on one node.

    The difference of a counter is the job's energy where nobody else had the GPU; elsewhere it is the device's only.
    """
    return JobUse(
        job=note.job,
        restarts=note.restarts,
        uid=note.uid,
        node=note.node,
        began=note.began,
        ended=note.ended,
        share=note.share,
        slots=note.slots,
        sharing=note.sharing,
        gpus=tuple(_gpu_use(gpu, note) for gpu in note.gpus),
    )


def with_accounted(use: JobUse, found: Mapping[str, Sequence[AccountedProcess] | str]) -> JobUse:
    """Return the record with the figures that the driver kept of the job's processes.

    `found`: by GPU, its processes that began in the job's time, or why they are not known. Of a GPU of which another
    job had a part they are nobody's: a pid of an ended process tells no job.
    """
    gpus = tuple(_with_accounted(gpu, found[gpu.uuid], use) if gpu.uuid in found else gpu for gpu in use.gpus)
    return replace(use, gpus=gpus)


def _gpu_use(gpu: NotedGpu, note: UseNote) -> GpuUse:
    held_s = None if note.ended is None else max(0.0, note.ended - note.began)
    is_shared = gpu.uuid in note.shared
    device_j, why = _device_j(gpu, held_s)
    unknown = dict.fromkeys(("utilization_percent", "memory_peak_mib"), NO_SAMPLES)
    if device_j is None:
        unknown |= dict.fromkeys(("energy", "device_j"), why)
    elif is_shared:
        unknown["energy"] = WAS_SHARED
    if held_s is None:
        unknown["held_s"] = NO_END
    return GpuUse(
        uuid=gpu.uuid,
        index=gpu.index,
        name=gpu.name,
        simulated=gpu.simulated,
        held_s=held_s,
        memory_total_mib=gpu.memory_total_mib,
        memory_cap_mib=gpu.memory_cap_mib,
        was_shared=is_shared,
        energy=None if device_j is None or is_shared else EnergyUse(joules=device_j),
        device_j=device_j,
        by={name: "hooks" for name in ("held_s", "energy", "device_j", "was_shared") if name not in unknown},
        unknown=unknown,
        memory_least_mib=gpu.memory_least_mib,
    )


def _device_j(gpu: NotedGpu, held_s: float | None) -> tuple[float | None, str]:
    """Return the difference of a GPU's counter in joules, and why it is None."""
    if gpu.begin_mj is None or gpu.end_mj is None or held_s is None:
        return None, f"the GPU's energy counter cannot be read: {gpu.problem}" if gpu.problem else NO_END
    joules = (gpu.end_mj - gpu.begin_mj) / 1000
    if not 0 <= joules <= MOST_W * (held_s + COUNTER_LAG_S):
        return None, WAS_RESET
    return joules, ""


def _with_accounted(gpu: GpuUse, found: Sequence[AccountedProcess] | str, use: JobUse) -> GpuUse:
    fields = ("utilization_percent", "memory_peak_mib")
    if gpu.was_shared:
        return replace(gpu, unknown=gpu.unknown | dict.fromkeys(fields, "other jobs had parts of the GPU"))
    if isinstance(found, str):
        why = f"the driver's accounting mode does not tell it: {found}"
        return replace(gpu, unknown=gpu.unknown | dict.fromkeys(fields, why))
    mine = [one for one in found if use.ended is None or one.began <= use.ended]
    at_once = _most_at_once(mine, use.ended)
    peaks = [one.memory_peak_mib for one in mine if one.memory_peak_mib is not None]
    if at_once > 1:
        together = f", {sum(peaks)} MiB together" if peaks and len(peaks) == len(mine) else ""
        why = f"{at_once} processes at once; the driver keeps the figures of each alone{together}"
        return replace(gpu, unknown=gpu.unknown | dict.fromkeys(fields, why))
    changes: dict[str, float | int] = {}
    if len(peaks) == len(mine):
        changes["memory_peak_mib"] = max(peaks, default=0)
    busy = [one.gpu_percent / 100 * one.seconds for one in mine if one.gpu_percent is not None and not one.runs]
    if gpu.held_s and len(busy) == len(mine):
        busy_s = min(sum(busy), gpu.held_s)
        changes |= {"utilization_percent": 100 * busy_s / gpu.held_s, "measured_s": gpu.held_s}
        changes["idle_s"] = gpu.held_s - busy_s
    by = {**gpu.by, **dict.fromkeys(changes, "driver")}
    unknown = {name: why for name, why in gpu.unknown.items() if name not in changes}
    return replace(gpu, **changes, by=by, unknown=unknown)


def _most_at_once(processes: Sequence[AccountedProcess], ended: float | None) -> int:
    """Return how many of these processes had a context at the same time, at most."""
    events = []
    for one in processes:
        end = one.began + one.seconds if not one.runs else max(one.began, ended or one.began)
        events += [(one.began, 1), (end, -1)]
    now = most = 0
    for _, step in sorted(events):
        now += step
        most = max(most, now)
    return most
