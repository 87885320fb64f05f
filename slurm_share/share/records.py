"""Records of a share: plan, slots, refusal, ledger.

Names carry the unit (`_mib`: 1,048,576 bytes). `None` means unknown; 0 means measured and zero. The records are
msgspec.Struct, which is built in C: a Prolog pays for each record.
"""

from __future__ import annotations

from msgspec import Struct

from ..core.records import ProcessIdentity, ShareRequest
from ..mps.records import EqualPartitions
from ..node.records import Gpu, NodeProcess
from ..slurm.records import JobContext

BACKEND_MPS = "mps"
"""The name of the backend that shares a GPU through an MPS daemon."""
BACKEND_TIME_SLICING = "time-slicing"
"""The name of the backend without a daemon: the driver time-slices the tasks of a GPU, and no cap is enforced."""


class Assignment(Struct, frozen=True):
    """One environment variable of a task."""

    name: str
    value: str
    unless_set: bool = False
    """True: a value that the user gave wins."""


class Slot(Struct, frozen=True):
    """One task's place on a GPU."""

    number: int
    """0 to slots-1 on this node; slot i is on GPU i mod G."""
    gpu: Gpu
    part: int
    """The index of the slot's part of the job's cores, which the plan divides into equal parts."""
    memory_cap_mib: int | None = None
    """The task's part of the GPU's memory; None: all of it, or not known. MPS enforces it, or the driver."""
    memory_ratio: str | None = None
    """The cap as a decimal fraction of the GPU's memory, for frameworks that are configured with a fraction."""
    sm_percent: float | None = None
    """The percentage of the GPU's multiprocessors that MPS gives the task; None: no cap."""
    mps_directory: str | None = None
    """The pipe directory of the GPU's MPS daemon, which is checked before a task starts; None: the slot has no MPS."""
    backend: str = BACKEND_TIME_SLICING
    """The name of the backend that serves the slot."""
    on_gpu: int | None = None
    """The number among the GPU's N parts, unique across jobs; None: the job has whole GPUs."""
    variables: tuple[Assignment, ...] = ()
    """Variables of the backend that do not follow from the fields above."""
    memory_least_mib: int | None = None
    """The part of `memory_cap_mib` that the task is sure of; None: all of it. Only the driver can give more."""
    partition: str | None = None
    """The task's static partition of multiprocessors, as CUDA_MPS_SM_PARTITION names it; None: it has none."""
    sm_count: int | None = None
    """The multiprocessors of that partition."""
    is_cap_of_driver: bool = False
    """Whether the driver enforces the memory cap, on the task's cgroup (driver 615)."""
    mps_namespace: str | None = None
    """The task's namespace in the GPU's MPS daemon, a path below `mps_directory`; None: the daemon has protocol 2."""

    @property
    def enforced_cap_mib(self) -> int | None:
        """Return the memory cap that MPS or the driver enforces for the task; None: no cap is enforced."""
        is_enforced = self.mps_directory is not None or self.is_cap_of_driver
        return self.memory_cap_mib if is_enforced else None


class Plan(Struct, frozen=True):
    """The decision which GPU, memory and slot each task of one job gets on one node."""

    job_id: int
    """0: a launcher outside Slurm."""
    uid: int
    node: str
    share: ShareRequest
    """The share in force: `per_gpu` is the number of tasks on each GPU of this node."""
    gpus: tuple[Gpu, ...]
    slots: tuple[Slot, ...]
    cores: tuple[tuple[int, ...], ...] = ()
    """The machine's cores in Slurm's order, each as the numbers of its CPUs in the operating system."""
    notes: tuple[str, ...] = ()
    """Sentences for the job's output, each printed once."""
    lost: tuple[str, ...] = ()
    """The job's GPUs that do not answer and have no slots, as Slurm names them."""


class Refusal(Struct, frozen=True):
    """The decision that a job's tasks cannot run as shares on this node, with a sentence for its user."""

    job_id: int
    uid: int
    node: str
    sentence: str
    cause: str = "job"
    """A cause of share/rules/drain.py, which tells whether it drains the node. Not written into the plan's file."""


class UnsharedReason(Struct, frozen=True):
    """The reason why a job that asked to share runs unshared on this node."""

    job_id: int
    uid: int
    node: str
    why: str


