"""The use of nodes and GPUs by a job: the records that are kept after its end, and from which reports are made.

A job has one `JobUse` for each node and start. Whoever measures writes the part that he knows: the launcher of a run
(its tasks and their GPUs), the agent of the node (all processes of the job), the hooks (counters at the job's start and
end), the driver's accounting mode, Slurm's accounts. `by` of a record names the source of each figure; `rules/` of this
package merge records of several sources.

Names carry the unit: `_mib` is 1,048,576 bytes, `_s` seconds, `_j` joules, percent 0 to 100. `None` means not known;
then `unknown` of the same record has the reason under the field's name. 0 means measured, and none.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ..core.records import Amount, Count, Level, Moment, NodeName, Reasons

VERSION = 1
"""Version of all files, answers and comments with these records. It rises when a field changes its meaning or is
removed, not when one is added. A reader refuses a newer one in a sentence."""

Source = Literal["launcher", "agent", "driver", "hooks", "cgroup", "sacct", "prometheus"]
"""Who measured a figure. launcher: llsub's, once a second. agent: the node's, every 5 s. driver: NVML's accounting
mode, which keeps figures of ended processes. hooks: counters that Prolog and Epilog noted. cgroup: the kernel's, of the
job. sacct: Slurm's accounts. prometheus: a site's Prometheus with the agents' metrics."""
Sources = dict[str, Source]
"""Field of a record -> who measured it."""
EnergyRule = Literal["counter", "sm time", "equal parts", "power"]
"""The rule by which energy was divided. counter: nobody else was on the GPU, so the difference of its counter is exact.
sm time: the idle part in equal parts, the rest by each process's SM time. equal parts: all in equal parts, as the
driver does not tell SM time. power: there is no counter, or it was reset: mean power times time, divided as above."""


class EnergyUse(Struct, frozen=True, gc=False, kw_only=True):
    """The energy of one GPU that one job or task is charged with."""

    joules: Level
    idle_j: Level = 0.0
    """The part of `joules` that is its part of the GPU's idle power."""
    rule: EnergyRule = "counter"
    """The least exact one that made up at least a hundredth of `joules`."""


class GpuUse(Struct, frozen=True, gc=False, kw_only=True):
    """The use of one GPU or MIG instance by one job, or one attempt at a task."""

    uuid: str
    index: Count | None = None
    """NVML index on its node."""
    name: str = ""
    simulated: bool = False
    held_s: Level | None = None
    """Seconds for which it had the GPU: the job's time on the node, or the attempt's."""
    measured_s: Level | None = None
    """For how much of that there are samples. The means below are over this time."""
    utilization_percent: Level | None = None
    """Mean part of the time in which a kernel of anybody ran."""
    sm_percent: Level | None = None
    """Mean SM activity of the GPU, by anybody (GPM)."""
    dram_percent: Level | None = None
    """Mean use of the memory's bandwidth, by anybody (GPM)."""
    own_sm_percent: Level | None = None
    """Mean SM time of its own processes (nvmlDeviceGetProcessUtilization)."""
    memory_total_mib: Amount | None = None
    memory_peak_mib: Amount | None = None
    """The most that its own processes had at once."""
    memory_cap_mib: Amount | None = None
    """The most that a task of it may have; None: no cap."""
    memory_booked_mib: Amount | None = None
    """In a packed run: what was booked at its start."""
    idle_s: Level | None = None
    """Seconds of `measured_s` in which none of its processes was on the GPU or none of their kernels ran."""
    idle_longest_s: Level | None = None
    """The longest of these times without a break."""
    was_shared: bool | None = None
    """Whether processes of others (another job or, of a task, another task) were on it at the same time."""
    energy: EnergyUse | None = None
    device_j: Level | None = None
    """Energy of the whole GPU in that time, whoever used it."""
    by: Sources = {}
    unknown: Reasons = {}
    memory_least_mib: Amount | None = None
    """The guaranteed part of `memory_cap_mib`, of a task with a range (mem=8G:20G); None: it has none."""


