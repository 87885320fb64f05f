"""Records of packing: requests and estimates of tasks, the state of a node's GPUs, samples, and ends of attempts.

Launchers and the simulator build the same records and call the same rules. Memory is in MiB, times are in
seconds, ratios are from 0 to 1. Times of a view are seconds of a monotonic clock that begins with the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from ..core.records import MPS_CLIENTS_MIN
from ..node.records import Gpu
from .speed_records import Load, PairView, Rate

PolicyName = Literal[
    "booked",
    "gain",
    "exclusive",
    "rr",
    "magm",
    "lug",
    "mug",
    "first-fit",
    "best-fit",
    "worst-fit",
    "oracle-lug",
    "slots",
]
POLICIES: tuple[PolicyName, ...] = (
    "gain", "booked", "exclusive", "rr", "magm", "lug", "mug", "first-fit", "best-fit", "worst-fit",
)  # fmt: skip
"""Policies for --pack, which means the first. `oracle-lug` knows the true sizes, and exists in the simulator only."""
BOOKING: frozenset[PolicyName] = frozenset({"booked", "gain", "slots"})
"""Policies that place tasks by booked memory. `slots` is that of runs without --pack, which book their slots' caps."""

Source = Literal["user", "exact", "line", "family", "other-gpu", "static", "probe", "sibling", "unknown"]
"""The source of an estimate. user: the user's own number. exact: earlier runs of the same command. line: a straight
line through runs of the same command with another number. family: earlier runs of the same script. other-gpu: the same
command on another GPU model. static: a formula over a description of the model. probe: a dry run with
fake tensors. sibling: a running task of the same
family in this run. unknown: there is no estimate."""

Order = Literal["fifo", "short", "long"]
"""The order of waiting tasks. short, long: by their duration in the history; unknown durations are in the middle."""

Guard = Literal["soft", "hard"]
"""soft: the cap of a task is above its reservation. hard: the cap equals the reservation, so that the caps of the tasks
on a GPU never exceed its memory."""


Undo = Literal["off", "pause"]
"""The reaction to tasks that together do less than one at a time, besides keeping such pairs apart. pause: pause the
younger task (SIGSTOP), or move it if it can save its state."""


# ---- The task ----


class TaskKey(Struct, frozen=True):
    """Identifies a task by hashes, so that the history contains no text of a user's command."""

    exact: str
    """Hash of the script's bytes and of all arguments that can affect memory; empty: not known."""
    family: str
    """Hash of the script's name, the program's name and the names of the flags."""
    numbers: tuple[tuple[str, float], ...] = ()
    """(flag or position, number) for each argument that is a number."""
    series: str = ""
    """Hash as `exact` without the numbers: commands of one series differ in numbers only. Empty: not known."""
    script: str = ""
    """Hash of the script's path, to show the script's name in lists."""


class TaskAsk(Struct, frozen=True, kw_only=True):
    """The request of one task."""

    task: int
    gpus: int = 1
    """More than one: whole idle GPUs, without MPS, since a process reaches one MPS daemon only."""
    gpu_mem_mib: int | None = None
    """The user's own number, used as reservation and cap. None: not given. With `gpu_mem_least_mib` it is the most."""
    gpu_mem_percent: float | None = None
    """The same as a part of what a task can have on its GPU. None: not given."""
    is_half: bool = False
    """It takes half a GPU: at most two such tasks run on one."""
    workers: int = 1
    """Number of the node's workers whose cores it takes."""
    host_mib: int | None = None
    """Host memory that it books; None: the part of one worker."""
    priority: int = 0
    """Tasks with a larger number start first."""
    name: str = ""
    """The user's name for the family; empty: none."""
    submitted_s: float = 0.0
    key: TaskKey | None = None
    """None: the task cannot be identified, so nothing is learned from it."""
    gpu_mem_least_mib: int | None = None
    """The guaranteed part of `gpu_mem_mib`: it is booked, and the rest is learned. None: `gpu_mem_mib` is booked."""

    @property
    def is_sized(self) -> bool:
        """Return whether the user has given its size: one number, not a range."""
        return self.gpu_mem_least_mib is None and (self.gpu_mem_mib is not None or self.gpu_mem_percent is not None)


