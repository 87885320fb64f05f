"""Write the progress of a run as text."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from ..records import WorkRate
from . import work_rates


class TaskCounts(Struct, frozen=True):
    """The progress of a run, in tasks."""

    tasks: int
    done: int
    failed: int
    running: int
    per_s: float | None = None
    """Tasks that end in a second, the mean since the launchers began; None: none has ended, or not told."""
    work: WorkRate | None = None
    """What the running tasks do; None: not measured, or they count different things."""

    @property
    def left(self) -> int:
        """Return the tasks that have not started, or were ended before they finished."""
        return max(0, self.tasks - self.done - self.failed - self.running)


class JobState(Struct, frozen=True, kw_only=True):
    """The state of a job in Slurm."""

    job: int
    states: tuple[str, ...]
    """Slurm's names: PENDING, RUNNING ... first, then COMPLETING, CONFIGURING ..."""
    reason: str = ""
    start: str = ""
    """When a waiting job is expected to start, for a person; empty: not known."""

    @property
    def is_running(self) -> bool:
        """Return whether its tasks run."""
        return self.states == ("RUNNING",)


def as_text(task_counts: TaskCounts, per_second: float | None) -> str:
    """Return the progress as text, such as: 40 of 100 done, 1 failed, 8 running, 51 left, 2.0/s, 0:30 to go,
    412 units/s, 8 tasks 51.5 each (LLSUB_PROGRESS)."""
    parts = [
        f"{task_counts.done} of {task_counts.tasks} done",
        f"{task_counts.failed} failed",
        f"{task_counts.running} running",
    ]
    parts.append(f"{task_counts.left} left")
    if per_second:
        parts.append(f"{per_second:.1f}/s" if per_second >= 1 else f"{per_second * 60:.1f}/min")
        to_go = task_counts.left + task_counts.running
        seconds = int(to_go / per_second)
        if to_go:
            parts.append(f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02} to go")
    if task_counts.work is not None and task_counts.running:
        parts.append(work_rates.as_text(task_counts.work))
    return ", ".join(parts)


def job_text(state: JobState, *, had_begun: bool = False) -> str:
    """Return the state of a job with its reason, such as: job 12: pending (BeginTime), requeued, expected 15:02:11.
    `had_begun`: its tasks have run before."""
    shown = [name for name in state.states if name != "RUNNING"] or state.states
    said = f"job {state.job}: {' '.join(shown).lower().replace('_', ' ')}"
    if state.reason and not state.is_running:
        said += f" ({state.reason})"
    if "PENDING" not in state.states:
        return said
    if had_begun:
        said += ", requeued"
    if _is_held(state):
        return f"{said}, scontrol release {state.job} lets it start"
    return f"{said}, expected {state.start}" if state.start else said


def _is_held(state: JobState) -> bool:
    return "REQUEUE_HOLD" in state.states or "held" in state.reason.lower()


def line(
    task_counts: TaskCounts | None, state: JobState | None, per_second: float | None, silent: Sequence[str] = ()
) -> str:
    """Return the line about a run and its job; empty if nothing is known. `silent`: nodes whose launchers have written
    nothing for a while.

    Tasks count as running only while Slurm says that the job runs: after a node failure and a requeue, the launcher's
    last figures are still in the folder.
    """
    if state is None or state.is_running:
        if task_counts is None:
            return "" if state is None else job_text(state)
        said = as_text(task_counts, per_second)
        return f"{said}; no news from {', '.join(silent)}" if silent else said
    if task_counts is None:
        return job_text(state)
    is_suspended = bool({"SUSPENDED", "STOPPED"} & set(state.states))
    now = task_counts if is_suspended else replace(task_counts, running=0)
    # Short, for 80 columns: counts of 0 are left out.
    counts = [f"{now.done} of {now.tasks} done", f"{now.failed} failed" * bool(now.failed)]
    counts += [f"{now.running} suspended" * bool(now.running), f"{now.left} left"]
    return f"{job_text(state, had_begun=True)}; {', '.join(filter(None, counts))}"


def all_done(tasks: int) -> str:
    """Return the text for a run whose tasks are all done."""
    return "its one task is done" if tasks == 1 else f"all {tasks} tasks are done"
