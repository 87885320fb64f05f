"""All figures of a GPU: one record from the reader to the screen.

The reader (`gpus/load.py`) fills in what it knows at one moment. `load/rules/fold.py` adds what needs earlier samples
or the processes' owners: windows, users, clients. A Snapshot holds the same record. A new metric is one line here: in
GpuLoad, or in Activity for a GPM counter; a metric over windows also has a line in GpuWindows. JSON, Prometheus, the
demonstration and what other users may see follow from the field's `Metric`. Some names in JSON differ: they are those
of the first release.

Names end in units. None means unknown; then `unknown` of the same record holds the reason, under the field's name in
JSON. 0 is a measured zero.
"""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

from msgspec import Struct, field

from ..core.metric import WINDOWS, Metric, measured
from ..core.records import Amount, Count, Level, Moment, Reasons


class Means(Struct, frozen=True, gc=False):
    """Means over the last 1, 5, 15 and, if measured, 10 minutes, each over the part of that time that was measured."""

    m1: Level
    m5: Level
    m15: Level
    over_s: Level
    """Measured time, at most 900 s. Below 60 the first three are the same."""
    m10: Level | None = None
    """None: less than 9 of the last 10 minutes were measured. Used to find idle GPUs (`load/rules/idle.py`)."""


class Activity(Struct, frozen=True, gc=False, kw_only=True):
    """Activity of the parts of a GPU since the previous sample, in percent (NVML's GPM counters, Hopper and newer)."""

    sm_percent: Annotated[Level | None, Metric("Multiprocessors with work.", demo=100.0)] = field(
        default=None, name="sm"
    )
    """SM activity. Utilisation is an upper bound of it."""
    occupancy_percent: Annotated[Level | None, Metric("Warps resident, of those that fit.", demo=45.0)] = field(
        default=None, name="occupancy"
    )
    tensor_percent: Annotated[Level | None, Metric("Tensor cores.", demo=30.0)] = field(default=None, name="tensor")
    dram_percent: Annotated[Level | None, Metric("Memory bandwidth.")] = field(default=None, name="dram")
    fp64_percent: Annotated[Level | None, Metric("FP64 units.", demo=0.0)] = field(default=None, name="fp64")
    fp32_percent: Annotated[Level | None, Metric("FP32 units.", demo=20.0)] = field(default=None, name="fp32")
    fp16_percent: Annotated[Level | None, Metric("FP16 units.", demo=35.0)] = field(default=None, name="fp16")


Window = TypeVar("Window")


class GpuWindows(Struct, Generic[Window], frozen=True, gc=False, kw_only=True):
    """Figures of a GPU that are kept over time: `Means` to show, readings to collect. `X_windows` belongs to the field
    X of GpuLoad or its Activity."""

    utilization_percent_windows: Annotated[
        Window | None, Metric("Utilisation over 1, 5, 10 and 15 minutes.", "utilization_mean_ratio")
    ] = field(default=None, name="utilization")
    sm_percent_windows: Annotated[
        Window | None, Metric("SM activity over 1, 5, 10 and 15 minutes (GPM).", "sm_mean_ratio")
    ] = field(default=None, name="sm")
    """None: the driver has no GPM for this GPU."""
    dram_percent_windows: Annotated[
        Window | None, Metric("Memory bandwidth over 1, 5, 10 and 15 minutes (GPM).", exported=False)
    ] = field(default=None, name="dram")
    """None: the driver has no GPM for this GPU."""


class GpuUser(GpuWindows[Means], frozen=True, gc=False, kw_only=True):
    """A user's time on one GPU, since the user came or last shared it with another user. None: too short, or the GPU's
    own figure is None."""

    uid: Count


class GpuBooking(Struct, frozen=True, gc=False, kw_only=True):
    """The bookings of one packed run (`llsub --pack`) on one GPU."""

    uid: Count
    job: Count | None = None
    """Slurm's job id; None: the run is outside of Slurm."""
    booked_mib: Count = 0
    """For all its tasks there: the larger of what they use and what they are expected to use."""
    tasks: Count = 0
    clients: Count = 0
    """CUDA processes of these tasks."""
    held_for: Count | None = None
    """Task for which the run keeps the GPU free; None: it does not."""
    held_since: Moment | None = None
    """Unix time, seconds; None: unknown."""


