"""Estimate a task's GPU memory from the first source that has enough evidence.

The sources, best first: the user's own number; earlier runs of the same command; a running task of the same command; a
straight line through runs that differ in one number; earlier runs of the same script; the same command on another GPU
model; a formula; a model fitted to random networks; a dry run with fake tensors; a running task of the same script.
The figures are never averaged: a person can check one source, but not a mixture.
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
from ..fingerprint import tag
from . import conformal, line, static
from .elastic import Sizes

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
DAY_S = 86400.0
OLD_S = 180 * DAY_S
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
DOUBLED = 2.1
"""A user's number that was too small is mostly too small by half."""
OVER_TOLD = 1.05
"""A task that is told a size takes the CUDA context on top of it."""
FEW_X = 2
FEW = (1, 3, 9)
"""Commands with 1, 2 to 3, 4 to 9 and 10 known runs are calibrated separately."""
NEAR = 1.05
"""Peaks within this factor count as equal: sampling and the allocator's rounding change them by a few percent."""

DEFAULTS: dict[Source, float] = {
    "exact": 1.10, "line": 1.15, "family": 1.25, "other-gpu": 1.10, "static": 1.25, "learned": 1.5,
    "probe": 1.25,
}  # fmt: skip
"""Factor of a bound if no pool has enough scores. These are assumptions, to be replaced by recorded runs. line: covers
the one published case of 12 that it misses by more than 2 % (12.3 %). learned: 95 % of the networks above 8 GiB from
unseen families need at most 1.50, measured against fake tensors (tests/bench/learned/train.py)."""
_OFFERED: dict[Source, str] = {
    "static": "formula", "learned": "fitted to fake tensors of random networks", "probe": "dry run with fake tensors"
}  # fmt: skip
"""Outside sources, best first, with the text of their estimates."""
GROWTH = ((30, 1.5), (60, 1.30), (120, 1.20), (300, 1.10), (900, 1.05))
"""(age in seconds, factor by which a peak that is flat at that age may still grow). Assumed until runs are recorded."""
GROWTH_ALPHA = 0.05
GROWTH_MAX = 4.0

Names = tuple[tuple[str, float], ...]


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
    elastic: Sizes = field(default_factory=Sizes)
    is_elastic: bool = False
    was_done: bool = False


class _Family(Struct):
    """Runs of one script on one GPU model."""

    alpha: float = conformal.ALPHA
    """The current part of its tasks that may exceed their bound."""
    scores: deque[float] = _newest(conformal.NEWEST)
    peaks: deque[int] = _newest(FAMILY_NEWEST)
    numbers: dict[str, float] = {}
    """Tag of a number -> its largest value in any run."""
    runs: int = 0
    seconds: deque[float] = _newest(FAMILY_NEWEST)
    unseen: int = 0
    """Runs in a row that were too short for a sample."""
    elastic: Sizes = field(default_factory=Sizes)
    is_elastic: bool = False


class _Series(Struct):
    """Runs of commands that differ in numbers only, on one GPU model."""

    by_rest: dict[tuple[str, Names], list[line.Point]] = {}
    """(a number's name, all other numbers) -> that number and the peak of each run."""
    points: deque[tuple[dict[str, float], int]] = _newest(FAMILY_NEWEST)
    running: dict[str, tuple[Names, int, float]] = {}
    """`exact` of a running task with flat memory -> its numbers, its peak, the factor by which it may still grow."""
    fits: dict[tuple[str, Names], line.Line | None] = {}
    free: dict[tuple[str, frozenset[str]], line.Line | None] = {}
    """Lines through one number in which the other numbers do not matter."""


class _Running(Struct):
    """The largest running task with flat memory of one command or script."""

    numbers: Names = ()
    peak: int = 0
    sized: float = 0.0
    """The peak multiplied by the growth that is still possible, in MiB."""


class _Asked(Struct):
    """A task whose size is wanted, with the known runs of its command and script."""

    task: int
    key: TaskKey
    gpu_model: str
    command: _Command | None
    family: _Family | None


