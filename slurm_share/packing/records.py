"""Records of packing: what a task asks for, what is known of its size, the state of a node's GPUs, and how it ended.

The live packer and the simulator build the same records and call the same rules. Memory is in MiB, times are in
seconds, ratios are from 0 to 1. Times of a view are seconds of a monotonic clock that begins with the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

from .speed_records import Belief, PairView, Rate

PolicyName = Literal[
    "gain", "booked", "exclusive", "rr", "magm", "lug", "mug", "first-fit", "best-fit", "worst-fit", "oracle-lug"
]
POLICIES: tuple[PolicyName, ...] = (
    "gain", "booked", "exclusive", "rr", "magm", "lug", "mug", "first-fit", "best-fit", "worst-fit",
)  # fmt: skip
"""Policies that a user may name. `oracle-lug` knows every task's true size, and exists in the simulator only."""
BOOKING: frozenset[PolicyName] = frozenset({"gain", "booked"})
"""Policies that place tasks by booked memory."""

Source = Literal["user", "exact", "line", "family", "other-gpu", "static", "learned", "probe", "sibling", "unknown"]
"""What an estimate rests on. user: the user's own number. exact: earlier runs of the same command. line: a straight
line through runs of the same command with another number. family: earlier runs of the same script. other-gpu: the same
command on another GPU model. static: a formula over a description of the model. learned: a model fitted to fake tensors
of random networks, over the same description. probe: a dry run with fake tensors. sibling: a running task of the same
family in this run. unknown: nothing."""

Order = Literal["fifo", "short", "long"]
"""The order of waiting tasks. short, long: by the duration known from the history, unknown ones in the middle."""

Guard = Literal["soft", "hard"]
"""soft: a task's cap leaves it some room above its reservation. hard: its cap is its reservation, so that the caps of a
GPU together never exceed it."""


Undo = Literal["off", "ban", "pause"]
"""What happens to tasks that together do less than one at a time would. ban: the two never share a GPU again. pause:
also, the younger one is stopped for a while (SIGSTOP), and moved where it can save its state."""


# ---- The task ----


class TaskKey(Struct, frozen=True):
    """What counts as the same task; hashes only, so that no word of a user's command is stored in the history."""

    exact: str
    """Hash of the script's bytes and of all arguments that can matter for memory; empty: not known."""
    family: str
    """Hash of the script's name, the program's name and the names of the flags."""
    numbers: tuple[tuple[str, float], ...] = ()
    """Each argument that is a number: the flag's name or the argument's position, and the number."""
    series: str = ""
    """Hash as `exact`, with the numbers left out: commands of one series differ in numbers only. Empty: not known."""
    script: str = ""
    """Hash of the script's path, by which its user finds it again in a list."""


class TaskAsk(Struct, frozen=True, kw_only=True):
    """What one task asks for."""

    task: int
    gpus: int = 1
    """More than one: whole idle GPUs, without MPS, since a process reaches one MPS daemon only."""
    gpu_mem_mib: int | None = None
    """The user's own number: reservation and cap. None: nothing was written."""
    name: str = ""
    """The family's name, where the user gave one."""
    submitted_s: float = 0.0
    key: TaskKey | None = None
    """None: nothing can be learned from it."""


class Estimate(Struct, frozen=True, kw_only=True):
    """The expected peak of a task's GPU memory on one GPU model."""

    point_mib: int | None
    """None: nothing is known."""
    safe_mib: int | None
    """Exceeded in at most a part `alpha` of all cases."""
    source: Source
    runs: int = 0
    """How many observations it rests on."""
    alpha: float | None = None
    seconds: float | None = None
    """The expected duration on a GPU without neighbours; None: not known."""
    is_elastic: bool = False
    """The task takes what it is given, as JAX does: its memory says nothing about its need."""
    processes: int = 1
    """The largest number of CUDA processes that such a task was seen with: the cap is per process."""
    floor_mib: int = 0
    """Such a task has run out of memory with so much; also where nothing else is known."""
    words: str = ""
    """For people: "largest of 12 runs of this command, +4 %"."""


class Tries(Struct, frozen=True):
    """How often a task was started, and the reasons for which it was started again."""

    failed: int = 0
    """Ordinary failures; --retries limits them."""
    own_memory: int = 0
    """Out of memory by its own need; --oom-retries limits them."""
    suspected: int = 0
    """Failed beside a full GPU without a word about memory: once, this is taken for own_memory."""
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


