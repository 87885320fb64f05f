"""Records of triples mode: the run, the place of each process, and how each task ended.

A *run* is one use of llsub or llmapreduce. It has `processes` workers on all its nodes, and `tasks` tasks. Without
--tasks, --ntasks or inputs, every process has one task, with its own number.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from ..core.records import ShareRequest
from ..node.records import Gpu
from ..packing import PackRequest, TaskSpec
from ..share import Assignment, Slot

TASKS_MAX = 10_000_000
"""Most tasks of a run, limited by the memory of its launchers. A run.json with more is refused."""
TaskCount = Annotated[int, Meta(ge=0, le=TASKS_MAX)]

# --- Variables of a task (LLSC's names; MIT SuperCloud documentation, "LLsub" and "LLMapReduce") --------------------
ENV_RANK = "LLSUB_RANK"
"""With at most one task per process: the number of the task. With more tasks: the number of the process over all nodes,
from 0 (triples/rules/deal.py, rank_of)."""
ENV_SIZE = "LLSUB_SIZE"
ENV_TASK = "LLSUB_TASK"
"""Number of the task, from 0; equal to its rank unless there are more tasks than processes."""
ENV_TASKS = "LLSUB_TASKS"
ENV_ATTEMPT = "LLSUB_ATTEMPT"
"""Number of the attempt: 1, then 2 at the first retry."""
ENV_PROGRESS = "LLSUB_PROGRESS"
"""File into which the task may write a number, the amount of work done (slurm_share/progress.py)."""
ENV_FOLDER = "LLSUB_DIR"
ENV_JOB_TASKS = "LLSUB_JOB_TASKS_PER_NODE"
"""The job's SLURM_TASKS_PER_NODE, from launch.sh to the launchers of a job without a triple. srun sets that variable to
one task per node in the launchers' step."""

Distribution = Literal["block", "cyclic", "dynamic"]
DISTRIBUTIONS: tuple[Distribution, ...] = ("block", "cyclic", "dynamic")

TaskKind = Literal["rank", "command", "input", "arguments"]
"""How a line of the tasks file becomes a program. rank: there is no file; every process runs the command. command: the
line is a command for bash, else /bin/sh. input: the line is one further argument of the command. arguments: the line is
a JSON array of further arguments."""


class Triple(Struct, frozen=True):
    """A triple [NNODE,NPPN,NTPP]: nodes, processes per node, threads per process."""

    nodes: int
    per_node: int
    """Processes on each node."""
    threads: int | None = None
    """Threads of each process; None: as many as it has cores, floor(cores / NPPN)."""
    is_auto: bool = False
    """True: `auto` was written for NPPN. `per_node` is then the number that fits on the smallest node; 1 before that is
    known."""

    def __str__(self) -> str:
        per_node = "auto" if self.is_auto else self.per_node
        parts = (self.nodes, per_node) if self.threads is None else (self.nodes, per_node, self.threads)
        return f"[{','.join(map(str, parts))}]"


class ProcessPlace(Struct, frozen=True):
    """The cores and the GPU of one process of a node."""

    local: int
    """Number of the process on this node, 0 to NPPN - 1."""
    gpu: int | None
    """Position in the node's list of GPUs; None: no GPU."""
    cpus: tuple[int, ...]
    threads: int


class Worker(Struct, frozen=True):
    """A process of a node with the resources of its tasks: cores, GPU, slot, variables."""

    rank: int
    """Number of the process over all nodes."""
    place: ProcessPlace
    slot: int | None = None
    """Number of its slot in the Prolog's plan on this node; None: the launcher assigns the GPUs."""
    gpu: Gpu | None = None
    gpu_slot: Slot | None = None
    """The slot with its caps; None: no GPU."""
    environment: tuple[Assignment, ...] = ()
    """The variables of that slot."""


class AwaitedRun(Struct, frozen=True):
    """A run that has to be done before another one starts (--after)."""

    folder: str
    """Absolute path."""
    id: str
    """As in Run."""


