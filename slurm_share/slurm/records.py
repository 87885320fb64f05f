"""Records of what Slurm says: a job as a hook gets it, jobs in the queue, nodes.

Units live in the names (`_mib` is 1,048,576 bytes). `None` means the source would not say; 0 means measured, and none.
msgspec.Struct and not dataclasses: they are made in C, and a Prolog pays for each record that it builds.
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
    """The job's GPUs here in Slurm's words: device numbers, GPU- or MIG- UUIDs (since 25.11)."""
    share: ShareRequest | None
    """None: an ordinary job."""
    share_problem: str | None = None
    """Why a share value that came along was not understood."""
    exclusive: Literal["node", "user"] | None = None
    """Whether Slurm gave the job its nodes, or its user's nodes, alone; None: neither, or not told."""
    restart_count: int | None = None
    user: str | None = None
    partition: str | None = None
    sluid: str | None = None
    tasks: int | None = None
    """Tasks of the whole job; None: nobody said (-n), so that a plain srun fills the slots."""
    nodes: int | None = None
    direct: bool = False
    """srun alone asked for this job, and its one step asks for what the job was given."""
    node_list: str | None = None
    """The nodes that slurmd names. Without PrologFlags=Alloc they are those of the step that came here first."""
    has_sure_gpus: bool = True
    """False: `granted` may be the GPUs that the job has on another node. Of a step on some of the job's nodes slurmd
    takes the node's place in the step for its place in the job (seen on 24.11 and 26.05). The plugin compares."""


class NodeKind(Struct, frozen=True, kw_only=True):
    """Nodes of one partition that are alike and in the same state, as sinfo groups them. A node that is in several
    partitions is in several of these. Every number is for one node."""

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
    """What can be given to jobs: 0 on nodes that are down or drained."""
    cores: int
    threads_per_core: int = 1
    memory_mib: int
    memory_allocated_mib: int = 0
    gpus: tuple[tuple[str, int], ...] = ()
    """(type, count); the type is empty where gres.conf names none."""
    gpus_allocated: tuple[tuple[str, int], ...] = ()
    gpus_in_parts: int = 0
    """GPUs of which some shards are taken: nobody gets these whole, and they are not in `gpus_allocated`."""
    features: str = ""

    @property
    def usable(self) -> bool:
        """Whether a job may be placed on these nodes, now or when what runs there has ended."""
        return self.partition_is_up and not set(self.states) & UNUSABLE_STATES

    @property
    def gpu_count(self) -> int:
        """GPUs of one node, of all types."""
        return sum(count for _, count in self.gpus)


UNUSABLE_STATES = frozenset({"DOWN", "DRAIN", "FAIL", "UNKNOWN", "FUTURE", "INVALID_REG", "ERROR"})
"""Slurm places no job on a node in one of these until an administrator, or the node's return, ends it."""


class ClusterName(Struct, frozen=True):
    """Which Slurm answered."""

    cluster: str
    version: str
    """Such as 26.05.5."""


class QueuedJob(Struct, frozen=True, gc=False, kw_only=True):
    """A job, or one element of an array, in Slurm's queue."""

    job_id: Count
    """The number of Slurm's record: an array's element that runs has one of its own."""
    array: Count | None = None
    """The number that all elements of an array have in common; None: no array."""
    element: Count | None = None
    """The index of an array's element; None: no element, or several in one record."""
    waiting: str = ""
    """The elements that this one record stands for, as Slurm writes them: 3-6,9 or 3-100%2."""
    het: tuple[Count, Count] | None = None
    """Number and component of a heterogeneous job."""
    name: str
    user: str
    uid: Count
    partition: str
    states: tuple[str, ...]
    """Slurm's words: PENDING, RUNNING ... first, then COMPLETING, CONFIGURING ..."""
    reason: str = ""
    """Why it waits, or did not go well."""
    start: Count | None = None
    """Unix time; of a waiting job, when Slurm expects it to start. None: not known."""
    cpus: Count | None = None
    tasks: Count | None = None
    node_count: Count | None = None
    nodes: Annotated[str, Meta(pattern=r"^([A-Za-z0-9._,-]|\[[0-9,-]+\])*$")] = ""
    """Folded, n[1,3]; empty: none yet."""
    features: str = ""
    memory_mib: Count | None = None
    """As asked for: of each node, or of each CPU."""
    memory_is_per_cpu: bool = False
    gpus: Count | None = None
    """GPUs of the job, over all its nodes; of a waiting one, what it asks for. None: not known yet, it waits for whole
    nodes."""
    has_shards: bool = False
    """A part of a GPU, counted in shards."""
    gpu_indexes: tuple[tuple[Count, ...], ...] | None = ()
    """For each of its nodes, in the order of `nodes`, Slurm's numbers of the GPUs of which it has the whole or a part.
    Empty: it has none, or no nodes yet. None: Slurm does not say."""
    keeps_others_out: bool = False
    """Slurm starts no other user's job on its nodes while it is there (--exclusive, --exclusive=user)."""
    share: str | None = None
    """What was written after --share-gpu; None: an ordinary job."""
    comment: str = ""
    script: str = ""
    """Path of the script that sbatch was given; empty: none, or not told."""

    @property
    def id(self) -> str:
        """As squeue and scancel write it: 4711, 4711_3, 4711_[4-9], 4711+1."""
        if self.het is not None:
            return f"{self.het[0]}+{self.het[1]}"
        if self.array is None:
            return str(self.job_id)
        return f"{self.array}_[{self.waiting}]" if self.element is None else f"{self.array}_{self.element}"

    @property
    def names(self) -> frozenset[str]:
        """All by which a person may mean it: of an array and a heterogeneous job also the number of all of it."""
        whole = {str(self.array)} if self.array else {str(self.het[0])} if self.het else set()
        return frozenset({self.id, str(self.job_id)} | whole)


class Submission(Struct, frozen=True, kw_only=True):
    """How a job was submitted, with all that is needed to submit it again."""

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
    """Where it is reached (NodeAddr); empty: under its name."""
    states: tuple[str, ...]
    """Slurm's words: IDLE, MIXED, ALLOCATED or DOWN first, then DRAIN, NOT_RESPONDING ..."""
    reason: str = ""
    """Why the node is down or drained."""
    cpus: Count
    cpus_allocated: Count = 0
    memory_mib: Amount
    memory_allocated_mib: Amount = 0
    gpus: Count = 0
    gpus_allocated: Count = 0
    """GPUs of which somebody has the whole, or a part."""
    load5: Level | None = None
    """Load average over 5 minutes, up to two minutes old (slurmd's answer to slurmctld)."""
    memory_free_mib: Amount | None = None
    """Free for the kernel, so without what is page cache."""
    partitions: tuple[str, ...] = ()

    @property
    def answers(self) -> bool:
        """Whether slurmctld hears of it."""
        return not {"DOWN", "NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN"} & set(self.states)