# ---- A node at one moment ----


class GpuFacts(Struct, frozen=True, kw_only=True):
    """What does not change of one GPU, or MIG instance, during a run."""

    uuid: str
    index: int
    """Position among the GPUs of the launcher, from 0."""
    model: str
    total_mib: int | None
    """None: the driver does not say. Then the GPU takes one task at a time."""
    reserve_mib: int = 0
    """Kept back: the site's reserve for the driver, and the context of the MPS server."""
    is_mps: bool = False
    """Tasks on it run under MPS, and can be given a cap."""
    is_simulated: bool = False
    """It does not exist: tests and demonstrations have such GPUs."""
    is_single: bool = False
    """One process at a time: its compute mode is EXCLUSIVE_PROCESS and there is no MPS."""
    takes_only_mps: bool = False
    """Its compute mode is EXCLUSIVE_PROCESS, and its MPS server is that process. A task without MPS cannot use it."""
    clients_max: int = 48
    """CUDA processes that may be on it at once. The default is for MPS with an old driver, see share/rules/mps.py."""


class GpuView(Struct, frozen=True, kw_only=True):
    """One GPU at one moment."""

    facts: GpuFacts
    used_mib: int | None = None
    """All memory in use, by anybody, as the driver says; None: not known now."""
    others_mib: int = 0
    """Memory of processes that no launcher of this user has booked, as far as known: a notebook, for example."""
    booked_elsewhere_mib: int = 0
    """Booked by other launchers of this user."""
    clients_elsewhere: int = 0
    """CUDA processes on it that are not of this launcher's tasks."""
    sm_ratio: float | None = None
    """SM activity, mean over the window; where only utilisation is known, that, which is an upper bound of it."""
    dram_ratio: float | None = None
    closed_until_s: float = 0.0
    """No start before: a task has just begun and has not shown any memory yet."""
    held_for: int | None = None
    """The task for which the GPU is kept free; no other task starts there."""
    held_since_s: float = 0.0
    problem: str = ""
    """Why nothing may start on it; empty: nothing is wrong."""
    can_measure: bool = True
    """False: the driver has given no figures for a while. Tasks then start only where nothing else runs."""
    is_out: bool = False
    """The GPU has failed, and is out of service for the rest of the run."""


class RunningView(Struct, frozen=True, kw_only=True):
    """A task that runs, or that is being started."""

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
    """What its reservation has to become by the memory that was seen; None: it stays. `decide` answers with Reserve."""
    cap_mib: int | None = None
    """None: no cap."""
    is_alone: bool = False
    """It was started with a GPU to itself; nothing may join it."""
    memory_mib: int | None = None
    """Now, of all its processes; None: not seen yet."""
    peak_mib: int | None = None
    is_flat: bool = False
    """Its memory has stopped rising (the plateau)."""
    is_elastic: bool = False
    clients: int = 1
    """CUDA processes that it has."""
    ends_s: float | None = None
    """When it is expected to end; None: not known."""
    belief: Belief | None = None
    """None: the policy does not ask for it."""
    rate: Rate | None = None
    """Since its neighbours last changed; None: not measured yet, or its program shows no progress."""
    rate_alone: Rate | None = None
    """Of its command alone on such a GPU; None: not known."""
    is_paused: bool = False
    """It is stopped (SIGSTOP), and keeps its memory."""
    pause_s: float = 0.0
    """When it was last paused or continued; 0: never."""
    can_move: bool = False
    """It can save its state on a signal (--checkpoint-signal), and be started elsewhere."""
    is_moving: bool = False
    """It was told to end, and starts on another GPU then."""


class WaitingView(Struct, frozen=True, kw_only=True):
    """A task that waits for its start."""

    ask: TaskAsk
    attempt: int = 1
    """The number of the attempt that is due."""
    tries: Tries = Tries()
    estimates: tuple[tuple[str, Estimate], ...] = ()
    """GPU model -> estimate, for the models of this node."""
    floor_mib: int = 0
    """It is known to need at least so much."""
    had_room_mib: int = 0
    """The room that its GPU had for it when it ran out of memory."""
    not_on: tuple[str, ...] = ()
    """GPUs (UUIDs) on which it ran out of memory, or which it was moved away from."""
    wants_alone: bool = False
    """It is to have a GPU to itself."""
    waits_since_s: float = 0.0
    """Since it was submitted, or since its last attempt ended."""
    after: str = ""
    """How the attempt before it ended: `EndKind`; empty: there was none."""
    beliefs: tuple[tuple[str, Belief], ...] = ()
    """GPU model -> belief; empty: the policy does not ask for it."""


