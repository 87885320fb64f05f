"""The nouns of load: what one node carries at one moment (Snapshot), and what a person looks at (Survey).

Command, dashboard, agent, JSON, recording and replay all have these records and no others. Their JSON is described in
`packaging/docs/snapshot.md`; SCHEMA counts up when a field changes its meaning or goes, not when one is added.

Units live in the names (`_mib` is 1,048,576 bytes, `_s` seconds, percent is 0 to 100). `None` means that nobody could
say, and `unknown` of the same record then has the reason under the field's name; 0 means measured, and none.

`gc=False`: values of values cannot make a cycle, and a collector that walks through half a million of them stops the
dashboard's keys for a third of a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from ..core.errors import StateError
from ..core.records import Amount, Count, Level, Moment, NodeName, Reasons
from ..node.records import Activity
from ..slurm.records import QueuedJob, SlurmNode

SCHEMA = 1

SourceName = Literal["srun", "local", "agent", "prometheus", "replay", "demo"]
"""How a snapshot reached the one who looks at it."""


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


class GpuUser(Struct, frozen=True, gc=False, kw_only=True):
    """A user's time on one GPU: since the user came, if nobody else has been there alone since. None: the user has just
    come, or the GPU's own figure is None."""

    uid: Count
    utilization: Means | None = None
    """Percent."""
    sm: Means | None = None
    """SM activity, percent."""
    dram: Means | None = None
    """Memory bandwidth, percent."""


class GpuLoad(Struct, frozen=True, gc=False, kw_only=True):
    """One GPU, or one MIG instance, and what it carries."""

    uuid: str
    index: Count
    """NVML's; of an instance, its parent's."""
    name: str
    minor: Count | None = None
    mig_parent: bool = False
    """True: MIG is on; memory and load of its instances are in records of their own, and not counted twice in sums."""
    mig_of: str | None = None
    """Of an instance: its GPU's UUID."""
    simulated: bool = False
    memory_total_mib: Amount | None = None
    memory_used_mib: Amount | None = None
    """All processes', and what the driver takes for them."""
    utilization_percent: Level | None = None
    """Now: share of the driver's last sampling period in which some kernel ran, an upper bound of SM activity."""
    utilization: Means | None = None
    """Percent."""
    sm: Means | None = None
    """SM activity, percent; None where the driver has no GPM for this GPU."""
    dram: Means | None = None
    """Memory bandwidth, percent, over the same windows; None where the driver has no GPM for this GPU."""
    activity: Activity = Activity()
    power_w: Level | None = None
    energy_j: Level | None = None
    """Since the driver was loaded."""
    temperature_c: Amount | None = None
    clients: Count | None = None
    """Processes with a context on it; in a user's view the user's own."""
    others_mib: Amount = 0
    """Memory of processes that the one who looks is not shown."""
    users: tuple[GpuUser, ...] = ()
    """Who is on it, or was the last in 15 minutes; in a user's view the user alone."""
    unused_s: Level | None = None
    """How long no process has been on it, of the time that was measured, at most 900 s. None: one is on it now, or the
    driver does not list processes; in a user's view also where a GPU has not been free for 10 minutes."""
    problem: str | None = None
    """Why it is not to be used, such as: GPU is lost."""
    unknown: Reasons = {}

    @property
    def load(self) -> Means | None:
        """Percent: SM activity where it is known, else utilisation."""
        return self.sm or self.utilization

    @property
    def load5(self) -> float | None:
        """Percent, over 5 minutes; where only now is known, now."""
        return self.load.m5 if self.load is not None else self.utilization_percent


class GpuSums(Struct, frozen=True, gc=False, kw_only=True):
    """All GPUs of a node in one, instances in the place of a GPU in MIG mode: what a source that was asked for a line
    per node may have instead of `gpus`."""

    count: Count
    memory_total_mib: Amount | None = None
    memory_used_mib: Amount | None = None
    load5: Level | None = None
    """Over 5 minutes; 2.0 is two GPUs fully busy."""
    load_by: Literal["sm", "util", "both", ""] = ""
    """What the load rests on: SM activity, utilisation, some of each, nothing."""
    partial: bool = False
    """True: some GPU did not say, and a sum here is without it."""
    fullest: Level | None = None
    """Of the GPU with the least memory left, how much of it is in use: 1.0 is all."""
    unusable: Count = 0
    """GPUs that have a `problem`."""
    simulated: bool = False


class OnGpu(Struct, frozen=True, gc=False, kw_only=True):
    """What one process has on one GPU."""

    uuid: str
    memory_mib: Amount | None = None
    peak_mib: Amount | None = None
    """The most that was seen since it came."""
    sm_percent: Level | None = None
    """Share of the time in which its kernels ran (nvmlDeviceGetProcessUtilization)."""


