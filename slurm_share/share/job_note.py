"""Note the GPUs of a job that begins: for the record of what it uses (usage/note.py), and for exporters."""

from __future__ import annotations

import time
from collections.abc import Mapping

from msgspec.structs import replace

from ..core.errors import DriverError
from ..core.paths import Paths
from ..core.settings import Settings
from ..node.gpus import driver as nvml
from ..node.records import Gpu
from ..slurm import hook_env
from ..slurm.records import JobContext
from ..usage import gpu_jobs, note
from . import hook, ledger_file, option
from .records import Plan
from .rules import environment, granted

WHO = "prolog"


def begin_share(job: JobContext, plan: Plan, paths: Paths, settings: Settings, *, is_part: bool) -> None:
    """Note the GPUs of a shared job with the memory caps of its plan. Never raises for the job's sake."""
    caps = {slot.gpu.uuid: (slot.enforced_cap_mib, slot.memory_least_mib) for slot in plan.slots}
    gpus = tuple(_noted(gpu, *caps.get(gpu.uuid, (None, None))) for gpu in plan.gpus)
    share = plan.share.per_gpu
    made = _note(job, gpus, share=share, slots=len(plan.slots), is_part=is_part)
    sharing = "+".join(sorted({environment.sharing_method(slot, share) for slot in plan.slots}))
    _begin(replace(made, sharing=sharing or None), paths, settings)


def begin_ordinary(environ: Mapping[str, str], paths: Paths, settings: Settings) -> None:
    """Note the GPUs of a job that does not share. Raises HookEnvError for an environment that is not slurmd's.

    Of a job with gres/shard others may have the rest of its GPU, and slurmd does not tell which jobs these are.
    """
    job = hook_env.read(environ, option.parse)
    if job.share is not None or not job.granted:
        return
    try:
        found, _ = granted.granted_gpus(job.granted, nvml.read_driver().gpus)
    except DriverError as error:
        hook.report(WHO, f"job {job.job_id}: {error}: what it uses of its GPUs is not recorded")
        return
    gpus = tuple(_noted(gpu, None) for gpu in found if gpu.problem is None)
    _begin(_note(job, gpus, is_part=True), paths, settings)


def tell_exporters(environ: Mapping[str, str], paths: Paths, settings: Settings) -> None:
    """Write that the job in `environ` has its GPUs, for the exporters that the site names (usage/gpu_jobs.py).

    A plan has all GPUs of its job; slurmd tells those of one type only. Raises HookEnvError for an environment that is
    not slurmd's, StateError for a damaged plan.
    """
    job = hook_env.read(environ, option.parse)
    if not job.granted:
        return
    plan = ledger_file.read_plan(paths, job.job_id)
    if isinstance(plan, Plan):
        gpus = plan.gpus
    else:
        try:
            gpus, _ = granted.granted_gpus(job.granted, hook.ask_driver(nvml.read_driver).gpus)
        except DriverError as error:
            hook.report(WHO, f"job {job.job_id}: {error}: exporters are not told who has its GPUs")
            return
    gpu_jobs.begin(
        job.job_id,
        job.uid,
        gpus,
        (settings.job_mapping_folder, settings.gpustat_folder),
        paths.root,
        ledger_file.read_boot_id(),
        lambda text: hook.report(WHO, text),
    )


def _note(
    job: JobContext,
    gpus: tuple[note.NotedGpu, ...],
    *,
    share: int | None = None,
    slots: int | None = None,
    is_part: bool = False,
) -> note.UseNote:
    return note.UseNote(
        job=job.job_id,
        restarts=job.restart_count,
        uid=job.uid,
        gid=job.gid,
        node=job.node,
        nodes=job.nodes,
        node_list=job.node_list or "",
        is_batch=job.is_batch,
        share=share,
        slots=slots,
        is_part=is_part,
        began=time.time(),
        gpus=gpus,
    )


def _begin(made: note.UseNote, paths: Paths, settings: Settings) -> None:
    note.begin(made, paths.root, accounting=settings.gpu_accounting, say=lambda text: hook.report(WHO, text))


def _noted(gpu: Gpu, cap_mib: int | None, least_mib: int | None = None) -> note.NotedGpu:
    return note.NotedGpu(
        uuid=gpu.uuid,
        index=gpu.index,
        name=gpu.name,
        simulated=gpu.simulated,
        memory_total_mib=None if gpu.is_host_memory else gpu.memory_total_mib,
        memory_cap_mib=cap_mib,
        memory_least_mib=least_mib,
    )
