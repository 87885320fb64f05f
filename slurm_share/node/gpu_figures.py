"""A GPU's figures: one record from the reader to the screen.

The reader (`gpus/load.py`) fills what is known of one moment. `load/rules/fold.py` adds what needs a past, or the
processes' owners: windows, users, clients. A Snapshot has the same record. A new metric is a line here, in GpuLoad, or
in Activity for a GPM counter; one over windows has a line in GpuWindows as well. JSON, Prometheus, demonstration and
what other users may see follow from the `Metric` at the field. Names in JSON that differ are the first release's.

Units are in the names. None means that nobody could say, and `unknown` of the same record then has the reason under the
field's name in JSON; 0 means measured, and none.
"""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

from msgspec import Struct, field

from ..core.metric import WINDOWS, Metric, measured
from ..core.records import Amount, Count, Level, Moment, Reasons


class Means(Struct, frozen=True, gc=False):
    """Means over the last 1, 5 and 15 minutes, each over as much of that time as was measured; and over 10 minutes,
    where these were measured."""

    m1: Level
    m5: Level
    m15: Level
    over_s: Level
    """How long has been measured, at most 900 s: below 60 all three are the same young figure."""
    m10: Level | None = None
    """None: less than 9 of the last 10 minutes were measured. What idle GPUs are judged by (`load/rules/idle.py`)."""


class Activity(Struct, frozen=True, gc=False, kw_only=True):
    """What the parts of a GPU did since the sample before, in percent (NVML's GPM counters, Hopper and newer)."""

    sm_percent: Annotated[Level | None, Metric("Multiprocessors with work.", demo=100.0)] = field(
        default=None, name="sm"
    )
    """How busy the GPU is. Utilisation is an upper bound of it."""
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
    """The figures of a GPU that are kept over time: as `Means` where they are shown, as readings where they are
    collected. `X_windows` is of the field X of GpuLoad or its Activity."""

    utilization_percent_windows: Annotated[
        Window | None, Metric("Utilisation over 1, 5, 10 and 15 minutes.", "utilization_mean_ratio")
    ] = field(default=None, name="utilization")
    sm_percent_windows: Annotated[
        Window | None, Metric("SM activity over 1, 5, 10 and 15 minutes (GPM).", "sm_mean_ratio")
    ] = field(default=None, name="sm")
    """None where the driver has no GPM for this GPU."""
    dram_percent_windows: Annotated[
        Window | None, Metric("Memory bandwidth over 1, 5, 10 and 15 minutes (GPM).", exported=False)
    ] = field(default=None, name="dram")
    """None where the driver has no GPM for this GPU."""


class GpuUser(GpuWindows[Means], frozen=True, gc=False, kw_only=True):
    """A user's time on one GPU: since the user came, if nobody else has been there alone since. None: the user has just
    come, or the GPU's own figure is None."""

    uid: Count


class GpuBooking(Struct, frozen=True, gc=False, kw_only=True):
    """What one run that packs its tasks (`llsub --pack`) has booked of one GPU."""

    uid: Count
    job: Count | None = None
    """Slurm's number; None: the run is outside of Slurm."""
    booked_mib: Count = 0
    """For all its tasks there: at least what they use, and what they are expected to."""
    tasks: Count = 0
    clients: Count = 0
    """CUDA processes of these tasks."""
    held_for: Count | None = None
    """The task for which the run keeps the GPU free; None: it does not."""
    held_since: Moment | None = None
    """Unix time, seconds; None: not told."""


class GpuLoad(GpuWindows[Means], frozen=True, gc=False, kw_only=True):
    """One GPU, or one MIG instance, and what it carries."""

    uuid: str
    index: Count
    """NVML's; of an instance, its parent's."""
    name: str
    minor: Count | None = None
    """The N of /dev/nvidiaN."""
    mig_parent: bool = False
    """True: MIG is on; memory and load of its instances are in records of their own, and not counted twice in sums."""
    mig_of: str | None = None
    """UUID of the GPU that a MIG instance is on; None: not an instance."""
    simulated: bool = False
    memory_total_mib: Annotated[Amount | None, Metric("Memory of the GPU.", seen="all")] = None
    memory_used_mib: Annotated[
        Amount | None, Metric("Memory in use on the GPU, the driver's own included.", seen="free")
    ] = None
    """All processes', and what the driver takes for them."""
    booked_mib: Annotated[Amount | None, Metric("Memory that packed runs have booked on the GPU.")] = None
    """The sum of `bookings`; None: no booking is known."""
    bookings: tuple[GpuBooking, ...] = ()
    """Of the runs that pack tasks there, as far as their files may be read; in a user's view the user's own."""
    utilization_percent: Annotated[
        Level | None, Metric("Share of the driver's last period with a kernel.", seen="free")
    ] = None
    """Now: share of the driver's last sampling period in which some kernel ran, an upper bound of SM activity."""
    activity: Activity = Activity()
    power_w: Annotated[Level | None, Metric("Power drawn now.", seen="free")] = None
    energy_j: Annotated[Level | None, Metric("Energy since the driver was loaded.", counter=True)] = None
    temperature_c: Annotated[Amount | None, Metric("Temperature.", seen="free")] = None
    clients: Annotated[Count | None, Metric("Processes with a context on the GPU.", seen="free")] = None
    """Processes with a context on it; in a user's view the user's own."""
    others_mib: Amount = 0
    """Memory of processes that the one who looks is not shown."""
    users: tuple[GpuUser, ...] = ()
    """Who is on it, or was the last in 15 minutes; in a user's view the user alone."""
    unused_s: Annotated[Level | None, Metric("How long no process has been on the GPU, at most 900.")] = None
    """How long no process has been on it, of the time that was measured, at most 900 s. None: one is on it now, or the
    driver does not list processes; in a user's view also where a GPU has not been free for 10 minutes."""
    problem: str | None = None
    """Why it is not to be used, such as: GPU is lost."""
    unknown: Reasons = {}

    @property
    def load_percent_windows(self) -> Means | None:
        """SM activity where it is known, else utilisation."""
        return self.sm_percent_windows or self.utilization_percent_windows

    @property
    def load_percent_5min(self) -> float | None:
        """The load over 5 minutes; where only now is known, now."""
        windows = self.load_percent_windows
        return windows.m5 if windows is not None else self.utilization_percent

    @property
    def load_percent(self) -> float | None:
        """The load now: SM activity where it is known, else utilisation."""
        return self.activity.sm_percent if self.activity.sm_percent is not None else self.utilization_percent


class Windowed(Struct, frozen=True):
    """A figure that is kept over time."""

    windows: str
    """Field of GpuWindows."""
    json: str
    """Its name in JSON."""
    figure: str
    """Field of GpuLoad or of Activity, with the figure now."""
    of_activity: bool
    unknown: tuple[str, ...]
    """Where `unknown` has the reason for which there is no figure."""

    def now(self, gpu: GpuLoad) -> float | None:
        """Return the figure as it is now."""
        value: float | None = getattr(gpu.activity if self.of_activity else gpu, self.figure)
        return value


def _windowed() -> tuple[Windowed, ...]:
    of_activity = {one.name: one.json for one in measured(Activity)}
    found = []
    for one in measured(GpuWindows):
        figure = one.name.removesuffix(WINDOWS)
        unknown = ("activity", f"activity.{of_activity[figure]}") if figure in of_activity else (figure,)
        found.append(Windowed(one.name, one.json, figure, figure in of_activity, unknown))
    return tuple(found)


WINDOWED = _windowed()
"""The fields of GpuWindows."""