class ProcessLoad(Struct, frozen=True, gc=False, kw_only=True):
    """A process that the driver lists on a GPU, as compute, graphics or MPS client."""

    pid: Count
    start_ticks: Count | None = None
    """Field 22 of /proc/PID/stat: with the pid, this process and no later one."""
    name: str
    uid: Count
    user: str
    job: Count | None = None
    """Slurm's number; None: in no job."""
    step: str | None = None
    """0, 1 ..., batch, interactive, extern."""
    task: Count | None = None
    """Its number in its step, over all nodes of the step."""
    slot: Count | None = None
    """Of a share: its place among the tasks of the node."""
    gpus: tuple[OnGpu, ...] = ()
    cap_mib: Amount | None = None
    """Most GPU memory that MPS lets it have; None: no cap, or not told."""
    connections: Count | None = None
    """CUDA_DEVICE_MAX_CONNECTIONS of its environment; None: it is not set, or not told."""
    cpu_cores: Level | None = None
    """CPU time since the sample before: 1.5 is one and a half cores."""
    memory_mib: Amount | None = None
    """Host memory, resident."""
    unknown: Reasons = {}


class JobLoad(Struct, frozen=True, gc=False, kw_only=True):
    """A job on this node: the sum of what is in its cgroup and on its GPUs."""

    job: Count
    uid: Count
    user: str
    share: Count | None = None
    """N of --share-gpu=N; None: no share, or not told."""
    slots: Count | None = None
    """Of its share on this node; of a triple, its NPPN."""
    tasks: Count = 0
    """Tasks with a process on a GPU now."""
    gpus: tuple[str, ...] = ()
    """UUIDs it has processes on."""
    gpu_memory_mib: Amount | None = None
    gpu_load: Level | None = None
    """Of the load of the GPUs that it is on, its part: 2.0 is two GPUs fully busy. The mean over 5 minutes as a GPU has
    it, since the job came; of a GPU with others on it, as the driver divides SM time."""
    cpu_cores: Level | None = None
    cpu: Means | None = None
    """Cores used."""
    memory_mib: Amount | None = None
    """Host memory without page cache."""
    memory_kills: Amount | None = None
    """Processes that the kernel ended because the job's memory was full."""
    task_peak_mib: Amount | None = None
    """The most GPU memory that one task was seen with, tasks that have ended included."""
    task_host_peak_mib: Amount | None = None
    """The most host memory that one task was seen with."""
    tasks_measured: Count = 0
    """Tasks that these peaks rest on."""
    tasks_at_once: Count = 0
    """The most that were seen at the same moment."""
    measured_s: Level = 0.0
    """How long the job has been watched."""
    unknown: Reasons = {}


class UserLoad(Struct, frozen=True, gc=False, kw_only=True):
    """Everything of one user on this node, in jobs and outside."""

    uid: Count
    user: str
    jobs: tuple[Count, ...] = ()
    processes: Count = 0
    """On GPUs."""
    gpus: tuple[str, ...] = ()
    gpu_memory_mib: Amount | None = None
    gpu_load: Level | None = None
    """As that of a job, since the user came to each GPU."""
    cpu_cores: Level | None = None
    """Of the user's jobs."""
    memory_mib: Amount | None = None
    """Of the user's jobs."""
    unknown: Reasons = {}


class Snapshot(Struct, frozen=True, gc=False, kw_only=True):
    """One node at one moment."""

    schema: Amount = SCHEMA
    node: NodeName
    """Slurm's name of it (NodeName), not the host's."""
    taken: Moment
    """Unix time, seconds, of the node's clock."""
    view: str = ""
    """Whose processes, jobs and GPUs are in it: a user's name; empty: everybody's."""
    source: SourceName = "local"
    measured_s: Level = 0.0
    """How long the sampler has watched this node."""
    interval_s: Level | None = None
    """Between two samples; None: there was one."""
    version: str = ""
    """Of slurm-share."""
    driver: str | None = None
    """NVIDIA's; None: this node has none, or it does not answer (see `problems`)."""
    cpus: Count
    """Hardware threads that the kernel has online."""
    cores: Count
    load: tuple[Level, Level, Level] | None = None
    """The kernel's load averages over 1, 5 and 15 minutes."""
    cpu_cores: Level | None = None
    """CPU time since the sample before, in cores."""
    memory_total_mib: Amount | None = None
    memory_used_mib: Amount | None = None
    """Without page cache (MemTotal - MemAvailable)."""
    gpus: tuple[GpuLoad, ...] = ()
    processes: tuple[ProcessLoad, ...] = ()
    jobs: tuple[JobLoad, ...] = ()
    users: tuple[UserLoad, ...] = ()
    hidden_gpus: Count = 0
    """GPUs that only others use, and that the one who looks is not shown."""
    gpu_sums: GpuSums | None = None
    """Only where the source has no GPU by itself; else None, and `gpus` has them."""
    problems: tuple[str, ...] = ()
    """What did not work on this node, a sentence each."""
    unknown: Reasons = {}

    @property
    def whole_gpus(self) -> tuple[GpuLoad, ...]:
        """What can be added up: every GPU, and of one in MIG mode its instances instead."""
        return tuple(gpu for gpu in self.gpus if not gpu.mig_parent)

    @property
    def sums(self) -> GpuSums:
        """All GPUs together, whichever way the source has them."""
        return self.gpu_sums or _added(self.whole_gpus)

    @property
    def simulated(self) -> bool:
        """Whether any figure here comes from a simulated GPU."""
        return any(gpu.simulated for gpu in self.gpus) or (self.gpu_sums is not None and self.gpu_sums.simulated)


