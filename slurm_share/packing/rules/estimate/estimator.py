"""Estimate a task's GPU memory from the first source that has enough evidence.

The sources, best first: the user's own number; earlier runs of the same command; a running task of the same command;
runs that differ in numbers (`line.py`); earlier runs of the same script; the same command on another GPU model; a
formula; a dry run with fake tensors; a running task of the same script with the same numbers. The figures are never
averaged: a person can check one source, but not a mixture.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from ....core.text import counted
from ...history_records import SiteFamily, TaskRun
from ...records import Estimate, PackSettings, Source, TaskAsk, TaskKey
from .. import guarantee
from ..fingerprint import tag
from . import conformal, line
from .elastic import Sizes
from .own_numbers import OwnNumbers

CONTEXT_MIB = 300
"""The least memory of any task that uses the GPU: a CUDA context alone takes this much, and 500 MiB or more on A100 and
H100."""
ROOM_MIB = 128
"""The least distance of a bound from its estimate."""
NEWEST = 10
"""The estimate of a command is the largest peak of this many runs, so a change of the program ages out."""
CHANGED = 1.25
"""A peak this factor above all earlier ones shows that the program has changed: older peaks and scores are dropped."""
FAMILY_STEP = 0.08
"""Step of a family's alpha, larger than ALPHA_STEP: a family has fewer runs, and has to follow a changed program."""
FAMILY_RUNS = 3
FAMILY_NEWEST = 100
FAMILY_QUANTILE = 0.9
OLD_S = 180 * 86400.0
"""The same 18 models, measured again by their author a year later, took 0.74 to 0.96 of the earlier figures."""
GROSS = 4.0
"""An estimate above this multiple of the largest GPU is rejected as an error of its source."""
OTHER_GPU = 1.05
"""A context on another GPU model differs by some hundred MiB."""
MOST_MIB = 1 << 24
"""16 TiB, more than any GPU has or any program asks for."""
UNSEEN_S = 30.0
"""A run of at least this length without visible memory used no GPU. A shorter one may end between two samples."""
UNSEEN_RUNS = 20
"""After this many runs of a script that were too short for a sample, its next runs are assumed to be small."""
PROBE_RUNS = 20
"""Least number of runs with a probe before a correction is fitted to the user's own probes."""
SCORED_RUNS = 2 * conformal.NEWEST
"""Newest runs of a history that are scored for the pools of all commands; the pools keep fewer."""
PROBE_RATIO = PackSettings().probe_ratio
"""The part of a GPU that a task of unknown size reserves."""
OVER_TOLD = 1.05
"""A task that is told a size takes the CUDA context on top of it."""
FEW = (1, 3, 9)
"""Commands with 1, 2 to 3, 4 to 9 and 10 known runs are calibrated separately."""
RUNNING_MOST = 256
"""Running and finished tasks of one script in this run that may size others."""

DEFAULTS = {
    "exact": 1.10, "same": 1.10, "inside": 1.15, "batch": 1.25, "near": 1.40, "far": 1.85, "scaled": 1.40,
    "family": 1.25, "other-gpu": 1.10, "static": 1.25, "probe": 1.25,
}  # fmt: skip
"""Factor of a bound until runs have shown a better one, by source or by the kind of a line. Those of lines cover 95 of
100 in generated histories of unlike laws (`lab.worlds.unlike_sheet`); the others are assumptions."""
CALIBRATED = frozenset({"exact", "line", "family", "other-gpu", "static", "probe"})
"""Sources whose misses move alpha."""
_OFFERED: dict[Source, str] = {"static": "formula", "probe": "dry run with fake tensors"}
"""Outside sources, best first, with the text of their estimates."""
GROWTH = ((30, 1.5), (60, 1.30), (120, 1.20), (300, 1.10), (900, 1.05))
"""(age in seconds, factor by which a peak that is flat at that age may still grow). Assumed until runs are recorded."""
GROWTH_ALPHA = 0.05
GROWTH_MAX = 4.0


