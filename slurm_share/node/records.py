"""Records of this machine: GPUs, their processes, cores and memory.

Names end in units (`_mib` is 1,048,576 bytes). `None` means unknown; 0 is a measured zero. The records are
msgspec.Struct instead of dataclasses, because a Prolog creates many and msgspec does that in C.
"""

from __future__ import annotations

from msgspec import Struct

from ..core.records import ProcessIdentity


class Gpu(Struct, frozen=True):
    """One GPU or MIG instance, as listed by the driver."""

    uuid: str
    index: int
    """NVML index; of a MIG instance: the index of its parent."""
    minor: int | None
    """N of /dev/nvidiaN."""
    name: str
    memory_total_mib: int | None
    """None: the driver does not report it. A reported 0 is unknown, too: no GPU has 0 bytes."""
    mig_parent: bool = False
    """True: MIG is on, and work runs on the instances instead of this GPU."""
    simulated: bool = False
    is_listed: bool = True
    """False: there is no driver, and `uuid` is the GPU's entry in CUDA_VISIBLE_DEVICES."""
    is_host_memory: bool = False
    """True: unified memory. The GPU has none of its own, and `memory_total_mib` is the node's MemTotal."""
    problem: str | None = None
    """Why the driver does not answer for this GPU, such as: GPU is lost. Then only its index is known."""
    compute_capability: tuple[int, int] | None = None
    """(8, 0) of an A100, as in CUDA's tables; None: the driver does not tell, or a plan does not hold it."""
    mig_place: str | None = None
    """Of a MIG instance: UUID of the parent/GPU instance/compute instance, which stands behind MIG- in the names of
    drivers before 470; None: not told, or a plan does not hold it."""


class Driver(Struct, frozen=True):
    """The NVIDIA driver of this node and its GPUs."""

    version: str
    """For example 550.163.01."""
    gpus: tuple[Gpu, ...]
    """In NVML's order, MIG instances after their parent. Those that do not answer have a `problem`."""


class GpuProcess(Struct, frozen=True):
    """A process that the driver lists on a GPU."""

    pid: int
    memory_used_mib: int | None


class GpuReading(Struct, frozen=True):
    """Memory, utilisation and processes of one GPU at one moment."""

    gpu: Gpu
    memory_used_mib: int | None
    utilization_percent: int | None
    """Percentage of the last sampling period in which a kernel ran: an upper bound of SM activity."""
    processes: tuple[GpuProcess, ...]


class LiveJob(Struct, frozen=True):
    """A job that has a slurmstepd on this node."""

    job_id: int
    uid: int | None
    """User of its tasks; None: no task runs now."""
    without_task_s: float = 0.0
    """Seconds without a task: 0 if a slurmstepd of the job has a child, else the age of the youngest slurmstepd."""


class NodeProcess(Struct, frozen=True):
    """A process on a GPU, with its job."""

    identity: ProcessIdentity
    job_id: int | None
    """The job that its cgroup, its slurmstepd or its environment names; None: no job."""
    is_own_claim: bool = False
    """True: only its environment names the job. The user can write that, so it is a claim and no proof."""


class Core(Struct, frozen=True):
    """One core of a machine."""

    cpus: tuple[int, ...]
    """The operating system's CPU numbers of its hardware threads, in rising order."""
    socket: int = 0
    numa: int = 0
    """NUMA node of its first CPU, as numbered by the kernel."""


class MemoryLimit(Struct, frozen=True):
    """The most host memory that a job can use on a node."""

    mib: int
    is_machine: bool = False
    """True: it is the machine's memory, and no cgroup has less."""


class MemoryUse(Struct, frozen=True):
    """Memory of one GPU or of the host, in MiB: all of it, the part in use, and the parts of our tasks."""

    total_mib: int
    used_mib: int
    """Used by all processes."""
    tasks_mib: tuple[int, ...] = ()
    """Present use of each of our running tasks."""
