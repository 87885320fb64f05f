"""The nouns of a share: plain frozen values that readers answer in and decisions are made of.

Units live in the names (`_mib` is 1,048,576 bytes). `None` means the source would not say; 0 means measured, and none.

msgspec.Struct and not dataclasses: the same manners, but made in C. Building these as dataclasses took a third of what
a Prolog costs, and every job of a share pays for that.
"""

from __future__ import annotations

from msgspec import Meta, Struct

from .typed import Annotated, Literal

MPS_NAME = "nvidia-cuda-mps"
"""Name of MPS daemons and servers, as far as the kernel keeps it: 15 letters."""

MOST = 10**15
"""What no figure of a node reaches, and what one can still calculate with: a file that says more is no record."""
Count = Annotated[int, Meta(ge=0, le=MOST)]
"""Something that is counted, or a number by which something is known."""
SmChoice = int | Literal["even", "free"]
"""The share of a GPU's streaming multiprocessors a task may use: percent, an even part, or no cap."""


class ShareRequest(Struct, frozen=True):
    """What a user wrote after --share-gpu."""

    per_gpu: int
    """Tasks on each GPU, the N."""
    mem_mib: int | None = None
    """GPU memory of one task; None: an even part."""
    sm: SmChoice | None = None
    mps: bool | None = None
    """None: with MPS where the node has it."""


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


class Gpu(Struct, frozen=True):
    """One GPU, or one MIG instance, as the driver lists it."""

    uuid: str
    index: int
    """NVML index; of a MIG instance, its parent's."""
    minor: int | None
    """The N of /dev/nvidiaN."""
    name: str
    memory_total_mib: int | None
    mig_parent: bool = False
    """True: MIG is on, work runs on the instances and not on this GPU itself."""
    simulated: bool = False
    is_listed: bool = True
    """False: there is no driver to ask, and `uuid` is the word of CUDA_VISIBLE_DEVICES for it."""


class Driver(Struct, frozen=True):
    """The NVIDIA driver of this node, and what it drives."""

    version: str
    """Such as 550.163.01."""
    gpus: tuple[Gpu, ...]
    """In NVML's order, MIG instances after their parent."""


class GpuProcess(Struct, frozen=True):
    """A process that the driver lists on a GPU."""

    pid: int
    memory_used_mib: int | None


class GpuReading(Struct, frozen=True):
    """One GPU at one moment."""

    gpu: Gpu
    memory_used_mib: int | None
    utilization_percent: int | None
    """Share of the last sampling period in which a kernel ran: an upper bound of how busy the GPU is."""
    processes: tuple[GpuProcess, ...]


class Slot(Struct, frozen=True):
    """One task's place on a GPU."""

    number: int
    """0 to slots-1 on this node; slot i is on GPU i mod G."""
    gpu: Gpu
    part: int
    """Which of the plan's equal parts of the job's cores this slot runs on."""
    memory_cap_mib: int | None
    """None: one task has the GPU to itself."""
    memory_fraction: str | None
    """The cap as a decimal fraction of the whole GPU, for frameworks that take one of the total."""
    thread_percent: float | None = None
    """Share of the GPU's multiprocessors under MPS; None: no cap."""
    pipe: str | None = None
    """Pipe directory of the GPU's MPS daemon; None: this slot is shared without MPS."""
    on_gpu: int | None = None
    """Of a job that has a part of one GPU: its number among the N of that GPU, across jobs."""


class Plan(Struct, frozen=True):
    """Which GPU, memory and slot each task of one job gets on one node."""

    job: JobContext
    share: ShareRequest
    """In force: `per_gpu` is the number of tasks that a GPU has here."""
    gpus: tuple[Gpu, ...]
    slots: tuple[Slot, ...]
    cores: tuple[tuple[int, ...], ...]
    """The machine's cores in Slurm's order, each as its operating system CPU numbers."""
    notes: tuple[str, ...] = ()
    """Sentences for the job's output, each said once."""
    wants_mps: bool = False
    """Whether daemons are to be started; which slots then have one stands in `Slot.pipe`."""
    is_part: bool = False
    """True: Slurm gave the job 1/N of one GPU (gres/shard), and other jobs of its user may have the rest."""