def _newest(most: int) -> Any:
    return field(default_factory=lambda: deque(maxlen=most))


class _Command(Struct):
    """Runs of one command on one GPU model."""

    peaks: deque[int] = _newest(NEWEST)
    stale: deque[int] = _newest(NEWEST)
    """Peaks of old runs and of runs with other software."""
    runs: int = 0
    scores: deque[float] = _newest(conformal.NEWEST)
    seconds: deque[float] = _newest(NEWEST)
    growth: dict[int, deque[float]] = {}
    clients: int = 1
    floor: int = 0
    """Memory that runs without a regular end have had or wanted since the last run that was done."""
    elastic: Sizes = field(default_factory=Sizes)
    is_elastic: bool = False
    was_done: bool = False


class _Family(Struct):
    """Runs of one script on one GPU model."""

    alpha: float = conformal.ALPHA
    """The current part of its tasks that may exceed their bound."""
    scores: deque[float] = _newest(conformal.NEWEST)
    peaks: deque[int] = _newest(FAMILY_NEWEST)
    relevance: line.Relevance = field(default_factory=line.Relevance)
    runs: int = 0
    seconds: deque[float] = _newest(FAMILY_NEWEST)
    unseen: int = 0
    """Runs in a row that were too short for a sample."""
    elastic: Sizes = field(default_factory=Sizes)
    is_elastic: bool = False
    running: dict[str, _RunningPeak] = {}
    """`exact` of a task of this run with flat memory, or its numbers, to the task."""


class _RunningPeak(Struct, frozen=True):
    """A task of this run with flat memory."""

    numbers: line.Numbers
    peak: int
    sized: float
    """The peak multiplied by the growth that is still possible, in MiB."""


class _Asked(Struct):
    """A task whose size is wanted, with the known runs of its command and script."""

    task: int
    key: TaskKey
    gpu_model: str
    command: _Command
    family: _Family


class _Candidate(Struct):
    """The estimate of one source."""

    source: Source
    point: float
    factor: float
    """The bound over the point."""
    runs: int
    text: str
    is_elastic: bool = False
    most: float = math.inf
    """The bound is not above this, unless the point is."""