class Grant(Struct, frozen=True):
    """The GPUs and slots of a job on a node before its plan is decided. The ledger entry is made from it."""

    job: JobContext
    share: ShareRequest
    """The share in force: `per_gpu` is the number of tasks on each GPU of this node."""
    gpus: tuple[Gpu, ...]
    slots: int
    """The number of slots."""
    is_part: bool
    """Whether Slurm gave the job 1/N of one GPU (gres/shard); other jobs of its user may have the rest."""
    backend: str
    """The name of the chosen backend. It is prepared before the plan is decided."""
    title: str = ""
    """The backend's name for users."""
    note: str | None = None
    """A note for the job's output about the choice of the backend."""
    lost: tuple[tuple[str, Gpu], ...] = ()
    """The job's GPUs that do not answer, each with Slurm's name for it."""
    partitions: int = 0
    """The number of static partitions on each GPU, one for each task; 0: the tasks share all multiprocessors (SM)."""
    has_own_faults: bool = False
    """Whether a task's fault ends only that task, in its static partition."""
    why_no_limits: str | None = None
    """As in `Limits`, of the chosen backend."""
    driver: str | None = None
    """The driver's version."""
    mps_protocol: int = 2
    """The protocol of MPS daemons that are started for it."""
    why_protocol: str = ""
    """Why that is not the one of the site's settings, for the log."""


class DriverCaps(Struct, frozen=True):
    """The GPUs on which the driver enforces the tasks' memory caps, and why it does not on the others."""

    gpus: frozenset[str] = frozenset()
    """Their UUIDs."""
    why_not: str = "the driver enforces no memory caps here"
    """For the others of the job, as a clause of its own."""


class PreparedGpu(Struct, frozen=True):
    """One GPU that a backend has prepared for a job's tasks."""

    mps_directory: str | None = None
    """The pipe directory of the GPU's MPS daemon, which is checked before each task starts; None: no daemon."""
    variables: tuple[Assignment, ...] = ()
    """Variables of every task on the GPU, in addition to those of the backend's `environment`."""
    partitions: EqualPartitions | None = None
    """The static partitions of its SM, in the order of the tasks on it; None: it has none."""
    has_namespaces: bool = False
    """Whether its MPS daemon has the namespaces of the tasks (protocol 3)."""


class PreparedGpus(Struct, frozen=True):
    """The result of preparing a job's GPUs: each GPU's UUID is a key of `served` or of `failures`."""

    served: dict[str, PreparedGpu] = {}
    failures: dict[str, str] = {}
    """GPU -> why the backend does not serve it. A start that failed has been undone."""
    log: tuple[str, ...] = ()
    """Sentences for the hooks' log."""
    undivided: dict[str, str] = {}
    """GPU -> why it is served without the static partitions that were wanted."""


class Limits(Struct, frozen=True):
    """The limits that a backend can enforce on a node, and why it cannot serve tasks there."""

    backend: str
    """The name of the backend, as in the plan."""
    title: str
    """The name of the backend for users."""
    client_limit: int | None = None
    """The most tasks on one GPU; None: any number."""
    connections: int = 0
    """CUDA connections that each of `client_limit` tasks can have to its GPU; 0: any number."""
    enforces_caps: bool = False
    """Whether it enforces a task's memory cap and SM percentage."""
    serves_mig: bool = True
    """Whether it can serve MIG instances."""
    why_not: str | None = None
    """Why it cannot serve tasks on this node; None: it can."""
    is_missing: bool = False
    """Whether the site configures a program for it that this node lacks."""
    required_by: str = ""
    """The setting that makes the site refuse shares on such a node; empty: no setting does."""
    effect: str = ""
    """The effect on a task if this backend serves it instead of a preferred one, for the note to the user."""
    why_no_partitions: str | None = "needs MPS"
    """Why it cannot give each task a static partition of a GPU's SM, after the name of the option; None: it can, on
    GPUs that have them."""
    has_own_faults: bool = False
    """Whether the fault of a task in a static partition ends only that task."""
    why_no_limits: str | None = "cannot be held with this way of sharing"
    """Why the driver does not limit the memory of each task on its cgroup, as the end of a sentence that begins with
    what needs it; None: it does."""
    mps_protocol: int = 2
    """The protocol of MPS daemons that are started on this node."""
    why_protocol: str = ""
    """Why that is not the one of the site's settings."""


class SwitchableJob(Struct, frozen=True):
    """The fields of a job in the queue that matter for switching sharing off and on."""

    which: str
    """The job as scontrol names it: 7, or 7_[3-9] for the pending elements of an array."""
    partitions: tuple[str, ...]
    is_pending: bool
    was_shaped: bool
    """Whether job_submit.lua derived the job's resources from its share."""
    restarts: int
    extra: str
    comment: str


class QueueSwitched(Struct, frozen=True):
    """The result of switching sharing for the jobs in the queue."""

    running: int
    """The number of running jobs that share until they end."""
    waiting: int
    """The number of pending jobs with a new verdict; each element of an array counts."""
    left: int
    """The number of jobs that still have the old verdict."""
    refused: tuple[str, ...] = ()
    """The messages of scontrol about jobs that it did not change, one for each call."""