class Estimate(Struct, frozen=True, kw_only=True):
    """The expected peak of a task's GPU memory on one GPU model."""

    point_mib: int | None
    """None: not known."""
    safe_mib: int | None
    """The bound: exceeded in at most a part `alpha` of all cases."""
    source: Source
    runs: int = 0
    """Number of observations behind it."""
    alpha: float | None = None
    seconds: float | None = None
    """The expected duration on a GPU without neighbours; None: not known."""
    is_elastic: bool = False
    """The task takes all memory that it is given, as JAX does: its memory does not show its need."""
    processes: int = 1
    """Largest number of CUDA processes of such a task; the cap is per process."""
    floor_mib: int = 0
    """Largest memory with which such a task ran out of memory."""
    was_done: bool = False
    """A run of this command was done, on any GPU model."""
    text: str = ""
    """Explanation: "largest of 12 runs of this command, +4 %"."""


class Tries(Struct, frozen=True):
    """Numbers of failed attempts of a task, by reason."""

    failed: int = 0
    """Ordinary failures; --retries limits them."""
    own_memory: int = 0
    """Out of memory by its own need; --oom-retries limits them."""
    suspected: int = 0
    """Failed on a full GPU without a message about memory; the first time counts as own_memory."""
    neighbour_memory: int = 0
    """Out of memory within its reservation, because a neighbour outgrew its own: free, at most FREE_TRIES."""
    neighbour_fault: int = 0
    """Ended by a neighbour's fault: free, at most FREE_TRIES."""
    device: int = 0
    """Ended by a GPU that failed: free, at most FREE_TRIES."""
    was_alone: bool = False
    """One attempt had a GPU to itself and ran out of memory."""
    moved: int = 0
    """Told to save its state and end, to start on another GPU: free, see `rules.undo`."""
    reclaimed: int = 0
    """Ended by the driver above its guaranteed memory: free, and each time the guaranteed part is larger."""


# ---- The state of a node ----


class GpuFacts(Struct, frozen=True, kw_only=True):
    """Constant facts about one GPU, or MIG instance, during a run."""

    uuid: str
    index: int
    """Position among the GPUs of the launcher, from 0."""
    model: str
    total_mib: int | None
    """None: the driver does not report it. Then the GPU takes one task at a time."""
    reserve_mib: int = 0
    """Memory that is kept back: the site's reserve for the driver, and the context of the MPS server."""
    is_mps: bool = False
    """Tasks on it run under MPS, and can have a cap."""
    is_simulated: bool = False
    """It is a simulated GPU of a test or demonstration."""
    is_single: bool = False
    """It takes one process at a time: its compute mode is EXCLUSIVE_PROCESS and there is no MPS."""
    takes_only_mps: bool = False
    """Its compute mode is EXCLUSIVE_PROCESS, and its MPS server is that process. A task without MPS cannot use it."""
    clients_max: int = MPS_CLIENTS_MIN
    """Most CUDA processes on it at once."""
    has_limits: bool = False
    """The driver limits the memory of each task on its cgroup, and so holds its guaranteed part (driver 615)."""
    partitions: int = 0
    """Static partitions of its multiprocessors, one for each task on it at once; 0: it has none."""
    has_own_faults: bool = False
    """The fault of a task in a static partition ends only that task."""

    @staticmethod
    def of(
        index: int,
        gpu: Gpu,
        usable_mib: int | None,
        clients_max: int,
        *,
        is_mps: bool,
        is_exclusive: bool = False,
        has_limits: bool = False,
        partitions: int = 0,
        has_own_faults: bool = False,
    ) -> GpuFacts:
        """Return what packing needs of a GPU. `is_exclusive`: it is in compute mode EXCLUSIVE_PROCESS."""
        total = gpu.memory_total_mib
        return GpuFacts(
            uuid=gpu.uuid,
            index=index,
            model=gpu.name,
            total_mib=total,
            reserve_mib=0 if total is None or usable_mib is None else total - usable_mib,
            is_mps=is_mps,
            is_simulated=gpu.simulated,
            is_single=not is_mps and is_exclusive,
            takes_only_mps=is_mps and is_exclusive,
            clients_max=clients_max,
            has_limits=has_limits,
            partitions=partitions,
            has_own_faults=has_own_faults and partitions > 0,
        )


