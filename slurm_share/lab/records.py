"""Records of the simulator: the truth about tasks and GPUs, assumptions, and results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from ..packing.history_records import TaskRun
from ..packing.records import PackSettings
from ..packing.speed_records import PairRun

Sharing = Literal["mps", "time-slicing"]
"""mps: kernels of several processes run at once. time-slicing: they never overlap."""


class SimTask(Struct, frozen=True, kw_only=True):
    """The truth about one task. Decisions do not see it, except with an oracle."""

    task: int
    name: str
    """Shown name, and key of measured interference: "resnet50 64"."""
    submitted_s: float
    work_s: float
    """Duration on a GPU without neighbours."""
    memory_mib: int
    """Memory on each of its GPUs when it is flat."""
    gpus: int = 1
    sm_ratio: float
    """SM activity when it is alone, before `Assumptions.alpha`."""
    dram_ratio: float = 0.0
    busy_ratio: float = 1.0
    """Part of its time that it spends on the GPU when it is alone."""
    late_at_ratio: float | None = None
    """Part of its work after which its memory rises once more; None: it does not."""
    late_mib: int = 0
    """Memory from then on."""
    gpu_mem_mib: int | None = None
    """The user's --gpu-mem; None: not given."""
    command: str = ""
    """Equal for tasks of the same command; empty: `name`."""
    family: str = ""
    """Equal for tasks of the same script; empty: `name`."""
    numbers: tuple[tuple[str, float], ...] = ()
    gpu_mem_least_mib: int | None = None
    """The guaranteed part of `gpu_mem_mib`; None: all of it."""

    @property
    def peak_mib(self) -> int:
        return self.memory_mib if self.late_at_ratio is None else max(self.memory_mib, self.late_mib)


class GpuKind(Struct, frozen=True, kw_only=True):
    """A GPU of a node to simulate."""

    model: str = "simulated A100 40 GB"
    mib: int = 40960
    speed: float = 1.0
    """Speed of a task alone on it, over that on the GPU for which `work_s` holds."""


class Trace(Struct, frozen=True, kw_only=True):
    """Tasks with their times of submission, and the GPUs to simulate."""

    name: str
    tasks: tuple[SimTask, ...]
    """By number; submission times rise."""
    gpus: int = 4
    """On each node."""
    nodes: int = 1
    gpu_mib: int = 40960
    gpu_model: str = "simulated A100 40 GB"
    kinds: tuple[GpuKind, ...] = ()
    """The GPUs of each node, if they differ; empty: `gpus` of `gpu_mib` and `gpu_model`."""
    breaks: tuple[tuple[float, int], ...] = ()
    """(time in seconds, index of a GPU over all nodes) from when on the GPU ends every task with an ECC error."""
    notes: tuple[str, ...] = ()
    """Sentences on assumptions and on data that could not be used."""
    speeds: Mapping[tuple[str, str], float] = {}
    """Measured interference: (name, name of the neighbour) -> speed over the speed alone. Empty: the model is used."""

    @property
    def node_gpus(self) -> tuple[GpuKind, ...]:
        """The GPUs of each node, by index."""
        return self.kinds or (GpuKind(model=self.gpu_model, mib=self.gpu_mib),) * self.gpus


class Assumptions(Struct, frozen=True, kw_only=True):
    """Values that were never measured. A report gives the range over them."""

    alpha: float = 1.0
    """Factor for all SM activities, which no table of the published tasks contains."""
    settle_s: float = 30.0
    """With the published policies, a GPU is closed for this time after the first memory of a new task is seen. Source:
    CARMA's warm-up, 30 s."""
    ramp_s: float = 40.0
    """Age at which a task's memory is flat."""
    context_s: float = 5.0
    """Age at which the first memory is seen: the CUDA context."""
    context_mib: int = 400
    capacity_exponent: float = 2.5
    """Exponent of the capacity model; 2.5 fits the slowdowns of Pan 2021, Table 4, to 0.1."""
    pair_sigma: float = 0.10
    """Log-normal noise of a pair of tasks, not predicted by the capacity model."""
    run_sigma: float = 0.03
    """Log-normal noise of a task's duration."""
    harmful_ratio: float = 0.0
    """Part of the pairs of names that do less together than one at a time (STP 0.6 to 0.95), which their loads do not
    show."""
    has_rates: bool = True
    """Tasks show their progress; False: no speed is measured."""
    rate_sigma: float = 0.10
    """Log-normal noise of a task's rate in one window. Programs differ by about 10 % between two runs (Pan 2021)."""
    can_move: bool = False
    """Tasks can save their state on a signal, and continue on another GPU."""
    sharing: Sharing = "mps"
    idle_w: float = 52.0
    full_w: float = 275.0
    """Power of a GPU without and with full load. With an exponent of 0.35 the 60 tasks of Yousefzadeh 2025, Table 6.6,
    take about what was measured there when they run one at a time."""
    power_exponents: tuple[float, ...] = (0.35, 0.8)
    sm_noise: float = 0.02
    missing_ratio: float = 0.0
    """Part of the samples without a figure."""
    window_s: float = 90.0
    """SM activity is a mean over this time. Source: Yousefzadeh 2025, 6.2.2."""


