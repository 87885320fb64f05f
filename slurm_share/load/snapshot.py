"""The records of load: one node at one moment (Snapshot), and what a command shows of several nodes (Survey).

Commands, dashboard, agent, JSON, recording and replay all use these records. `packaging/docs/snapshot.md` describes
their JSON. SCHEMA rises when a field changes its meaning or is removed, not when one is added.

Names carry the unit: `_mib` is 1,048,576 bytes, `_s` seconds, percent 0 to 100. `None` means not known; then `unknown`
of the same record has the reason under the field's name. 0 means measured, and none.

`gc=False`: these records cannot form a cycle, and a garbage collection that walks through half a million of them stops
the dashboard for a third of a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from ..core import text_files
from ..core.errors import StateError, quoted, shown
from ..core.metric import Metric
from ..core.records import Amount, Count, Level, Moment, NodeName, Reasons
from ..core.text import ascii_json
from ..node.gpu_figures import Activity as Activity
from ..node.gpu_figures import GpuBooking as GpuBooking
from ..node.gpu_figures import GpuLoad as GpuLoad
from ..node.gpu_figures import GpuUser as GpuUser
from ..node.gpu_figures import Means as Means
from ..node.progress_figures import JobProgress as JobProgress
from ..node.progress_figures import LevelRate as LevelRate
from ..node.progress_figures import TaskProgress as TaskProgress
from ..slurm.records import QueuedJob, SlurmNode

SCHEMA = 1

SourceName = Literal["srun", "local", "agent", "prometheus", "replay", "demo"]
"""The source of a snapshot or a survey."""


class GpuSums(Struct, frozen=True, gc=False, kw_only=True):
    """Sums over all GPUs of a node; of a GPU in MIG mode its instances count. A source that was asked for a line per
    node may have these instead of `gpus`."""

    count: Count
    memory_total_mib: Annotated[
        Amount | None, Metric("Memory of all GPUs for which it is known.", "gpu_memory_total_bytes")
    ] = None
    memory_used_mib: Annotated[
        Amount | None, Metric("Memory in use on all GPUs for which it is known.", "gpu_memory_used_bytes")
    ] = None
    gpu_load: Annotated[
        Level | None, Metric("Sum of the GPUs' loads over 5 minutes: 2 is two GPUs fully busy.", "gpu_load5")
    ] = field(default=None, name="load5")
    gpu_load_by: Literal["sm", "util", "both", ""] = field(default="", name="load_by")
    """The counter on which the load rests: SM activity, utilisation, both (some GPUs each), or none."""
    partial: bool = False
    """True: a figure of some GPU is not known, and a sum here is without it."""
    fullest_ratio: Annotated[
        Level | None, Metric("Ratio of memory in use on the fullest GPU.", "gpu_memory_fullest_ratio")
    ] = field(default=None, name="fullest")
    unusable: Count = 0
    """GPUs that have a `problem`."""
    simulated: bool = False


class OnGpu(Struct, frozen=True, gc=False, kw_only=True):
    """The use of one GPU by one process."""

    uuid: str
    memory_mib: Amount | None = None
    peak_mib: Amount | None = None
    """The most memory that was seen since the process started."""
    sm_time_percent: Level | None = None
    """Share of the time in which its kernels ran (nvmlDeviceGetProcessUtilization)."""


class ProcessLoad(Struct, frozen=True, gc=False, kw_only=True):
    """A process that the driver lists on a GPU, as compute, graphics or MPS client."""

    pid: Count
    start_ticks: Count | None = None
    """Field 22 of /proc/PID/stat: with the pid, it identifies the process."""
    name: str
    uid: Count
    user: str
    job: Count | None = None
    """Slurm's number of the job; None: in no job."""
    step: str | None = None
    """0, 1 ..., batch, interactive, extern."""
    task: Count | None = None
    """The number of its task: in the run if llsub started it, else in the step, over all nodes of the step."""
    slot: Count | None = None
    """The number of its slot among the slots of its job on the node."""
    gpus: tuple[OnGpu, ...] = ()
    cap_mib: Amount | None = None
    """Most GPU memory that MPS lets it have; None: no cap, or not known."""
    connections: Count | None = None
    """CUDA_DEVICE_MAX_CONNECTIONS in its environment; None: not set, or not known."""
    cpu_cores: Level | None = None
    """CPU time since the sample before: 1.5 is one and a half cores."""
    memory_mib: Amount | None = None
    """Host memory, resident."""
    in_advance: tuple[str, ...] | None = None
    """The libraries of the process that take most of a GPU's memory at their start: JAX, TensorFlow. Empty: none, or
    its variables turn that off. None: not known."""
    progress: TaskProgress | None = None
    """The progress of its task, as the launcher of llsub reports it; None: not reported, or no task of llsub."""
    unknown: Reasons = {}


