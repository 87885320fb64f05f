"""Which GPUs a job was granted, and which slot goes where."""

from __future__ import annotations

from collections.abc import Sequence

from ..records import Gpu, JobContext, ShareRequest, Slot
from ..settings import Settings
from .limits import memory_cap_mib, memory_fraction, thread_percent


def granted_gpus(granted: Sequence[str], gpus: Sequence[Gpu]) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """Slurm's words for the job's GPUs -> the GPUs, in Slurm's order, and the words that name none.

    A number is the N of the /dev/nvidiaN that gres.conf lists, i.e. the driver's minor number; where the driver does
    not tell those, it is NVML's index. A UUID names a GPU or a MIG instance.
    """
    found: list[Gpu] = []
    unknown: list[str] = []
    for word in granted:
        gpu = next((g for g in gpus if _is_named(g, word)), None)
        if gpu is None or gpu in found:
            unknown.append(word)
        else:
            found.append(gpu)
    return tuple(found), tuple(unknown)


def _is_named(gpu: Gpu, word: str) -> bool:
    if not word.isdigit():
        return gpu.uuid == word
    if gpu.uuid.startswith("MIG-"):
        return False
    return (gpu.index if gpu.minor is None else gpu.minor) == int(word)


def is_part(job: JobContext) -> bool:
    """Whether Slurm gave the job 1/N of one GPU, as gres/shard, rather than the whole of it.

    A hook is not told of shards. job_submit.lua turns `--gres=gpu:1 -n1` into them, and takes care that no other share
    with one GPU has -n1; srun alone is the exception, since its step asks for the very GPU that was written.
    """
    return (
        job.share is not None
        and job.share.per_gpu > 1
        and job.tasks == 1
        and job.nodes in (None, 1)
        and len(job.granted) == 1
        and job.exclusive == "user"
        and not job.direct
    )


def slots(gpus: Sequence[Gpu], share: ShareRequest, settings: Settings, *, is_part: bool = False) -> tuple[Slot, ...]:
    """N x G slots, slot i on GPU i mod G: the first G tasks of a job find an empty GPU each. Of a part: one."""
    if is_part:
        return (_slot(0, gpus, share, settings),)
    return tuple(_slot(number, gpus, share, settings) for number in range(len(gpus) * share.per_gpu))


def _slot(number: int, gpus: Sequence[Gpu], share: ShareRequest, settings: Settings) -> Slot:
    turn, place = divmod(number, len(gpus))
    cap_mib = memory_cap_mib(gpus[place], share, settings)
    return Slot(
        number=number,
        gpu=gpus[place],
        # Tasks of one GPU get neighbouring cores: GPUs and cores are both numbered along the sockets.
        part=place * share.per_gpu + turn,
        memory_cap_mib=cap_mib,
        memory_fraction=memory_fraction(gpus[place], cap_mib),
        thread_percent=thread_percent(share, settings),
    )