class TaskUse(Struct, frozen=True, gc=False, kw_only=True):
    """The use by one attempt at a task of a run, or by a Slurm task in its slot."""

    task: Count
    attempt: Count = 1
    step: str = ""
    """Step of the task: 0, 1, batch; empty: a task of a run of llsub."""
    outcome: str = ""
    """As in results.jsonl (`triples.Outcome`); empty: a task of Slurm's, or not known."""
    slot: Count | None = None
    began: Moment | None = None
    seconds: Level | None = None
    cpu_s: Level | None = None
    memory_peak_mib: Amount | None = None
    """Host memory."""
    gpus: tuple[GpuUse, ...] = ()
    by: Sources = {}
    unknown: Reasons = {}


class GpuEnergy(Struct, frozen=True, gc=False, kw_only=True):
    """The energy of one GPU, and the part of it that is nobody's.

    Nobody's: no process was on the GPU, or only processes of none of the jobs that are known.
    """

    uuid: str
    unattributed_j: Level
    total_j: Level
    """The counter's difference over the same time. Charged energy and `unattributed_j` add up to it."""
    measured_s: Level | None = None
    """Seconds that these figures cover: from the first sample to the last one."""
    short_j: Level = 0.0
    """The part of a run that was charged to tasks of less than a second, whose results have no energy."""
    idle_w: Level | None = None
    """Its idle power, which is divided in equal parts; None: not known, and nothing is divided so."""
    notes: tuple[str, ...] = ()
    """Sentences that a reader of these figures should know: resets, missing counters, unknown idle power."""


class JobUse(Struct, frozen=True, gc=False, kw_only=True):
    """The use by one start of a job on one node."""

    version: int = VERSION
    job: Count
    """Slurm's number; of an array's element its own."""
    restarts: Count | None = None
    uid: Count
    node: NodeName
    began: Moment | None = None
    ended: Moment | None = None
    """None: it still runs."""
    measured_s: Level | None = None
    """For how much of its time there are samples. Less than all: whoever measured came later, or was away."""
    share: Count | None = None
    """N of --share-gpu=N; None: no share, or not known."""
    slots: Count | None = None
    sharing: str | None = None
    """How its tasks shared their GPUs: mps, time-slicing, exclusive or mig. None: no share, or not known."""
    cpus: Count | None = None
    cpu_s: Level | None = None
    """CPU time of all its processes."""
    cpu_wait_s: Level | None = None
    """Time in which some of its processes waited for a CPU (the cgroup's cpu.pressure, `some`)."""
    io_wait_s: Level | None = None
    """Time in which some of its processes waited for storage (io.pressure, `some`)."""
    memory_limit_mib: Amount | None = None
    memory_peak_mib: Amount | None = None
    memory_kills: Count | None = None
    gpus: tuple[GpuUse, ...] = ()
    tasks: tuple[TaskUse, ...] = ()
    others: tuple[GpuEnergy, ...] = ()
    by: Sources = {}
    unknown: Reasons = {}


class GpuSeries(Struct, frozen=True, gc=False, kw_only=True):
    """One GPU of a job over time. Every list has an entry for each point of `UseSeries.at`; None: not known."""

    uuid: str
    load_percent: list[Level | None] = []
    """SM activity if known, else utilisation, of the whole GPU."""
    memory_mib: list[Amount | None] = []
    """Memory of the job's own processes at each point."""
    power_w: list[Level | None] = []
    tasks: list[Count | None] = []
    """Processes of the job with a context on it."""


class UseSeries(Struct, frozen=True, gc=False, kw_only=True):
    """A job on one node over its whole life, for plots. It has at most `POINTS` points: when they are used up, two
    neighbours become one, so that a job of a month costs no more than one of an hour."""

    version: int = VERSION
    job: Count
    restarts: Count | None = None
    uid: Count
    node: NodeName
    every_s: Level
    """Seconds between two points."""
    at: list[Moment] = []
    """The end of the time for which each point stands."""
    cpu_cores: list[Level | None] = []
    memory_mib: list[Amount | None] = []
    rate_per_s: list[Level | None] = []
    """Rate of the tasks of llsub together."""
    gpus: list[GpuSeries] = []


POINTS = 720
"""Most points of a series: one each 5 s for an hour, one each 2 minutes for a day. A plot is not wider."""