class JobLoad(Struct, frozen=True, gc=False, kw_only=True):
    """A job on this node: the sums over its cgroup and its processes on GPUs."""

    job: Count
    uid: Count
    user: str
    share: Annotated[Count | None, Metric("N of --share-gpu=N.", exported=False, together="first")] = None
    """N of --share-gpu=N; None: no share, or not known."""
    slots: Annotated[Count | None, Metric("Slots of the job's share on this node.", together="first")] = None
    """Slots of its share on this node; for a triple, its NPPN."""
    tasks: Annotated[Count, Metric("Tasks with a process on a GPU now.", together="sum")] = 0
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs on which it has processes."""
    granted: tuple[str, ...] | None = None
    """UUIDs of the GPUs that Slurm gave it here, whole or in part; None: not known to this source."""
    gpu_memory_mib: Annotated[Amount | None, Metric("GPU memory of the job's processes here.", together="sum")] = None
    gpu_load: Annotated[
        Level | None, Metric("Its part of its GPUs' load over 5 minutes: 2 is two GPUs fully busy.", together="sum")
    ] = None
    """Its part of the load of its GPUs: 2.0 is two GPUs fully busy. Mean over 5 minutes, or since the job started; on a
    GPU with others, as the driver divides SM time."""
    cpu_cores: Annotated[Level | None, Metric("CPU time since the sample before, in cores.", "cpu_used_cores")] = None
    cpu_cores_windows: Annotated[Means | None, Metric("Cores used over 1, 5, 10 and 15 minutes.", "cpu_mean_cores")] = (
        field(default=None, name="cpu")
    )
    memory_mib: Annotated[Amount | None, Metric("Host memory of the job here, without page cache.")] = None
    memory_kills: Annotated[
        Amount | None, Metric("Processes that the kernel ended because the job's memory was full.", counter=True)
    ] = None
    task_peak_mib: Annotated[
        Amount | None, Metric("The most GPU memory of one task.", "task_peak_gpu_memory_bytes", together="most")
    ] = None
    """The most GPU memory that one task was seen with, tasks that have ended included."""
    task_host_peak_mib: Annotated[
        Amount | None, Metric("The most host memory of one task.", "task_peak_memory_bytes", together="most")
    ] = None
    tasks_measured: Annotated[Count, Metric("Tasks that the peaks rest on.", together="sum")] = 0
    tasks_at_once: Annotated[Count, Metric("The most tasks at the same moment.", together="sum")] = 0
    measured_s: Annotated[Level, Metric("How long the job has been watched.")] = 0.0
    energy_j: Annotated[
        Level | None, Metric("Energy of the GPUs that the job is charged with here.", counter=True, together="sum")
    ] = None
    """Its part of its GPUs' energy while the agent watched it; None: no agent, or the GPU counts no energy."""
    progress: JobProgress | None = None
    """The progress of its tasks here, as the launchers of llsub report it; None: not reported."""
    sharing: str | None = None
    """How its tasks share their GPUs here: mps, time-slicing, exclusive or mig. None: no share, or not known."""
    unknown: Reasons = {}

    def with_share(self, share: int | None, slots: int | None, sharing: str | None) -> JobLoad:
        """Return the job with this share, and without the reasons why a value that is known now was not."""
        known = {"share": share, "slots": slots, "sharing": sharing}
        unknown = {field: why for field, why in self.unknown.items() if known.get(field) is None}
        return replace(self, share=share, slots=slots, sharing=sharing, unknown=unknown)


