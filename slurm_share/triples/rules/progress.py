"""The progress of a run as text."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from ...packing import WorkRate
from . import work_rates


class TaskCounts(Struct, frozen=True):
    """The tasks of a run by state, and their rates."""

    tasks: int
    done: int
    failed: int
    running: int
    saved: int = 0
    per_s: float | None = None
    """Tasks that end per second, the mean since the launchers began; None: not known."""
    work: WorkRate | None = None
    """Work rate of the running tasks; None: not measured, or in different units."""
    restarts: int = 0
    """How often the job was requeued before the launchers of these figures started."""
    given_up: int = 0
    """Tasks of a packed run that are not tried."""

    @property
    def left(self) -> int:
        """Return the number of tasks that have not started or were ended before they were done."""
        ended = self.done + self.failed + self.given_up + self.saved
        return max(0, self.tasks - ended - self.running)


class JobState(Struct, frozen=True, kw_only=True):
    """The state of a job in Slurm."""

    job: int
    states: tuple[str, ...]
    """Slurm's names: the state (PENDING, RUNNING), then flags (COMPLETING, CONFIGURING)."""
    reason: str = ""
    start: str = ""
    """Expected start of a waiting job as text; empty: not known."""
    restarts: int | None = None
    """How often the job was requeued; None: not known."""

    @property
    def is_running(self) -> bool:
        """Return whether the job runs, without any flag."""
        return self.states == ("RUNNING",)


def as_text(task_counts: TaskCounts) -> str:
    """Return the progress as text.

    Example: 40 of 100 done, 1 failed, 8 running, 51 left, 2.0/s, 0:00:30 to go, 412 units/s, 8 tasks 51.5 each
    (LLSUB_PROGRESS).
    """
    parts = [
        f"{task_counts.done} of {task_counts.tasks} done",
        f"{task_counts.failed} failed",
        *([f"{task_counts.saved} saved"] if task_counts.saved else []),
        *([f"{task_counts.given_up} given up"] if task_counts.given_up else []),
        f"{task_counts.running} running",
        f"{task_counts.left} left",
    ]
    per_second = task_counts.per_s
    if per_second:
        parts.append(f"{per_second:.1f}/s" if per_second >= 1 else f"{per_second * 60:.1f}/min")
        to_go = task_counts.left + task_counts.running
        seconds = int(to_go / per_second)
        if to_go:
            parts.append(f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02} to go")
    if task_counts.work is not None and task_counts.running:
        parts.append(work_rates.as_text(task_counts.work))
    return ", ".join(parts)


def is_outdated(task_counts: TaskCounts | None, state: JobState | None) -> bool:
    """Return whether the job has started since Slurm gave the state: its launchers have written figures.

    A requeue increases `restarts`, so the figures of the start before it are not taken for those of a later one.
    """
    if task_counts is None or state is None or state.restarts is None:
        return False
    return bool({"PENDING", "CONFIGURING"} & set(state.states)) and task_counts.restarts >= state.restarts


def job_text(state: JobState) -> str:
    """Return a job's state: "job 12: pending (BeginTime), expected 15:02:11"."""
    shown = [name for name in state.states if name != "RUNNING"] or state.states
    said = f"job {state.job}: {' '.join(shown).lower().replace('_', ' ')}"
    if state.reason and not state.is_running:
        said += f" ({state.reason})"
    if "PENDING" not in state.states:
        return said
    if state.restarts:
        said += ", requeued"
    if "REQUEUE_HOLD" in state.states or "held" in state.reason.lower():
        return f"{said}, scontrol release {state.job} lets it start"
    return f"{said}, expected {state.start}" if state.start else said


def line(task_counts: TaskCounts | None, state: JobState | None, silent: Sequence[str] = ()) -> str:
    """Return the line about a run and its job; empty if nothing is known. `silent`: nodes without recent progress.

    Tasks count as running only while Slurm reports the job as running, or while its report is older than the figures:
    after a node failure and a requeue, the folder still has the last figures of the launcher.
    """
    if state is None or state.is_running or is_outdated(task_counts, state):
        if task_counts is None:
            return "" if state is None else job_text(state)
        said = as_text(task_counts)
        return f"{said}; no news from {', '.join(silent)}" if silent else said
    if task_counts is None:
        return job_text(state)
    is_suspended = bool({"SUSPENDED", "STOPPED"} & set(state.states))
    now = task_counts if is_suspended else replace(task_counts, running=0)
    # Counts of 0 are left out, to fit into 80 columns.
    counts = [f"{now.done} of {now.tasks} done", f"{now.failed} failed" * bool(now.failed)]
    counts += [f"{now.saved} saved" * bool(now.saved)]
    counts += [f"{now.given_up} given up" * bool(now.given_up)]
    counts += [f"{now.running} suspended" * bool(now.running), f"{now.left} left"]
    return f"{job_text(state)}; {', '.join(filter(None, counts))}"


def all_done(tasks: int) -> str:
    return "its one task is done" if tasks == 1 else f"all {tasks} tasks are done"
