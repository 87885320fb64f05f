"""Records of triples mode: the run, the place of each process, and how each task ended.

A *run* is one use of llsub or llmapreduce. It has `processes` workers over all its nodes and `tasks` pieces of work;
where the user named no further work, every process has the one task of its own number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from ..core.records import ShareRequest
from ..node.records import Gpu
from ..packing import PackRequest, RateSource
from ..share import Assignment, Slot

# --- What a task finds (LLSC's names; MIT SuperCloud documentation, "LLsub" and "LLMapReduce") ----------------------
ENV_RANK = "LLSUB_RANK"
"""From 0. Up to one task a process: the task's number. With more tasks: that of the process over all nodes
(triples/rules/deal.py, rank_of)."""
ENV_SIZE = "LLSUB_SIZE"
"""Processes of the run."""
ENV_TASK = "LLSUB_TASK"
"""The number of the task, from 0; equal to its rank unless there are more tasks than processes."""
ENV_TASKS = "LLSUB_TASKS"
ENV_ATTEMPT = "LLSUB_ATTEMPT"
"""1 at first, 2 at the first retry."""
ENV_PROGRESS = "LLSUB_PROGRESS"
"""A file, into which the task may write how much it has done: a number (slurm_share/progress.py)."""
ENV_FOLDER = "LLSUB_DIR"
"""The run's folder."""
ENV_JOB_TASKS = "LLSUB_JOB_TASKS_PER_NODE"
"""From launch.sh to the launchers of a job without a triple: the job's SLURM_TASKS_PER_NODE. Their own step has one
task on each node, and srun overwrites the variable with that."""

Distribution = Literal["block", "cyclic", "dynamic"]
DISTRIBUTIONS: tuple[Distribution, ...] = ("block", "cyclic", "dynamic")

TaskKind = Literal["rank", "command", "input", "arguments"]
"""How a line of the tasks file becomes a program. rank: no file, every process runs the command. command: the line is
for /bin/sh. input: the line is the command's one further argument. arguments: the line is a JSON array of further
arguments."""


class Triple(Struct, frozen=True):
    """A triple [NNODE,NPPN,NTPP]: nodes, processes per node, threads per process."""

    nodes: int
    per_node: int
    """Processes on each node."""
    threads: int | None = None
    """Threads of each process; None: as many as it has cores, floor(cores / NPPN)."""
    is_auto: bool = False
    """`auto` was written for NPPN. `per_node` is then what the smallest node has cores for; 1 until that is known."""

    def __str__(self) -> str:
        per_node = "auto" if self.is_auto else self.per_node
        parts = (self.nodes, per_node) if self.threads is None else (self.nodes, per_node, self.threads)
        return f"[{','.join(map(str, parts))}]"


class Place(Struct, frozen=True):
    """The cores and the GPU of one process of a node."""

    local: int
    """0 to NPPN-1 on this node."""
    gpu: int | None
    """Position in the node's list of GPUs; None: the node has none."""
    cpus: tuple[int, ...]
    threads: int


class Layout(Struct, frozen=True):
    """The processes of one node."""

    places: tuple[Place, ...]
    notes: tuple[str, ...] = ()
    """What the user should know: cores left idle, cores shared, with a triple that would fit."""


class Worker(Struct, frozen=True):
    """A process of a node with all that its tasks are given: place, slot, variables."""

    rank: int
    """The number of the process over all nodes; the rank of its first attempt where there is one task a process."""
    place: Place
    slot: int | None = None
    """Its slot of the job's share on this node; None: the launcher assigns the GPUs itself."""
    gpu: Gpu | None = None
    gpu_slot: Slot | None = None
    """The slot with its caps; None: no GPU."""
    environment: tuple[Assignment, ...] = ()
    """The variables of that slot."""


class Run(Struct, frozen=True, kw_only=True):
    """A run as submitted: the file `run.json` of its folder; `llsub --resume --retries` writes
    it again, with another number of retries (also `--oom-retries`, `--max-failures`)."""

    version: int = 1
    kind: Literal["llsub", "llmapreduce"] = "llsub"
    name: str
    """Base name of the script: the beginning of its logs' names."""
    command: tuple[str, ...]
    """Program and arguments; the program absolute. Empty for tasks of kind `command`."""
    cwd: str
    triple: Triple | None
    """None: processes are where Slurm put the job's tasks (SLURM_TASKS_PER_NODE)."""
    processes: int
    tasks: int
    task_kind: TaskKind = "rank"
    distribution: Distribution = "block"
    per_process: int | None = None
    """With `block`: exactly this many tasks for each process, the rest for the last (llmapreduce --ndata)."""
    retries: int = 0
    max_failures: int | None = None
    """This many failed tasks stop the run: nothing more starts, running tasks go on. None: no limit."""
    share: ShareRequest | None = None
    """What was written after --share-gpu; where the node has no plan, the launcher sees to it as far as it can."""
    is_share_computed: bool = False
    """True: the share's number is ceil(NPPN / GPUs) of the nodes with the fewest. On a node with more GPUs the launcher
    gives each process the part that is left by as many as there really are."""
    bind: bool = True
    """Each process on cores of its own."""
    logs: Literal["task", "rank"] = "task"
    """A log for every task, or one for all tasks of a process."""
    log_folder: str = ""
    """Where the nodes' folders with their logs are, below the run's folder; empty: in it."""
    called: tuple[str, ...] = ()
    """The arguments of llsub, with which it can be called again; empty: not recorded."""
    progress: str = ""
    """A regular expression with one group: a number in a task's log that says how much it has done (--progress)."""
    rate_window_s: float = 30.0
    """The length of one window in which the rates of tasks are measured (--window)."""
    pack: PackRequest | None = None
    """The tasks are packed: each gets its GPU when it starts. None: each process has a GPU of its own."""
    together: bool = False
    """The tasks are ranks that send messages to each other (--spmd): one for each process, all start at once, and the
    end of one with a code or a signal ends the others."""
    keep_going: bool = False
    """With `together`: such an end ends no other rank."""


