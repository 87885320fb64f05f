"""Learn from samples, rates and ends: sizes of commands, their loads, the speeds of groups. Sum up a node's run."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from statistics import median

from ...core.text import counted
from ...node.gpu_figures import GpuLoad
from ..attempt import Attempt
from ..group_speeds import GroupSpeeds
from ..history_records import TaskRun
from ..records import EndFacts, EndKind, GpuFacts, TaskKey
from ..speed_records import PairRun, Rate
from .endings import MEMORY_KINDS
from .estimate.estimator import Estimator
from .loads import minute_ratio
from .speed_account import GroupResult, span
from .speed_account import sentences as speed_sentences
from .speeds import Speeds

UNSEEN_LEARNED = 25
"""Runs of a command without any sample are learned from up to this number; more of them add nothing."""


class Learner:
    """Learns sizes, loads and speeds of tasks on one node of a run. Its caller tells the board's queue which families
    have news."""

    def __init__(
        self,
        gpus: Sequence[GpuFacts],
        running: Mapping[int, Attempt],
        estimator: Estimator | None,
        speeds: Speeds,
        *,
        unix_s: float,
        sharing: str,
        software: str,
        runs: list[TaskRun] | None,
        pairs: list[PairRun] | None,
    ) -> None:
        """Start without samples. `unix_s`: Unix time of second 0. `runs`, `pairs` get what is for the user's history;
        None: it is not kept."""
        self._facts = {gpu.uuid: gpu for gpu in gpus}
        self._running = running
        self._estimator = estimator
        self._speeds = speeds
        self._unix_s = unix_s
        self._sharing, self._software = sharing, software
        self._runs = runs
        self.totals = RunTotals(gpus)
        self.notes: list[str] = []
        """Sentences for the job's log."""
        self.groups = GroupSpeeds(
            speeds, self._facts, running, unix_s=unix_s, keep=_drop if pairs is None else pairs.append,
            say=self.notes.append,
        )  # fmt: skip
        self._unseen: dict[str, int] = {}
        """Family -> number of its runs without any sample."""
        self._dry_runs: dict[str, float] = {}
        """Command -> size from a dry run with fake tensors, in MiB."""

    # ---- Sizes ----

    def offered(self, key: TaskKey, source: str, mib: float) -> None:
        """Record the size of a command from a formula or a dry run, in MiB."""
        if source == "probe":
            self._dry_runs[key.exact] = mib

    # ---- Loads and speeds ----

    def sampled(self, gpus: Mapping[str, GpuLoad], taken_s: float) -> set[str]:
        """Record a sample of the GPUs, and the loads of tasks that are alone. Return their families."""
        self.totals.sample(gpus, self._running, taken_s)
        found: set[str] = set()
        for its in self._running.values():
            key = its.ask.key
            if len(its.gpus) == 1 and key is not None and (load := its.new_load()) is not None:
                self._speeds.note_load(key, self._facts[its.gpus[0]].model, load)
                found.add(key.family)
        return found

    def rated(self, its: Attempt, rate: Rate | None) -> set[str]:
        """Record the rate of a task since its neighbours changed; return the families with new measurements."""
        self.groups.rated(its, rate)
        return self.groups.take_families()

    # ---- Ends ----

    def ended(self, its: Attempt, facts: EndFacts, cpu_cores: float | None) -> None:
        """Count an attempt that has ended, and learn from it."""
        self.groups.changed(its.gpus, facts.now_s)
        self.totals.ended(its)
        key = its.ask.key
        is_seen, is_own = bool(its.peak_mib), its.kind in MEMORY_KINDS
        is_cut = its.kind in ("saved", "unfinished", "time limit")
        if key is None or not facts.was_started or its.kind == "not started" or (is_cut and not is_seen):
            return
        if not is_seen and not is_own:
            count = self._unseen[key.family] = self._unseen.get(key.family, 0) + 1
            if count > UNSEEN_LEARNED:
                return
        run = its.run(
            facts,
            self._facts[its.gpus[0]],
            unix_s=self._unix_s + facts.now_s,
            sharing=self._sharing,
            software=self._software,
            cpu_cores=cpu_cores,
            probe_mib=self._dry_runs.get(key.exact),
        )
        if self._estimator is not None:
            self._estimator.learn(run)
        self._speeds.learn(run)
        if self._runs is not None and (is_seen or is_own):
            self._runs.append(run)
            if is_seen:
                self.totals.learned.add(key.exact)

    # ---- The run ----

    def sentences(self, folder: str, now_s: float) -> list[str]:
        """Return the summary at the end of the run. `folder`: of the run, as its user writes it."""
        return self.totals.sentences(folder, self.groups.finish(now_s))


def _drop(pair: PairRun) -> None:
    """Keep a pair out of the history."""


