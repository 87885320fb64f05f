"""Records of the simulator: what is true of tasks and GPUs, what is assumed, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from ..history_records import TaskRun
from ..records import PackSettings
from ..speed_records import PairRun

Sharing = Literal["mps", "time-slicing"]
"""mps: kernels of several processes run at once. time-slicing: they never overlap."""


class SimTask(Struct, frozen=True, kw_only=True):
    """What is true of one task. Decisions do not see it, except with an oracle."""

    task: int
    name: str
    """For people, and the key of measured interference: "resnet50 64"."""
    submitted_s: float
    work_s: float
    """Duration on a GPU without neighbours."""
    memory_mib: int
    """What it takes on each of its GPUs when its memory is flat."""
    gpus: int = 1
    sm_ratio: float
    """SM activity when it is alone, before `Assumptions.alpha`."""
    dram_ratio: float = 0.0
    busy_ratio: float = 1.0
    """Part of its time that it spends on the GPU when it is alone."""
    late_at_ratio: float | None = None
    """Part of its work after which its memory rises once more; None: it does not."""
    late_mib: int = 0
    """What it takes from then on."""
    gpu_mem_mib: int | None = None
    """What its user wrote; None: nothing."""
    command: str = ""
    """Tasks of the same command count as the same task; empty: `name`."""
    family: str = ""
    """Tasks of the same script; empty: `name`."""
    numbers: tuple[tuple[str, float], ...] = ()

    @property
    def peak_mib(self) -> int:
        """The most that it takes on a GPU."""
        return self.memory_mib if self.late_at_ratio is None else max(self.memory_mib, self.late_mib)


class Trace(Struct, frozen=True, kw_only=True):
    """Tasks with their times of submission, and the GPUs that they were meant for."""

    name: str
    tasks: tuple[SimTask, ...]
    """By number; submission times rise."""
    gpus: int = 4
    """On each node."""
    nodes: int = 1
    gpu_mib: int = 40960
    gpu_model: str = "simulated A100 40 GB"
    notes: tuple[str, ...] = ()
    """What was assumed, and what could not be used."""
    speeds: Mapping[tuple[str, str], float] = {}
    """Measured interference: (name, name of the neighbour) -> speed beside it, 1 as alone. Empty: the model."""


class Assumptions(Struct, frozen=True, kw_only=True):
    """What nobody has measured. A report gives the range over these."""

    alpha: float = 1.0
    """All SM activities are multiplied by it: no table of the published tasks has them."""
    settle_s: float = 30.0
    """With the published policies, a GPU is closed so long after the first memory of a new task is seen. Source:
    CARMA's warm-up, 30 s."""
    ramp_s: float = 40.0
    """Age at which a task's memory is flat."""
    context_s: float = 5.0
    """Age at which the first memory is seen: the CUDA context."""
    context_mib: int = 400
    capacity_exponent: float = 2.5
    """Of the capacity model; 2.5 fits the slowdowns of Pan 2021, Table 4, to 0.1."""
    pair_sigma: float = 0.10
    """Log-normal noise of a pair of tasks, which the capacity model does not know."""
    run_sigma: float = 0.03
    """Log-normal noise of a task's duration."""
    harmful_ratio: float = 0.0
    """Part of the pairs of names that do less together than one at a time (STP 0.6 to 0.95), without any sign of it in
    their load."""
    has_rates: bool = True
    """Tasks show how much they have done; False: none does, so that nothing of speed is measured."""
    rate_sigma: float = 0.10
    """Log-normal noise of a task's rate in one window. Programs differ by about 10 % between two runs (Pan 2021)."""
    can_move: bool = False
    """Tasks can save their state on a signal, and go on elsewhere."""
    sharing: Sharing = "mps"
    idle_w: float = 52.0
    full_w: float = 275.0
    """Power of a GPU without and with full load. With an exponent of 0.35 the 60 tasks of Yousefzadeh 2025, Table 6.6,
    take about what was measured there when they run one at a time."""
    power_exponents: tuple[float, ...] = (0.35, 0.8)
    sm_noise: float = 0.02
    missing_ratio: float = 0.0
    """Part of the samples that give no figure."""
    window_s: float = 90.0
    """SM activity is a mean over it. Source: Yousefzadeh 2025, 6.2.2."""


class Bar(Struct, frozen=True, kw_only=True):
    """One attempt on one GPU, for a picture: of a simulation, or of a real run."""

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


class Outcome(Struct, frozen=True, kw_only=True):
    """What became of one task."""

    task: int
    kind: str
    """`EndKind` of the last attempt; "waiting": it never started."""
    submitted_s: float
    first_start_s: float | None
    end_s: float | None
    attempts: int
    wasted_s: float
    """In attempts that failed."""
    slowdown: float | None
    """Duration of the attempt that was done, over the duration without neighbours."""


class BannedPair(Struct, frozen=True):
    """Two kinds of tasks that were told not to share a GPU again."""

    a: str
    b: str
    """Names of the tasks."""
    stp: float
    """The true aggregate speed of these two and nobody else."""


class Result(Struct, frozen=True, kw_only=True):
    """What came of one simulation. Times in seconds, means over tasks."""

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
    """Work done without neighbours' slowdown over time that GPUs had a task: 1 is no better than one at a time."""
    antt: float
    """Mean slowdown of a task: 1 is as alone."""
    shared_s: float = 0.0
    """GPU time with at least two tasks that were not paused."""
    harmful_s: float = 0.0
    """Part of it in which they did less together than one at a time: true STP below 1."""
    paused_s: float = 0.0
    """Time that tasks were paused."""
    bans: tuple[BannedPair, ...] = ()
    pairs: tuple[PairRun, ...] = ()
    """What a user's history has of pairs."""
    energy_j: tuple[tuple[float, float], ...]
    """(power exponent, energy of all GPUs from the first submission to the last end)."""
    lower_bound_s: float
    """No policy has a shorter make-span under the same truth without noise."""
    wasted_s: float
    """GPU time of failed attempts."""
    waste: float | None = None
    """Mean of (reserved - peak) / peak at the end of tasks that shared a GPU; None: nothing was reserved."""
    decisions: int
    outcomes: tuple[Outcome, ...]
    bars: tuple[Bar, ...] = ()
    runs: tuple[TaskRun, ...] = ()
    """What a user's history has of it."""


class Policy(Struct, frozen=True, kw_only=True):
    """A policy under its name in a report."""

    name: str
    settings: PackSettings
    knows_sizes: bool = False
    """An oracle: it sees what is true."""
    estimates: bool = True
    """It has the estimator of the live packer; False: recovery only."""
    has_history: bool = False
    """The second run: it has seen the same tasks once before."""
