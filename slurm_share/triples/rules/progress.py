"""Put into words how far a run is."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace


class Standing(Struct, frozen=True):
    """How far a run is."""

    tasks: int
    done: int
    failed: int
    running: int

    @property
    def left(self) -> int:
        """Tasks that have not begun, or were ended before they were through."""
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
    def is_at_work(self) -> bool:
        """Whether its tasks run."""
        return self.states == ("RUNNING",)


def in_words(standing: Standing, per_second: float | None) -> str:
    """For a line on a terminal, such as: 40 of 100 done, 1 failed, 8 running, 51 left, 2.0/s, 0:30 to go."""
    words = [f"{standing.done} of {standing.tasks} done", f"{standing.failed} failed", f"{standing.running} running"]
    words.append(f"{standing.left} left")
    if per_second:
        words.append(f"{per_second:.1f}/s" if per_second >= 1 else f"{per_second * 60:.1f}/min")
        to_go = standing.left + standing.running
        seconds = int(to_go / per_second)
        if to_go:
            words.append(f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02} to go")
    return ", ".join(words)


def job_words(state: JobState, *, had_begun: bool = False) -> str:
    """Return the state of a job with its reason, such as: job 12: pending (BeginTime), requeued, expected 15:02:11.
    `had_begun`: its tasks have run before."""
    shown = [word for word in state.states if word != "RUNNING"] or state.states
    said = f"job {state.job}: {' '.join(shown).lower().replace('_', ' ')}"
    if state.reason and not state.is_at_work:
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
    standing: Standing | None, state: JobState | None, per_second: float | None, silent: Sequence[str] = ()
) -> str:
    """Return the line about a run and its job; empty if nothing is known. `silent`: nodes whose launchers have written
    nothing for a while.

    Tasks count as running only while Slurm says that the job runs: after a node failure and a requeue, the launcher's
    last figures are still in the folder.
    """
    if state is None or state.is_at_work:
        if standing is None:
            return "" if state is None else job_words(state)
        said = in_words(standing, per_second)
        return f"{said}; no news from {', '.join(silent)}" if silent else said
    if standing is None:
        return job_words(state)
    is_suspended = bool({"SUSPENDED", "STOPPED"} & set(state.states))
    now = standing if is_suspended else replace(standing, running=0)
    # Short, for 80 columns: counts of 0 are left out.
    counts = [f"{now.done} of {now.tasks} done", f"{now.failed} failed" * bool(now.failed)]
    counts += [f"{now.running} suspended" * bool(now.running), f"{now.left} left"]
    return f"{job_words(state, had_begun=True)}; {', '.join(filter(None, counts))}"


def all_done(tasks: int) -> str:
    """Return the words for a run of which every task is done."""
    return "its one task is done" if tasks == 1 else f"all {tasks} tasks are done"