def _added(gpus: tuple[GpuLoad, ...]) -> GpuSums:
    totals = [gpu.memory_total_mib for gpu in gpus if gpu.memory_total_mib is not None]
    used = [gpu.memory_used_mib for gpu in gpus if gpu.memory_used_mib is not None]
    known = [load for gpu in gpus if (load := gpu.load5) is not None]
    by = {"util" if gpu.sm is None else "sm" for gpu in gpus if gpu.load5 is not None}
    return GpuSums(
        count=len(gpus),
        memory_total_mib=sum(totals) if totals or not gpus else None,
        memory_used_mib=sum(used) if used or not gpus else None,
        load5=sum(known) / 100 if known or not gpus else None,
        load_by="both" if len(by) == 2 else "sm" if "sm" in by else "util" if by else "",
        partial=not len(totals) == len(used) == len(known) == len(gpus),
        fullest=max(
            (
                gpu.memory_used_mib / gpu.memory_total_mib
                for gpu in gpus
                if gpu.memory_total_mib and gpu.memory_used_mib
            ),
            default=0.0 if used else None,
        ),
        unusable=sum(gpu.problem is not None for gpu in gpus),
        simulated=any(gpu.simulated for gpu in gpus),
    )


class HeldGpu(Struct, frozen=True, gc=False, kw_only=True):
    """A GPU, or a MIG instance, that a running job holds, and whether the job leaves it idle (`load/rules/idle.py`)."""

    uuid: str
    index: Count
    """NVML's; of an instance, its parent's."""
    job: Count
    """Slurm's number."""
    user: str
    idle: bool | None
    """True: below 5 percent over the last 10 minutes. None: not known."""
    why: str = ""
    """Why it is not known, in words."""


class NodeLoad(Struct, frozen=True, gc=False, kw_only=True):
    """One line of what a person looks at: a node by what Slurm and its sampler say, or why one of them is silent."""

    name: NodeName
    slurm: SlurmNode | None = None
    snapshot: Snapshot | None = None
    why: str = ""
    """Why there is no snapshot, in words; a word and no sentence where it is obvious: down."""
    held_gpus: tuple[HeldGpu, ...] | None = None
    """GPUs that running jobs hold, once for each job. None: not judged; the GPUs of this node are not in the survey."""


class Survey(Struct, frozen=True, gc=False, kw_only=True):
    """One look at some nodes: what `llload` prints, the dashboard draws and a recording holds."""

    kind: Literal["survey"] = "survey"
    """Which record this is."""
    schema: Amount = SCHEMA
    version: str = ""
    """Of slurm-share that printed it; empty in a recording."""
    taken: Moment
    """Unix time, seconds, of the host that looks."""
    cluster: str = ""
    slurm_version: str = ""
    user: str
    """Who looks."""
    everybody: bool = False
    """True: an operator's look at all users (--all)."""
    source: SourceName
    nodes: tuple[NodeLoad, ...]
    jobs: tuple[QueuedJob, ...] = ()
    """Slurm's, on these nodes; none where a line of every node was wanted and no more. For the dashboard and in a
    recording also those that wait, which have no nodes."""
    jobs_taken: Moment | None = None
    """When Slurm was asked last, Unix time."""
    notes: tuple[str, ...] = ()
    """What the one who looks should know of how these figures came, a sentence each."""

    @property
    def answered(self) -> int:
        """Nodes with a snapshot."""
        return sum(node.snapshot is not None for node in self.nodes)

    @property
    def simulated(self) -> bool:
        """Whether any GPU in it is simulated."""
        return any(node.snapshot is not None and node.snapshot.simulated for node in self.nodes)


# --- Advice -----------------------------------------------------------------------------------------------------------

