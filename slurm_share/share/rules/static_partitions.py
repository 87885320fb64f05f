"""Decide whether the tasks of a GPU get static partitions of its multiprocessors (SM), `sm=static`, and explain it.

A partition is equal for all tasks of a GPU, and a daemon that has partitions serves no client without one. So the
choice is made once for all tasks of a job, before its daemons start. A user who asks for partitions is refused where
there can be none; where the site's default asks for them, the tasks share the SM evenly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ...core import names
from ...core.records import ShareRequest
from ...core.settings import Settings, parse_sm
from ...mps.records import EqualPartitions, GpuChunks
from ...node.records import Gpu
from ..records import Grant, Limits, PreparedGpus
from . import drivers

OPTION = f"{names.OPTION_SM}={names.SM_STATIC}"
"""The text with which a user asks for static partitions."""


def is_asked(share: ShareRequest | None) -> bool:
    """Return whether a user asks for static partitions, and so is refused where there are none."""
    return share is not None and share.sm == names.SM_STATIC


def is_wanted(share: ShareRequest, settings: Settings) -> bool:
    """Return whether a user asks for static partitions, or the site gives them to tasks that do not choose. One task on
    a GPU gains nothing by them."""
    return is_asked(share) or (share.sm is None and share.per_gpu > 1 and parse_sm(settings.sm) == names.SM_STATIC)


def why_not(gpus: Iterable[Gpu], share: ShareRequest, offer: Limits, settings: Settings) -> str | None:
    """Return why the tasks of the GPUs cannot have static partitions, as a sentence; None: the driver offers them."""
    if offer.why_no_partitions is not None:
        return f"{OPTION} {offer.why_no_partitions}"
    for gpu in gpus:
        if gpu.mig_parent or gpu.uuid.startswith("MIG-"):
            return f"{OPTION} divides whole GPUs, and GPU {gpu.index} is divided by MIG"
        if gpu.compute_capability is None:
            return f"the driver does not tell whether GPU {gpu.index} can have static partitions (compute capability)"
        if gpu.compute_capability < drivers.STATIC_CAPABILITY:
            major, minor = gpu.compute_capability
            return (
                f"{OPTION} needs compute capability {'.'.join(map(str, drivers.STATIC_CAPABILITY))} (Ampere) or newer, "
                f"and GPU {gpu.index} ({gpu.name}) has {major}.{minor}"
            )
    site = parse_sm(settings.sm)
    if isinstance(site, int) and site * share.per_gpu < 100:
        return (
            f"this site gives a task {site} % of a GPU at most (sm in its configuration), and one of "
            f"{share.per_gpu} static partitions is larger"
        )
    return None


def refused(why: str) -> str:
    """Return the reason of the refusal of a user who asked for static partitions."""
    return f"{why}; ask for {names.OPTION_SM}={names.SM_EVEN}"


def fallback(why: str) -> str:
    """Return the note of a job to which the site's default would give static partitions."""
    return f"the tasks share their GPU evenly, without static partitions, the default of this site ({OPTION}): {why}"


def undivided(grant: Grant, why: Mapping[str, str]) -> Iterator[str]:
    """Yield which GPUs are served without the static partitions that were wanted, and why."""
    for gpu in dict.fromkeys(grant.gpus):
        if gpu.uuid in why:
            yield f"GPU {gpu.index} has none: {why[gpu.uuid].rstrip('.')}"


def notes(grant: Grant, prepared: PreparedGpus) -> Iterator[str]:
    """Yield what the tasks got, one sentence for each kind of GPU: the SM of a task, and those in no partition."""
    kinds: dict[tuple[int, int, int, int], list[Gpu]] = {}
    for gpu in dict.fromkeys(grant.gpus):
        served = prepared.served.get(gpu.uuid)
        if served is not None and served.partitions is not None:
            of = served.partitions.of
            kind = (served.partitions.sm_count, of.total_sms, of.total_chunks, of.chunk_sms)
            kinds.setdefault(kind, []).append(gpu)
    if not kinds:
        return
    from ...mps.rules import partitions  # few shares need it

    for (sm_count, total_sms, total_chunks, chunk_sms), gpus in kinds.items():
        yield _success(grant, gpus, sm_count, total_sms - grant.partitions * sm_count, total_sms)
        better = partitions.better_counts(total_sms, total_chunks, chunk_sms, grant.partitions)
        if better:
            yield f"{' or '.join(map(str, better))} tasks on such a GPU would leave fewer of its SM idle"


def _success(grant: Grant, gpus: Sequence[Gpu], sm_count: int, idle: int, total_sms: int) -> str:
    numbers = ",".join(str(gpu.index) for gpu in gpus)
    fault = "; a fault of a task ends only that task" if grant.has_own_faults else ""
    return (
        f"static: {grant.partitions} task{'' if grant.partitions == 1 else 's'} on GPU {numbers} with {sm_count} SM "
        f"each; {idle} of {total_sms} SM are in nobody's partition{fault}"
    )


def name_of(found: EqualPartitions | None, turn: int) -> str | None:
    """Return the partition of a GPU's task number `turn`; None: the GPU has none for it."""
    return None if found is None or turn >= len(found.names) else found.names[turn]


def describe(chunks: GpuChunks) -> str:
    """Return how a GPU can be divided: its chunks, and the numbers of tasks that leave the fewest SM idle."""
    from ...mps.rules import partitions

    full = partitions.full_counts(chunks.total_sms, chunks.total_chunks, chunks.chunk_sms)
    idle = chunks.total_sms - chunks.total_chunks * chunks.chunk_sms
    return (
        f"{chunks.total_chunks} chunks of {chunks.chunk_sms} SM, {idle} of {chunks.total_sms} SM in none; "
        f"{', '.join(map(str, full))} tasks use all chunks"
    )
