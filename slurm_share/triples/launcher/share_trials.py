"""Trials of multiprocessor parts in a packed run (`--share-gpu=sm=auto`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from msgspec import Struct

from ... import packing

WINDOWS_MIN = 3
"""Closed windows with the same tasks on the GPU, from which on a trial counts."""


_Kind = tuple[str, str, tuple[str, ...]]
"""(family, GPU model, families of the neighbours, sorted, each once)"""


class _Trial(Struct, eq=False):
    """A running task with the part of the multiprocessors that the search of its kind chose for it."""

    kind: _Kind
    gpu: str
    level: packing.Level
    percent: float | None
    is_trial: bool
    """False: the part is chosen, or no trials are made."""
    speeds: list[tuple[float, float]] = []
    """Aggregate speed (STP), measured and predicted, at each tick."""
    antt: list[tuple[float, float]] = []
    """Mean slowdown (ANTT), measured and predicted, at each tick."""
    windows: int = 0


class ShareTrials:
    """The trials of one launcher. Only the thread of the loop calls it."""

    def __init__(
        self, board: packing.Board, history: packing.History, tell: Callable[[str], None], keep: Callable[..., None]
    ) -> None:
        """`tell` gets sentences for the job's log, `keep` results for the user's history."""
        self.board = board
        self.searches: dict[_Kind, packing.Search] = {}
        for one in history.searches:
            if one.kind == "part":
                search = self._search((one.family, one.gpu_model, one.neighbours))
                for run in one.levels:
                    search.add(run)
        self._tell, self._keep = tell, keep
        self._results: list[packing.SearchRun] = []
        """Results for the history since the last `flush`."""
        self._trials: dict[int, _Trial] = {}
        self._logged: set[_Kind] = set()
        """Kinds of tasks whose choices were logged."""
        without = [str(one.index) for one in board.facts.values() if not one.is_mps]
        if without:
            self._tell(f"no parts are tried on GPU {','.join(without)}: only MPS enforces them, and it is off")

    def _search(self, kind: _Kind) -> packing.Search:
        return self.searches.setdefault(kind, packing.Search("part", packing.part_levels(None, 1), 0))

    def start(self, start: packing.Start) -> float | None:
        """Return the percentage of the multiprocessors for a task that starts now; None: no limit."""
        board, uuid = self.board, start.gpus[0]
        task = board.running.get(start.task)
        facts = board.facts[uuid]
        if task is None or task.ask.key is None or len(start.gpus) > 1 or start.is_alone or not facts.is_mps:
            return None
        others = [one for one in board.running.values() if uuid in one.gpus and one is not task]
        keys = [one.ask.key for one in others]
        neighbours = tuple(sorted({key.family for key in keys if key is not None}))
        family = task.ask.key.family
        if not neighbours or not family:
            return None
        left = 1 + sum(1 for one in board.waiting.values() if one.ask.key is not None and one.family == family)
        kind, clients = (family, facts.model, neighbours), len(others) + 1
        search = self._search(kind)
        levels = packing.part_levels(board.speeds.load(task.ask, facts.model), clients, search.pool)
        may_try = not any(self._is_tried(one.ask.task) for one in others)
        level, is_trial = search.begin_task(levels, left, may_try=may_try)
        if level.part == packing.FREE and not is_trial:
            return None
        percent = packing.percent_of(level, clients)
        self._trials[start.task] = _Trial(kind, uuid, level, percent, is_trial)
        return percent

    def _is_tried(self, task: int) -> bool:
        trial = self._trials.get(task)
        return trial is not None and trial.is_trial

    def dropped(self, task: int) -> None:
        """Cancel the trial of a task that could not be started."""
        trial = self._trials.pop(task, None)
        if trial is not None and trial.is_trial:
            self.searches[trial.kind].end_task(trial.level)

    def tick(self) -> None:
        """Measure the GPUs with tasks under trial."""
        self.flush()
        for task, trial in self._trials.items():
            found = self._read_speeds(trial.gpu, task)
            if found is None:
                continue
            measured, predicted, windows, place = found
            trial.speeds.append((packing.stp(measured), packing.stp(predicted)))
            trial.antt.append((packing.antt(measured), packing.antt(predicted)))
            trial.windows = max(trial.windows, windows)
            ratio = measured[place] / predicted[place]
            if self.searches[trial.kind].refuse(trial.level, ratio, windows):
                self._tell(
                    f"task {task} is {ratio:.2f} x as slow as expected with {trial.percent:g} % of the "
                    "multiprocessors; no further task of its kind gets that part there"
                )

    def flush(self) -> None:
        """Write new results to the user's history."""
        results, self._results = self._results, []
        self._keep(*results)

    def _read_speeds(self, gpu: str, task: int) -> tuple[Sequence[float], Sequence[float], int, int] | None:
        """Return a GPU's slowdowns, measured and predicted, windows, and place of `task`; None: a rate is missing."""
        board = self.board
        views = [one for one in board.running_views() if gpu in one.gpus]
        model = self.board.facts[gpu].model
        measured, windows = [], []
        for view in views:
            alone = board.speeds.rate_alone(view.ask.key, model)
            ratio = None if view.rate is None or alone is None else view.rate.ratio_to(alone)
            if view.rate is None or not ratio:
                return None
            measured.append(1.0 / ratio)
            windows.append(view.rate.windows)
        if len(views) < 2 or min(windows) < WINDOWS_MIN:
            return None
        predicted = packing.slowdowns([board.speeds.load(view.ask, model) or packing.UNMEASURED for view in views])
        place = next((number for number, view in enumerate(views) if view.ask.task == task), None)
        return None if place is None else (measured, predicted, min(windows), place)

    def ended(self, task: int, unix_s: float) -> None:
        """End the trial of a task, and keep its result."""
        trial = self._trials.pop(task, None)
        if trial is None:
            return
        search, (family, model, neighbours) = self.searches[trial.kind], trial.kind
        run = None
        if trial.speeds:
            run = packing.LevelRun(
                *trial.level[:2],
                per_s=round(median(seen / wanted for seen, wanted in trial.speeds), 4),
                spread_per_s=0.0,
                windows=trial.windows,
                part=trial.level.part,
                slowdown=round(median(seen / wanted for seen, wanted in trial.antt), 4),
            )
            self._results.append(
                packing.SearchRun(
                    kind="part",
                    when=round(unix_s, 3),
                    family=family,
                    gpu_model=model,
                    gpus=1,
                    neighbours=neighbours,
                    rate_source="stp",
                    levels=(run,),
                    best=run.level,
                    end="stopped",
                )
            )
        if not trial.is_trial:
            return
        search.end_task(trial.level, run)
        best = search.best
        if best is not None and not search.untried and trial.kind not in self._logged:
            self._logged.add(trial.kind)
            part = {packing.FREE: "no limit", packing.EVEN: "an even part"}.get(best.part, f"{best.part} %")
            self._tell(f"parts of the multiprocessors: {part} is best for tasks such as {task}")