class GpuView(Struct, frozen=True, kw_only=True):
    """One GPU at one moment."""

    facts: GpuFacts
    used_mib: int | None = None
    """All memory in use, by the driver; None: not known now."""
    others_mib: int = 0
    """Memory in use that no launcher of this user has booked, for example by a notebook."""
    booked_elsewhere_mib: int = 0
    """Booked by other launchers of this user."""
    clients_elsewhere: int = 0
    """CUDA processes that do not belong to this launcher's tasks."""
    sm_ratio: float | None = None
    """Mean SM activity over the window; if only utilisation is known, that, which is an upper bound."""
    dram_ratio: float | None = None
    closed_until_s: float = 0.0
    """No task starts before this time, because a new task has not shown any memory yet."""
    held_for: int | None = None
    """The task for which the GPU is kept free; no other task starts there."""
    problem: str = ""
    """Why no task may start on it; empty: there is no problem."""
    can_measure: bool = True
    """False: the driver has given no figures for a while. Tasks then start only on empty GPUs."""
    is_out: bool = False
    """The GPU has failed, and is out of service for the rest of the run."""


class RunningView(Struct, frozen=True, kw_only=True):
    """A task that is running or starting."""

    ask: TaskAsk
    gpus: tuple[str, ...]
    """UUIDs."""
    started_s: float
    attempt: int
    tries: Tries
    estimate: Estimate
    reserved_mib: int
    """On each of its GPUs."""
    due_mib: int | None = None
    """The new reservation that follows from its memory; None: no change. `decide` returns a Reserve for it."""
    cap_mib: int | None = None
    """None: no cap."""
    is_alone: bool = False
    """It has a GPU to itself; no task may join it."""
    memory_mib: int | None = None
    """Current memory of all its processes; None: not seen yet."""
    peak_mib: int | None = None
    is_flat: bool = False
    """Its memory has stopped rising (the plateau)."""
    is_elastic: bool = False
    clients: int = 1
    """Number of its CUDA processes."""
    ends_s: float | None = None
    """Expected time of its end; None: not known."""
    load: Load | None = None
    """Measured load of its command, or family, alone on this GPU model; None: not measured, or the policy does not use
    it."""
    rate: Rate | None = None
    """Since its neighbours last changed; None: not measured yet, or its program shows no progress."""
    rate_alone: Rate | None = None
    """Rate of its command alone on this GPU model; None: not known."""
    alone_since_s: float | None = None
    """Since when no other task of this launcher has been on its GPU; None: another one is."""
    is_new: bool = False
    """Its rate alone is not known, and may become known."""
    is_paused: bool = False
    """It is stopped (SIGSTOP), and keeps its memory."""
    pause_s: float = 0.0
    """When it was last paused or resumed; 0: never."""
    can_move: bool = False
    """It can save its state on a signal (--checkpoint-signal), and start again on another GPU."""
    is_moving: bool = False
    """It was told to end, to start on another GPU."""

    @property
    def speed_ratio(self) -> float | None:
        """Return its speed over that of its command alone; None: not known."""
        return None if self.rate is None or self.rate_alone is None else self.rate.ratio_to(self.rate_alone)


class WaitingView(Struct, frozen=True, kw_only=True):
    """A task that waits for its start."""

    ask: TaskAsk
    attempt: int = 1
    """Number of the next attempt."""
    tries: Tries = Tries()
    estimates: tuple[tuple[str, Estimate], ...] = ()
    """(GPU model, estimate) for the models of this node."""
    floor_mib: int = 0
    """Its known least need."""
    had_room_mib: int = 0
    """The room on its GPU when it ran out of memory."""
    not_on: tuple[str, ...] = ()
    """GPUs (UUIDs) on which it ran out of memory, or from which it was moved away."""
    wants_alone: bool = False
    """It needs a GPU to itself."""
    waits_since_s: float = 0.0
    """Time of its submission, or of the end of its last attempt."""
    after: str = ""
    """`EndKind` of its last attempt; empty: there was none."""
    loads: tuple[tuple[str, Load], ...] = ()
    """(GPU model, measured load of its command or family alone), as far as it is known and the policy uses it."""
    is_new: bool = False
    """Its rate alone is not known, and may become known."""
    hopeless: str = ""
    """Why it is given up, see `rules.queue`; empty: it is tried."""


class Growth(Struct, frozen=True, kw_only=True):
    """How much memory a task is given after it ran out of it: the largest of these figures."""

    sized: float = 1.5
    """Factor of its reservation, if its log contains the size of the failed allocation."""
    silent: float = 2.1
    """The same if its log contains none, or the reservation was the user's own number: most such sizes are too small by
    half, so one retry is enough."""
    wanted: float = 1.0
    """Factor of its memory in use plus the failed allocation."""
    peak_mib: int = 1024
    """Added to its peak."""
    known: float = 1.25
    """Factor of the known need after an earlier attempt."""


