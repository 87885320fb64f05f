"""The nouns of a share: plain frozen values that readers answer in and decisions are made of.

Units live in the names (`_mib` is 1,048,576 bytes). `None` means the source would not say; 0 means measured, and none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SmChoice = int | Literal["even", "free"]
"""The share of a GPU's streaming multiprocessors a task may use: percent, an even part, or no cap."""


@dataclass(frozen=True, slots=True)
class ShareRequest:
    """What a user wrote after --share-gpu."""

    per_gpu: int
    """Tasks on each GPU, the N."""
    mem_mib: int | None = None
    """GPU memory of one task; None: an even part."""
    sm: SmChoice | None = None
    mps: bool | None = None
    """None: with MPS where the node has it."""


@dataclass(frozen=True, slots=True)
class JobContext:
    """A job on this node, as slurmd describes it to a hook."""

    job_id: int
    uid: int
    gid: int
    node: str
    granted: tuple[str, ...]
    """The job's GPUs here in Slurm's words: device numbers, GPU- or MIG- UUIDs (since 25.11)."""
    share: ShareRequest | None
    """None: an ordinary job."""
    share_problem: str | None = None
    """Why a share value that came along was not understood."""
    restart_count: int | None = None
    user: str | None = None
    partition: str | None = None
    sluid: str | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
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


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that the driver lists on a GPU."""

    pid: int
    memory_used_mib: int | None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one moment."""

    gpu: Gpu
    memory_used_mib: int | None
    utilization_percent: int | None
    """Share of the last sampling period in which a kernel ran: an upper bound of how busy the GPU is."""
    processes: tuple[GpuProcess, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """One task's place on a GPU."""

    number: int
    """0 to slots-1 on this node; slot i is on GPU i mod G."""
    gpu: Gpu
    part: int
    """Which of the plan's equal parts of the job's cores this slot runs on."""
    memory_cap_mib: int | None
    """None: one task has the GPU to itself."""
    memory_fraction: str | None
    """The cap as a decimal fraction of the whole GPU, for frameworks that take one of the total."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The decision about one job on one node."""

    job: JobContext
    share: ShareRequest
    gpus: tuple[Gpu, ...]
    slots: tuple[Slot, ...]
    cores: tuple[tuple[int, ...], ...]
    """The machine's cores in Slurm's order, each as its operating system CPU numbers."""
    notes: tuple[str, ...] = ()
    """Sentences for the job's output, each said once."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a job's tasks do not run as shares on this node: a sentence for its user."""

    job: JobContext
    sentence: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """One environment variable of a task."""

    name: str
    value: str
    unless_set: bool = False
    """True: a value that the user gave wins."""


@dataclass(frozen=True, slots=True)
class PlanSlot:
    """One slot line of a plan file."""

    number: int
    part: int
    environment: tuple[Assignment, ...]


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A plan as it stands in its file: what the plugin and the launcher carry out."""

    job_id: int
    uid: int
    node: str
    refused: str | None = None
    share: ShareRequest | None = None
    gpus: int = 0
    cores: tuple[tuple[int, ...], ...] = ()
    notes: tuple[str, ...] = ()
    slots: tuple[PlanSlot, ...] = ()


@dataclass(frozen=True, slots=True)
class LedgerJob:
    """A shared job that this node knows of."""

    job_id: int
    uid: int
    share: str
    """Canonical option text."""
    gpus: tuple[str, ...]
    """UUIDs, in the order Slurm granted them."""
    slots: int
    since: float
    """Unix time of the Prolog, seconds."""
    restart_count: int | None = None
    user: str | None = None
    partition: str | None = None
    sluid: str | None = None


@dataclass(frozen=True, slots=True)
class Ledger:
    """Who is on the node, since this boot."""

    boot_id: str
    jobs: tuple[LedgerJob, ...] = ()
