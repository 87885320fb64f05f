"""The GPU of a rank, or its part of one, from the variables that Slurm and slurm-share set for a task."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from . import collectives
from .comm_base import CommBase

ENV_VISIBLE = "CUDA_VISIBLE_DEVICES"
ENV_UUID = "SLURM_SHARE_GPU_UUID"
ENV_PER_GPU = "SLURM_SHARE_PER_GPU"
ENV_SLOT = "SLURM_SHARE_SLOT"
ENV_SHARING = "SLURM_SHARE_SHARING"
ENV_MEM_LIMIT = "SLURM_SHARE_MEM_LIMIT"
ENV_SIMULATED = "SLURM_SHARE_SIMULATED"
ENV_MPS_MEMORY = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
ENV_MPS_THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_NO_GPU = ("", "-1", "NoDevFiles")
_CAP = re.compile(r"(\d{1,9})([KMG]?)B?", re.ASCII)


class GpuShare(NamedTuple):
    """The GPUs of a rank, and its part of them. None: not known."""

    devices: tuple[str, ...]
    """Entries of CUDA_VISIBLE_DEVICES, in its order: UUIDs, or numbers that count the GPUs that the task may open."""
    uuids: tuple[str, ...] | None
    """UUIDs of these GPUs or MIG instances; None: the entries are numbers, which two tasks may use for unlike GPUs."""
    sharing: str | None = None
    """mps, time-slicing, exclusive (it is alone there) or mig (alone on an instance); None: it has no slot."""
    slot: int | None = None
    """The task's slot on its node (SLURM_SHARE_SLOT)."""
    per_gpu: int | None = None
    """Slots of the job on each GPU."""
    memory_cap_mib: int | None = None
    """Cap of the task's memory on the GPU, where MPS is told it."""
    memory_limit: str | None = None
    """The part that enforces the cap: driver, mps or none."""
    sm_percent: float | None = None
    """Part of the multiprocessors that the task may use at most."""
    is_simulated: bool = False

    @property
    def uuid(self) -> str | None:
        """UUID of the first GPU, which is device 0 in the program."""
        return self.uuids[0] if self.uuids else None


def read_share(environ: Mapping[str, str]) -> GpuShare | None:
    """Return the GPU share of the process with this environment; None: it has no GPU."""
    visible = environ.get(ENV_VISIBLE, "")
    devices = tuple(filter(None, (one.strip() for one in visible.split(","))))
    if not devices or visible in _NO_GPU:
        return None
    told = environ.get(ENV_UUID)
    uuids: tuple[str, ...] | None = None
    if all(one.startswith(("GPU-", "MIG-")) for one in devices):
        uuids = devices
    elif told and len(devices) == 1:
        uuids = (told,)
    return GpuShare(
        devices,
        uuids,
        environ.get(ENV_SHARING),
        _number(environ.get(ENV_SLOT)),
        _number(environ.get(ENV_PER_GPU)),
        _cap_mib(environ.get(ENV_MPS_MEMORY, "")),
        environ.get(ENV_MEM_LIMIT),
        _percent(environ.get(ENV_MPS_THREADS)),
        environ.get(ENV_SIMULATED) == "1",
    )


class GpuCalls(CommBase):
    """Calls about the GPUs of ranks."""

    @property
    def gpu(self) -> GpuShare | None:
        """GPU share of this rank; None: CUDA_VISIBLE_DEVICES names no GPU. Local; it reads the environment only."""
        return read_share(os.environ)

    def gpu_neighbours(self) -> tuple[int, ...] | None:
        """Return the other ranks of this node that have a GPU of this rank, too. Collective.

        None: this rank's GPUs are not known by UUID. A rank whose UUIDs are not known is nobody's neighbour.
        """
        mine = self.gpu
        uuids = None if mine is None else mine.uuids
        answers = collectives.allgather(self.group, uuids, "gpu_neighbours")
        if uuids is None:
            return () if mine is None else None
        near = (rank for rank in self.group.node_ranks if rank != self.rank)
        return tuple(rank for rank in near if not set(uuids).isdisjoint(answers[rank] or ()))


def _number(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"\d{1,9}", text, re.ASCII) else None


def _cap_mib(text: str) -> int | None:
    """Return the cap of device 0, which `0=8192M` names, in MiB."""
    for entry in text.split(","):
        device, _, size = entry.partition("=")
        found = _CAP.fullmatch(size.strip())
        if device.strip() == "0" and found is not None:
            number = int(found[1])
            return {"K": number >> 10, "M": number, "G": number << 10, "": number >> 20}[found[2]]
    return None


def _percent(text: str | None) -> float | None:
    return float(text) if text and re.fullmatch(r"\d{1,3}(\.\d{1,9})?", text, re.ASCII) else None