Verdict = Literal["more", "stay", "fewer", "change", "look", "unknown"]
"""change: something else than the number of tasks first (threads, an option of the program, which GPU a task uses).
look: find out first what the tasks wait for. unknown: no evidence, no advice."""
WorkClass = Literal[
    "idle", "under-used", "well-used", "CPU-bound", "GPU-compute-bound", "memory-bandwidth-bound", "memory-full",
    "over-subscribed", "unknown",
]  # fmt: skip


class Bound(Struct, frozen=True, gc=False, kw_only=True):
    """What one resource of a node allows."""

    resource: Literal["GPU memory", "host memory", "MPS clients", "cores", "GPU load", "CPU load", "growth"]
    nppn: int | None
    """Tasks on a node; None: not known, or without bound."""
    hard: bool
    """True: more would fail, so NPPN may have to go down to it. False: it only stops a rise."""
    why: str
    """The arithmetic, for a person."""


class Advice(Struct, frozen=True, gc=False, kw_only=True):
    """How many tasks a node should run, and why."""

    job: int | None
    user: str
    nodes: tuple[str, ...]
    verdict: Verdict
    work: WorkClass
    now: int | None
    """NPPN, tasks on a node."""
    next: int | None
    """None: nothing to say in a number; `sentence` has what to do."""
    gpus: int = 0
    """Of a node."""
    bounds: tuple[Bound, ...] = ()
    decided_by: str = ""
    """The bound's resource."""
    memory_allows: tuple[int, int] | None = None
    """NPPN by GPU memory alone: with the margin, and without any."""
    confidence: Literal["low", "medium", "high", "none"] = "none"
    evidence: tuple[str, ...] = ()
    """What it rests on: how long, how many tasks, which counter."""
    change: tuple[str, ...] = ()
    """What to write otherwise than before, in one of these ways: an option, a triple, a variable."""
    resubmit: tuple[str, ...] = ()
    """Lines for a shell that submit the job again with that, whole; none where it is not known how it was submitted."""
    sentence: str = ""
    """All of it in one line; where there is no advice, what to run for one."""
    gpu_percents: tuple[Level, ...] = ()
    """Load of each GPU with tasks that was judged: of looks one after another, their running mean."""
    cpu_percent: Level | None = None
    """The same of the CPUs."""
    dram_percent: Level | None = None
    """The same of the memory bandwidth of the GPU that uses most of it."""


class AdviceReport(Struct, frozen=True, gc=False, kw_only=True):
    """What `llload --advise --json` prints: the advice of one look."""

    kind: Literal["advice"] = "advice"
    """Which record this is."""
    schema: Amount = SCHEMA
    version: str = ""
    """Of slurm-share that printed it."""
    taken: Moment
    """Unix time, seconds, of the host that looks."""
    cluster: str = ""
    user: str
    """Who looks."""
    source: SourceName
    advice: tuple[Advice, ...]
    """One for each running job."""
    notes: tuple[str, ...] = ()
    """What the one who looks should know, a sentence each."""


# --- JSON -------------------------------------------------------------------------------------------------------------

_snapshot_decoder = msgspec.json.Decoder(Snapshot)
_survey_decoder = msgspec.json.Decoder(Survey)
_encoder = msgspec.json.Encoder()


DOCUMENTS: Mapping[str, type[Struct]] = {"snapshot": Snapshot, "survey": Survey, "advice": AdviceReport}
"""Name of the schema in `packaging/docs/NAME.schema.json` -> the record that is printed as JSON."""


def schema(name: str = "snapshot") -> dict[str, Any]:
    """Return the JSON schema of one of DOCUMENTS, as `packaging/docs` has it."""
    return msgspec.json.schema(DOCUMENTS[name])


def render(value: Snapshot | Survey | Advice | AdviceReport) -> bytes:
    """One line of JSON, without the newline."""
    return _encoder.encode(value)


def parse_snapshot(data: bytes | str, origin: str) -> Snapshot:
    """A snapshot from its JSON. Raises StateError, which names `origin`, for anything else and for a newer schema."""
    return _parsed(_snapshot_decoder, data, origin)


def parse_survey(data: bytes | str, origin: str) -> Survey:
    """A survey from its JSON. Raises StateError as `parse_snapshot` does."""
    return _parsed(_survey_decoder, data, origin)


_Record = TypeVar("_Record", Snapshot, Survey)


def _parsed(decoder: msgspec.json.Decoder[_Record], data: bytes | str, origin: str) -> _Record:
    try:
        value = decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StateError(origin, f"not a record of load: {error}") from error
    if value.schema > SCHEMA:
        raise StateError(origin, f"written by a newer slurm-share (schema {value.schema}; this one knows {SCHEMA})")
    return value