class UserLoad(Struct, frozen=True, gc=False, kw_only=True):
    """The load of one user on this node, in jobs and outside."""

    uid: Count
    user: str
    jobs: tuple[Count, ...] = ()
    processes: Annotated[Count, Metric("Processes of the user on GPUs.", "gpu_processes")] = 0
    gpus: tuple[str, ...] = ()
    gpu_memory_mib: Annotated[Amount | None, Metric("GPU memory of the user.", together="sum")] = None
    gpu_load: Annotated[
        Level | None,
        Metric("The user's part of the GPUs' load over 5 minutes: 2 is two GPUs fully busy.", together="sum"),
    ] = None
    """As `JobLoad.gpu_load`, on each GPU since the user came to it."""
    cpu_cores: Annotated[Level | None, Metric("CPU time of the user's jobs, in cores.", "cpu_used_cores")] = None
    memory_mib: Annotated[Amount | None, Metric("Host memory of the user's jobs, without page cache.")] = None
    energy_j: Annotated[
        Level | None, Metric("Energy of the GPUs that the user's jobs are charged with.", counter=True, together="sum")
    ] = None
    """Energy of all jobs since the agent or the node started, also of those that have ended."""
    unknown: Reasons = {}


class Snapshot(Struct, frozen=True, gc=False, kw_only=True):
    """The load of one node at one moment."""

    schema: Amount = SCHEMA
    node: NodeName
    """Slurm's name of the node (NodeName), not the host's name."""
    taken: Annotated[
        Moment, Metric("When the sample was taken, Unix time of the node's clock.", "sample_timestamp_seconds")
    ]
    view: str = ""
    """The user whose processes, jobs and GPUs it holds; empty: all users'."""
    source: SourceName = "local"
    measured_s: Annotated[Level, Metric("How long the sampler has watched this node.")] = 0.0
    interval_s: Annotated[Level | None, Metric("Between the last two samples.", "sample_interval_seconds")] = None
    """Seconds between the last two samples; None: there was only one."""
    version: str = ""
    """Version of slurm-share."""
    driver: str | None = None
    """Version of NVIDIA's driver; None: there is no driver, or it does not answer (see `problems`)."""
    cpus: Annotated[Count, Metric("Hardware threads online.")]
    cores: Annotated[Count, Metric("Cores.")]
    load: tuple[Level, Level, Level] | None = None
    """The kernel's load averages over 1, 5 and 15 minutes."""
    cpu_cores: Annotated[Level | None, Metric("CPU time since the sample before, in cores.", "cpu_used_cores")] = None
    memory_total_mib: Annotated[Amount | None, Metric("Host memory.")] = None
    memory_used_mib: Annotated[Amount | None, Metric("Host memory in use, without page cache.")] = None
    """Without page cache (MemTotal - MemAvailable)."""
    gpus: tuple[GpuLoad, ...] = ()
    processes: tuple[ProcessLoad, ...] = ()
    jobs: tuple[JobLoad, ...] = ()
    users: tuple[UserLoad, ...] = ()
    hidden_gpus: Count = 0
    """GPUs that are left out because only other users use them."""
    gpu_sums: GpuSums | None = None
    """The sums over the GPUs, from a source without single GPUs; else None, and `gpus` has them."""
    problems: tuple[str, ...] = ()
    """Problems of this node, a sentence each."""
    unknown: Reasons = {}

    @property
    def knows_processes(self) -> bool:
        """Return whether its source reports processes: False for one that keeps none, such as Prometheus."""
        return "processes" not in self.unknown

    @property
    def whole_gpus(self) -> tuple[GpuLoad, ...]:
        """Return the GPUs to add up: every GPU, or its instances if it is in MIG mode."""
        return tuple(gpu for gpu in self.gpus if not gpu.mig_parent)

    @property
    def sums(self) -> GpuSums:
        """Return the sums over all GPUs, from the source's sums or from its GPUs."""
        return self.gpu_sums or _added(self.whole_gpus)

    @property
    def simulated(self) -> bool:
        """Return whether any figure here comes from a simulated GPU."""
        return any(gpu.simulated for gpu in self.gpus) or (self.gpu_sums is not None and self.gpu_sums.simulated)


