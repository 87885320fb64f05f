"""Learn from samples, rates and ends: sizes of commands, their loads, and the speeds of groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...node.gpu_figures import GpuLoad
from ..attempt import Attempt
from ..group_speeds import GroupSpeeds
from ..history_records import TaskRun
from ..records import EndFacts, GpuFacts, TaskKey
from ..run_totals import RunTotals
from ..speed_records import PairRun, Rate
from .endings import MEMORY_KINDS
from .estimate.estimator import Estimator
from .speeds import Speeds

UNSEEN_LEARNED = 25
"""Runs of a command without any sample are learned from up to this number; more of them add nothing."""


class Learner:
    """What one node of a run learns. Its caller tells the board's queue which families have news."""

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
        is_cut = its.kind in ("saved", "unfinished")
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