GAP_S = 30.0
"""A longer gap between two samples is not counted: the machine was suspended, or the driver hung."""
_FREE: frozenset[EndKind] = frozenset({"neighbour's memory", "neighbour's fault", "device"})


class RunTotals:
    """The sums of a node's packed run, from measured values only."""

    def __init__(self, gpus: Sequence[GpuFacts]) -> None:
        self._gpus = {gpu.uuid: gpu for gpu in gpus}
        self._at: float | None = None
        self.seconds = 0.0
        """Sampled time of each GPU."""
        self.memory_mib_s = self.booked_mib_s = self.used_mib_s = 0.0
        self.busy_s = 0.0
        """GPU seconds with a task."""
        self.sm_s = self.sm_over_s = 0.0
        self.own = self.neighbours = self.free = 0
        """Attempts that ran out of memory by their own need, or by a neighbour's, or that a fault or device ended."""
        self.wasted_s = 0.0
        """Time of all these attempts."""
        self.done = 0
        self.waits = array("d")
        """Seconds from the start of the launcher to the first start of each task."""
        self.learned: set[str] = set()
        """Commands whose size was seen."""

    def started(self, waited_s: float | None) -> None:
        """Count a start. `waited_s` None: it is not the first start of the task."""
        if waited_s is not None:
            self.waits.append(max(waited_s, 0.0))

    def ended(self, its: Attempt) -> None:
        if its.kind == "done":
            self.done += 1
        elif its.kind in MEMORY_KINDS:
            self.own += 1
            self.wasted_s += its.seconds
        elif its.kind in _FREE:
            self.neighbours += its.kind == "neighbour's memory"
            self.free += its.kind != "neighbour's memory"
            self.wasted_s += its.seconds

    def sample(self, gpus: Mapping[str, GpuLoad], running: Mapping[int, Attempt], now_s: float) -> float:
        """Add the time since the last sample. Return it, or 0 if it does not count."""
        before, self._at = self._at, now_s
        seconds = 0.0 if before is None else now_s - before
        is_counted = 0 < seconds <= GAP_S
        there: dict[str, list[Attempt]] = {uuid: [] for uuid in self._gpus}
        for its in running.values():
            for uuid in its.gpus:
                there[uuid].append(its)
        self.seconds += seconds if is_counted else 0.0
        for uuid, facts in self._gpus.items():
            gpu, tasks = gpus.get(uuid), there[uuid]
            if not is_counted or gpu is None:
                continue
            self.busy_s += seconds if tasks else 0.0
            if facts.total_mib and gpu.memory_used_mib is not None:
                self.memory_mib_s += facts.total_mib * seconds
                self.used_mib_s += gpu.memory_used_mib * seconds
                booked = sum(max(its.reserved_mib, its.memory.get(uuid, 0)) for its in tasks)
                self.booked_mib_s += min(booked, facts.total_mib) * seconds
            if (sm_ratio := minute_ratio(gpu.load_percent_windows)) is not None:
                self.sm_s += sm_ratio * seconds
                self.sm_over_s += seconds
            if len(tasks) == 1:
                tasks[0].see_alone(gpu, seconds)
        return seconds if is_counted else 0.0

    def sentences(self, folder: str, groups: Sequence[GroupResult] = ()) -> list[str]:
        """Return the sentences at the end of a node's run. `folder`: of the run, as its user writes it. `groups`: the
        measured groups of tasks."""
        said = []
        if self.memory_mib_s:
            booked, used = (100 * one / self.memory_mib_s for one in (self.booked_mib_s, self.used_mib_s))
            busy = 100 * self.busy_s / (self.seconds * len(self._gpus))
            sm = f"; SM activity {self.sm_s / self.sm_over_s:.2f}" if self.sm_over_s else ""
            said.append(
                f"GPU memory booked {booked:.0f} %, used {used:.0f} %; GPUs with work {busy:.0f} % of the time{sm}"
            )
        lost = f"; wasted {span(self.wasted_s)}" if self.wasted_s else ""
        faults = f"; {self.free} ended by a neighbour's fault or a failed GPU" if self.free else ""
        said.append(f"out of GPU memory: {self.own} own, {self.neighbours} by a neighbour{faults}{lost}")
        if self.waits:
            total, middle = sum(self.waits) / len(self.waits), median(self.waits)
            said.append(f"a task waited {span(total)} for its start (median {span(middle)})")
        said += speed_sentences(groups)
        if self.learned:
            said.append(f"learned the size of {counted(len(self.learned), 'command')}; next time --dry-run shows it")
        if groups:
            said.append(f"slurm-share pack explain {folder} lists every group of tasks that was measured")
        said.append(f"slurm-share pack explain {folder} TASK says why a task went where it did")
        return said