class MpsOffer(Struct, frozen=True):
    """Whether this node can start MPS for a job."""

    client_limit: int
    """Clients that one GPU takes with this driver."""
    why_not: str | None = None
    """None: it can."""
    is_missing: bool = False
    """True: the site names a program for MPS, and this node does not have it."""


class Refusal(Struct, frozen=True):
    """Why a job's tasks do not run as shares on this node: a sentence for its user."""

    job: JobContext
    sentence: str
    cause: str = "job"
    """Of share/rules/drain.py, which says what comes of it; the default is what the job itself asks for."""


class Assignment(Struct, frozen=True):
    """One environment variable of a task."""

    name: str
    value: str
    unless_set: bool = False
    """True: a value that the user gave wins."""


class PlanSlot(Struct, frozen=True):
    """One slot line of a plan file."""

    number: int
    part: int
    environment: tuple[Assignment, ...]


class PlanFile(Struct, frozen=True):
    """A plan as it stands in its file: what the plugin and the launcher carry out."""

    job_id: int
    uid: int
    node: str
    refused: str | None = None
    share: ShareRequest | None = None
    gpus: int = 0
    cores: tuple[tuple[int, ...], ...] = ()
    notes: tuple[str, ...] = ()
    slots: tuple[PlanSlot, ...] = ()
    unshared: str | None = None
    """Why a job that asked to share runs unshared here."""


class Switchable(Struct, frozen=True):
    """A job of the queue, as far as switching sharing off and on concerns it."""

    which: str
    """As scontrol names it: 7, or 7_[3-9] for the elements of an array that wait."""
    partitions: tuple[str, ...]
    is_pending: bool
    was_shaped: bool
    """job_submit.lua worked out what it asks for from its share."""
    restarts: int
    extra: str
    comment: str


class VerdictUpdate(Struct, frozen=True):
    """A change of the controller's word on some jobs: their field gets this text."""

    jobs: tuple[str, ...]
    """As scontrol names them."""
    field: str
    text: str


class NodeShares(Struct, frozen=True):
    """What one node said about itself to `slurm-share status --cluster`."""

    node: str
    mode: str | None = None
    """None: it did not say."""
    partition_modes: dict[str, str] = {}
    jobs: tuple[int, ...] = ()
    """Those that share."""
    slots: int = 0
    daemons: int = 0
    """GPUs with an MPS daemon of ours."""
    problem: str | None = None


class LiveJob(Struct, frozen=True):
    """A job that has a step on this node: its slurmstepd is there."""

    job_id: int
    uid: int | None
    """Of its tasks; None: it has none at this moment."""
    without_task_s: float = 0.0
    """0: a slurmstepd of it has a process below it. Else none has, and the youngest of them is so old, seconds."""


class LedgerJob(Struct, frozen=True):
    """A job that this node knows of: every shared one, and on nodes kept to one user at a time every other."""

    job_id: int
    uid: int
    share: str
    """Canonical option text; empty for a job without a share."""
    gpus: tuple[str, ...]
    """UUIDs, in the order Slurm granted them. Of a job without a share: none, they are its own business."""
    slots: int
    since: float
    """Of the Prolog: seconds since the node's start (CLOCK_BOOTTIME), which no setting of its clock moves."""
    restart_count: int | None = None
    user: str | None = None
    partition: str | None = None
    sluid: str | None = None
    on_gpu: int | None = None
    """As in Slot: a job that has a part of one GPU."""
    clean_up: tuple[str, ...] = ()
    """What of its user's is cleared away when this was the last job: the setting at its arrival, and of files only
    where no job of the user can be here that the ledger does not know."""