class PackSettings(Struct, frozen=True, kw_only=True):
    """How a run is packed: the user's choices, and constants with their reasons."""

    policy: PolicyName = "booked"
    uses_booking: bool = False
    """For the thesis' policies (`--pack=magm,book`): free memory is what is not booked, not the driver's figure."""
    smact_max: float | None = 0.80
    """The thesis' condition on SM activity (`smact_max=`), for its policies; None: no condition."""
    free_min_mib: int | None = 5120
    """The thesis' condition on free memory (`free_min=`), for magm and lug without an estimate; None: no condition."""
    fit_margin_mib: int = 2048
    """What first-fit, best-fit, worst-fit and oracle-lug want beyond the size of the task."""
    order: Order = "fifo"
    guard: Guard = "soft"
    max_per_gpu: int | None = None
    oom_retries: int = 2
    retries: int = 0
    keep_going: bool = False
    """Try every task of a family of which several tasks ran out of memory alone on a GPU."""
    probe_ratio: float = 0.5
    """An unknown task reserves this part of a GPU until its memory is flat."""
    window: int = 64
    """Waiting tasks that one decision looks at."""
    settle_s: float = 10.0
    """After a start, a GPU takes no further task until the first memory of the new one is seen, at most settle_max_s,
    and for this long where memory cannot be seen. A task whose booked size is known closes nothing: its memory is
    booked before it is used."""
    settle_max_s: float = 60.0
    warm_up_s: float = 30.0
    """With the policies of Yousefzadeh 2025, which read free memory, a GPU stays closed for so long after the first
    memory of a new task was seen. Source: the code that was published with it (CARMA)."""
    patience_s: float = 600.0
    """A task that waits longer is old: it goes before others, and a GPU is held for it."""
    flat_after_s: float = 60.0
    """The least age at which a task's memory may be called flat, and for how long it must not have risen."""
    sm_guard: float | None = None
    """With `booked`: no further task on a GPU whose SM activity is measured above it; None: no guard. In simulations of
    the thesis' traces a guard of 0.95 makes tasks wait longer, and no run shorter (tests/bench/packing.py)."""
    dram_guard: float | None = 0.80
    """The same of memory bandwidth: about 0.8 is the most that programs reach (DCGM's manual, "Profiling Metrics")."""
    recovery: Literal["roomier", "exclusive"] = "roomier"
    """exclusive: as the thesis; the whole queue waits until a GPU is idle for the task that ran out of memory."""
    backfills: bool = True
    """False: strictly in order, as the thesis; what waits at the head stops all behind it."""
    min_gain: float = 0.10
    """With `gain`: a task starts beside others only where the GPU's aggregate speed (STP) rises by so much. Programs
    differ by about 10 % between two runs (Pan 2021)."""
    min_speed: float = 0.40
    """With `gain`: nobody on a GPU is to keep less of its speed alone."""
    undo: Undo = "ban"
    pause_max_s: float = 900.0
    """A paused task goes on after this time, and its neighbour is paused instead."""
    rate_window_s: float = 30.0
    """The length of one window in which rates are measured."""


