"""Records of Slurm's answers: a job as a hook gets it, jobs in the queue, nodes.

Units are in the names (`_mib` is 1,048,576 bytes). `None`: not known; 0: known to be none. msgspec.Struct, which is
made in C, and not dataclasses: a Prolog pays for each record that it builds.
"""

from __future__ import annotations

from msgspec import Meta, Struct

from ..core.records import Amount, Count, Level, NodeName, ShareRequest
from ..core.typed import Annotated, Literal


class JobContext(Struct, frozen=True):
    """A job on this node, as slurmd describes it to a hook, or a launcher itself."""

    job_id: int
    """0: a launcher outside Slurm."""
    uid: int
    gid: int
    node: str
    granted: tuple[str, ...]
    """The job's GPUs here as Slurm names them: device numbers, GPU- or MIG- UUIDs (since 25.11)."""
    share: ShareRequest | None
    """None: an ordinary job."""
    share_problem: str | None = None
    """Why the value of the share was not understood."""
    exclusive: Literal["node", "user"] | None = None
    """Whether the nodes are the job's, or its user's, alone; None: neither, or not told."""
    restart_count: int | None = None
    user: str | None = None
    partition: str | None = None
    sluid: str | None = None
    tasks: int | None = None
    """Tasks of the whole job; None: without -n, so that a plain srun fills the slots."""
    nodes: int | None = None
    direct: bool = False
    """The job is of an srun without an allocation, whose one step asks for all that the job has."""
    node_list: str | None = None
    """The nodes that slurmd names. Without PrologFlags=Alloc these are of the first step here."""
    is_batch: bool = False
    """The job has a batch script. False: it has none, or slurmd does not tell."""
    has_sure_gpus: bool = True
    """False: `granted` may be the GPUs that the job has on another node. Of a step on some of the job's nodes slurmd
    takes the node's place in the step for its place in the job (seen on 24.11 and 26.05). The plugin compares."""


class NodeKind(Struct, frozen=True, kw_only=True):
    """Nodes of one partition that are equal and in the same state, as sinfo groups them. A node of several partitions
    is in several kinds. Every number is for one node."""

    partition: str
    is_default: bool = False
    partition_is_up: bool = True
    max_nodes_per_job: int | None = None
    """None: no limit."""
    nodes: tuple[str, ...]
    states: tuple[str, ...]
    """Slurm's words: IDLE, MIXED, ALLOCATED or DOWN first, then DRAIN, RESERVED, NOT_RESPONDING ..."""
    cpus: int
    """As Slurm counts them: cores, or hardware threads."""
    cpus_allocated: int = 0
    cpus_idle: int = 0
    """CPUs that jobs can get: 0 on nodes that are down or drained."""
    cores: int
    threads_per_core: int = 1
    memory_mib: int
    gpus: tuple[tuple[str, int], ...] = ()
    """(type, count); the type is empty where gres.conf names none."""
    gpus_allocated: tuple[tuple[str, int], ...] = ()
    gpus_in_parts: int = 0
    """GPUs of which some shards are taken. They cannot be given as a whole, and are not in `gpus_allocated`."""
    features: str = ""

    @property
    def usable(self) -> bool:
        """Whether Slurm places jobs on these nodes, now or when running jobs have ended."""
        return self.partition_is_up and not set(self.states) & UNUSABLE_STATES

    @property
    def gpu_count(self) -> int:
        """GPUs of one node, of all types."""
        return sum(count for _, count in self.gpus)


UNUSABLE_STATES = frozenset({"DOWN", "DRAIN", "FAIL", "UNKNOWN", "FUTURE", "INVALID_REG", "ERROR"})
"""States in which a node gets no job until an administrator, or its return, ends that state."""


class ClusterName(Struct, frozen=True):
    """The cluster that answered."""

    cluster: str
    version: str
    """The version of its Slurm, such as 26.05.5."""