class _Candidate(Struct):
    """The estimate of one source."""

    source: Source
    point: float
    factor: float
    """The bound over the point."""
    runs: int
    text: str
    is_elastic: bool = False


class Estimator:
    """Sizes of tasks, from the runs of the history and the tasks of this run."""

    def __init__(
        self, runs: Iterable[TaskRun] = (), *, now: float = 0.0, software: str = "", site: Iterable[SiteFamily] = ()
    ) -> None:
        """Learn from `runs`, oldest first.

        `now`: Unix time. Runs older than 180 days or with other software than `software` count less. `site`: figures of
        families that the site publishes for all users.
        """
        self.alpha = conformal.ALPHA
        """The current part of all tasks that may exceed their bound. Each script has its own, so that only a program
        that changes often gets wider bounds."""
        self._now = now
        self._software = software
        self._notes: list[str] = []
        self._named: set[str] = set()
        self._commands: dict[tuple[str, str], _Command] = {}
        self._models: dict[str, list[str]] = {}
        """`exact` -> GPU models with a run."""
        self._families: dict[tuple[str, str], _Family] = {}
        self._series: dict[tuple[str, str], _Series] = {}
        self._running: dict[tuple[str, str], _Running] = {}
        self._running_family: dict[tuple[str, str], _Running] = {}
        self._offers: dict[tuple[str, str, Source], float] = {}
        self._pools: dict[Source, deque[float]] = {}
        self._by_runs: tuple[deque[float], ...] = tuple(deque(maxlen=conformal.NEWEST) for _ in range(len(FEW) + 1))
        """Scores of commands by the number of their known runs: the largest of few peaks is exceeded more often."""
        self._growth: dict[int, deque[float]] = {}
        self._probes: deque[line.Point] = deque(maxlen=conformal.NEWEST)
        self._own_numbers: dict[tuple[str, str], tuple[list[int], int]] = {}
        """(exact, GPU model) -> peaks of runs whose --gpu-mem was far too large, and the largest that was too small."""
        self._largest_gpu = 0
        self._site = {(one.family, one.gpu_model): one for one in site}
        earlier = list(runs)
        scored = len(earlier) - SCORED_RUNS
        for index, run in enumerate(earlier):
            self._learn(run, is_scored=index >= scored)
        self._notes.clear()  # earlier runs have reported these

    # ---- Learning ----

    def learn(self, run: TaskRun) -> None:
        self._learn(run, is_scored=True)
        if run.kind == "done" and run.peak_mib and not run.is_elastic:
            # Until three runs of a family are known, its first task stands for the others.
            key = TaskKey(run.exact, run.family, run.numbers)
            self._note_running(key, run.gpu_model, run.peak_mib, GROWTH[-1][0])
            series = self._series.get((run.series or run.family, run.gpu_model))
            if series is not None:
                series.running.pop(run.exact, None)

    def sibling(self, key: TaskKey, gpu_model: str, peak_mib: int, age_s: float) -> None:
        """Record a running task with flat memory, here or on another node, for its waiting siblings."""
        if peak_mib <= 0:
            return
        self._note_running(key, gpu_model, peak_mib, age_s)
        if key.exact and key.numbers and (key.series or key.family):
            series = self._series.setdefault((key.series or key.family, gpu_model), _Series())
            series.running[key.exact] = (_tagged(key.numbers), peak_mib, self.growth(key, gpu_model, age_s))

    def _note_running(self, key: TaskKey, gpu_model: str, peak_mib: int, age_s: float) -> None:
        sized = peak_mib * self.growth(key, gpu_model, age_s)
        for found, name in ((self._running, key.exact), (self._running_family, key.family)):
            if name:
                one = found.setdefault((name, gpu_model), _Running())
                if sized >= one.sized or peak_mib >= one.peak:
                    one.peak, one.sized, one.numbers = peak_mib, sized, _tagged(key.numbers)

    def offer(self, key: TaskKey, gpu_model: str, source: Source, point_mib: float) -> None:
        """Record the figure of an outside source: `static`, `learned`, or `probe` before its correction."""
        self._offers[(key.exact, gpu_model, source)] = float(point_mib) if abs(point_mib) < 1e300 else math.inf

    def take_notes(self) -> list[str]:
        """Return the sentences for the log since the last call: rejected sources, and better values for --gpu-mem."""
        notes, self._notes = self._notes, []
        return notes

    def _learn(self, run: TaskRun, *, is_scored: bool) -> None:
        if not _is_sane(run):
            return
        if run.exact:
            command = self._commands.setdefault((run.exact, run.gpu_model), _Command())
            models = self._models.setdefault(run.exact, [])
            if run.gpu_model not in models:
                models.append(run.gpu_model)
        else:
            command = _Command()
        family = self._families.setdefault((run.family, run.gpu_model), _Family()) if run.family else _Family()
        is_own_memory = run.is_censored or run.kind in ("gpu memory", "gpu memory likely")
        self._adapt(run, family, is_own_memory=is_own_memory)
        if not is_own_memory and run.kind != "done":
            return  # a task that was stopped or failed early shows neither its need nor a bound of it
        command.was_done |= run.kind == "done"
        command.clients = max(command.clients, run.clients)
        if run.is_elastic:
            given = run.reserved_mib or run.cap_mib or run.peak_mib or run.gpu_total_mib
            if given and run.peak_mib and run.peak_mib > OVER_TOLD * given:
                # It ignored the reservation that JAX is told, so it takes a part of all the memory that it can see.
                given = max(run.cap_mib or run.gpu_total_mib or 0, run.peak_mib)
            command.is_elastic = family.is_elastic = True
            if given:
                command.elastic.note(given, is_done=not is_own_memory)
                family.elastic.note(given, is_done=not is_own_memory)
            return
        if is_own_memory:
            command.floor = max(command.floor, run.peak_mib or 0, run.wanted_mib or 0)
            return
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
            command.scores.append(scored)
            family.scores.append(scored)
            self._pool("exact").append(scored)
            self._by_runs[_few(len(command.peaks))].append(scored)
            if peak > CHANGED * max(command.peaks):
                command.peaks.clear()
                command.scores.clear()
        if is_scored:
            self._score(run, peak, command, family)
        command.runs += is_fresh
        (command.peaks if is_fresh else command.stale).append(peak)
        family.peaks.append(peak)
        for name, x in _tagged(run.numbers):
            family.numbers[name] = max(family.numbers.get(name, x), x)
        family.runs += 1
        if is_fresh and run.numbers and (run.series or run.family):
            self._extend(self._series.setdefault((run.series or run.family, run.gpu_model), _Series()), run, peak)
        if run.probe_mib:
            self._probes.append((float(run.probe_mib), float(peak)))
        for age, seen in run.peak_at_mib:
            if seen > 0 and run.seconds > age:
                grown = max(peak / seen, 1.0)
                command.growth.setdefault(age, deque(maxlen=conformal.NEWEST)).append(grown)
                self._growth.setdefault(age, deque(maxlen=conformal.NEWEST)).append(grown)

    def _adapt(self, run: TaskRun, family: _Family, *, is_own_memory: bool) -> None:
        """Move alpha by one run, or compare the user's own number with its peak."""
        if run.source == "user":
            self._compare_gpu_mem(run, is_own_memory=is_own_memory)
        elif (
            run.safe_mib
            and not run.is_elastic
            and run.source in DEFAULTS
            and (is_own_memory or (run.kind == "done" and run.peak_mib is not None))
        ):
            is_miss = is_own_memory or (run.peak_mib or 0) > run.safe_mib
            self.alpha = conformal.adapt(self.alpha, is_miss=is_miss)
            family.alpha = conformal.adapt(family.alpha, is_miss=is_miss, step=FAMILY_STEP)

    def _compare_gpu_mem(self, run: TaskRun, *, is_own_memory: bool) -> None:
        written = run.estimate_mib or run.reserved_mib  # a task that outgrows the number has more reserved at its end
        if not written:
            return
        of = f"of its --gpu-mem={_gib(written)}"
        peaks, failed_mib = self._own_numbers.setdefault((run.exact, run.gpu_model), ([], 0))
        if is_own_memory:
            had_mib = max(written, run.reserved_mib or 0, run.peak_mib or 0)
            needs = 1.25 * run.wanted_mib if run.wanted_mib and run.wanted_mib > had_mib else DOUBLED * had_mib
            self._own_numbers[run.exact, run.gpu_model] = ([], max(failed_mib, had_mib))
            self._say_once(
                f"gpu-mem small {run.exact} {written}",
                f"a task ran out {of}: try --gpu-mem={_rounded(needs)}",
            )
        elif run.peak_mib is not None and run.peak_mib > 0.95 * written:
            self._say_once(
                f"gpu-mem small {run.exact} {written}",
                f"a task used {_gib(run.peak_mib)} {of}: --gpu-mem={_rounded(run.peak_mib * 1.25)} would leave it room",
            )
        elif run.kind == "done" and run.peak_mib is not None:
            if run.peak_mib >= 0.5 * written:
                peaks.clear()
                return
            peaks.append(run.peak_mib)
            enough = max(peaks) * 1.25
            if len(peaks) >= 3 and failed_mib < enough:
                self._say_once(
                    f"gpu-mem large {run.exact} {written}",
                    f"in {len(peaks)} runs a command used at most {_gib(max(peaks))} {of}: "
                    f"--gpu-mem={_rounded(enough)} would be enough",
                )

    def _score(self, run: TaskRun, peak: int, command: _Command, family: _Family) -> None:
        """Score the estimates that the sources would have given before this run."""
        if run.numbers:
            found = self._line(run.series or run.family, run.gpu_model, _tagged(run.numbers))
            if found is not None and found[0] > 0:
                self._pool("line").append(conformal.score(peak, found[0]))
        if len(family.peaks) >= FAMILY_RUNS:
            self._pool("family").append(conformal.score(peak, upper(family.peaks, FAMILY_QUANTILE)))
        other = self._other_gpu(run.exact, run.gpu_model)
        if other is not None and not command.peaks:
            self._pool("other-gpu").append(conformal.score(peak, other[0]))
        if run.source in ("static", "learned", "probe") and run.estimate_mib and run.estimate_mib > 0:
            self._pool(run.source).append(conformal.score(peak, run.estimate_mib))

    def _extend(self, series: _Series, run: TaskRun, peak: int) -> None:
        numbers = _tagged(run.numbers)
        for name, x in numbers:
            rest = _without(numbers, name)
            points = series.by_rest.setdefault((name, rest), [])
            points.append((x, float(peak)))
            del points[: -line.POINTS_MOST]
            series.fits.pop((name, rest), None)
        series.points.append((dict(numbers), peak))
        series.free.clear()

    def _pool(self, source: Source) -> deque[float]:
        return self._pools.setdefault(source, deque(maxlen=conformal.NEWEST))

    def _is_fresh(self, run: TaskRun) -> bool:
        if self._now and self._now - run.when > OLD_S:
            return False
        return not self._software or not run.software or run.software == self._software

    # ---- Estimating ----

    def estimate(self, ask: TaskAsk, gpu_model: str, gpu_total_mib: int | None) -> Estimate:
        """Return the expected size and duration of a task on a GPU model."""
        self._largest_gpu = max(self._largest_gpu, gpu_total_mib or 0)
        key = ask.key or TaskKey("", "")
        command = self._commands.get((key.exact, gpu_model)) if key.exact else None
        family = self._families.get((key.family, gpu_model)) if key.family else None
        unknown = Estimate(
            point_mib=None,
            safe_mib=None,
            source="unknown",
            seconds=_median(command.seconds if command and command.seconds else family.seconds if family else ()),
            processes=command.clients if command else 1,
            floor_mib=command.floor if command else 0,
            was_done=any(self._commands[key.exact, model].was_done for model in self._models.get(key.exact, ())),
            text="first of a kind" if ask.key else "unknown",
        )
        if (mib := ask.gpu_mem_mib) is not None:
            return replace(unknown, point_mib=mib, safe_mib=mib, source="user", text="--gpu-mem")
        for found in self._candidates(_Asked(ask.task, key, gpu_model, command, family)):
            if found is not None and self._is_possible(found, ask.task):
                return _bounded(unknown, found, gpu_total_mib, self._alpha(family))
        return unknown

    def _candidates(self, asked: _Asked) -> Iterator[_Candidate | None]:
        """Yield what each source says, the best source first."""
        yield self._from_exact(asked)
        yield self._from_twin(asked)
        yield self._from_line(asked)
        yield self._from_family(asked)
        yield self._from_other_gpu(asked)
        for source in _OFFERED:
            yield self._from_offer(asked, source)
        yield self._from_sibling(asked)

    def _is_possible(self, found: _Candidate, task: int) -> bool:
        """Return whether a task can have this size; report a source whose size is impossible."""
        if math.isfinite(found.point) and found.point > 0:
            most = GROSS * self._largest_gpu or MOST_MIB
            if found.point <= most:
                return True
            limit = f"{GROSS:g} times the largest GPU" if self._largest_gpu else "any GPU has"
            why = f"{found.point:.3g} MiB is more than {limit}"
        else:
            why = f"{found.point} MiB is no size"
        self._say_once(f"passed {found.source}", f"task {task}: its estimate ({found.text}) is rejected: {why}")
        return False

    def _say_once(self, what: str, sentence: str) -> None:
        if what not in self._named:
            self._named.add(what)
            self._notes.append(sentence)

    def _alpha(self, family: _Family | None) -> float:
        return self.alpha if family is None else family.alpha

    def _factor(
        self, source: Source, family: _Family | None, *narrower: Sequence[float], site: float | None = None
    ) -> float:
        """Return the factor of a bound over its estimate, from the narrowest pool with enough scores."""
        alpha = self._alpha(family)
        default = DEFAULTS[source] if site is None else min(max(site, 1.02), 2.0)
        return math.exp(conformal.pooled((*narrower, self._pools.get(source, ())), alpha, default))

    def _from_exact(self, asked: _Asked) -> _Candidate | None:
        command, family = asked.command, asked.family
        if command is None:
            return None
        if command.is_elastic:
            size = command.elastic.next_mib(asked.task)
            if size is None:
                return None
            return _Candidate("exact", size, 1.0, 1, "a command that takes what it is given", is_elastic=True)
        if not command.peaks:
            return None
        few = self._by_runs[_few(len(command.peaks))]
        own = (command.scores,) if len(command.peaks) == NEWEST else ()
        pools = (*own, family.scores if family else (), few)
        runs = counted(command.runs, "run")
        newest = f"the last {NEWEST} of {runs}" if command.runs > NEWEST else runs
        return _Candidate(
            "exact",
            max(command.peaks),
            self._factor("exact", family, *pools),
            command.runs,
            f"largest of {newest} of this command" if command.runs > 1 else "one run of this command",
        )

    def _from_twin(self, asked: _Asked) -> _Candidate | None:
        return self._running_candidate(self._running.get((asked.key.exact, asked.gpu_model)), "this command")

    def _from_sibling(self, asked: _Asked) -> _Candidate | None:
        running = self._running_family.get((asked.key.family, asked.gpu_model))
        found = self._running_candidate(running, "this script")
        if found is not None and running is not None:
            self._widen(found, running.sized, _largest_ratio(_tagged(asked.key.numbers), running.numbers))
        return found

    def _widen(self, found: _Candidate, sized_mib: float, ratio: float) -> None:
        """Raise the bound if the task has a larger number, such as the batch size, than the tasks behind the estimate.

        The bound rises by the same ratio, but not above the reservation of a task of unknown size.
        """
        if ratio > 1.0:
            most = min(sized_mib * ratio, PROBE_RATIO * self._largest_gpu)
            found.factor = max(found.factor, most / found.point)
            found.text += ", with smaller numbers"

    @staticmethod
    def _running_candidate(found: _Running | None, what: str) -> _Candidate | None:
        if found is None:
            return None
        return _Candidate("sibling", found.peak, found.sized / found.peak, 1, f"another task of {what} in this run")

    def _from_line(self, asked: _Asked) -> _Candidate | None:
        if not asked.key.numbers:
            return None
        found = self._line(asked.key.series or asked.key.family, asked.gpu_model, _tagged(asked.key.numbers))
        if found is None:
            return None
        point, name, runs = found
        shown = next(flag for flag, _ in asked.key.numbers if tag(flag) == name)
        through = shown if shown.startswith("-") else f"argument {shown}"
        text = f"line through {through}, {counted(runs, 'run')}"
        return _Candidate("line", point, self._factor("line", asked.family), runs, text)

    def _line(self, group: str, gpu_model: str, numbers: Names) -> tuple[float, str, int] | None:
        """Return the peak on a line through one number, the tag of that number, and the number of runs on the line."""
        series = self._series.get((group, gpu_model)) if group else None
        if series is None:
            return None
        # Prefer interpolation, then the line with more runs, then the larger peak.
        found: list[tuple[tuple[bool, int, float], float, str, int]] = []
        for name, x in numbers:
            fitted, growth = self._fitted(series, name, _without(numbers, name))
            if fitted is not None and (point := fitted.at(x)) is not None:
                point *= growth
                found.append(((fitted.is_inside(x), fitted.runs, point), point, name, fitted.runs))
        if not found:
            names = {name for name, _ in numbers}
            for name, x in numbers:
                fitted = _free_line(series, name, names)
                if fitted is not None and (point := fitted.at(x)) is not None:
                    found.append(((False, fitted.runs, 0.0), point, name, fitted.runs))
        return max(found, key=lambda one: one[0])[1:] if found else None

    def _fitted(self, series: _Series, name: str, rest: Names) -> tuple[line.Line | None, float]:
        """Return the line through a number, and the factor by which its peaks may still grow.

        Finished runs decide; if they are too few, running tasks count too. Peaks of running tasks may still grow, so
        the factor is the largest of those tasks.
        """
        points = series.by_rest.get((name, rest), [])
        if (name, rest) not in series.fits:
            series.fits[(name, rest)] = line.fit(points)
        done = series.fits[(name, rest)]
        if done is not None:
            return done, 1.0
        running = [
            (dict(numbers)[name], peak, growth)
            for numbers, peak, growth in series.running.values()
            if _without(numbers, name) == rest and len(rest) < len(numbers)
        ]
        if not running:
            return None, 1.0
        fitted = line.fit(points + [(x, float(peak)) for x, peak, _ in running])
        return fitted, max(growth for _, _, growth in running)

    def _from_family(self, asked: _Asked) -> _Candidate | None:
        command, family = asked.command, asked.family or _Family()
        factor = self._factor("family", asked.family)
        if command is not None and command.stale:
            runs = counted(len(command.stale), "run")
            return _Candidate(
                "family",
                max(command.stale),
                factor,
                len(command.stale),
                f"largest of {runs} long ago or of other software",
            )
        if family.is_elastic and family.elastic.done_mib is not None:
            given = family.elastic.done_mib
            return _Candidate("family", given, 1.0, 1, "a script that takes what it is given", is_elastic=True)
        if len(family.peaks) >= FAMILY_RUNS:
            point = upper(family.peaks, FAMILY_QUANTILE)
            text = f"{counted(family.runs, 'run')} of this script, nine in ten need less"
            found = _Candidate("family", point, factor, family.runs, text)
            if max(family.peaks) > NEAR * min(family.peaks):
                largest = tuple(family.numbers.items())
                self._widen(found, point * factor, _largest_ratio(_tagged(asked.key.numbers), largest))
            return found
        if family.unseen >= UNSEEN_RUNS and not family.peaks:
            return _Candidate("family", CONTEXT_MIB, 1.0, family.unseen, "a script whose runs are too short to be seen")
        site = self._site.get((asked.key.family, asked.gpu_model))
        if site is not None:
            text = f"{counted(site.runs, 'run')} of this script by all users, nine in ten need less"
            factor = self._factor("family", asked.family, site=site.ratio)
            return _Candidate("family", site.p90_mib, factor, site.runs, text)
        return None

    def _from_other_gpu(self, asked: _Asked) -> _Candidate | None:
        found = self._other_gpu(asked.key.exact, asked.gpu_model)
        if found is None:
            return None
        point, runs, model = found
        text = f"{counted(runs, 'run')} of this command on {model}"
        return _Candidate("other-gpu", point, self._factor("other-gpu", asked.family), runs, text)

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
            own = line.fit(list(self._probes)) if len(self._probes) >= PROBE_RUNS else None
            point = static.probe_mib(point, own.slope_mib, own.base_mib) if own else static.probe_mib(point)
        return _Candidate(source, point, self._factor(source, asked.family), 0, _OFFERED[source])

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