def _added(gpus: tuple[GpuLoad, ...]) -> GpuSums:
    totals = [gpu.memory_total_mib for gpu in gpus if gpu.memory_total_mib is not None]
    used = [gpu.memory_used_mib for gpu in gpus if gpu.memory_used_mib is not None]
    known = [load for gpu in gpus if (load := gpu.load_percent_5min) is not None]
    by = {"util" if gpu.sm_percent_windows is None else "sm" for gpu in gpus if gpu.load_percent_5min is not None}
    return GpuSums(
        count=len(gpus),
        memory_total_mib=sum(totals) if totals or not gpus else None,
        memory_used_mib=sum(used) if used or not gpus else None,
        gpu_load=sum(known) / 100 if known or not gpus else None,
        gpu_load_by="both" if len(by) == 2 else "sm" if "sm" in by else "util" if by else "",
        partial=not len(totals) == len(used) == len(known) == len(gpus),
        fullest_ratio=max(
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
    """NVML's index; for a MIG instance, its parent's."""
    job: Count
    """Slurm's number of the job."""
    user: str
    idle: bool | None
    """True: below 5 percent over the last 10 minutes. None: not known."""
    why: str = ""
    """Why it is not known."""


class NodeLoad(Struct, frozen=True, gc=False, kw_only=True):
    """One node of a survey: what Slurm and its sampler report, or why one of them is silent."""

    name: NodeName
    slurm: SlurmNode | None = None
    snapshot: Snapshot | None = None
    why: str = ""
    """Why there is no snapshot, in a few words such as: down."""
    held_gpus: tuple[HeldGpu, ...] | None = None
    """GPUs that running jobs hold, once for each job. None: the single GPUs of this node are not in the survey."""


class Survey(Struct, frozen=True, gc=False, kw_only=True):
    """The load of some nodes at one moment, as `llload` prints, the dashboard draws and a recording holds it."""

    kind: Literal["survey"] = "survey"
    schema: Amount = SCHEMA
    version: str = ""
    """Version of slurm-share that printed it; empty in a recording."""
    taken: Moment
    """Unix time, seconds, of the host that reads the nodes."""
    cluster: str = ""
    slurm_version: str = ""
    user: str
    """The user whose nodes are read."""
    everybody: bool = False
    """True: an operator's survey of all users (--all)."""
    source: SourceName
    nodes: tuple[NodeLoad, ...]
    jobs: tuple[QueuedJob, ...] = ()
    """Slurm's jobs on these nodes; empty if only a line per node was wanted. For the dashboard and in a recording also
    waiting jobs, which have no nodes."""
    jobs_taken: Moment | None = None
    """Unix time at which Slurm was last asked."""
    notes: tuple[str, ...] = ()
    """Remarks on the figures for the user, a sentence each."""

    @property
    def answered(self) -> int:
        """Return the number of nodes with a snapshot."""
        return sum(node.snapshot is not None for node in self.nodes)

    @property
    def simulated(self) -> bool:
        """Return whether any GPU in it is simulated."""
        return any(node.snapshot is not None and node.snapshot.simulated for node in self.nodes)


# --- Advice -----------------------------------------------------------------------------------------------------------

Verdict = Literal["release", "fewer", "change", "waits", "look", "more", "stay", "unknown"]
"""The most urgent first. release: the job uses none of its GPUs. change: change something other than the number of
tasks first (threads, an option of the program, the GPU that a task uses). waits: it waits for storage or locks. look:
find out first what the tasks wait for. unknown: no evidence, no advice."""
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
CAUSES: tuple[Verdict, ...] = ("release", "change", "waits", "look")
"""Verdicts that no bound decides."""
Confidence = Literal["none", "low", "medium", "high"]
CONFIDENCES: tuple[Confidence, ...] = get_args(Confidence)
WorkClass = Literal[
    "idle", "under-used", "well-used", "CPU-bound", "GPU-compute-bound", "memory-bandwidth-bound", "memory-full",
    "over-subscribed", "unknown",
]  # fmt: skip


class Bound(Struct, frozen=True, gc=False, kw_only=True):
    """The number of tasks that one resource of a node allows."""

    resource: Literal["GPU memory", "host memory", "MPS clients", "cores", "GPU load", "CPU load", "growth", "rate"]
    """rate: measured with fewer and with more tasks."""
    nppn: int | None
    """Tasks on a node; None: not known, or without bound."""
    hard: bool
    """True: more tasks would fail, so it may lower NPPN. False: it only stops a rise."""
    why: str
    """The arithmetic, as text."""


class Advice(Struct, frozen=True, gc=False, kw_only=True):
    """How many tasks a node should run, and why."""

    job: int | None
    user: str
    nodes: tuple[str, ...]
    verdict: Verdict
    work: WorkClass
    now: int | None
    """Tasks on a node now (NPPN)."""
    next: int | None
    """Advised tasks on a node; None: no number, and `sentence` says what to do."""
    gpus: int = 0
    """GPUs of a node."""
    bounds: tuple[Bound, ...] = ()
    decided_by: str = ""
    """The resource of the bound that decided."""
    memory_allows: tuple[int, int] | None = None
    """NPPN by GPU memory alone: with the margin, and without it."""
    confidence: Confidence = "none"
    evidence: tuple[str, ...] = ()
    """The facts behind the advice: how long, how many tasks, which counter."""
    change: tuple[str, ...] = ()
    """Changes of the submission: an option, a triple or a variable. Each entry is one way."""
    resubmit: tuple[str, ...] = ()
    """Complete shell commands that submit the job again with the change; empty if its submission is not known."""
    sentence: str = ""
    """The advice in one line; without an advice, what to run to get one."""
    unused_gpus: Count | None = None
    """With the verdict release: GPUs on all its nodes that the job holds and has not used."""
    unused_since: Moment | None = None
    """Unix time since which no process was on them."""
    gpu_percents: tuple[Level, ...] = ()
    """The judged load of each GPU with tasks; over several surveys, the running mean."""
    cpu_percent: Level | None = None
    """The judged CPU time of the job, in percent of the CPUs."""
    load_average_percent: Level | None = None
    """The judged load average in percent of the CPUs; None: not known, or another job may have a part in it."""
    dram_percent: Level | None = None
    """The judged memory bandwidth of the GPU that uses most of it."""
    rates: tuple[LevelRate, ...] = ()
    """The rates measured with different numbers of tasks on a node, at this survey and at earlier ones."""
    rate_source: str = ""
    """The source of these rates: progress, log, output, finished."""
    rate_family: str = ""
    """The name that tasks of the same command share: only their rates are compared."""


class AdviceReport(Struct, frozen=True, gc=False, kw_only=True):
    """The advice of one survey, as `llload --advise --json` prints it."""

    kind: Literal["advice"] = "advice"
    schema: Amount = SCHEMA
    version: str = ""
    """Version of slurm-share that printed it."""
    taken: Moment
    """Unix time, seconds, of the host that reads the nodes."""
    cluster: str = ""
    user: str
    """The user whose jobs are advised on."""
    source: SourceName
    advice: tuple[Advice, ...]
    """One for each running job."""
    notes: tuple[str, ...] = ()
    """Remarks on the figures for the user, a sentence each."""


# --- JSON -------------------------------------------------------------------------------------------------------------

_snapshot_decoder = msgspec.json.Decoder(Snapshot)
_survey_decoder = msgspec.json.Decoder(Survey)
_encoder = msgspec.json.Encoder()


DOCUMENTS: Mapping[str, type[Struct]] = {"snapshot": Snapshot, "survey": Survey, "advice": AdviceReport}
"""Name of the schema in `packaging/docs/NAME.schema.json` -> the record that is printed as JSON."""


def schema(name: str = "snapshot") -> dict[str, Any]:
    """Return the JSON schema of one of DOCUMENTS, as `packaging/docs` has it.

    A description is one line: releases of Python and msgspec leave different indentation in a docstring's other lines.
    """
    whole = msgspec.json.schema(DOCUMENTS[name])
    for record in whole["$defs"].values():
        record["description"] = " ".join(record["description"].split())
    return whole


def render(value: Snapshot | Survey | Advice | AdviceReport) -> bytes:
    """Return one line of JSON in ASCII, without the newline."""
    return ascii_json(_encoder.encode(value))


def parse_snapshot(data: bytes | str, origin: str) -> Snapshot:
    """Parse a snapshot's JSON. Raises StateError, which names `origin`, for anything else and for a newer schema."""
    return _parsed(_snapshot_decoder, data, origin)


def parse_survey(data: bytes | str, origin: str) -> Survey:
    """Parse a survey's JSON. Raises StateError as `parse_snapshot` does."""
    return _parsed(_survey_decoder, data, origin)


_Record = TypeVar("_Record", Snapshot, Survey)


def _parsed(decoder: msgspec.json.Decoder[_Record], data: bytes | str, origin: str) -> _Record:
    try:
        value = decoder.decode(data)
    except text_files.NOT_JSON as error:
        raise StateError(origin, f"not a record of load: {shown(str(error), 200)}") from error
    if value.schema > SCHEMA:
        raise StateError(
            origin, f"written by a newer slurm-share (schema {quoted(value.schema, 20)}; this one knows {SCHEMA})"
        )
    return value
