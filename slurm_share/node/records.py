"""Records of this machine: GPUs, their processes, cores and memory.

Units live in the names (`_mib` is 1,048,576 bytes). `None` means the source would not say; 0 means measured, and none.
msgspec.Struct and not dataclasses: they are made in C, and a Prolog pays for each record that it builds.
"""

from __future__ import annotations

from msgspec import Struct

from ..core.records import ProcessIdentity


class Gpu(Struct, frozen=True):
    """One GPU, or one MIG instance, as the driver lists it."""

    uuid: str
    index: int
    """NVML index; of a MIG instance, its parent's."""
    minor: int | None
    """The N of /dev/nvidiaN."""
    name: str
    memory_total_mib: int | None
    mig_parent: bool = False
    """True: MIG is on, work runs on the instances and not on this GPU itself."""
    simulated: bool = False
    is_listed: bool = True
    """False: there is no driver to ask, and `uuid` is the word of CUDA_VISIBLE_DEVICES for it."""


class Driver(Struct, frozen=True):
    """The NVIDIA driver of this node, and what it drives."""

    version: str
    """Such as 550.163.01."""
    gpus: tuple[Gpu, ...]
    """In NVML's order, MIG instances after their parent."""


class GpuProcess(Struct, frozen=True):
    """A process that the driver lists on a GPU."""

    pid: int
    memory_used_mib: int | None


class GpuReading(Struct, frozen=True):
    """One GPU at one moment."""

    gpu: Gpu
    memory_used_mib: int | None
    utilization_percent: int | None
    """Share of the last sampling period in which a kernel ran: an upper bound of how busy the GPU is."""
    processes: tuple[GpuProcess, ...]


class LiveJob(Struct, frozen=True):
    """A job that has a step on this node: its slurmstepd is there."""

    job_id: int
    uid: int | None
    """The user of its tasks; None: it has none at this moment."""
    without_task_s: float = 0.0
    """0: a slurmstepd of it has a process below it. Else none has, and the youngest of them is so old, seconds."""


class NodeProcess(Struct, frozen=True):
    """A process seen on a GPU, and whose it is."""

    identity: ProcessIdentity
    job_id: int | None
    """The job it belongs to, by its cgroup, its slurmstepd, or what its own environment says; None: no job's."""
    is_own_claim: bool = False
    """True: only its environment says so, which its user can write."""


class Core(Struct, frozen=True):
    """One core of a machine."""

    cpus: tuple[int, ...]
    """The operating system's CPU numbers of its hardware threads, in rising order."""
    socket: int = 0
    numa: int = 0
    """The kernel's NUMA node of its first CPU."""


class Room(Struct, frozen=True):
    """The memory of one GPU, or of the host, and the tasks that are in it. MiB."""

    total_mib: int
    used_mib: int
    """By anybody."""
    tasks_mib: tuple[int, ...] = ()
    """What each running task of ours has of it now."""