class Estimator:
    """Sizes of tasks, from the runs of the history and the tasks of this run."""

    def __init__(
        self, runs: Iterable[TaskRun] = (), *, now: float = 0.0, software: str = "", site: Iterable[SiteFamily] = ()
    ) -> None:
        """Learn from `runs`, oldest first.

        `now`: Unix time. Runs older than 180 days or with other software than `software` count less. `site`: figures of
        families that the site publishes for all users.
        """
        self._now = now
        self._software = software
        self._rejected: dict[Source, str] = {}
        """Source -> sentence for the log; empty: it was said."""
        self._own_numbers = OwnNumbers()
        self._commands: dict[tuple[str, str], _Command] = {}
        self._models: dict[str, list[str]] = {}
        """`exact` -> GPU models with a run."""
        self._families: dict[tuple[str, str], _Family] = {}
        self._series: dict[tuple[str, str], line.Series] = {}
        self._offers: dict[tuple[str, str, Source], float] = {}
        self._pools = {name: conformal.pool(factor) for name, factor in DEFAULTS.items()}
        self._by_runs = tuple(conformal.pool(DEFAULTS["exact"]) for _ in range(len(FEW) + 1))
        """Scores of commands by the number of their known runs: the largest of few peaks is exceeded more often."""
        self._growth: dict[int, deque[float]] = {}
        self._probes: deque[tuple[float, float]] = deque(maxlen=conformal.NEWEST)
        self._largest_gpu = 0
        self._site = {(one.family, one.gpu_model): one for one in site}
        earlier = list(runs)
        scored = len(earlier) - SCORED_RUNS
        for index, run in enumerate(earlier):
            self._learn(run, is_scored=index >= scored)
        self._own_numbers.take_notes()  # earlier runs have reported these

    # ---- Learning ----

    def learn(self, run: TaskRun) -> None:
        """Learn from a task of this run that has ended."""
        self._learn(run, is_scored=True)
        if run.kind == "done" and run.peak_mib and not run.is_elastic:
            # Until three runs of a family are known, its first task stands for those with the same numbers.
            self._note_running(TaskKey(run.exact, run.family, run.numbers), run.gpu_model, run.peak_mib, GROWTH[-1][0])
            series = self._series.get((run.series or run.family, run.gpu_model))
            if series is not None:
                series.running.pop(run.exact, None)

    def sibling(self, key: TaskKey, gpu_model: str, peak_mib: int, age_s: float) -> None:
        """Record a running task with flat memory, here or on another node, for its waiting siblings."""
        if peak_mib <= 0:
            return
        self._note_running(key, gpu_model, peak_mib, age_s)
        if key.exact and key.numbers and (key.series or key.family):
            series = self._series.setdefault((key.series or key.family, gpu_model), line.Series())
            series.running[key.exact] = (_tagged(key), float(peak_mib), self.growth(key, gpu_model, age_s))

    def _note_running(self, key: TaskKey, gpu_model: str, peak_mib: int, age_s: float) -> None:
        running = self._family(key, gpu_model).running
        name = key.exact or str(key.numbers)
        before = running.pop(name, None)
        now = _RunningPeak(_tagged(key), peak_mib, peak_mib * self.growth(key, gpu_model, age_s))
        running[name] = before if before is not None and before.peak > peak_mib and before.sized > now.sized else now
        if len(running) > RUNNING_MOST:
            del running[next(iter(running))]

    def offer(self, key: TaskKey, gpu_model: str, source: Source, point_mib: float) -> None:
        """Record the figure of an outside source: `static`, or `probe` before its correction."""
        self._offers[(key.exact, gpu_model, source)] = float(point_mib) if abs(point_mib) < 1e300 else math.inf

    def take_notes(self) -> list[str]:
        """Return the sentences for the log since the last call: rejected sources, and better values for --gpu-mem."""
        said = [sentence for sentence in self._rejected.values() if sentence]
        self._rejected = dict.fromkeys(self._rejected, "")
        return [*said, *self._own_numbers.take_notes()]

    def _family(self, key: TaskKey | TaskRun, gpu_model: str) -> _Family:
        return self._families.setdefault((key.family, gpu_model), _Family()) if key.family else _Family()

    def _learn(self, run: TaskRun, *, is_scored: bool) -> None:
        if not _is_sane(run):
            return
        command, family = _Command(), self._family(run, run.gpu_model)
        if run.exact:
            command = self._commands.setdefault((run.exact, run.gpu_model), command)
            models = self._models.setdefault(run.exact, [])
            if run.gpu_model not in models:
                models.append(run.gpu_model)
        is_own_memory = run.is_censored or run.kind in ("gpu memory", "gpu memory likely")
        is_done = run.kind == "done"
        if run.source == "user":
            self._own_numbers.compare(run, is_own_memory=is_own_memory)
        elif run.safe_mib and not run.is_elastic and run.source in CALIBRATED:
            is_miss = is_own_memory or (run.peak_mib or 0) > run.safe_mib
            if is_own_memory or (is_done and run.peak_mib is not None):
                family.alpha = conformal.adapt(family.alpha, is_miss=is_miss, step=FAMILY_STEP)
        if run.is_elastic:
            if is_own_memory or is_done:
                _learn_elastic(run, command, family, is_done=not is_own_memory)
        elif not is_done:
            command.floor = max(command.floor, run.peak_mib or 0, run.wanted_mib or 0)
        if is_own_memory or is_done:
            command.was_done |= is_done
            command.clients = max(command.clients, run.clients)
            if is_done and not run.is_elastic and not is_own_memory:
                self._learn_done(run, command, family, is_scored=is_scored)

    def _learn_done(self, run: TaskRun, command: _Command, family: _Family, *, is_scored: bool) -> None:
        seconds = run.seconds if run.alone_seconds < 0.9 * run.seconds else run.alone_seconds
        command.seconds.append(seconds)
        family.seconds.append(seconds)
        if run.peak_mib is None and run.seconds < UNSEEN_S:
            family.unseen += 1
            return
        family.unseen = 0
        command.is_elastic = family.is_elastic = False
        command.floor = 0
        peak = max(run.peak_mib or 0, CONTEXT_MIB)
        is_fresh = self._is_fresh(run)
        if is_fresh and command.peaks:
            scored = conformal.score(peak, max(command.peaks))
            for pool in (command.scores, family.scores, self._pools["exact"], self._by_runs[_few(command)]):
                pool.append(scored)
            if peak > CHANGED * max(command.peaks):
                command.peaks.clear()
                command.scores.clear()
        if is_scored:
            self._score(run, peak, command, family)
        command.runs += is_fresh
        (command.peaks if is_fresh else command.stale).append(peak)
        family.peaks.append(peak)
        family.runs += 1
        if run.numbers:
            numbers = _tagged(run)
            family.relevance.see(numbers)
            if is_fresh and (run.series or run.family):
                series = self._series.setdefault((run.series or run.family, run.gpu_model), line.Series())
                series.learn(numbers, float(peak), family.relevance)
        if run.probe_mib:
            self._probes.append((float(run.probe_mib), float(peak)))
        for age, seen in run.peak_at_mib:
            if seen > 0 and run.seconds > age:
                for growth in (command.growth, self._growth):
                    growth.setdefault(age, deque(maxlen=conformal.NEWEST)).append(max(peak / seen, 1.0))

    def _score(self, run: TaskRun, peak: int, command: _Command, family: _Family) -> None:
        """Score the estimates that the sources would have given before this run."""
        asked = _Asked(0, TaskKey(run.exact, run.family, run.numbers, run.series), run.gpu_model, command, family)
        found = self._find_line(asked)
        if found is not None and found.point_mib > 0:
            self._pools[found.how].append(conformal.score(peak, found.point_mib))
        if len(family.peaks) >= FAMILY_RUNS:
            self._pools["family"].append(conformal.score(peak, upper(family.peaks, FAMILY_QUANTILE)))
        other = self._other_gpu(run.exact, run.gpu_model)
        if other is not None and not command.peaks:
            self._pools["other-gpu"].append(conformal.score(peak, other[0]))
        if run.source in _OFFERED and run.estimate_mib and run.estimate_mib > 0:
            self._pools[run.source].append(conformal.score(peak, run.estimate_mib))

    def _is_fresh(self, run: TaskRun) -> bool:
        if self._now and self._now - run.when > OLD_S:
            return False
        return not self._software or not run.software or run.software == self._software

    # ---- Estimating ----

    def estimate(self, ask: TaskAsk, gpu_model: str, gpu_total_mib: int | None) -> Estimate:
        """Return the expected size and duration of a task on a GPU model.

        `gpu_total_mib`: its memory; for a size that is a part of it, what one task can have there (`size_basis`).
        """
        self._largest_gpu = max(self._largest_gpu, gpu_total_mib or 0)
        key = ask.key or TaskKey("", "")
        command = self._commands.get((key.exact, gpu_model)) if key.exact else None
        family = self._families.get((key.family, gpu_model)) if key.family else None
        asked = _Asked(ask.task, key, gpu_model, command or _Command(), family or _Family())
        unknown = Estimate(
            point_mib=None,
            safe_mib=None,
            source="unknown",
            seconds=_median(asked.command.seconds or asked.family.seconds),
            processes=asked.command.clients,
            floor_mib=asked.command.floor,
            was_done=any(self._commands[key.exact, model].was_done for model in self._models.get(key.exact, ())),
            text="first of a kind" if ask.key else "unknown",
        )
        if ask.gpu_mem_least_mib is not None:
            return guarantee.within(self._learned(asked, unknown, gpu_total_mib), ask)
        if (mib := ask.gpu_mem_mib) is not None:
            return replace(unknown, point_mib=mib, safe_mib=mib, source="user", text="--gpu-mem")
        if ask.gpu_mem_percent is not None:
            part_mib = None if gpu_total_mib is None else int(gpu_total_mib * ask.gpu_mem_percent / 100)
            text = f"{ask.gpu_mem_percent:g} % of the GPU"
            return replace(unknown, point_mib=part_mib, safe_mib=part_mib, source="user", text=text)
        return self._learned(asked, unknown, gpu_total_mib)

    def _learned(self, asked: _Asked, unknown: Estimate, gpu_total_mib: int | None) -> Estimate:
        """Return what the best source says of a task; `unknown`: no source knows it."""
        for found in self._candidates(asked):
            if found is not None and self._is_possible(found, asked.task):
                return _bounded(unknown, found, gpu_total_mib, asked.family.alpha)
        return unknown

    def _candidates(self, asked: _Asked) -> Iterator[_Candidate | None]:
        """Yield what each source says, the best source first."""
        yield self._from_exact(asked)
        yield _from_twin(asked)
        yield self._from_line(asked)
        yield self._from_family(asked)
        yield self._from_other_gpu(asked)
        for source in _OFFERED:
            yield self._from_offer(asked, source)
        yield _from_sibling(asked)

    def _is_possible(self, found: _Candidate, task: int) -> bool:
        """Return whether a task can have this size; report a source whose size is impossible."""
        most = GROSS * self._largest_gpu or MOST_MIB
        if 0 < found.point <= most:
            return True
        why = f"{found.point} MiB is no size"
        if math.isfinite(found.point) and found.point > 0:
            limit = f"{GROSS:g} times the largest GPU" if self._largest_gpu else "any GPU has"
            why = f"{found.point:.3g} MiB is more than {limit}"
        self._rejected.setdefault(found.source, f"task {task}: its estimate ({found.text}) is rejected: {why}")
        return False

    def _factor(self, pool: str, asked: _Asked, *narrower: Sequence[float]) -> float:
        """Return the factor of a bound over its estimate, from the narrowest pool with enough scores."""
        return math.exp(conformal.pooled((*narrower, self._pools[pool]), asked.family.alpha))

    def _from_exact(self, asked: _Asked) -> _Candidate | None:
        command, family = asked.command, asked.family
        if command.is_elastic:
            size = command.elastic.next_mib(asked.task)
            if size is None:
                return None
            return _Candidate("exact", size, 1.0, 1, "a command that takes what it is given", is_elastic=True)
        if not command.peaks:
            return None
        own = (command.scores,) if len(command.peaks) == NEWEST else ()
        factor = self._factor("exact", asked, *own, family.scores, self._by_runs[_few(command)])
        runs = counted(command.runs, "run")
        newest = f"the last {NEWEST} of {runs}" if command.runs > NEWEST else runs
        text = f"largest of {newest} of this command" if command.runs > 1 else "one run of this command"
        return _Candidate("exact", max(command.peaks), factor, command.runs, text)

    def _find_line(self, asked: _Asked) -> line.LineEstimate | None:
        group = asked.key.series or asked.key.family
        series = self._series.get((group, asked.gpu_model)) if group and asked.key.numbers else None
        return None if series is None else series.find(_tagged(asked.key), asked.family.relevance)

    def _from_line(self, asked: _Asked) -> _Candidate | None:
        found = self._find_line(asked)
        if found is None:
            return None
        shown = next((flag for flag, _ in asked.key.numbers if tag(flag) == found.name), "")
        through = shown if shown.startswith("-") else f"argument {shown}"
        runs = counted(found.runs, "run")
        if found.how == "same":
            text = f"largest of {runs} with other numbers that do not matter"
        elif found.name:
            text = f"line through {through}, {runs}"
        else:
            text = f"{runs} with other numbers"
        factor = self._factor(found.how, asked)
        # A ratio is an upper limit rather than a size of the task itself, which `queue.SIZED_BY` asks for.
        source: Source = "family" if found.how == "scaled" else "line"
        return _Candidate(source, found.point_mib, factor, found.runs, text, most=found.most_mib * line.NEAR)

    def _from_family(self, asked: _Asked) -> _Candidate | None:
        command, family = asked.command, asked.family
        factor = self._factor("family", asked)
        if command.stale:
            runs = counted(len(command.stale), "run")
            text = f"largest of {runs} long ago or of other software"
            return _Candidate("family", max(command.stale), factor, len(command.stale), text)
        if family.is_elastic and family.elastic.done_mib is not None:
            given = family.elastic.done_mib
            return _Candidate("family", given, 1.0, 1, "a script that takes what it is given", is_elastic=True)
        if len(family.peaks) >= FAMILY_RUNS:
            point = upper(family.peaks, FAMILY_QUANTILE)
            text = f"{counted(family.runs, 'run')} of this script, nine in ten need less"
            found = _Candidate("family", point, factor, family.runs, text)
            ratio = family.relevance.above(_tagged(asked.key))
            if ratio > 1.0 and max(family.peaks) > line.NEAR * min(family.peaks):
                # The bound rises with its numbers, but not above the reservation of a task of unknown size.
                most = min(point * factor * ratio, PROBE_RATIO * self._largest_gpu)
                found.factor = max(factor, most / point)
                found.text += ", with smaller numbers"
            return found
        if family.unseen >= UNSEEN_RUNS and not family.peaks:
            return _Candidate("family", CONTEXT_MIB, 1.0, family.unseen, "a script whose runs are too short to be seen")
        site = self._site.get((asked.key.family, asked.gpu_model))
        if site is not None:
            text = f"{counted(site.runs, 'run')} of this script by all users, nine in ten need less"
            return _Candidate("family", site.p90_mib, min(max(site.ratio, 1.02), 2.0), site.runs, text)
        return None

    def _from_other_gpu(self, asked: _Asked) -> _Candidate | None:
        found = self._other_gpu(asked.key.exact, asked.gpu_model)
        if found is None:
            return None
        point, runs, model = found
        text = f"{counted(runs, 'run')} of this command on {model}"
        return _Candidate("other-gpu", point, self._factor("other-gpu", asked), runs, text)

    def _other_gpu(self, exact: str, gpu_model: str) -> tuple[float, int, str] | None:
        """Return the largest peak of a command on another GPU model, its number of runs, and the model."""
        best: tuple[float, int, str] | None = None
        for model in self._models.get(exact, ()):
            command = self._commands[(exact, model)]
            if model != gpu_model and command.peaks and not command.is_elastic:
                point = max(command.peaks) * OTHER_GPU
                if best is None or point > best[0]:
                    best = (point, command.runs, model)
        return best

    def _from_offer(self, asked: _Asked, source: Source) -> _Candidate | None:
        point = self._offers.get((asked.key.exact, asked.gpu_model, source))
        if point is None:
            return None
        if source == "probe":
            own = conformal.fit_probes(self._probes) if len(self._probes) >= PROBE_RUNS else None
            point = conformal.probe_mib(point, *own) if own else conformal.probe_mib(point)
        return _Candidate(source, point, self._factor(source, asked), 0, _OFFERED[source])

    def growth(self, key: TaskKey | None, gpu_model: str, age_s: float) -> float:
        """Return the factor by which a peak that is flat at this age may still grow."""
        age, default = GROWTH[0]
        for at, factor in GROWTH:
            if age_s >= at:
                age, default = at, factor
        command = self._commands.get((key.exact, gpu_model)) if key and key.exact else None
        for pool in (command.growth.get(age, ()) if command else (), self._growth.get(age, ())):
            found = conformal.quantile(pool, GROWTH_ALPHA)
            if found is not None:
                return min(max(found, 1.0), GROWTH_MAX)
        return default


