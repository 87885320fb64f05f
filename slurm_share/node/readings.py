"""What one reading of a node contains: the raw values between the readers and `load/rules/fold.py`, which makes a
Snapshot of them and of what was seen before. Counters are as the source has them, since the process, the job or the
boot began.

Units and unknowns are those of `snapshot.py`.
"""

from __future__ import annotations

from msgspec import Struct

from ..core.records import Reasons
from .gpu_figures import GpuBooking, GpuLoad
from .progress_figures import RunProgress, TaskProgress
from .records import GpuProcess


class ProcessSm(Struct, frozen=True):
    """What nvmlDeviceGetProcessUtilization says of one process."""

    pid: int
    sm_percent: float
    """Percent of the time, 0 to 100."""


class GpuNow(GpuLoad, frozen=True, kw_only=True):
    """A GPU's figures at one moment, with who was on it. What needs a past or the processes' owners is still None;
    `activity` is since the sample before."""

    processes: tuple[GpuProcess, ...] | None = None
    """None: the driver would not list them."""
    process_sm: tuple[ProcessSm, ...] | None = None
    """Only of processes that used the GPU since the sample before; None: not told here."""


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
    """CPU time since it was started, threads and not children."""
    memory_mib: int | None = None
    """Resident."""
    own_mib: int | None = None
    """Resident and not shared with a file or another process."""
    job: int | None = None
    is_own_claim: bool = False
    """True: only its environment names the job, which its user can write."""
    step: str | None = None
    task: int | None = None
    task_key: str = ""
    """What it has in common with the other processes of its task, and with nobody else in the job."""
    slot: int | None = None
    slots: int | None = None
    share: int | None = None
    cap_mib: int | None = None
    connections: int | None = None
    """CUDA_DEVICE_MAX_CONNECTIONS; None: it is not set."""
    progress: TaskProgress | None = None
    """Of the task that it belongs to; None: its launcher says nothing of it, or it has none."""
    unknown: Reasons = {}


class JobNow(Struct, frozen=True, kw_only=True):
    """A job of this node at one moment."""

    job: int
    uid: int
    user: str
    cpu_s: dict[str, float] | None = None
    """CPU time by source, each a counter of its own: the job's cgroup, or each of its steps. None: not told."""
    memory_mib: int | None = None
    memory_kills: int | None = None
    unknown: Reasons = {}


class BookingNow(Struct, frozen=True):
    """What a run that packs tasks has booked of one GPU."""

    gpu: str
    """UUID."""
    booking: GpuBooking


class HostNow(Struct, frozen=True, kw_only=True):
    """The kernel's side of a node at one moment."""

    boot_id: str
    taken: float
    """Unix time, seconds."""
    at: float
    """Seconds on the kernel's monotonic clock: nobody sets it, and it goes on over our own restart."""
    cpus: int
    cores: int
    load: tuple[float, float, float] | None = None
    busy_s: float | None = None
    """CPU time of all CPUs since the boot, idle and stolen time left out."""
    memory_total_mib: int | None = None
    memory_used_mib: int | None = None
    processes: tuple[ProcessNow, ...] = ()
    hidden: tuple[int, ...] = ()
    """Requested pids that exist and cannot be read (hidepid)."""
    jobs: tuple[JobNow, ...] = ()
    bookings: tuple[BookingNow, ...] = ()
    """Of the users who have processes or jobs here, as far as their files may be read."""
    runs: tuple[RunProgress, ...] = ()
    """What the launchers of these users say of their tasks, as far as their files may be read."""
    unknown: Reasons = {}
