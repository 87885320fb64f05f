"""Trials of multiprocessor parts in a packed run (`--share-gpu=sm=auto`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from msgspec import Struct

from ...packing import FREE, UNMEASURED, Board, History, LevelRun, SearchRun, Share, Shares, Start, antt, slowdowns, stp

WINDOWS_MIN = 3
"""Closed windows with the same tasks on the GPU, from which on a trial counts."""


class _Trial(Struct, eq=False):
    """A running task with the part of the multiprocessors that `Shares` chose for it."""

    family: str
    gpu: str
    model: str
    neighbours: tuple[str, ...]
    share: Share
    speeds: list[tuple[float, float]] = []
    """Aggregate speed (STP), measured and predicted, at each tick."""
    antt: list[tuple[float, float]] = []
    """Mean slowdown (ANTT), measured and predicted, at each tick."""
    windows: int = 0


class ShareTrials:
    """The trials of one launcher. Only the thread of the loop calls it."""

    def __init__(self, board: Board, history: History, tell: Callable[[str], None], keep: Callable[..., None]) -> None:
        """`tell` gets sentences for the job's log, `keep` results for the user's history."""
        self.board = board
        self.shares = Shares(history.searches)
        self._tell, self._keep = tell, keep
        self._results: list[SearchRun] = []
        """Results for the history since the last `flush`."""
        self._trials: dict[int, _Trial] = {}
        self._logged: set[tuple[str, tuple[str, ...]]] = set()
        """(family, its neighbours' families) of choices that were logged."""
        without = [str(one.index) for one in board.facts.values() if not one.is_mps]
        if without:
            self._tell(f"no parts are tried on GPU {','.join(without)}: only MPS enforces them, and it is off")

    def start(self, start: Start) -> float | None:
        """Return the percentage of the multiprocessors for a task that starts now; None: no limit."""
        board, uuid = self.board, start.gpus[0]
        task = board.running.get(start.task)
        facts = board.facts[uuid]
        if task is None or task.ask.key is None or len(start.gpus) > 1 or start.is_alone or not facts.is_mps:
            return None
        others = [one for one in board.running.values() if uuid in one.gpus and one is not task]
        keys = [one.ask.key for one in others]
        neighbours = tuple(sorted(key.family for key in keys if key is not None))
        family = task.ask.key.family
        left = 1 + sum(1 for one in board.waiting.values() if one.ask.key is not None and one.family == family)
        share = self.shares.start(
            family,
            facts.model,
            board.speeds.load(task.ask, facts.model),
            neighbours,
            left,
            may_try=not any(self._is_tried(one.ask.task) for one in others),
        )
        if neighbours and (share.is_trial or share.arm != FREE):
            self._trials[start.task] = _Trial(family, uuid, facts.model, neighbours, share)
        return share.percent

    def _is_tried(self, task: int) -> bool:
        trial = self._trials.get(task)
        return trial is not None and trial.share.is_trial

    def dropped(self, task: int) -> None:
        """Cancel the trial of a task that could not be started."""
        trial = self._trials.pop(task, None)
        if trial is not None:
            self.shares.ended(trial.family, trial.model, trial.neighbours, trial.share, None)

    def tick(self) -> None:
        """Measure the GPUs with tasks under trial."""
        self.flush()
        for task, trial in self._trials.items():
            found = self._read_speeds(trial.gpu, task)
            if found is None:
                continue
            measured, predicted, windows, place = found
            trial.speeds.append((stp(measured), stp(predicted)))
            trial.antt.append((antt(measured), antt(predicted)))
            trial.windows = max(trial.windows, windows)
            ratio = measured[place] / predicted[place]
            if self.shares.slowed(trial.family, trial.model, trial.neighbours, trial.share, ratio, windows):
                self._tell(
                    f"task {task} is {ratio:.2f} x as slow as expected with {trial.share.percent:g} % of the "
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
        predicted = slowdowns([board.speeds.load(view.ask, model) or UNMEASURED for view in views])
        place = next((number for number, view in enumerate(views) if view.ask.task == task), None)
        return None if place is None else (measured, predicted, min(windows), place)

    def ended(self, task: int, unix_s: float) -> None:
        """End the trial of a task, and keep its result."""
        trial = self._trials.pop(task, None)
        if trial is None:
            return
        score = None
        if trial.speeds:
            score = LevelRun(
                level=len(trial.neighbours) + 1,
                sharing="mps",
                per_s=round(median(seen / wanted for seen, wanted in trial.speeds), 4),
                spread_per_s=0.0,
                windows=trial.windows,
                part=trial.share.arm,
                slowdown=round(median(seen / wanted for seen, wanted in trial.antt), 4),
            )
            self._results.append(
                SearchRun(
                    when=round(unix_s, 3),
                    family=trial.family,
                    gpu_model=trial.model,
                    gpus=1,
                    neighbours=trial.neighbours,
                    rate_source="stp",
                    levels=(score,),
                    best=score.level,
                    end="stopped",
                )
            )
        chosen = self.shares.ended(trial.family, trial.model, trial.neighbours, trial.share, score)
        kind = (trial.family, tuple(sorted(set(trial.neighbours))))
        if chosen is not None and trial.share.is_trial and kind not in self._logged:
            self._logged.add(kind)
            part = {FREE: "no limit", "even": "an even part"}.get(chosen, f"{chosen} %")
            self._tell(f"parts of the multiprocessors: {part} is best for tasks such as {task}")
