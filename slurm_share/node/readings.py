"""One reading of a node: raw values, from which `load/rules/fold.py` and earlier readings make a Snapshot.

Counters are as the source has them, from the start of the process, job or node. Units and unknown values are as in
`snapshot.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from ..core.records import Reasons, SharingMethod
from .cgroups import NO_GROUP, GroupUse
from .gpu_figures import GpuBooking, GpuLoad
from .progress_figures import RunProgress, TaskProgress
from .records import GpuProcess


class ProcessSm(Struct, frozen=True):
    """Use of the multiprocessors by one process (nvmlDeviceGetProcessUtilization)."""

    pid: int
    sm_time_percent: float
    """Percent of the time, 0 to 100."""


class GpuNow(GpuLoad, frozen=True, kw_only=True):
    """Figures of a GPU and its processes at one moment. Fields that need earlier readings or the processes' owners are
    None; `activity` is since the previous sample."""

    processes: tuple[GpuProcess, ...] | None = None
    """None: the driver did not list them."""
    process_sm: tuple[ProcessSm, ...] | None = None
    """Only processes that used the GPU since the previous sample; None: unknown."""


class EnergyNow(Struct, frozen=True, gc=False):
    """The energy of a GPU at one moment."""

    energy_j: float | None
    """Since the driver was loaded; None: the driver does not tell."""
    power_w: float | None


class DriverNow(Struct, frozen=True, kw_only=True):
    """The NVIDIA driver at one moment."""

    version: str | None = None
    """None: there is no driver, or it does not answer; `problems` says which."""
    gpus: tuple[GpuNow, ...] = ()
    problems: tuple[str, ...] = ()


class ProcessNow(Struct, frozen=True, kw_only=True):
    """A process on a GPU, as the kernel describes it at one moment."""

    pid: int
    start_ticks: int
    name: str
    uid: int
    user: str
    cpu_s: float
    """CPU time since its start, including its threads but not its children."""
    memory_mib: int | None = None
    """Resident memory."""
    own_mib: int | None = None
    """Resident memory that is not shared with a file or another process."""
    job: int | None = None
    is_own_claim: bool = False
    """True: only its environment, which its user can write, names the job."""
    step: str | None = None
    task: int | None = None
    task_key: str = ""
    """Key that all processes of its task share, and no other process of the job."""
    slot: int | None = None
    slots: int | None = None
    share: int | None = None
    sharing: SharingMethod | None = None
    """How its task shares its GPU."""
    cap_mib: int | None = None
    connections: int | None = None
    """CUDA_DEVICE_MAX_CONNECTIONS; None: not set."""
    in_advance: tuple[str, ...] | None = None
    """The libraries of the process that take most of a GPU's memory at their start: JAX, TensorFlow. Empty: none, or
    its variables turn that off. None: not known."""
    progress: TaskProgress | None = None
    """Progress of its task; None: its launcher reports none, or it has no launcher."""
    unknown: Reasons = {}


class JobNow(Struct, frozen=True, kw_only=True):
    """A job of this node at one moment."""

    job: int
    uid: int
    user: str
    cpu_s: dict[str, float] | None = None
    """CPU time by source, each a separate counter: the job's cgroup, or each of its steps. None: unknown."""
    llload_s: dict[str, float] = {}
    """The part of `cpu_s` that is of steps of llload, which only look at the job, each a separate counter."""
    memory_mib: int | None = None
    """Without the steps of llload."""
    memory_kills: int | None = None
    """Without the steps of llload."""
    use: GroupUse = GroupUse(unknown=dict.fromkeys(("cpu_wait_s", "io_wait_s", "memory_limit_mib"), NO_GROUP))
    unknown: Reasons = {}


class HostNow(Struct, frozen=True, kw_only=True):
    """The kernel's facts of a node at one moment."""

    boot_id: str
    taken: float
    """Unix time, seconds."""
    at: float
    """Seconds on the kernel's monotonic clock: cannot be set, and continues over our restarts."""
    cpus: int
    cores: int
    load: tuple[float, float, float] | None = None
    busy_s: float | None = None
    """CPU time of all CPUs since boot, without idle and stolen time."""
    memory_total_mib: int | None = None
    memory_used_mib: int | None = None
    processes: tuple[ProcessNow, ...] = ()
    hidden: tuple[int, ...] = ()
    """Requested pids that exist but cannot be read (hidepid)."""
    jobs: tuple[JobNow, ...] = ()
    bookings: Mapping[str, Sequence[GpuBooking]] = {}
    """UUID of a GPU -> its bookings, of users who have processes or jobs here, as far as their files are readable."""
    runs: tuple[RunProgress, ...] = ()
    """Progress reported by the launchers of these users, as far as their files are readable."""
    unknown: Reasons = {}