class Run(Struct, frozen=True, kw_only=True):
    """A run as submitted: the file `run.json` in its folder.

    `llsub --resume` rewrites it for changed --retries, --oom-retries or --max-failures, and for another folder.
    """

    version: int = 1
    id: str = ""
    """Random text. It stays when the folder is renamed, moved or copied, and another run in its place has another one.
    Empty: its folder is not made yet."""
    folder: str = ""
    """Absolute path of the folder when its scripts were last written; empty: it is not made yet."""
    kind: Literal["llsub", "llmapreduce"] = "llsub"
    name: str
    """Base name of the script, with which the names of its logs begin."""
    command: tuple[str, ...]
    """Program (absolute path) and arguments. Empty for tasks of kind `command`."""
    script_hash: str = ""
    """SHA-256 of the program as it was submitted, which is kept in the folder (kept_script.py); empty: not kept."""
    cwd: str
    triple: Triple | None
    """None: one process for each Slurm task of the job (SLURM_TASKS_PER_NODE)."""
    processes: TaskCount
    tasks: TaskCount
    """With those that were added later, as `run_folder.read_run` returns it; run.json has those of the submission."""
    added: TaskCount = 0
    """How many of `tasks` were added after the submission (added_tasks.py); 0 in run.json."""
    task_kind: TaskKind = "rank"
    distribution: Distribution = "block"
    per_process: int | None = None
    """With `block`: exactly this many tasks for each process, the rest for the last one (llmapreduce --ndata)."""
    retries: int = 0
    max_failures: int | None = None
    """Number of failed tasks that stops the run: nothing more starts, running tasks go on. None: no limit."""
    max_failures_written: str = ""
    """That number as written, which may be a percentage of the tasks; empty: no limit."""
    share: ShareRequest | None = None
    """The value of --share-gpu. On a node without a plan, the launcher implements it as far as possible."""
    is_share_computed: bool = False
    """True: the share's number is ceil(NPPN / GPUs) for nodes with the fewest GPUs. On a node with more GPUs, the
    launcher divides each GPU by the number of processes that it really has."""
    bind: bool = True
    """True: each process has cores of its own."""
    logs: Literal["task", "rank"] = "task"
    """One log for each task, or one for all tasks of a process."""
    log_folder: str = ""
    """Folder below the run's folder that contains the nodes' folders; empty: the run's folder itself."""
    after: tuple[AwaitedRun, ...] = ()
    """The runs that have to be done before this one starts (--after)."""
    scheduler: tuple[str, ...] = ()
    """The sbatch command that submitted the run; empty: it is without Slurm."""
    called: tuple[str, ...] = ()
    """The arguments of llsub; empty: a run of llmapreduce."""
    tasks_file: str = ""
    """The file of --tasks as written; `-`: standard input. Empty: there is none, or it was not recorded."""
    other_lines: tuple[int, ...] | None = ()
    """Numbers, from 1, of the lines of that file that are not tasks; None: too many to record."""
    progress: str = ""
    """Regular expression with one group, the amount of work done in a task's log (--progress)."""
    rate_window_s: float = 30.0
    """Length of a window in which the rates of tasks are measured (--window)."""
    order: str = ""
    """The order in which tasks of equal priority begin: `reversed`, `random:SEED`; empty: that of the list."""
    spec: TaskSpec = TaskSpec()
    """The options of tasks without their own. In a packed run, those of `pack` take its place."""
    resumed_time: str = ""
    """The value of --task-time with which the run was resumed, for all its tasks; empty: each has its own limit."""
    pack: PackRequest | None = None
    """Packing request: each task gets its GPU when it starts. None: each process has a fixed GPU."""
    together: bool = False
    """True: the tasks are ranks that send messages to each other (--spmd). There is one for each process, all start at
    once, and a rank that fails ends the others."""
    checkpoint_signal: int | None = None
    """Signal on which tasks save their state and end (--checkpoint-signal). A launcher that receives it starts nothing
    more. None: SIGUSR1 and SIGUSR2 are passed on without a meaning."""
    slot_s: float | None = None
    """Length of a turn (--slot), seconds: after it a task saves its state and ends if another one waits that fits
    nowhere. None: tasks run to their end."""
    until_done: int | None = None
    """Most jobs of the run, which submits the next one itself while tasks are left (--until-done). None: the user
    resumes it."""
    keep_going: bool = False
    """With `together`: a rank that fails does not end the others."""
    report: bool = False
    """Whether a short report is printed at the end of the job's output (--report)."""

    @property
    def first_tasks(self) -> int:
        """Return the number of tasks at submission."""
        return self.tasks - self.added

    @property
    def may_grow(self) -> bool:
        """Return whether tasks may be added to the run."""
        return self.kind == "llsub" and not self.together