class ModeBefore(Struct, frozen=True):
    """The compute mode a GPU had before we changed it."""

    gpu: str
    mode: int
    """NVML's number."""


class Leaving(Struct, frozen=True):
    """A job that is over, while a hook takes away what it left."""

    job: LedgerJob
    hook: ProcessIdentity
    """Who is at it; when that process is gone, whoever comes next takes it up: it was killed, or had no more time."""
    asides: tuple[str, ...] = ()
    """Folders into which it moves what is to be removed, named before they are made."""


class Ledger(Struct, frozen=True):
    """Who is on the node, since this boot."""

    boot_id: str
    jobs: tuple[LedgerJob, ...] = ()
    modes: tuple[ModeBefore, ...] = ()
    """What has to be put back when the last job leaves a GPU."""
    leaving: tuple[Leaving, ...] = ()


class NodeProcess(Struct, frozen=True):
    """A process seen on a GPU, and whose it is."""

    identity: ProcessIdentity
    job_id: int | None
    """The job it belongs to, by its cgroup, its slurmstepd, or what its own environment says; None: no job's."""
    is_own_word: bool = False
    """True: only its environment says so, which its user can write."""


class Sweep(Struct, frozen=True):
    """What is to become of the processes on GPUs that a job has left."""

    end: tuple[NodeProcess, ...] = ()
    """The ended job's user's, in no live job."""
    tolerated: tuple[NodeProcess, ...] = ()
    """System programs that may stay."""
    strays: tuple[NodeProcess, ...] = ()
    """Other users', in no live job: ended where no job has the GPU."""
    foreign: tuple[NodeProcess, ...] = ()
    """System users': never ended, and named in the log."""


class Owner(Struct, frozen=True):
    """Who a process runs as."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    """Supplementary groups; a site may give /dev/nvidia* to one."""


class ProcessIdentity(Struct, frozen=True):
    """One process and no later one of the same number."""

    pid: int
    """0: the kernel names no process (another pid namespace, or a lock that belongs to an open file)."""
    start_ticks: int | None = None
    """Field 22 of /proc/PID/stat, clock ticks after boot; None: hidden (hidepid) or gone."""
    uid: int | None = None
    name: str | None = None
    """The kernel's name of it, at most 15 characters."""


class DaemonGroup(Struct, frozen=True):
    """The cgroup of one user's MPS daemon on one GPU: root's, in one folder for each user."""

    root: str
    """Where cgroups are mounted."""
    uid: int
    name: str
    """The GPU, as its pipe directory names it."""
    minor: int | None = None
    """The N of /dev/nvidiaN, the one GPU that may be opened in it; None: not known, so any."""
    memory_mib: int | None = None
    """Host memory that all in it may take; None: no limit."""
    processes: int | None = None
    """Processes and threads that may be in it; None: no limit."""


class MpsPlace(Struct, frozen=True):
    """Where one MPS control daemon lives, of whom, for which GPU, and the program that is it and speaks with it."""

    program: str
    """Absolute path of nvidia-cuda-mps-control."""
    pipe: str
    """Pipe directory (CUDA_MPS_PIPE_DIRECTORY), absolute, at most 87 bytes."""
    gpu: str
    """CUDA_VISIBLE_DEVICES of the daemon: a UUID. Numbers would be counted anew for its clients, so that a client with
    the same CUDA_VISIBLE_DEVICES finds another GPU or none (docs.nvidia.com/deploy/mps, CUDA_VISIBLE_DEVICES)."""
    owner: Owner
    environment: tuple[tuple[str, str], ...] = ()
    """Further variables for the daemon, such as LD_LIBRARY_PATH where libcuda is not on the linker's path."""
    options: tuple[str, ...] = ()
    """Further words at its start, such as -S (static partitioning, where the release has it)."""
    group: DaemonGroup | None = None
    """The cgroup that root starts it in; None: the caller's own."""

    @property
    def logs(self) -> str:
        """Log folder. Not `log`: the daemon makes a fifo of that name in its pipe directory."""
        return f"{self.pipe}/logs"