class QueuedJob(Struct, frozen=True, gc=False, kw_only=True):
    """A job, or one element of an array, in Slurm's queue."""

    job_id: Count
    """Number of Slurm's record. Each running element of an array has its own."""
    array: Count | None = None
    """Number that all elements of an array share; None: no array."""
    element: Count | None = None
    """Index of an array's element; None: no element, or several in one record."""
    waiting: str = ""
    """Waiting elements that this record stands for, as Slurm writes them: 3-6,9 or 3-100%2."""
    het: tuple[Count, Count] | None = None
    """Number and component, of a heterogeneous job."""
    name: str
    user: str
    uid: Count
    partition: str
    states: tuple[str, ...]
    """Slurm's words: PENDING, RUNNING ... first, then COMPLETING, CONFIGURING ..."""
    reason: str = ""
    """Why it waits, or failed."""
    start: Count | None = None
    """Unix time; of a waiting job, when Slurm expects it to start. None: not known."""
    cpus: Count | None = None
    tasks: Count | None = None
    node_count: Count | None = None
    nodes: Annotated[str, Meta(pattern=r"^([A-Za-z0-9._,-]|\[[0-9,-]+\])*$")] = ""
    """Folded list, n[1,3]; empty: it has none yet."""
    features: str = ""
    memory_mib: Count | None = None
    """Requested memory of each node, or of each CPU."""
    memory_is_per_cpu: bool = False
    memory_on_nodes_mib: tuple[Count, ...] = ()
    """Memory that Slurm has given the job on each node, in the order of `nodes`: with --mem=0 all of the node's. Empty:
    it has no nodes yet, or Slurm does not tell."""
    memory_per_gpu_mib: Count | None = None
    """Requested memory for each GPU; None: it asks for none, or not told."""
    gpus: Count | None = None
    """GPUs on all nodes of the job; of a waiting job, the requested ones. None: it waits for whole nodes, and their
    number is not known."""
    has_shards: bool = False
    """Whether it has, or requests, shards: parts of a GPU."""
    gpu_indexes: tuple[tuple[Count, ...], ...] | None = ()
    """Slurm's numbers of the GPUs of which it has the whole or a part, for each node in the order of `nodes`. Empty: it
    has none, or no nodes yet. None: Slurm does not tell them."""
    keeps_others_out: bool = False
    """Whether its nodes get no job of another user meanwhile (--exclusive, --exclusive=user)."""
    share: str | None = None
    """The value of --share-gpu; None: an ordinary job."""
    comment: str = ""
    script: str = ""
    """Path of its batch script; empty: none, or not told."""
    restarts: Count | None = None
    """How often it was requeued; None: not told."""
    submitted: Count | None = None
    """Unix time of its submission; None: not told."""
    limit_s: Count | None = None
    """Its time limit; None: unlimited (`is_unlimited`), or not known."""
    is_unlimited: bool = False
    ends: Count | None = None
    """Unix time at which its time limit ends it; None: it is not running, has no limit, or not known."""
    preempted: Count | None = None
    """Unix time at which another job began to preempt it; None: it is not preempted, or not known."""
    priority: Count | None = None
    """0: it is held."""
    qos: str = ""
    account: str = ""
    dependency: str = ""
    """The jobs that it waits for, as Slurm writes them: afterok:4711(unfulfilled)."""

    @property
    def id(self) -> str:
        """The notation of squeue and scancel: 4711, 4711_3, 4711_[4-9], 4711+1."""
        if self.het is not None:
            return f"{self.het[0]}+{self.het[1]}"
        if self.array is None:
            return str(self.job_id)
        return f"{self.array}_[{self.waiting}]" if self.element is None else f"{self.array}_{self.element}"

    @property
    def names(self) -> frozenset[str]:
        """All names of the job: `id`, its number, and the number of its array or heterogeneous job."""
        whole = {str(self.array)} if self.array else {str(self.het[0])} if self.het else set()
        return frozenset({self.id, str(self.job_id)} | whole)


class Submission(Struct, frozen=True, kw_only=True):
    """The submission of a job, complete enough to repeat it."""

    program: Literal["sbatch", "llsub"]
    arguments: tuple[str, ...]
    """All arguments after the program's name."""
    place: int
    """The index in `arguments` of the script (sbatch) or of the triple (llsub)."""
    folder: str
    """The folder in which it was submitted."""
    directives: frozenset[str] = frozenset()
    """Long names of the options in the script's #SBATCH lines."""
    starts_steps: bool = True
    """Whether its script starts its tasks with srun; a share gives slots only to those."""
    is_executable: bool = False
    """Whether its script can be executed, as llsub requires."""
    nodes: Count = 1

    @property
    def rest(self) -> tuple[str, ...]:
        """Return the arguments after the script, or after the triple."""
        return self.arguments[self.place + 1 :]


class SlurmNode(Struct, frozen=True, gc=False, kw_only=True):
    """A node as slurmctld has it."""

    name: NodeName
    address: str = ""
    """NodeAddr; empty: its name."""
    states: tuple[str, ...]
    """Slurm's words: IDLE, MIXED, ALLOCATED or DOWN first, then DRAIN, NOT_RESPONDING ..."""
    reason: str = ""
    """Why it is down or drained."""
    reason_by: str = ""
    """Who gave the reason; empty: slurm.conf, or not known."""
    reason_since: Count | None = None
    """Unix time at which the reason was given; None: not known."""
    cpus: Count
    cpus_allocated: Count = 0
    memory_mib: Amount
    memory_allocated_mib: Amount = 0
    gpus: Count = 0
    gpus_allocated: Count = 0
    """GPUs of which a job has the whole or a part."""
    load5: Level | None = None
    """Load average over 5 minutes, as slurmd reported it: up to two minutes old."""
    memory_free_mib: Amount | None = None
    """Free memory as the kernel counts it, without the page cache."""
    partitions: tuple[str, ...] = ()

    @property
    def answers(self) -> bool:
        """Whether its slurmd answers slurmctld."""
        return not {"DOWN", "NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN"} & set(self.states)
