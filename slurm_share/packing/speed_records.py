"""Records of speed: rates, what a task takes of a GPU, what was measured of tasks together, and what trials found.

Rates are units of work a second; what a unit is, a task's program says. Ratios are of the whole GPU, from 0 to 1.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

RateSource = Literal["progress", "log", "output", "finished"]
"""Where a rate comes from, the best first. progress: the file that the task writes (LLSUB_PROGRESS). log: a number in
its log (--progress). output: the lines that it prints, where they come evenly. finished: the tasks of its kind that are
done in an hour."""
BeliefSource = Literal["alone", "step", "family", "default"]
"""What a belief about a task's load rests on. alone: measured while nothing else ran on its GPU. step: the change of
the GPU's figures when it came or went. family: other tasks of its script. default: nothing is known."""
SharingMethod = Literal["mps", "time-slicing", "exclusive"]
"""How the tasks of a GPU share it."""


class Rate(Struct, frozen=True, kw_only=True):
    """How fast a task is: the mean over closed windows in which its neighbours stayed the same."""

    per_s: float
    """Units of work a second; what a unit is, its program says. Tasks of the same command have the same unit."""
    error_per_s: float
    """Standard error of that mean."""
    windows: int
    """Closed since its neighbours changed; the mean is of the newest of them (`rules/rates.py`)."""
    source: RateSource

    def ratio_to(self, alone: Rate) -> float | None:
        """Return the speed, 1: as alone; None where the two count different things, or nothing was done alone."""
        return self.per_s / alone.per_s if self.source == alone.source and alone.per_s > 0 else None


class Belief(Struct, frozen=True, kw_only=True):
    """What a task is believed to take of a GPU when it is alone there, as ratios of the whole GPU.

    The defaults are for a task of which nothing is known. In simulations, they cost up to 3 % of make-span against
    measured ones.
    """

    sm_ratio: float = 0.6
    """SM activity."""
    dram_ratio: float = 0.0
    pcie_ratio: float = 0.0
    cpu_ratio: float = 0.0
    """CPU time over the time of the cores that it may use."""
    busy_ratio: float = 1.0
    """Part of its time that it spends on the GPU."""
    factor: float = 1.0
    """Its measured slowdown over the predicted one, beside any neighbours."""
    pressure: float = 1.0
    """The measured slowdown of its neighbours over the predicted one, whoever they are."""
    source: BeliefSource = "default"
    is_from_util: bool = False
    """`sm_ratio` is a part of the utilisation, which is an upper bound of SM activity: the driver tells no more."""
    other_gpu: str = ""
    """The GPU model on which it was measured, where that is another one; empty: it is the same."""


class PairView(Struct, frozen=True, kw_only=True):
    """What was measured of two tasks on one GPU. `a`, `b`: `TaskKey.exact` or `TaskKey.family` of each."""

    a: str
    b: str
    factor_a: float = 1.0
    """The slowdown of `a` beside `b` over the one that is predicted with its own factor."""
    factor_b: float = 1.0
    is_banned: bool = False
    """Together they did less than one at a time: they do not share a GPU again."""


class PairRun(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Two tasks that ran beside each other on one GPU, with measured rates: a line of the user's `pairs.jsonl`."""

    version: int = 1
    when: float
    """Unix time, seconds."""
    a: str
    b: str
    """`TaskKey.exact` of each."""
    family_a: str
    family_b: str
    gpu_model: str
    sharing: SharingMethod
    slowdown_a: float
    slowdown_b: float
    """Time for a unit of work over the time alone."""
    predicted_a: float
    predicted_b: float
    """What the capacity model said, without corrections."""
    stp: float
    stp_error: float
    windows: int
    is_banned: bool = False
    """This is a ban. It counts for 30 days."""


class LevelRun(Struct, frozen=True):
    """What so many tasks on a node did together, as measured."""

    level: int
    """Tasks at once on the node."""
    sharing: SharingMethod
    per_s: float
    """Units of work a second, or finished tasks a second; of the whole node."""
    spread_per_s: float
    """Median absolute deviation of the windows."""
    windows: int


class TunedRun(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was found about the number of tasks on a node: a line of the user's `tuned.jsonl`."""

    version: int = 1
    when: float
    exact: str
    family: str
    gpu_model: str
    gpus: int
    rate_source: str
    levels: tuple[LevelRun, ...]
    best: int
    """The level that was chosen."""


class ShareRun(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A trial with a share of the multiprocessors: a line of the user's `shares.jsonl`."""

    version: int = 1
    when: float
    family: str
    gpu_model: str
    arm: str
    """free, a percentage such as 60, even, or static."""
    stp: float
    """Of its GPU over the task's windows."""
    antt: float
    windows: int
    neighbours: tuple[str, ...] = ()
    """Families of the tasks beside it, sorted."""


class TaskRate(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How fast one running task is now."""

    task: int
    pid: int
    """Leader of its session."""
    gpus: tuple[str, ...] = ()
    family: str = ""
    """`TaskKey.family` of its command: rates are added up only of tasks that have the same. Empty: not known."""
    rate: Rate | None = None
    speed_ratio: float | None = None
    """Of its speed alone; None: not known."""
    units: float | None = None
    """What its program says it has done."""
    is_paused: bool = False


class NodeRates(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The rates of one launcher's tasks: `rates/<job>.<pid>` in the user's folder below the node's /tmp."""

    version: int = 1
    job: str
    run: str = ""
    """Name of the run."""
    unix_s: float
    source: RateSource | None = None
    """Of most of its tasks; None: no task shows progress."""
    tasks: tuple[TaskRate, ...] = ()
    finished_per_h: float | None = None
    """Tasks that are done an hour, over the last minutes; None: none was done."""
    levels: tuple[LevelRun, ...] = ()
    """Of a run that finds the number of tasks by trials, or compares ways of sharing: what was measured so far."""