class TaskSpec(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What the user wrote about one task: a line of the run's `specs.jsonl`, where not all tasks are alike."""

    gpu_mem_mib: int | None = None
    gpus: int = 1
    name: str = ""


class PackRequest(Struct, frozen=True, kw_only=True):
    """How a run is to be packed, as `llsub --pack` was written: a part of the run's `run.json`."""

    settings: PackSettings = PackSettings()
    spec: TaskSpec = TaskSpec()
    """Of every task that has none of its own."""
    estimate: Literal["history", "static", "learned", "probe", "none"] = "history"
    """The first source that may be used besides the user's word; `probe`, `learned` and `static` add to the history."""
    hang: Literal["say", "kill"] = "say"
    """What happens to a task that has neither output, CPU time nor SM activity for hang_s."""
    hang_s: float = 1800.0
    learns: bool = True
    """Write finished tasks to the user's history."""
    checkpoint_signal: int | None = None
    """On this signal a task saves its state and ends; None: it cannot be moved."""
    is_sm_tried: bool = False
    """Shares of the multiprocessors are found by trials (`--share-gpu=sm=auto`)."""
    is_tuned: bool = False
    """The number of tasks on a node is found by trials: a triple `[N,auto]` without --pack."""
    is_compared: bool = False
    """Ways of sharing are tried one after the other (--compare-sharing)."""


class PackView(Struct, frozen=True, kw_only=True):
    """All that a decision sees."""

    now_s: float
    gpus: tuple[GpuView, ...]
    """By index."""
    running: tuple[RunningView, ...] = ()
    """By the task's number."""
    waiting: tuple[WaitingView, ...] = ()
    """In the order of submission, at most `window`."""
    free_workers: int = field(name="seats")
    """So many further tasks have cores and a log. Journals name it as earlier versions did."""
    settings: PackSettings = PackSettings()
    last_gpu: int = -1
    """Index of the GPU that was given last, for `rr`."""
    median_s: float | None = None
    """Median duration of the tasks of this run that are done; None: none is. A task is old only after twice that."""
    dead_families: tuple[str, ...] = ()
    """Families of which several tasks ran out of memory with a GPU to themselves: the rest is not tried."""
    pairs: tuple[PairView, ...] = ()
    """What was measured of the tasks of this view in pairs, by (a, b)."""
    exponent: float = 2.5
    """p of the capacity model (`rules/interference.py`), as this run has learned it."""


# ---- Samples ----


class GpuSample(Struct, frozen=True, kw_only=True):
    """A GPU at one moment. None: not known."""

    uuid: str
    used_mib: int | None = None
    sm_ratio: float | None = None
    """SM activity, mean over the last minute; where only utilisation is known, that."""
    dram_ratio: float | None = None
    util_ratio: float | None = None
    energy_j: float | None = None
    """Since the driver was loaded."""
    pcie_ratio: float | None = None
    """Traffic in both directions over what the link can take, now."""
    sm_now_ratio: float | None = None
    """As `sm_ratio`, since the sample before, not over a minute; so the next two."""
    dram_now_ratio: float | None = None
    util_now_ratio: float | None = None
    problem: str | None = None
    """None: as before."""


class TaskSample(Struct, frozen=True, kw_only=True):
    """A running task at one moment."""

    task: int
    memory_mib: Mapping[str, int]
    """GPU's UUID -> the memory of all its processes there."""
    clients: int = 1
    """CUDA processes."""


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
    "signal",
    "failed",
    "not started",
    "unfinished",
]
"""How an attempt ended. gpu memory: it ran out of GPU memory, certainly, likely, or by suspicion only. neighbour's
memory: it ran out within its reservation, while another task on that GPU had outgrown its own. neighbour's fault: a
CUDA fault that ended several tasks on one GPU. device: the GPU itself failed."""


class EndFacts(Struct, frozen=True, kw_only=True):
    """What is known of an attempt that has ended."""

    task: int
    now_s: float
    code: int | None
    """Exit code; None: a signal ended it."""
    signal: int | None = None
    is_stopped_by_us: bool = False
    is_host_memory: bool = False
    """The kernel has killed it for memory."""
    was_started: bool = True
    """False: the program could not be executed."""
    log_tail: bytes = b""
    """The end of what this attempt printed."""
    room_ratio: float | None = None
    """Free part of the GPU's memory at the last sample before the end; None: not known."""
    sample_age_s: float | None = None
    """How old that sample was at the end."""
    is_device_lost: bool = False
    """The driver says that its GPU failed (NVML's GPU_IS_LOST, or an Xid of broken hardware)."""
    is_daemon_lost: bool = False
    """The MPS daemon of its GPU ended while it ran."""


class After(Struct, frozen=True, kw_only=True):
    """What follows from the end of an attempt."""

    kind: EndKind
    is_retried: bool
    why: str
    """For the result and the log: "out of GPU memory (needed > 9.1 GiB, had 6.0 reserved)"."""
    blamed: tuple[int, ...] = ()
    """Tasks on the same GPU that had outgrown their reservation."""
    needs_mib: int | None = None
    """Of an attempt that ran out of memory: what the task is known to need now."""
    returned: tuple[str, ...] = ()
    """GPUs (UUIDs) that are back in service, since it was the task and not they that failed."""