class PackSettings(Struct, frozen=True, kw_only=True):
    """The settings of packing: the user's choices, and constants with their reasons."""

    policy: PolicyName = "booked"
    uses_booking: bool = False
    """For the thesis' policies (`--pack=magm,book`): free memory is what is not booked, not the driver's figure."""
    smact_max: float | None = 0.80
    """The thesis' condition on SM activity (`smact_max=`), for its policies; None: no condition."""
    free_min_mib: int | None = 5120
    """The thesis' condition on free memory (`free_min=`), for magm and lug without an estimate; None: no condition."""
    fit_margin_mib: int = 2048
    """Memory that first-fit, best-fit, worst-fit and oracle-lug require beyond the size of the task."""
    order: Order = "fifo"
    guard: Guard = "soft"
    max_per_gpu: int | None = None
    oom_retries: int = 2
    """After so many attempts out of memory, the next one has a GPU to itself."""
    retries: int = 0
    pays: Literal["oom-retries", "retries"] = "oom-retries"
    """The limit that counts the retry of a task that ran out of memory, or that a neighbour or a failed GPU ended.
    oom-retries: one of --oom-retries, and nothing if it is not its own fault. retries: one of --retries, as for other
    failures."""
    growth: Growth = Growth()
    keep_going: bool = False
    """Try every task, also if tasks like it ran out of memory alone on a GPU."""
    probe_ratio: float = 0.5
    """An unknown task reserves this part of a GPU until its memory is flat."""
    window: int = 64
    """Number of waiting tasks that one decision considers."""
    settle_s: float = 10.0
    settle_max_s: float = 60.0
    """After a start, a GPU takes no further task until the new one shows memory, for at most settle_max_s; if memory
    cannot be seen, for settle_s. With booking, only tasks of unknown size close their GPU: other tasks have their
    memory booked before they use it."""
    warm_up_s: float = 30.0
    """With the policies of Yousefzadeh 2025, which read free memory, a GPU stays closed for this time after the first
    memory of a new task was seen. Source: the code that was published with it (CARMA)."""
    patience_s: float = 600.0
    """A task that waits longer is old: it is considered before others, and a GPU is held for it."""
    flat_after_s: float = 60.0
    """Memory is flat if it has not risen for this time; the task has to be at least as old."""
    sm_guard: float | None = None
    """With `booked`: no further task on a GPU with a higher SM activity; None: no guard. In simulations of the thesis'
    traces a guard of 0.95 makes tasks wait longer, and no run shorter (tests/bench/packing.py)."""
    dram_guard: float | None = 0.80
    """The same for memory bandwidth: programs reach at most about 0.8 (DCGM's manual, "Profiling Metrics")."""
    recovery: Literal["roomier", "exclusive"] = "roomier"
    """exclusive: as in the thesis, the whole queue waits until a GPU is idle for the task that ran out of memory."""
    backfills: bool = True
    """False: as in the thesis, strictly in order; a task that cannot start stops all later ones."""
    undo: Undo = "off"
    pause_max_s: float = 900.0
    """A paused task goes on after this time, and its neighbour is paused instead."""
    rate_window_s: float = 30.0
    """The length of one window in which rates are measured."""


