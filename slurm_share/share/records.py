"""Records of a share: plan, slots, refusal, ledger.

Units live in the names (`_mib` is 1,048,576 bytes). `None` means the source would not say; 0 means measured, and none.
msgspec.Struct and not dataclasses: they are made in C, and a Prolog pays for each record that it builds.
"""

from __future__ import annotations

from msgspec import Struct

from ..core.records import ProcessIdentity, ShareRequest
from ..node.records import Gpu, NodeProcess
from ..slurm.records import JobContext

BACKEND_MPS = "mps"
"""The name of the backend that shares a GPU through an MPS daemon."""
BACKEND_TIME_SLICING = "time-slicing"
"""The name of the backend that leaves it to the driver: the tasks of a GPU take turns, and no cap is enforced."""


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
    """Which of the plan's equal parts of the job's cores this slot runs on."""
    memory_cap_mib: int | None = None
    """The task's part of the GPU's memory; None: all of it, or not known. Only MPS enforces it."""
    memory_ratio: str | None = None
    """The cap as a decimal fraction of the whole GPU, for frameworks that take one of the total."""
    sm_percent: float | None = None
    """The part of the GPU's multiprocessors that MPS gives the task; None: no cap."""
    mps_directory: str | None = None
    """The pipe directory of the GPU's MPS daemon, which is checked before a task starts; None: the slot has no MPS."""
    backend: str = BACKEND_TIME_SLICING
    """The name of the backend that serves the slot."""
    on_gpu: int | None = None
    """For a job that has a part of one GPU: which of its N parts, across jobs."""
    variables: tuple[Assignment, ...] = ()
    """Variables of the backend, beyond those that follow from the fields above."""

    @property
    def enforced_cap_mib(self) -> int | None:
        """Return the memory cap that MPS holds the task to; None: there is none."""
        return None if self.mps_directory is None else self.memory_cap_mib


class Plan(Struct, frozen=True):
    """Which GPU, memory and slot each task of one job gets on one node: decided, written, read and carried out."""

    job_id: int
    """0: a launcher outside Slurm."""
    uid: int
    node: str
    share: ShareRequest
    """In force: `per_gpu` is the number of tasks that a GPU has here."""
    gpus: tuple[Gpu, ...]
    slots: tuple[Slot, ...]
    cores: tuple[tuple[int, ...], ...] = ()
    """The machine's cores in Slurm's order, each as its operating system CPU numbers."""
    notes: tuple[str, ...] = ()
    """Sentences for the job's output, each said once."""


class Refusal(Struct, frozen=True):
    """Why a job's tasks do not run as shares on this node: a sentence for its user."""

    job_id: int
    uid: int
    node: str
    sentence: str
    cause: str = "job"
    """A cause of share/rules/drain.py, which says whether it drains the node. The default: what the job asks for. It is
    not written into the plan's file."""


class Unshared(Struct, frozen=True):
    """Why a job that asked to share runs unshared on this node."""

    job_id: int
    uid: int
    node: str
    why: str


class Grant(Struct, frozen=True):
    """What a job has of a node before its plan is decided. Its ledger entry is made of this."""

    job: JobContext
    share: ShareRequest
    """In force: `per_gpu` is the number of tasks that a GPU has here."""
    gpus: tuple[Gpu, ...]
    slots: int
    """How many tasks have a slot."""
    is_part: bool
    """True: Slurm gave the job 1/N of one GPU (gres/shard), and other jobs of its user may have the rest."""
    backend: str
    """The name of the backend that is wanted and possible here. It is prepared before the plan is decided."""
    title: str = ""
    """The backend's name for users."""
    note: str | None = None
    """What the job's user is told about the choice of the backend."""


class Served(Struct, frozen=True):
    """What a backend has made ready on one GPU for the job's tasks there."""

    mps_directory: str | None = None
    """The pipe directory of the GPU's MPS daemon, which is checked before each task starts; None: there is none."""
    variables: tuple[Assignment, ...] = ()
    """Variables of every task there, besides those that the backend's `environment` makes of a slot."""


class Prepared(Struct, frozen=True):
    """What a backend has made of a job's GPUs; each is in one of the two, by its UUID."""

    served: dict[str, Served] = {}
    failures: dict[str, str] = {}
    """Why the backend does not serve the GPU. What was begun there was undone."""
    log: tuple[str, ...] = ()
    """Sentences for the hooks' log."""


class Limits(Struct, frozen=True):
    """What a backend of share/backends/ can enforce on a node, and why it cannot serve tasks there."""

    backend: str
    """Its name."""
    title: str
    """The same for people."""
    client_limit: int | None = None
    """Tasks that one GPU takes; None: any number."""
    connections: int = 0
    """CUDA connections that each of `client_limit` tasks can have to its GPU; 0: any number."""
    enforces_caps: bool = False
    """Whether it holds a task to its memory cap and its SM percentage."""
    serves_mig: bool = True
    """Whether it can serve MIG instances."""
    why_not: str | None = None
    """None: it can serve tasks on this node."""
    is_missing: bool = False
    """Whether the site names a program for it that this node does not have."""
    required_by: str = ""
    """The setting by which the site refuses shares on such a node; empty: none does."""
    effect: str = ""
    """What a task meets that it serves instead of a preferred backend."""


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


class QueueSwitched(Struct, frozen=True):
    """What became of the jobs in the queue when sharing was switched."""

    running: int
    """Jobs that run, and share to their end."""
    waiting: int
    """Jobs that wait and have a new verdict; each element of an array counts."""
    left: int
    """Jobs that still have the verdict of before."""
    refused: tuple[str, ...] = ()
    """What scontrol said of those that it did not change, a sentence for each list of them."""


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
    """The jobs that share."""
    slots: int = 0
    daemons: int = 0
    """GPUs with an MPS daemon of ours."""
    problem: str | None = None


class ClusterShares(Struct, frozen=True):
    """What `slurm-share status --cluster` shows."""

    host: str
    """Where it was asked; its modes are the cluster's."""
    modes: dict[str, str]
    """The mode of each partition that has its own, and under the empty name that of all others."""
    is_switched_off: bool
    mode_file: str | None
    """The word in force of the site's mode file; None: it has none."""
    states: dict[str, str]
    """The state of each node, in sinfo's word."""
    nodes: dict[str, NodeShares]
    problems: tuple[str, ...] = ()


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
    """When the Prolog ran: seconds since the node's start (CLOCK_BOOTTIME), which setting its clock does not move."""
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
    """The hook that does it. If that process is gone (it was killed, or had no more time), the next hook takes over."""
    asides: tuple[str, ...] = ()
    """Folders into which it moves what is to be removed, named before they are made."""


class Ledger(Struct, frozen=True):
    """Who is on the node, since this boot."""

    boot_id: str
    jobs: tuple[LedgerJob, ...] = ()
    modes: tuple[ModeBefore, ...] = ()
    """What has to be put back when the last job leaves a GPU."""
    leaving: tuple[Leaving, ...] = ()


class Sweep(Struct, frozen=True):
    """What is to become of the processes on GPUs that a job has left."""

    end: tuple[NodeProcess, ...] = ()
    """The ended job's user's, in no live job."""
    tolerated: tuple[NodeProcess, ...] = ()
    """System programs that may stay."""
    without_job: tuple[NodeProcess, ...] = ()
    """Other users', in no live job: ended where no job has the GPU."""
    foreign: tuple[NodeProcess, ...] = ()
    """System users': never ended, and named in the log."""