class GpuLoad(GpuWindows[Means], frozen=True, gc=False, kw_only=True):
    """Figures of one GPU or MIG instance and what runs on it."""

    uuid: str
    index: Count
    """NVML index; for an instance, its parent's."""
    name: str
    minor: Count | None = None
    """N of /dev/nvidiaN."""
    mig_parent: bool = False
    """True: MIG is on. The instances have records of their own, so that sums count memory and load once."""
    mig_of: str | None = None
    """UUID of the GPU of a MIG instance; None: not an instance."""
    simulated: bool = False
    memory_total_mib: Annotated[Amount | None, Metric("Memory of the GPU.", seen="all")] = None
    is_host_memory: bool = False
    """True: unified memory. The GPU has none of its own; `memory_total_mib` is the node's MemTotal."""
    memory_used_mib: Annotated[
        Amount | None, Metric("Memory in use on the GPU, the driver's own included.", seen="free")
    ] = None
    """All processes' memory, and the driver's own."""
    booked_mib: Annotated[Amount | None, Metric("Memory that packed runs have booked on the GPU.")] = None
    """Sum of `bookings`; None: no booking is known."""
    bookings: tuple[GpuBooking, ...] = ()
    """Bookings of the packed runs there, as far as their files are readable; a user sees only their own."""
    utilization_percent: Annotated[
        Level | None, Metric("Share of the driver's last period with a kernel.", seen="free")
    ] = None
    """Part of the driver's last sampling period in which a kernel ran: an upper bound of SM activity."""
    activity: Activity = Activity()
    power_w: Annotated[Level | None, Metric("Power drawn now.", seen="free")] = None
    energy_j: Annotated[Level | None, Metric("Energy since the driver was loaded.", counter=True)] = None
    temperature_c: Annotated[Amount | None, Metric("Temperature.", seen="free")] = None
    clients: Annotated[Count | None, Metric("Processes with a context on the GPU.", seen="free")] = None
    """Processes with a context on it; a user sees only their own."""
    mps_servers: Annotated[Count | None, Metric("MPS servers on the GPU.", seen="free")] = None
    """Servers of MPS among `clients`."""
    others_mib: Amount = 0
    """Memory of processes that this reader may not see."""
    users: tuple[GpuUser, ...] = ()
    """Users on it now or in the last 15 minutes; a user sees only themselves."""
    unused_s: Annotated[Level | None, Metric("How long no process has been on the GPU, at most 900.")] = None
    """Seconds without any process on it, of the measured time, at most 900. None: a process runs now, or the driver
    does not list processes; for a user also if the GPU has been free for less than 10 minutes."""
    unattributed_energy_j: Annotated[
        Level | None, Metric("Energy of the GPU that no job is charged with, since the agent watches.", counter=True)
    ] = None
    """Its energy while nobody was on it, or only processes of no job; None: no agent, or it counts no energy."""
    problem: str | None = None
    """Why it cannot be used, such as: GPU is lost."""
    unknown: Reasons = {}

    @property
    def load_percent_windows(self) -> Means | None:
        """SM activity if known, else utilisation."""
        return self.sm_percent_windows or self.utilization_percent_windows

    @property
    def load_percent_5min(self) -> float | None:
        """Load over 5 minutes; the current load if only that is known."""
        windows = self.load_percent_windows
        return windows.m5 if windows is not None else self.utilization_percent

    @property
    def load_percent(self) -> float | None:
        """Current load: SM activity if known, else utilisation."""
        return self.activity.sm_percent if self.activity.sm_percent is not None else self.utilization_percent


class WindowedFigure(Struct, frozen=True):
    """A figure that is kept over time."""

    windows: str
    """Name of the field of GpuWindows."""
    json: str
    """Name in JSON."""
    figure: str
    """Name of the field of GpuLoad or Activity with the current value."""
    of_activity: bool
    unknown: tuple[str, ...]
    """Keys of `unknown` that may hold the reason for a missing value."""

    def now(self, gpu: GpuLoad) -> float | None:
        """Return the current value."""
        value: float | None = getattr(gpu.activity if self.of_activity else gpu, self.figure)
        return value


def _windowed() -> tuple[WindowedFigure, ...]:
    of_activity = {one.name: one.json for one in measured(Activity)}
    found = []
    for one in measured(GpuWindows):
        figure = one.name.removesuffix(WINDOWS)
        unknown = ("activity", f"activity.{of_activity[figure]}") if figure in of_activity else (figure,)
        found.append(WindowedFigure(one.name, one.json, figure, figure in of_activity, unknown))
    return tuple(found)


WINDOWED = _windowed()
"""All figures of GpuWindows."""