def _learn_elastic(run: TaskRun, command: _Command, family: _Family, *, is_done: bool) -> None:
    given = run.reserved_mib or run.cap_mib or run.peak_mib or run.gpu_total_mib
    if given and run.peak_mib and run.peak_mib > OVER_TOLD * given:
        # It ignored the reservation that JAX is told, so it takes a part of all the memory that it can see.
        given = max(run.cap_mib or run.gpu_total_mib or 0, run.peak_mib)
    command.is_elastic = family.is_elastic = True
    if given:
        command.elastic.note(given, is_done=is_done)
        family.elastic.note(given, is_done=is_done)


def _from_twin(asked: _Asked) -> _Candidate | None:
    found = asked.family.running.get(asked.key.exact) if asked.key.exact else None
    if found is None:
        return None
    return _Candidate("sibling", found.peak, found.sized / found.peak, 1, "another task of this command in this run")


def _from_sibling(asked: _Asked) -> _Candidate | None:
    """Return the size of a task of the script with the same numbers; a small one says nothing about a large one."""
    wanted = asked.family.relevance.relevant(_tagged(asked.key))
    alike = [one for one in asked.family.running.values() if line.is_same(wanted, one.numbers, asked.key.numbers)]
    found = max(alike, key=lambda one: one.sized, default=None)
    if found is None:
        return None
    text = "another task of this script in this run" + (", with the same numbers" if wanted else "")
    return _Candidate("sibling", found.peak, found.sized / found.peak, 1, text)