class TaskSpec(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The user's options for one task: a line of the run's `specs.jsonl`, if tasks differ."""

    gpu_mem_mib: int | None = None
    gpu_mem_percent: float | None = None
    """The same as a part of the GPU that the task gets; None: not given. At most one of the two is set."""
    gpus: int = 1
    is_half: bool = False
    """It takes half a GPU: at most two such tasks share one, and it books half of its memory without a size."""
    name: str = ""
    timeout_s: float | None = None
    """Longest run time of an attempt, without the time in which it is stopped; None: no limit."""
    priority: int = 0
    """Tasks with a larger number start first."""
    cpus: int | None = None
    """Cores that it needs; None: those of its worker."""
    mem_mib: int | None = None
    """Host memory that it needs; None: not given."""
    params: dict[str, str] = {}
    """Parameters of the task, name -> value: of --sweep, or of a table of tasks. Empty: it has none."""
    after: tuple[str, ...] = ()
    """Names of tasks that have to be done before it starts."""
    gpu_mem_least_mib: int | None = None
    """The guaranteed part of `gpu_mem_mib` (--gpu-mem=8G:20G); None: all of it."""


class PackRequest(Struct, frozen=True, kw_only=True):
    """The packing options of a run, from `llsub --pack`: a part of the run's `run.json`."""

    settings: PackSettings = PackSettings()
    spec: TaskSpec = TaskSpec()
    """The options of tasks without their own."""
    estimate: Literal["history", "static", "probe", "none"] = "history"
    """The sources of estimates besides the user's number. `probe` and `static` are used with the history."""
    hang: Literal["say", "kill"] = "say"
    """The reaction to a task without output, CPU time and SM activity for hang_s."""
    hang_s: float = 1800.0
    learns: bool = True
    """Write finished tasks to the user's history."""
    checkpoint_signal: int | None = None
    """The signal on which a task saves its state and ends; None: it cannot be moved."""
    is_sm_tried: bool = False
    """Shares of the multiprocessors are found by trials (`--share-gpu=sm=auto`)."""
    is_tuned: bool = False
    """The number of tasks on a node is found by trials: a triple `[N,auto]` without --pack."""
    is_compared: bool = False
    """Sharing methods are tried one after the other (--compare-sharing)."""


class PackView(Struct, frozen=True, kw_only=True):
    """The complete input of a decision."""

    now_s: float
    gpus: tuple[GpuView, ...]
    """By index."""
    running: tuple[RunningView, ...] = ()
    """By the task's number."""
    waiting: tuple[WaitingView, ...] = ()
    """In the order of submission, at most `window`."""
    free_workers: int
    """Number of further tasks for which there are cores and a log."""
    free_host_mib: int | None = None
    """Host memory that is not booked; None: it is not known, and not booked."""
    worker_host_mib: int = 0
    """The part of it of a task that does not ask for more."""
    settings: PackSettings = PackSettings()
    last_gpu: int = -1
    """Index of the GPU of the last start, for `rr`."""
    median_s: float | None = None
    """Median duration of the finished tasks of this run; None: there are none. A task is old only after twice that."""
    pairs: tuple[PairView, ...] = ()
    """Measured pairs of the tasks of this view, sorted by (a, b)."""


# ---- Samples ----


class TaskSample(Struct, frozen=True, kw_only=True):
    """A sample of a running task."""

    task: int
    memory_mib: Mapping[str, int]
    """UUID of a GPU -> memory of all its processes there."""
    clients: int = 1
    """Number of CUDA processes."""
    sm_percent: Mapping[str, float | None] = {}
    """UUID of a GPU on which it has a process -> SM time of all its processes there; None: the driver does not say."""


# ---- The end of an attempt ----

EndKind = Literal[
    "done",
    "gpu memory",
    "gpu memory likely",
    "gpu memory suspected",
    "neighbour's memory",
    "neighbour's fault",
    "device",
    "host memory",
    "time limit",
    "signal",
    "failed",
    "not started",
    "saved",
    "unfinished",
    "above guarantee",
]
"""How an attempt ended. gpu memory: it ran out of GPU memory, certainly, likely or suspected. neighbour's memory: it
ran out within its reservation, while another task on that GPU had outgrown its own. neighbour's fault: a CUDA fault
ended several tasks on one GPU. device: the GPU failed. time limit: it ran longer than --task-time. saved: it
has saved its state and is not finished. above guarantee: it had, or wanted, more than its guaranteed memory when the
driver needed that for a neighbour, or had no more."""


class EndFacts(Struct, frozen=True, kw_only=True):
    """The facts about an attempt that has ended."""

    task: int
    now_s: float
    code: int | None
    """Exit code; None: a signal ended it."""
    signal: int | None = None
    is_stopped_by_us: bool = False
    is_told_to_save: bool = False
    """It got the signal of --checkpoint-signal because the job ends soon, not because it moves to another GPU."""
    over_time: str = ""
    """The time limit of the task that it has exceeded, as text; empty: it has not, or it has none."""
    is_host_memory: bool = False
    """The kernel killed it because host memory was full."""
    was_started: bool = True
    """False: the program could not be executed."""
    log_tail: bytes = b""
    """The end of its output."""
    room_ratio: float | None = None
    """Free part of the GPU's memory at the last sample before the end; None: not known."""
    sample_age_s: float | None = None
    """Age of that sample at the end."""
    is_device_lost: bool = False
    """The driver reports that its GPU failed (NVML's GPU_IS_LOST or RESET_REQUIRED)."""
    is_daemon_lost: bool = False
    """The MPS daemon of its GPU ended while it ran."""
