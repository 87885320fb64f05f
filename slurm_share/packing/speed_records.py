"""Records of speed: rates, measured loads, measured pairs, and results of trials.

Rates are units of work a second; the task's program defines the unit. Ratios are of the whole GPU, from 0 to 1.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

RateSource = Literal["progress", "log", "output", "finished"]
"""The source of a rate, best first. progress: the file that the task writes (LLSUB_PROGRESS). log: a number in its log
(--progress). output: the lines that it prints, if they come evenly. finished: the tasks of its family that are done in
an hour."""
SharingMethod = Literal["mps", "time-slicing", "exclusive"]
"""The method by which the tasks of a GPU share it."""
SearchKind = Literal["tasks", "sharing", "part"]
"""The difference between the levels of a search. tasks: their number at once. sharing: the method of sharing. part: the
part of the multiprocessors that a task gets."""
SearchEnd = Literal["no gain", "no room", "all tried", "same", "levels", "cost", "few tasks", "no rates", "stopped"]
"""Why a search ended. no gain: more tasks at once do no more. no room: no more tasks have room. all tried: there is no
other level. same: the level of an earlier, finished search does as much as then. The others cut a search off. levels:
as many trials were made as a run may make. cost: the tasks that were left could not pay back another one. few tasks:
none was left for a higher level. no rates: no task showed progress or ended. stopped: the run ended first."""


class Rate(Struct, frozen=True, kw_only=True):
    """The rate of a task: the mean over closed windows in which its neighbours stayed the same."""

    per_s: float
    """Units of work a second. Tasks of the same command have the same unit."""
    error_per_s: float
    """Standard error of `per_s`."""
    windows: int
    """Windows closed since its neighbours changed; the mean is over the newest of them (`rules/rates.py`)."""
    source: RateSource

    def ratio_to(self, alone: Rate) -> float | None:
        """Return the rate over the rate alone; None: their sources differ, or the rate alone is 0."""
        return self.per_s / alone.per_s if self.source == alone.source and alone.per_s > 0 else None


class Load(Struct, frozen=True, kw_only=True):
    """The measured load of a task alone on a GPU, as ratios of the whole GPU."""

    sm_ratio: float
    """SM activity."""
    dram_ratio: float = 0.0
    busy_ratio: float = 1.0
    """Part of its time that it spends on the GPU."""
    is_family: bool = False
    """It was measured of other tasks of its script."""


class PairView(Struct, frozen=True, kw_only=True):
    """Two commands that shared a GPU with measured rates. `a`, `b`: `TaskKey.exact` of each."""

    a: str
    b: str
    extra_a: float
    extra_b: float
    """How much longer a unit of work of each takes because of the other, over its time alone: 0.2 is a fifth longer."""
    is_refused: bool = False
    """They do less together than one at a time, and do not share a GPU again."""

    def extra_of(self, name: str) -> float:
        """Return `extra_a` or `extra_b`, that of the command `name`."""
        return self.extra_a if name == self.a else self.extra_b

    @property
    def stp(self) -> float:
        """Return their aggregate speed; 1 equals one task at a time."""
        return 1.0 / (1.0 + self.extra_a) + 1.0 / (1.0 + self.extra_b)


class PairRun(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="record", tag="pair"):
    """Two tasks that shared a GPU, with measured rates: a record of the user's history."""

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
    stp: float
    """Their aggregate speed; 1 equals one task at a time."""
    stp_error: float
    windows: int
    is_refused: bool = False
    """`stp` is significantly below 1: they do not share a GPU again for 30 days."""


class LevelRun(Struct, frozen=True, omit_defaults=True):
    """A trial: the measured rate of a number of tasks, with a sharing method and a part of the multiprocessors."""

    level: int
    """Tasks at once on the node; for a trial of parts, 1."""
    sharing: SharingMethod
    per_s: float
    """Units of work, or finished tasks, a second of the whole node; for a trial of parts, the aggregate speed (STP) of
    its GPU over the predicted one."""
    spread_per_s: float
    """Median absolute deviation of the windows."""
    windows: int
    part: str = ""
    """free, a percentage such as 60, or even; empty: parts are not tried."""
    slowdown: float = 0.0
    """For a trial of parts: mean slowdown (ANTT) on its GPU over the predicted one."""


class SearchRun(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="record", tag="search"):
    """Results of trials with tasks of a family: a record of the user's history."""

    version: int = 1
    kind: SearchKind
    when: float
    exact: str = ""
    family: str
    gpu_model: str
    gpus: int
    neighbours: tuple[str, ...] = ()
    """For a trial of parts: families of the tasks beside it, sorted, each once."""
    rate_source: str
    """`RateSource`; stp for a trial of parts."""
    levels: tuple[LevelRun, ...]
    best: int
    """The chosen level."""
    end: SearchEnd
    next: int = 0
    """The level with which a search that was cut off goes on; 0: the search is finished."""


class TaskRate(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The current rate of one running task."""

    task: int
    pid: int
    """Leader of its session."""
    gpus: tuple[str, ...] = ()
    family: str = ""
    """`TaskKey.family` of its command: only rates of the same family are added up. Empty: not known."""
    rate: Rate | None = None
    speed_ratio: float | None = None
    """Speed over its speed alone; None: not known."""
    units: float | None = None
    """Work done, as counted by its program."""
    is_paused: bool = False


class NodeRates(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The rates of one launcher's tasks: `rates.json` in its folder on the node."""

    version: int = 1
    job: str
    run: str = ""
    """Name of the run."""
    unix_s: float
    source: RateSource | None = None
    """Source for most of its tasks; None: no task shows progress."""
    tasks: tuple[TaskRate, ...] = ()
    finished_per_h: float | None = None
    """Finished tasks an hour, over the last minutes; None: none was done."""
    levels: tuple[LevelRun, ...] = ()
    """Results so far of a run that finds the number of tasks by trials or compares sharing methods."""
