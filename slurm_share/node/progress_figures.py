"""Progress of the tasks of llsub runs, as measured by their launchers: of one task, and of a job on a node.

A launcher's file belongs to its user, so all figures here have bounds: everybody can read a snapshot that contains
them.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from ..core.metric import Metric
from ..core.records import Count, Level


class TaskProgress(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Speed of one task, by its own progress reports."""

    task: Count
    """Number of the task in its run."""
    run: str = ""
    """Name of the run."""
    family: str = ""
    """Name shared by tasks of the same command; empty: unknown, and the rate is not added to others."""
    rate_per_s: Level | None = None
    """Units of work per second; the program defines the unit. None: no progress reported, or no window complete."""
    rate_error_per_s: Level | None = None
    """Standard error of that mean."""
    rate_windows: Count = 0
    """Number of windows behind the rate."""
    rate_source: str = ""
    """progress, log, output or finished: how the launcher counts."""
    speed_ratio: Level | None = None
    """Speed relative to that of the task alone on a GPU; 0.5 is half as fast. None: unknown."""
    units: Level | None = None
    """Units of work done, as reported by the program."""
    is_paused: bool = False
    """Whether its launcher has paused it for its neighbours."""


class LevelRate(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Rate of a number of tasks on a node together."""

    level: Count
    """Tasks at once on a node."""
    per_s: Level
    """Units of work or finished tasks per second."""
    spread_per_s: Level = 0.0
    """Median absolute deviation over windows."""
    windows: Count = 0
    sharing: str = ""
    """mps, time-slicing or exclusive; empty: unknown."""


class JobProgress(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Progress of the tasks of a job on a node."""

    source: str = ""
    """`rate_source` of its tasks; empty: they differ, or none has a rate."""
    family: str = ""
    """`family` of its tasks; empty: they differ, or it is unknown."""
    tasks: Annotated[Count, Metric("Tasks of the job's launchers that run here.", "tasks_launched")] = 0
    """Running tasks of its launchers on this node, with or without a process on a GPU."""
    rated: Annotated[Count, Metric("Tasks whose rate of work is known.", "tasks_with_rate")] = 0
    """Tasks with a known rate."""
    paused: Annotated[Count, Metric("Tasks that their launcher has paused.", "tasks_paused")] = 0
    """Paused tasks."""
    rate_per_s: Annotated[
        Level | None, Metric("Units of work a second of all its tasks here, which count the same.", "rate_per_second")
    ] = None
    """Units of work per second of all its tasks. None: a rate is unknown, or the tasks count different units."""
    spread_per_s: Level | None = None
    """Median absolute deviation over windows, from the tasks' standard errors."""
    windows: Count = 0
    """Windows of the task with the fewest."""
    speed_ratio: Annotated[
        Level | None, Metric("Mean speed of its tasks, as a part of their speed alone.", "task_speed_ratio")
    ] = None
    """Mean over the tasks whose speed alone is known."""
    finished_per_h: Annotated[
        Level | None, Metric("Tasks that were done an hour, over the last minutes.", "finished_per_hour")
    ] = None
    """Finished tasks per hour, over the last minutes; None: none finished."""
    levels_source: str = ""
    """The unit of the rates in `levels`, as `source`."""
    levels: tuple[LevelRate, ...] = ()
    """Rates that its run measured with other numbers of tasks (`llsub` with `auto` processes per node)."""


class RunProgress(Struct, frozen=True, kw_only=True):
    """Progress of the tasks of one launcher."""

    uid: int
    job: int | None
    """Slurm's job id; None: it runs outside of Slurm."""
    source: str = ""
    tasks: tuple[TaskProgress, ...] = ()
    finished_per_h: float | None = None
    levels: tuple[LevelRate, ...] = ()