class Bar(Struct, frozen=True, kw_only=True):
    """One attempt on one GPU in a picture of a simulation or a real run."""

    gpu: int
    """Index over all nodes."""
    task: int
    attempt: int = 1
    start_s: float
    end_s: float
    memory: tuple[tuple[float, int], ...]
    """(time, MiB from then on), in order of time."""
    reserved_mib: int | None = None
    outcome: str
    """`EndKind`, or "running"."""
    name: str = ""


class SimOutcome(Struct, kw_only=True):
    """Outcome of one task."""

    task: int
    kind: str = "waiting"
    """`EndKind` of the last attempt; "waiting": it did not end."""
    submitted_s: float
    first_start_s: float | None = None
    end_s: float | None = None
    attempts: int = 0
    wasted_s: float = 0.0
    """Time of failed attempts."""
    slowdown: float | None = None
    """Duration of the successful attempt over the duration without neighbours."""


class Result(Struct, frozen=True, kw_only=True):
    """The result of one simulation. Times are in seconds, and means are over tasks."""

    policy: str
    seed: int
    assumptions: Assumptions
    make_span_s: float
    """Last end - first submission."""
    wait_s: float
    """First start - submission."""
    jct_s: float
    """End - submission."""
    oom_own: int
    """Attempts that ran out of GPU memory and needed more than was reserved for them."""
    oom_neighbour: int
    """Attempts that ran out of GPU memory within their reservation."""
    unfinished: int
    """Tasks that did not end as done."""
    stp: float
    """Finished work, in time alone, over the time for which GPUs had a task: 1 equals one task at a time."""
    antt: float
    """Mean slowdown of a task: 1 is the speed alone."""
    shared_s: float = 0.0
    """GPU time with at least two tasks that were not paused."""
    harmful_s: float = 0.0
    """Part of `shared_s` in which the true STP was below 1."""
    paused_s: float = 0.0
    """Time for which tasks were paused."""
    pairs: tuple[PairRun, ...] = ()
    """Records of pairs for a user's history."""
    energy_j: tuple[tuple[float, float], ...]
    """(power exponent, energy of all GPUs from the first submission to the last end)."""
    lower_bound_s: float
    """Lower bound of the make-span of any policy under the same truth without noise."""
    wasted_s: float
    """GPU time of failed attempts."""
    waste: float | None = None
    """Mean of (reserved - peak) / peak at the end of tasks that shared a GPU; None: nothing was reserved."""
    sized: int = 0
    """Attempts whose size was estimated and whose need has been seen."""
    covered: int = 0
    """Those of them that stayed within the size that was taken as safe."""
    decisions: int
    outcomes: tuple[SimOutcome, ...]
    bars: tuple[Bar, ...] = ()
    runs: tuple[TaskRun, ...] = ()
    """Records of attempts for a user's history."""


class ComparedPolicy(Struct, frozen=True, kw_only=True):
    """A policy with its name in a report."""

    name: str
    settings: PackSettings
    knows_sizes: bool = False
    """It is an oracle that knows the true sizes."""
    estimates: bool = True
    """It has the estimator of live runs; False: recovery only."""
    has_history: bool = False
    """It has the history of an earlier run of the same tasks."""
    is_random: bool = False
    """It chooses the GPU by chance."""
