"""What the tasks of runs of llsub get done, as their launchers measure it: of one task, and of a job on a node.

A launcher's file is its user's own, so every figure here has bounds: a snapshot with them can be read by everybody.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from ..core.metric import Metric
from ..core.records import Count, Level


class TaskProgress(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """How fast one task is, by its own count."""

    task: Count
    """Its number in its run."""
    run: str = ""
    """Name of the run."""
    family: str = ""
    """What tasks of the same command have in common; empty: not known, and then its rate is added to no other's."""
    rate_per_s: Level | None = None
    """Units of work a second; what a unit is, its program says. None: it reports no progress, or no window is over."""
    rate_error_per_s: Level | None = None
    """Standard error of that mean."""
    rate_windows: Count = 0
    """Windows that the rate rests on."""
    rate_source: str = ""
    """progress, log, output or finished: where its launcher has the count from."""
    speed_ratio: Level | None = None
    """Of its speed alone on a GPU: 0.5 is half as fast. None: not known."""
    units: Level | None = None
    """What its program says it has done."""
    is_paused: bool = False
    """Its launcher has stopped it for its neighbours."""


class LevelRate(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What so many tasks on a node do together."""

    level: Count
    """Tasks at once on a node."""
    per_s: Level
    """Units of work a second, or finished tasks a second."""
    spread_per_s: Level = 0.0
    """Median absolute deviation of the windows."""
    windows: Count = 0
    sharing: str = ""
    """mps, time-slicing or exclusive; empty: not told."""


class JobProgress(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What the tasks of a job get done on a node."""

    source: str = ""
    """As `rate_source` of its tasks; empty: they differ, or none has a rate."""
    family: str = ""
    """As that of its tasks; empty: they differ, or it is not known."""
    tasks: Annotated[Count, Metric("Tasks of the job's launchers that run here.", "tasks_launched")] = 0
    """Tasks of its launchers that run here, with a process on a GPU or without."""
    rated: Annotated[Count, Metric("Tasks whose rate of work is known.", "tasks_with_rate")] = 0
    """Those whose rate is known."""
    paused: Annotated[Count, Metric("Tasks that their launcher has paused.", "tasks_paused")] = 0
    """Those that are paused."""
    rate_per_s: Annotated[
        Level | None, Metric("Units of work a second of all its tasks here, which count the same.", "rate_per_second")
    ] = None
    """Units of work a second of all its tasks. None: the rate of one is not known, or they do not count the same."""
    spread_per_s: Level | None = None
    """Median absolute deviation of that over windows, from the tasks' standard errors."""
    windows: Count = 0
    """Windows of the task that has the fewest."""
    speed_ratio: Annotated[
        Level | None, Metric("Mean speed of its tasks, as a part of their speed alone.", "task_speed_ratio")
    ] = None
    """Mean of those tasks whose speed alone is known."""
    finished_per_h: Annotated[
        Level | None, Metric("Tasks that were done an hour, over the last minutes.", "finished_per_hour")
    ] = None
    """Tasks that were done an hour, over the last minutes; None: none was done."""
    levels_source: str = ""
    """What the rates in `levels` count, as `source`."""
    levels: tuple[LevelRate, ...] = ()
    """What its run measured with other numbers of tasks (`llsub` with a number of tasks that it finds itself)."""


class RunProgress(Struct, frozen=True, kw_only=True):
    """What one launcher says of its tasks."""

    uid: int
    job: int | None
    """Slurm's number; None: it runs outside of Slurm."""
    source: str = ""
    tasks: tuple[TaskProgress, ...] = ()
    finished_per_h: float | None = None
    levels: tuple[LevelRate, ...] = ()