def _bounded(unknown: Estimate, found: _Candidate, gpu_total_mib: int | None, alpha: float) -> Estimate:
    """Return the estimate of a candidate with its bound. `unknown`: the same task without a size."""
    point = max(round(found.point), CONTEXT_MIB)
    if found.is_elastic:
        safe = point
    else:
        point = max(point, unknown.floor_mib)
        safe = max(math.ceil(point * found.factor - 1e-6), point + ROOM_MIB)
    if gpu_total_mib is not None:
        safe = min(safe, gpu_total_mib)
    above = round(100 * (safe / point - 1))
    return replace(
        unknown,
        point_mib=point,
        safe_mib=safe,
        source=found.source,
        runs=found.runs,
        alpha=alpha if found.source in DEFAULTS and not found.is_elastic else None,
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


def _free_line(series: _Series, name: str, names: set[str]) -> line.Line | None:
    """Return the line through one number alone; None: the other numbers matter, or no runs show that they do not.

    They do not matter if runs that differ only in them have the same peak, as with learning rates.
    """
    if (name, frozenset(names)) not in series.free:
        peaks: dict[float, list[int]] = {}
        others: dict[float, set[Names]] = {}
        points = [(numbers[name], float(peak)) for numbers, peak in series.points if numbers.keys() == names]
        for numbers, peak in series.points:
            if numbers.keys() == names:
                peaks.setdefault(numbers[name], []).append(peak)
                others.setdefault(numbers[name], set()).add(_without(tuple(numbers.items()), name))
        varied = any(len(rests) > 1 for rests in others.values())
        same = all(max(at) <= NEAR * min(at) for at in peaks.values())
        series.free[name, frozenset(names)] = line.fit(points) if varied and same and len(peaks) >= FEW_X else None
    return series.free[name, frozenset(names)]


def _few(runs: int) -> int:
    """Return the calibration class of a command with this many known runs."""
    return sum(runs > most for most in FEW)


def _tagged(numbers: Names) -> Names:
    return tuple((tag(name), x) for name, x in numbers)


def _largest_ratio(numbers: Names, known: Names) -> float:
    """Return the largest factor by which a number exceeds the number of the same name in `known`; at least 1.

    Only whole numbers count: sizes of batches, layers and images are whole numbers, learning rates are not.
    """
    before = dict(known)
    pairs = ((x, before[name]) for name, x in numbers if name in before)
    return max((x / x0 for x, x0 in pairs if x > x0 >= 1.0 and x % 1 == 0 and x0 % 1 == 0), default=1.0)


def _without(numbers: Names, name: str) -> Names:
    return tuple(one for one in numbers if one[0] != name)


def upper(values: Iterable[int], part: float) -> int:
    """Return the smallest value that at least this part of the values does not exceed."""
    ordered = sorted(values)
    return ordered[math.ceil(part * len(ordered)) - 1]


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _gib(mib: float) -> str:
    return f"{mib / 1024:.1f}G"


def _rounded(mib: float) -> str:
    """Return a size in the form of --gpu-mem, rounded up to half a GiB."""
    return f"{math.ceil(mib / 512) / 2:g}G"
