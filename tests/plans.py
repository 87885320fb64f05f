"""Plans for tests: decided as hooks and launchers decide them, or written out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from slurm_share.core.records import ShareRequest
from slurm_share.core.settings import Settings
from slurm_share.node.records import Gpu
from slurm_share.share.records import (
    BACKEND_MPS,
    DriverCaps,
    Grant,
    Plan,
    PreparedGpu,
    PreparedGpus,
    Refusal,
    Slot,
)
from slurm_share.share.rules import allocation, drivers
from slurm_share.slurm.records import JobContext
from slurm_share.testing import offers_of


def decided(
    job: JobContext,
    gpus: Sequence[Gpu],
    mps: Mapping[str, object] | None = None,
    settings: Settings = Settings(),  # noqa: B008  (frozen)
    *,
    cores: tuple[tuple[int, ...], ...] = ((0,),),
    processes: int | None = None,
    directories: Mapping[str, str] | None = None,
    failures: Mapping[str, str] | None = None,
    on_gpu: int | None = None,
) -> Plan | Refusal | None:
    """Return the decision about a job that comes to a node, or about so many processes of a launcher. mps: the node's
    MPS, as testing.offers_of takes it. directories, failures: the result of starting each GPU's daemon; None: no daemon
    was started."""
    offers = offers_of(job.share, settings, **(mps or {}))
    if processes is None:
        grant = allocation.admit(job, gpus, offers, settings)
    else:
        grant = allocation.grant(job, gpus, offers, settings, processes=processes)
    if not isinstance(grant, Grant):
        return grant
    if directories:  # also of one task alone, which would not ask for a daemon
        grant = replace(grant, backend=BACKEND_MPS)
    served = {gpu: PreparedGpu(mps_directory=directory) for gpu, directory in (directories or {}).items()}
    prepared = PreparedGpus(served, dict(failures or {}))
    enforces = drivers.offers(str((mps or {}).get("driver")), drivers.MEMORY_LIMITS)
    caps = DriverCaps(frozenset(gpu.uuid for gpu in gpus)) if enforces else DriverCaps()
    return allocation.decide(grant, prepared, settings, cores=cores, on_gpu=on_gpu, caps=caps)


def plain_plan(
    job_id: int = 4711, uid: int = 2001, node: str = "n1", slots: int | tuple[Slot, ...] = 1, **changes: object
) -> Plan:
    """Return a plan on one GPU, without MPS."""
    gpu = Gpu("GPU-0", 0, 0, "H100", 81920)
    if isinstance(slots, int):
        slots = tuple(Slot(number, gpu, number) for number in range(slots))
    return replace(Plan(job_id, uid, node, ShareRequest(len(slots)), (gpu,), slots, ((0,),)), **changes)
