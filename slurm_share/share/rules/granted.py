"""Find the GPUs that a job or a launcher was granted, as Slurm or CUDA names them, and whether it has a part of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...core import names, numbers
from ...core.errors import shown
from ...node.records import Gpu
from ...slurm.records import JobContext

NO_GPUS = ("", "NoDevFiles")
"""The values that name no GPU. Slurm writes NoDevFiles for a gres without device files (gres_common.c)."""
INDEX_UNDER_MPS = "0"
"""CUDA_VISIBLE_DEVICES of a task with `gpu_ids = "index"`: its GPU among those of its MPS daemon."""
_NO_MORE = "-1"
"""The end of a list: CUDA stops at the first invalid number, for which users write -1."""


def visible_devices(environ: Mapping[str, str]) -> str | None:
    """Return CUDA_VISIBLE_DEVICES as the driver numbers the GPUs; None: it is not set.

    Inside a task with `gpu_ids = "index"` it is the UUID of the task's GPU: the number 0 there counts the GPUs of its
    MPS daemon, and would name another one for a program that does not use that daemon.
    """
    visible = environ.get(names.ENV_VISIBLE_DEVICES)
    own = environ.get(names.ENV_GPU_UUID)
    return own if own and visible == INDEX_UNDER_MPS and environ.get(names.ENV_MPS) == names.MPS_ON else visible


def granted_gpus(granted: Sequence[str], gpus: Sequence[Gpu]) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """Return the GPUs that Slurm granted a job, in Slurm's order, and the entries that name no GPU.

    A number is the N of /dev/nvidiaN in gres.conf, i.e. the driver's minor number; if the driver does not tell it,
    NVML's index. A UUID names a GPU or a MIG instance. A GPU that does not answer (`problem`) is found by elimination:
    its UUID and its minor number are not known, and NVML's order need not be that of the minor numbers.
    """
    found: list[Gpu] = []
    unknown: list[str] = []
    for device in granted:
        gpu = next((g for g in gpus if _is_device(g, device)), None) or _silent(device, gpus, found)
        if gpu is None or gpu in found:
            unknown.append(device)
        else:
            found.append(gpu)
    return tuple(found), tuple(unknown)


def _is_device(gpu: Gpu, device: str) -> bool:
    if gpu.problem is not None:
        return False
    number = numbers.whole(device)
    if number is None:
        return gpu.uuid == device or (gpu.mig_place is not None and device == f"MIG-{gpu.mig_place}")
    if gpu.uuid.startswith("MIG-"):
        return False
    return (gpu.index if gpu.minor is None else gpu.minor) == number


def _silent(device: str, gpus: Sequence[Gpu], found: Sequence[Gpu]) -> Gpu | None:
    """Return a GPU that does not answer, for a UUID or number that no other GPU has; None: there is none left.

    If several do not answer, a number is first of all the index of one of them.
    """
    silent = [gpu for gpu in gpus if gpu.problem is not None and gpu not in found]
    number = numbers.whole(device)
    if number is not None:
        is_possible = number <= max((gpu.index for gpu in gpus), default=-1)
        return next((gpu for gpu in silent if gpu.index == number), next(iter(silent), None)) if is_possible else None
    if not device.startswith("GPU-") or any(gpu.uuid.startswith(device) for gpu in gpus):
        return None
    return next(iter(silent), None)


def whole_node(job: JobContext, gpus: Sequence[Gpu], count: int | None) -> tuple[str, ...] | None:
    """Return all GPUs of the node for a job that has the whole node; None: it has not, or Slurm may know of other GPUs
    than the driver. `count`: the number of GPUs in slurm.conf."""
    usable = [gpu for gpu in gpus if not gpu.mig_parent]
    if job.exclusive != "node" or count != len(usable):
        return None
    return tuple(gpu.uuid if gpu.problem is None else str(gpu.index) for gpu in usable)


def of_numbers(
    job: JobContext, gpus: Sequence[Gpu], count: int | None, given: Sequence[int], known: Sequence[int]
) -> tuple[str, ...] | None:
    """Return the job's GPUs for the numbers that the controller has `known`; None: they are not certain.

    given: the numbers of `job.granted`, which slurmd gave the Prolog. The controller must know these, too, unless they
    may be those of another node.

    Slurm counts the GPUs and MIG instances of a node in the order in which the driver lists them. Without MIG a number
    is that of the device. With MIG the number of GPUs in slurm.conf (`count`) and the UUIDs that slurmd gave must fit.
    """
    devices = dict(zip(given, job.granted, strict=False)) if job.has_sure_gpus else {}
    if job.has_sure_gpus and (len(given) != len(job.granted) or not devices.keys() <= set(known)):
        return None
    usable = [gpu for gpu in gpus if not gpu.mig_parent]
    if not any(gpu.uuid.startswith("MIG-") for gpu in usable):
        return tuple(devices.get(number, str(number)) for number in known)
    listed = dict(enumerate(usable))
    if count != len(usable) or any(
        numbers.whole(device) is None and listed[number].uuid != device
        for number, device in devices.items()
        if number in listed and listed[number].problem is None
    ):
        return None
    if not set(known) <= listed.keys():
        return None
    return tuple(devices.get(number, listed[number].uuid) for number in known)


def visible_gpus(visible: str | None, gpus: Sequence[Gpu] | None) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names, in its order; without the variable, all that can run work.

    `gpus`: the driver's list as this process sees it, to which a number is an index: under ConstrainDevices the driver
    lists only the job's GPUs, numbered from 0. None: there is no driver, and every entry is kept as it is. GPUs that do
    not answer (`problem`) are among the result.

    Raises ValueError for an entry that names none of them.
    """
    if visible is None:
        return tuple(gpu for gpu in gpus or () if not gpu.mig_parent)
    found: list[Gpu] = []
    for device in [] if visible.strip() in NO_GPUS else visible.replace(" ", "").split(","):
        if device == _NO_MORE:
            break
        gpu = unlisted(device) if gpus is None else _visible(device, gpus) or _silent(device, gpus, found)
        if gpu is None:
            listed = ", ".join(f"{one.index} ({one.uuid})" for one in gpus or ()) or "none"
            raise ValueError(f"CUDA_VISIBLE_DEVICES names GPU {shown(device)}, and the driver shows the job {listed}")
        found.append(gpu)
    return tuple(found)


def _visible(device: str, gpus: Sequence[Gpu]) -> Gpu | None:
    number = numbers.whole(device)
    if number is not None:
        whole = [gpu for gpu in gpus if not gpu.uuid.startswith("MIG-")]
        return whole[number] if len(device) < 4 and number < len(whole) else None
    # CUDA accepts a prefix of a UUID if it is unique.
    found = [gpu for gpu in gpus if gpu.uuid.startswith(device)]
    found = found or [gpu for gpu in gpus if gpu.mig_place is not None and device == f"MIG-{gpu.mig_place}"]
    return found[0] if len(found) == 1 and device.startswith(("GPU-", "MIG-")) else None


def unlisted(device: str) -> Gpu:
    """Return the record of a GPU that no driver lists: it has only its entry in CUDA_VISIBLE_DEVICES."""
    return Gpu(device, 0, None, "", None, is_listed=False)


def is_part(job: JobContext) -> bool:
    """Return whether Slurm gave the job 1/N of one GPU, as gres/shard.

    A hook is not told about shards. job_submit.lua turns `--gres=gpu:1 -n1` into shards, and ensures that no other
    share with one GPU has -n1. srun without an allocation is the exception: its step requests the GPU itself.
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
