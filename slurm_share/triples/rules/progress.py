"""The progress of a run as text, and the rates of its tasks, added up where they count the same units."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import UNSET, Struct
from msgspec.structs import replace

from ...core.text import amount, counted
from ...packing import RateSource, WorkRate
from ..records import Ended


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
        parts.append(rate_text(task_counts.work))
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


SOURCE_TEXTS: Mapping[str, str] = {
    "progress": "LLSUB_PROGRESS",
    "log": "--progress",
    "output": "lines of output",
    "finished": "finished tasks",
}


def add_up(parts: Iterable[WorkRate]) -> WorkRate | None:
    """Return the sum of the rates of tasks or nodes; None: there is none, or they differ in source or kind."""
    found = list(parts)
    if len({(one.source, one.kind) for one in found}) != 1 or (len(found) > 1 and found[0].kind is None):
        return None
    return WorkRate(
        per_s=rounded(sum(one.per_s for one in found)),
        tasks=sum(one.tasks for one in found),
        source=found[0].source,
        kind=found[0].kind,
    )


def rate_text(work: WorkRate) -> str:
    """Return a work rate as text, such as: 412 units/s, 8 tasks 51.5 each (LLSUB_PROGRESS)."""
    each = "" if work.tasks == 1 else f", {work.tasks} tasks {amount(work.per_s / work.tasks)} each"
    return f"{amount(work.per_s)} {unit(work.source)}/s{each} ({SOURCE_TEXTS[work.source]})"


def usual_source(sources: Sequence[RateSource]) -> RateSource | None:
    """Return the most frequent source; None: there is none."""
    return Counter(sources).most_common(1)[0][0] if sources else None


def rounded(value: float) -> float:
    """Return a rate with six significant digits."""
    return float(f"{value:.6g}")


def unit(source: str) -> str:
    """Return the unit of a source's rates: lines or units."""
    return "lines" if source == "output" else "units"


class _Sum:
    """The units of work of one slot, GPU or node, and their time span."""

    def __init__(self) -> None:
        self.units = 0.0
        self.since, self.until = float("inf"), 0.0

    def add(self, units: float, started: float, seconds: float) -> None:
        self.units += units
        self.since = min(self.since, started)
        self.until = max(self.until, started + seconds)

    @property
    def per_s(self) -> float:
        return self.units / (self.until - self.since) if self.until > self.since else 0.0


class WorkTally:
    """Adds up the work of a run's measured attempts, for each slot, GPU and node.

    The rate of a slot, GPU or node is the work of all its attempts, over the time from the start of the first to the
    end of the last one, including idle time.
    """

    def __init__(self, *, is_alike: bool = True) -> None:
        """`is_alike` False: tasks are different commands, and their units are not added up."""
        self._is_alike = is_alike
        self._attempts = 0
        self._measured = 0
        self._sources: set[str] = set()
        self._least, self._most = float("inf"), 0.0
        self._units = self._seconds = 0.0
        self._ratio = self._ratio_s = 0.0
        self._slots: dict[tuple[str, int], _Sum] = {}
        self._gpus: dict[str, _Sum] = {}
        self._nodes: dict[str, _Sum] = {}

    def passed_on(self, attempts: Iterable[tuple[int, Ended]]) -> Iterator[tuple[int, Ended]]:
        """Yield attempts with their places unchanged, and add each of them."""
        for place, ended in attempts:
            self.add(ended)
            yield place, ended

    def add(self, ended: Ended) -> None:
        self._attempts += 1
        rate, source = ended.rate_per_s, ended.rate_source
        if rate is UNSET or source is UNSET or ended.seconds <= 0:
            return
        self._measured += 1
        self._sources.add(source)
        self._least, self._most = min(self._least, rate), max(self._most, rate)
        units = rate * ended.seconds
        self._units += units
        self._seconds += ended.seconds
        if ended.speed_ratio is not UNSET:
            self._ratio += ended.speed_ratio * ended.seconds
            self._ratio_s += ended.seconds
        if ended.slot is not None:
            self._slots.setdefault((ended.node, ended.slot), _Sum()).add(units, ended.started, ended.seconds)
        if ended.gpu_uuid is not None:
            self._gpus.setdefault(ended.gpu_uuid, _Sum()).add(units, ended.started, ended.seconds)
        self._nodes.setdefault(ended.node, _Sum()).add(units, ended.started, ended.seconds)

    def sentence(self) -> str:
        """Return the rates as a sentence; empty: nothing was measured. Rates of different sources are not added up."""
        if not self._measured:
            return ""
        of = "" if self._measured == self._attempts else f" ({self._measured} of {counted(self._attempts, 'attempt')})"
        if len(self._sources) > 1:
            return f"work was measured from different sources{of}; the rate of each attempt is in results.jsonl"
        [source] = self._sources
        by = f"{unit(source)}/s, by {SOURCE_TEXTS.get(source, source)}{of}"
        speed = f"; {self._ratio / self._ratio_s:.2f} of the speed without neighbours" if self._ratio_s else ""
        least, most = amount(self._least), amount(self._most)
        spread = least if least == most else f"{least} to {most}"
        if not self._is_alike:
            return f"{by}: tasks {spread} each{speed}"
        parts = [f"a task {amount(self._units / self._seconds)}{'' if least == most else f' ({spread})'}"]
        for what, sums in (("slot", self._slots), ("GPU", self._gpus), ("node", self._nodes)):
            if sums:
                parts.append(f"a {what} {amount(sum(one.per_s for one in sums.values()) / len(sums))}")
        if len(self._nodes) > 1:
            parts.append(f"{len(self._nodes)} nodes {amount(sum(one.per_s for one in self._nodes.values()))}")
        return f"{by}: {', '.join(parts)}{speed}"