class VerdictUpdate(Struct, frozen=True):
    """A new text for one field of several jobs, which contains the controller's verdict."""

    jobs: tuple[str, ...]
    """The jobs as scontrol names them."""
    field: str
    text: str


class NodeShares(Struct, frozen=True):
    """One node's answer to `slurm-share status --cluster`."""

    node: str
    mode: str | None = None
    """The node's mode; None: the node did not answer."""
    partition_modes: dict[str, str] = {}
    jobs: tuple[int, ...] = ()
    """The jobs that share."""
    slots: int = 0
    daemons: int = 0
    """The number of GPUs with an MPS daemon of ours."""
    problem: str | None = None


class ClusterShares(Struct, frozen=True):
    """The contents of `slurm-share status --cluster`."""

    host: str
    """The host of the command; its modes count as the cluster's."""
    modes: dict[str, str]
    """The mode of each partition that has its own; the empty name stands for all others."""
    is_switched_off: bool
    mode_file: str | None
    """The mode in the site's mode file; None: there is none."""
    states: dict[str, str]
    """The state of each node, as sinfo names it."""
    nodes: dict[str, NodeShares]
    problems: tuple[str, ...] = ()


class LedgerJob(Struct, frozen=True):
    """A job in the ledger: every shared job; on nodes kept to one user at a time, every other job as well."""

    job_id: int
    uid: int
    share: str
    """The canonical text of the option; empty for a job without a share."""
    gpus: tuple[str, ...]
    """The UUIDs in the order in which Slurm granted them; empty for a job without a share."""
    slots: int
    since: float
    """The time of the Prolog, seconds of CLOCK_BOOTTIME: setting the wall clock does not change it."""
    restart_count: int | None = None
    user: str | None = None
    partition: str | None = None
    sluid: str | None = None
    on_gpu: int | None = None
    """The number of the job's part of its GPU, as in Slot."""
    clean_up: tuple[str, ...] = ()
    """The things that are removed when the user's last job ends: the setting at the job's arrival, without files where
    the user can have a job here that the ledger does not know (`owners.clean_up`)."""
    has_step: bool = False
    """True: the job has a step here from its launch until its end. False: it may have none at times, as with salloc."""


class ModeBefore(Struct, frozen=True):
    """The compute mode a GPU had before we changed it."""

    gpu: str
    mode: int
    """The mode's number in NVML (nvmlComputeMode_t)."""


class UserRemains(Struct, frozen=True):
    """Processes and files of a user that a hook could not remove, for the ledger's entries that they concern."""

    uid: int
    why: str
    """The reason, in the same words as long as it stays the same: then it is not logged again."""
    gpu: str | None = None
    """The GPU that it concerns; None: all GPUs of the user."""
    job_id: int | None = None
    """The job that it concerns; None: all jobs of the user."""


class Leaving(Struct, frozen=True):
    """A job that has ended, while a hook cleans up after it."""

    job: LedgerJob
    hook: ProcessIdentity
    """The hook that cleans up. If it was killed or had no more time, the next hook takes over."""
    asides: tuple[str, ...] = ()
    """Folders into which the hook moves files before it removes them, recorded before they are made."""
    why: str = ""
    """The things that an earlier hook could not remove, as logged at `said`; empty: nothing was in the way."""
    said: float = 0.0
    """Seconds of CLOCK_BOOTTIME."""


class Ledger(Struct, frozen=True):
    """The jobs on the node since its last boot, and what their clean-up has to restore."""

    boot_id: str
    jobs: tuple[LedgerJob, ...] = ()
    modes: tuple[ModeBefore, ...] = ()
    """The compute modes to restore when the last job leaves a GPU."""
    leaving: tuple[Leaving, ...] = ()
    without_plugin: tuple[int, ...] = ()
    """The last shared jobs, without another one between them, of which no step loaded the SPANK plugin."""
    plugin_problem: str = ""
    """The reason, as found after the last of them."""


class Sweep(Struct, frozen=True):
    """The processes on the GPUs of an ended job, sorted by what happens to them."""

    end: tuple[NodeProcess, ...] = ()
    """Processes of the ended job's user in no live job."""
    tolerated: tuple[NodeProcess, ...] = ()
    """System programs that may stay."""
    without_job: tuple[NodeProcess, ...] = ()
    """Processes of other users in no live job: ended where no job has the GPU."""
    foreign: tuple[NodeProcess, ...] = ()
    """Processes of system users: never ended, named in the log."""