Outcome = Literal[
    "done", "failed", "signal", "gpu memory", "host memory", "time limit", "disturbed", "not started", "given up",
    "saved", "unfinished",
]  # fmt: skip
"""done: exit code 0. failed: another code. signal: ended by a signal that we did not send. gpu memory, host memory: out
of memory. time limit: it ran longer than --task-time. disturbed: in a packed run, ended by another task on its GPU that
exceeded its memory or failed, or by the GPU. not started: the program could not be executed, or its log could not be
opened. given up: it was not tried, for example because tasks like it ran out of memory with a whole GPU. saved: exit
code 75 (EX_TEMPFAIL), it has saved its state and is not finished; also exit code 0 after --checkpoint-signal.
unfinished: ended by us, for the scheduler or the user, or because its launcher was killed. Also with exit code 0: a
program that saves its state when it is told to end may exit with 0, and running it again costs less than losing its
work."""


class GivenUp(Struct, frozen=True):
    """A waiting task that gets no further attempt."""

    task: int
    why: str
    attempt: int = 1
    """The number of the attempt that was due."""
    outcome: Outcome = "given up"


class Ended(Struct, frozen=True, kw_only=True):
    """How one attempt at a task ended: one line of a node's `results.jsonl`."""

    task: int
    rank: int
    """Its LLSUB_RANK."""
    attempt: int
    outcome: Outcome
    node: str
    job: str
    """Slurm's job id, with `.N` after the N-th requeue; outside Slurm `local-` and a unique name."""
    started: float
    """Unix time, seconds."""
    seconds: float
    code: int | None = None
    signal: int | None = None
    slot: int | None = None
    gpu: int | None = None
    """NVML index of its GPU."""
    gpu_uuid: str | None = None
    cpus: str = ""
    """Its CPUs as the kernel writes them: 0-3,8."""
    peak_gpu_mib: int | None = None
    """Peak of the sum over its processes, sampled once a second; None: not known."""
    gpu_cap_mib: int | None = None
    """Its cap of GPU memory; None: no cap, or not known."""
    gpu_booked_mib: int | UnsetType = UNSET
    """In a packed run: memory booked for it on each of its GPUs when it started."""
    gpu_needs_mib: int | UnsetType = UNSET
    """In a packed run: least need of GPU memory, known after it ran out of it."""
    units: float | UnsetType = UNSET
    """Amount of work done, as its program reports it."""
    rate_per_s: float | UnsetType = UNSET
    """Units per second, the mean over the measured windows of the attempt."""
    rate_source: str | UnsetType = UNSET
    """The `packing.RateSource` of `units` and `rate_per_s`."""
    speed_ratio: float | UnsetType = UNSET
    """In a packed run: `rate_per_s` over the rate of its command alone on such a GPU."""
    energy_j: float | UnsetType = UNSET
    """Energy of its GPUs that it is charged with, joules; absent: not known, or it ran for less than a second."""
    energy_rule: str | UnsetType = UNSET
    """The `usage.EnergyRule` by which `energy_j` was divided."""
    gpu_sm_percent: float | UnsetType = UNSET
    """Mean SM time of its processes on its GPUs, 0 to 100."""
    gpu_idle_s: float | UnsetType = UNSET
    """Seconds in which it had GPUs and none of its kernels ran, sampled once a second."""
    turn_over: float | UnsetType = UNSET
    """Unix time at which it was told to save its state because its turn was over (--slot)."""
    peak_rss_mib: int | None = None
    """Peak memory of the largest of its processes (getrusage(2), ru_maxrss); None: not more than the launcher's own
    peak, from which the counter of a new process starts."""
    cpu_seconds: float | None = None
    why: str = ""
    """Reason of an outcome other than done."""
    again: bool | UnsetType = UNSET
    """True: the launcher tries the task again."""
    gpu_guaranteed_mib: int | UnsetType = UNSET
    """GPU memory that the driver guaranteed it; absent: none. Above it, up to `gpu_cap_mib`, it has what is free."""