def _bounded(unknown: Estimate, found: _Candidate, gpu_total_mib: int | None, alpha: float) -> Estimate:
    """Return the estimate of a candidate with its bound. `unknown`: the same task without a size."""
    point = max(round(found.point), CONTEXT_MIB)
    if found.is_elastic:
        safe = point
    else:
        point = max(point, unknown.floor_mib)
        safe = max(math.ceil(min(point * found.factor, found.most) - 1e-6), point + ROOM_MIB)
    if gpu_total_mib is not None:
        safe = min(safe, gpu_total_mib)
    above = round(100 * (safe / point - 1))
    return replace(
        unknown,
        point_mib=point,
        safe_mib=safe,
        source=found.source,
        runs=found.runs,
        alpha=alpha if found.source in CALIBRATED and not found.is_elastic else None,
        is_elastic=found.is_elastic,
        text=f"{found.text}, {above:+d} %" if above else found.text,
    )


def _is_sane(run: TaskRun) -> bool:
    """Return whether the figures of a run are possible: a user can edit the history by hand."""
    sizes = (run.peak_mib, run.wanted_mib, run.reserved_mib, run.cap_mib, run.probe_mib, run.safe_mib, run.estimate_mib)
    return (
        all(size is None or 0 <= size <= MOST_MIB for size in sizes)
        and 0 <= run.seconds < math.inf
        and all(math.isfinite(x) for _, x in run.numbers)
    )


def _few(command: _Command) -> int:
    """Return the calibration class of a command by the number of its known runs."""
    return sum(len(command.peaks) > most for most in FEW)


def _tagged(key: TaskKey | TaskRun) -> line.Numbers:
    return {tag(name): x for name, x in key.numbers}


def upper(values: Iterable[int], part: float) -> int:
    """Return the smallest value that at least this part of the values does not exceed."""
    ordered = sorted(values)
    return ordered[math.ceil(part * len(ordered)) - 1]


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
