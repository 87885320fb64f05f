"""Plans for tests: decided as hooks and launchers decide them, or written down whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from slurm_share.core.records import ShareRequest
from slurm_share.core.settings import Settings
from slurm_share.node.records import Gpu
from slurm_share.share.records import (
    Grant,
    MpsOffer,
    Plan,
    Prepared,
    Refusal,
    Slot,
)
from slurm_share.share.rules import allocation
from slurm_share.slurm.records import JobContext


def decided(
    job: JobContext,
    gpus: Sequence[Gpu],
    offer: MpsOffer = MpsOffer(48),  # noqa: B008  (frozen)
    settings: Settings = Settings(),  # noqa: B008  (frozen)
    *,
    cores: tuple[tuple[int, ...], ...] = ((0,),),
    processes: int | None = None,
    directories: Mapping[str, str] | None = None,
    failures: Mapping[str, str] | None = None,
    on_gpu: int | None = None,
) -> Plan | Refusal | None:
    """The decision about a job that comes to a node, or about so many processes of a launcher.

    directories, failures: what became of each GPU's daemon; None: no daemon was started.
    """
    if processes is None:
        grant = allocation.admit(job, gpus, offer, settings)
    else:
        grant = allocation.grant(job, gpus, offer, settings, processes=processes)
    if not isinstance(grant, Grant):
        return grant
    prepared = Prepared(dict(directories or {}), dict(failures or {}))
    return allocation.decide(grant, prepared, settings, cores=cores, on_gpu=on_gpu)


def plain_plan(
    job_id: int = 4711, uid: int = 2001, node: str = "n1", slots: int | tuple[Slot, ...] = 1, **changes: object
) -> Plan:
    """A plan on one GPU, without MPS."""
    gpu = Gpu("GPU-0", 0, 0, "H100", 81920)
    if isinstance(slots, int):
        slots = tuple(Slot(number, gpu, number) for number in range(slots))
    return replace(Plan(job_id, uid, node, ShareRequest(len(slots)), (gpu,), slots, ((0,),)), **changes)