Outcome = Literal["done", "failed", "signal", "gpu memory", "host memory", "disturbed", "not started", "unfinished"]
"""done: exit code 0. failed: another code. signal: ended by one that we did not send. gpu memory, host memory: out of
it. disturbed: of a packed run, ended by a neighbour on its GPU that outgrew its memory or failed, or by the GPU itself.
not started: the program could not be executed, or its log could not be opened. unfinished: ended by us, on the
scheduler's or the user's word, or because its launcher died; also with exit code 0, which is what a program ends with
that was told to and has saved its state: to run it again costs less than to lose it."""


class Ended(Struct, frozen=True, kw_only=True):
    """How one attempt at a task ended: one line of a node's `results.jsonl`."""

    task: int
    rank: int
    """The LLSUB_RANK that it had."""
    attempt: int
    outcome: Outcome
    node: str
    job: str
    """Slurm's job id, with `.N` after its N-th requeue; `local-` and a name of its own outside Slurm."""
    started: float
    """Unix time, seconds."""
    seconds: float
    code: int | None = None
    signal: int | None = None
    slot: int | None = None
    gpu: int | None = None
    """NVML index."""
    gpu_uuid: str | None = None
    cpus: str = ""
    """As the kernel writes it: 0-3,8."""
    peak_gpu_mib: int | None = None
    """The largest sum over the task's processes that was seen, once a second; None: not seen, or not known."""
    gpu_cap_mib: int | None = None
    """The cap of GPU memory in force; None: none, or not known."""
    gpu_booked_mib: int | UnsetType = UNSET
    """Of a packed run: what was booked for it on each of its GPUs when it started."""
    gpu_needs_mib: int | UnsetType = UNSET
    """Of a packed run: it ran out of GPU memory, and is known to need at least so much."""
    units: float | UnsetType = UNSET
    """How much it has done, as its program says."""
    rate_per_s: float | UnsetType = UNSET
    """Units a second, the mean over the measured windows of the attempt."""
    rate_source: str | UnsetType = UNSET
    """`packing.RateSource` of these two."""
    speed_ratio: float | UnsetType = UNSET
    """Of a packed run: `rate_per_s` over the rate of its command alone on such a GPU."""
    peak_rss_mib: int | None = None
    """Peak of the largest of its processes (getrusage(2), ru_maxrss); None: not above the launcher's own, which a new
    process starts from."""
    cpu_seconds: float | None = None
    why: str = ""
    """Why it is not done, as observed."""


def best(attempts: Sequence[Ended]) -> Ended:
    """Return the attempt that decides a task's outcome: the first that is done, else the last."""
    return next((ended for ended in attempts if ended.outcome == "done"), attempts[-1])


class WorkRate(Struct, frozen=True, kw_only=True):
    """How much several running tasks do together, where they count the same."""

    per_s: float
    """Units of work a second; with the source `output`, lines."""
    tasks: int
    """Those that are measured."""
    source: RateSource
    kind: str | None = None
    """What tasks have in common which count the same units; None: not known."""


class Progress(Struct, frozen=True, kw_only=True):
    """How far one launcher is: `progress.json` of its node's folder, written anew about once a second."""

    node: str
    job: str
    processes: int
    running: int
    done: int
    failed: int
    """Tasks that have no attempt left."""
    waiting_for_memory: int = 0
    left: int | None
    """Tasks that this node has still to start; None: nodes share a queue, what is left is known of all together."""
    at: float
    """Unix time, seconds."""
    began: float = 0.0
    """When the launcher began with its tasks, Unix time, seconds; 0: not told."""
    ended: bool = False
    work: WorkRate | None = None
    """None: no running task is measured, or they count different things."""


class Wait(Struct, frozen=True):
    """A rank that waits for a message, or in a collective call."""

    rank: int
    what: str
    """Behind "waits ": `for (3, 'x')`, `in barrier`."""
    since: float
    """Unix time, seconds."""