class MpsServer(Struct, frozen=True):
    """One nvidia-cuda-mps-server, the process through which clients reach the GPU."""

    pid: int
    status: str | None
    """INITIALIZING, ACTIVE, FAULT; None: a release that cannot say (535 and older)."""


class MpsClient(Struct, frozen=True):
    """One program that goes through an MPS server, as `ps` lists it."""

    pid: int
    server_pid: int
    gpu: str
    """The beginning of its UUID."""
    command: str


MpsCondition = Literal["fine", "no server", "fault", "silent", "stopped", "foreign", "dead"]


class MpsHealth(Struct, frozen=True):
    """How one control daemon is."""

    condition: MpsCondition
    """fine: it answers and its server takes clients. no server: it answers, and starts one for the first client.
    fault: the server refuses new clients (CUDA error 807). silent: it lives and does not answer. stopped: by SIGSTOP,
    so it was not asked, as `slurm-share doctor` does. foreign: something else holds its lock. dead: nobody holds it;
    CUDA programs then run on, without MPS, and say nothing."""
    daemon: ProcessIdentity | None
    servers: tuple[MpsServer, ...] = ()
    why: str = ""
    """What was seen, where it is not fine."""


MpsRole = Literal["daemon", "server", "front end"]
"""A front end that waits for input keeps every other one out of its daemon."""


class MpsProcess(Struct, frozen=True):
    """A process of MPS that runs on this node, anybody's."""

    identity: ProcessIdentity
    role: MpsRole
    pipe: str | None
    """Its pipe directory; None: its environment is not for our eyes."""
    uids: tuple[int, ...] = ()
    """Its real, effective, saved and file system uid; empty where the kernel does not say. They differ in a program
    that changes its user, such as su: such a process is not its effective user's alone."""
    program: str | None = None
    """The file that it executes, as the kernel says it (/proc/PID/exe); None: not for our eyes."""
    protocol: int = 2
    """2, or from driver 615 on also 3: another way to ask the daemon, and another default pipe directory."""


class MpsDefaults(Struct, frozen=True):
    """What a daemon gives every server that it starts from then on. None: as NVIDIA has it, no limit."""

    thread_percent: float | None = None
    memory_mib: int | None = None
    """Pinned memory of one client on the daemon's GPU."""
    client_priority: int | None = None
    """0 normal, 1 below normal."""


class MpsStarted(Struct, frozen=True):
    """A daemon that is there and was seen to answer."""

    place: MpsPlace
    daemon: ProcessIdentity
    servers: tuple[MpsServer, ...]
    joined: bool
    """True: it ran already."""
    seconds: float
    notes: tuple[str, ...] = ()


class MpsFailed(Struct, frozen=True):
    """A daemon that is not to be used, and why; what was begun was undone."""

    place: MpsPlace
    kind: str
    """Name of the error."""
    why: str


class MpsStopped(Struct, frozen=True):
    """How a daemon went, and what of it is still there."""

    place: MpsPlace
    how: Literal["was not there", "in use", "quit", "SIGTERM", "SIGKILL", "still there"]
    clients: tuple[int, ...]
    """Programs that were still connected and were told to end."""
    left: tuple[ProcessIdentity, ...]
    """Processes of it that outlived every signal: the GPU is not free."""
    seconds: float
    notes: tuple[str, ...] = ()


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
    """Of Slurm's record: an array's element that runs has one of its own."""
    array: Count | None = None
    """The number that all elements of an array have in common; None: no array."""
    element: Count | None = None
    """Of an array."""
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
    words: tuple[str, ...]
    """All words after the program's name."""
    place: int
    """The index in `words` of the script (sbatch) or of the triple (llsub)."""
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
        """The words after the script, or after the triple."""
        return self.words[self.place + 1 :]
