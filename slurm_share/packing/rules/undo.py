"""Find tasks that, by measured rates, do less together than one at a time; pause or move one of them.

For this, one task of each command is left alone on a GPU until its rate is known.

STP is the sum of the speeds of a GPU's tasks; a speed is a rate over the rate alone, so one task at a time gives 1. Its
standard error comes from the spread of the windows of both rates. A group does harm when STP is significantly below 1.

Repeated tests need stricter limits: with a fixed limit of two standard errors, every pair would fail one day. First, a
group is tested only when it has 3, 6, 12, 24, ... windows: ten tests in a day. Second, test k (from 0) has the level
0.025 / 2^k, so all tests together reject a pair of STP 1 in about 1 case in 20, and a useful pair far less often.
Third, three windows give a poor standard error, so the limit is Student's quantile with the degrees of freedom of Welch
and Satterthwaite.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from ..decision_records import Move, Pause, Resume
from ..records import GpuView, PackSettings, PackView, RunningView, TaskAsk
from ..speed_records import Rate
from .rates import WINDOWS_KEPT
from .room import room

Undoing = Pause | Resume | Move
WINDOWS_LEAST = 3
"""With fewer windows, the spread is not meaningful."""
TEST_SPAN = 4 / 3
"""A test that is due at n windows is made until this multiple of n: several short windows may close at once. Most of
the windows in between are the same, and so is the result."""
ALONE_WINDOWS = 2
"""The rate of a command alone is known after this many windows."""
START_S = 30.0
"""Time until a program shows its first progress: imports, data. Assumed."""
SHORT_WINDOWS = 4
"""A task of a shorter expected duration, in windows, is not left alone: it would end before its rate pays."""
WAITING_PER_GPU = 4
"""If this many tasks wait for each GPU, all GPUs may be used to measure tasks alone at once, else half of them."""
REPEATS_LEAST = 4
"""A task is left alone only if at least so many tasks of its command wait: what its rate brings is theirs."""
EMPTY_WINDOWS = 10
EMPTY_PER_COMMAND = 6
"""A GPU is emptied to measure a new command alone only if its tasks take so many windows, and so many tasks wait for
each command that is not measured. Chosen by us, for lists that end later by at most 3 % where nothing harms and earlier
where a fifth of the pairs does (tests/bench/packing_bars.py)."""
HARMFUL_STP = 0.85
"""Below this aggregate speed one task is paused at the first test, else at the second."""
ERROR_LEAST_RATIO = 0.02
"""Least relative error of a speed: work is counted in whole numbers, and window times are not exact. Chosen by us."""
RATIO_MOST = 1e6
"""A speed, or its error, above this multiple of the rate alone comes from a wrong rate and is ignored."""
YOUNG_S = 60.0
"""A task younger than this loses little when it is restarted."""
RESTART_S = 30.0
"""Cost of a start: imports, data, warm-up. Assumed."""
MOVES_MOST = 3
"""Most moves of one task."""
_LEVELS = (1.960, 2.241, 2.498, 2.734, 2.955, 3.163, 3.359, 3.546, 3.725, 3.896, 4.060, 4.219)
"""Normal quantiles of the one-sided levels 0.025, 0.0125, 0.00625, ... (0.025 / 2^k)."""


class GroupSpeed(Struct, frozen=True):
    """The measured aggregate speed of the tasks of one GPU."""

    stp: float
    error: float
    """Standard error of `stp`."""
    windows: int
    """Number of windows of the task with fewest."""
    upper: float | None
    """Upper limit of `stp` at the level of the test that is due; None: no test is due."""

    @property
    def is_harmful(self) -> bool:
        """Return whether the tasks do significantly less than one at a time."""
        return self.upper is not None and self.upper < 1


def actions(view: PackView) -> list[Undoing]:
    """Return the pauses, resumptions and moves that follow from the measured rates of a view."""
    if view.settings.undo == "off" or not any(task.is_paused or task.rate is not None for task in view.running):
        return []
    here: dict[str, list[RunningView]] = {}
    for task in view.running:
        for uuid in task.gpus:
            here.setdefault(uuid, []).append(task)
    found: list[Undoing] = []
    for gpu in sorted(view.gpus, key=lambda one: one.facts.index):
        tasks = [task for task in here.get(gpu.facts.uuid, ()) if not task.is_moving]
        if any(task.is_paused for task in tasks) and (going_on := _going_on(view, gpu, tasks)):
            found += going_on
        elif len(tasks) > 1:
            # Only one task moves at a time: two would choose the same idle GPU.
            may_move = not any(isinstance(one, Move) for one in found) and not any(
                one.is_moving for one in view.running
            )
            found += _undo(view, gpu, tasks, here if may_move else None)
    return found


# ---- Tasks that are left alone ----


def repeats(view: PackView) -> Counter[str]:
    """Return command -> number of its tasks that wait."""
    return Counter(one.ask.key.exact for one in view.waiting if one.ask.key is not None)


def left_alone(view: PackView, waiting: Mapping[str, int]) -> dict[str, TaskAsk]:
    """Return the GPUs (UUIDs) whose only task is left alone until its rate is known, with that task.

    `waiting`: what `repeats` returns.
    """
    found: dict[str, TaskAsk] = {}
    for one in sorted(view.running, key=lambda one: (one.alone_since_s or 0.0, one.ask.task)):
        if one.alone_since_s is None or one.is_paused or view.now_s >= one.alone_since_s + alone_most_s(view.settings):
            continue
        if one.is_new and pays_alone(view, one.ask, one.estimate.seconds, found.values(), waiting):
            found[one.gpus[0]] = one.ask
    return found


def alone_most_s(settings: PackSettings) -> float:
    """Return how long a task is left alone at most, in seconds: a program that has shown no rate then never may."""
    return ALONE_WINDOWS * settings.rate_window_s + max(START_S, ALONE_WINDOWS * settings.rate_window_s)


def pays_alone(
    view: PackView, ask: TaskAsk, expected_s: float | None, others: Collection[TaskAsk], waiting: Mapping[str, int]
) -> bool:
    """Return whether to leave a task of a new command alone on its GPU until its rate is known.

    `others`: those that are left alone. It costs a few windows of one GPU, once per command: too much for short tasks,
    and for a command of which few tasks wait. A part of the GPUs stays in full use, unless so many tasks wait that the
    cost is small.
    """
    name = "" if ask.key is None else ask.key.exact
    if waiting.get(name, 0) < REPEATS_LEAST or any(
        other.key is not None and other.key.exact == name for other in others
    ):
        return False
    if is_short(view.median_s if expected_s is None else expected_s, view.settings):
        return False
    gpus = sum(not gpu.is_out for gpu in view.gpus)
    if is_long(view):
        return len(others) < gpus
    # Near its end a list has no tasks left to learn for, and those that wait would crowd the other GPUs.
    return view.median_s is None and len(others) < gpus // 2


def is_short(seconds: float | None, settings: PackSettings) -> bool:
    """Return whether a task is known to be too short to be left alone."""
    return seconds is not None and seconds < SHORT_WINDOWS * settings.rate_window_s


def pays_empty(view: PackView, expected_s: float | None, new: int) -> bool:
    """Return whether to empty a GPU for a task of a new command, to measure it alone there.

    `new`: number of new commands that wait.
    """
    seconds = view.median_s if expected_s is None else expected_s
    is_short = seconds is None or seconds < EMPTY_WINDOWS * view.settings.rate_window_s
    return not is_short and is_long(view) and len(view.waiting) >= EMPTY_PER_COMMAND * new


def is_long(view: PackView) -> bool:
    """Return whether so many tasks wait that measurements cost little."""
    gpus = sum(not gpu.is_out for gpu in view.gpus)
    return len(view.waiting) >= WAITING_PER_GPU * gpus


# ---- Paused tasks ----


def _going_on(view: PackView, gpu: GpuView, tasks: Sequence[RunningView]) -> list[Undoing]:
    """Return the actions that resume a paused task: no other task runs on its GPU, or its pause has lasted long enough.

    One task is resumed per decision, the one that was paused first. If its pause is over, the youngest neighbour is
    paused instead. So the tasks take turns, and STP approaches 1.
    """
    paused = sorted((task for task in tasks if task.is_paused), key=lambda task: (task.pause_s, task.ask.task))
    active = [task for task in tasks if not task.is_paused]
    first, uuid, index = paused[0], gpu.facts.uuid, gpu.facts.index
    number = first.ask.task
    if not active:
        why = f"GPU {index}: task {number} goes on; no other task runs there"
        return [Resume(task=number, gpu=uuid, why=why)]
    if view.now_s - first.pause_s < view.settings.pause_max_s:
        return []
    other = _youngest(active)
    why = f"GPU {index}: task {number} goes on after {view.settings.pause_max_s:g} s; task {other.ask.task} is paused"
    return [
        Pause(task=other.ask.task, gpu=uuid, why=f"{why} instead"),
        Resume(task=number, gpu=uuid, why=f"{why} instead"),
    ]


def _youngest(tasks: Sequence[RunningView]) -> RunningView:
    return max(tasks, key=lambda task: (task.started_s, task.ask.task))


# ---- Tests ----


def measure(rates: Sequence[tuple[Rate, Rate]]) -> GroupSpeed | None:
    """Return the aggregate speed of a group; None: it is not known well enough. `rates`: (rate, rate alone) of each."""
    parts: list[tuple[float, int]] = []
    """(variance, degrees of freedom) of each rate and each rate alone."""
    stp = 0.0
    for rate, alone in rates:
        ratio = rate.ratio_to(alone)
        if ratio is None or rate.windows < WINDOWS_LEAST:
            return None
        own = max(rate.error_per_s / alone.per_s, ERROR_LEAST_RATIO * ratio)
        by_alone = ratio * (alone.error_per_s / alone.per_s)
        if not all(part <= RATIO_MOST for part in (ratio, own, by_alone)):
            return None
        freedom, by_freedom = (min(one.windows, WINDOWS_KEPT) - 1 for one in (rate, alone))
        parts += [(own**2, freedom), (by_alone**2, max(by_freedom, WINDOWS_LEAST - 1))]
        stp += ratio
    windows = min(rate.windows for rate, _ in rates)
    # The degrees of freedom of a sum: Welch, Satterthwaite.
    variance = sum(part for part, _ in parts)
    spread = sum(part**2 / freedom for part, freedom in parts)
    error, test = math.sqrt(variance), _test(windows)
    upper = None if test is None else stp + student(_LEVELS[test], variance**2 / spread if spread else math.inf) * error
    return GroupSpeed(stp, error, windows, upper)


def harm_text(tasks: Sequence[int], speed: GroupSpeed, *, is_bound: bool = False) -> str:
    """Return a finding as text: "7 and 12 together do 0.93 +- 0.03 of one at a time". `is_bound`: at most."""
    *first, last = map(str, sorted(tasks))
    most = "at most " if is_bound else ""
    return f"{', '.join(first)} and {last} together do {most}{speed.stp:.2f} +- {speed.error:.2f} of one at a time"


def _test(windows: int) -> int | None:
    """Return the number of the test that is due with this many windows, from 0; None: no test is due."""
    test, due = 0, WINDOWS_LEAST
    while windows > due * TEST_SPAN:
        test, due = test + 1, 2 * due
    return min(test, len(_LEVELS) - 1) if windows >= due else None


def student(normal: float, freedom: float) -> float:
    """Return the quantile of Student's distribution at the level of a normal quantile.

    Uses the first terms of the Cornish-Fisher expansion (Abramowitz and Stegun, 26.7.5): within 4 % from four degrees
    of freedom on.
    """
    if math.isinf(freedom):
        return normal
    first = (normal**3 + normal) / (4 * freedom)
    second = (5 * normal**5 + 16 * normal**3 + 3 * normal) / (96 * freedom**2)
    third = (3 * normal**7 + 19 * normal**5 + 17 * normal**3 - 15 * normal) / (384 * freedom**3)
    return normal + first + second + third


# ---- Actions ----


def _undo(
    view: PackView, gpu: GpuView, tasks: Sequence[RunningView], here: dict[str, list[RunningView]] | None
) -> list[Undoing]:
    """Return the action on a GPU whose tasks do less than one at a time: its youngest task is moved or paused.

    If they do little less, this is done at the second test, three windows after the first. `here`: GPU -> its tasks;
    None: no task may move now. Nothing is done while a task warms up (its memory grows) or a rate is not known.
    """
    active = [task for task in tasks if not task.is_paused]
    rates = [
        (task.rate, task.rate_alone)
        for task in active
        if task.rate is not None and task.rate_alone is not None and task.is_flat and len(task.gpus) == 1
    ]
    speed = measure(rates) if len(active) > 1 and len(rates) == len(active) else None
    if speed is None or not speed.is_harmful:
        return []
    if (speed.upper or 0.0) >= HARMFUL_STP and speed.windows < 2 * WINDOWS_LEAST:
        return []
    younger, index = _youngest(active), gpu.facts.index
    number = younger.ask.task
    text = harm_text([task.ask.task for task in active], speed)
    if here is not None and _pays_to_move(view, younger, speed.stp, here):
        return [
            Move(task=number, gpu=gpu.facts.uuid, why=f"GPU {index}: task {number} moves to another GPU, since {text}")
        ]
    return [Pause(task=number, gpu=gpu.facts.uuid, why=f"GPU {index}: task {number} is paused, since {text}")]


def _pays_to_move(view: PackView, task: RunningView, stp: float, here: dict[str, list[RunningView]]) -> bool:
    """Return whether the youngest task gains more by a start on another GPU than it loses.

    It loses the cost of a start and, if it cannot save its state, all its work. It moves to an idle GPU of this node,
    where it has its speed alone.
    """
    age_s = view.now_s - task.started_s
    if not (task.can_move or age_s < YOUNG_S) or task.tries.moved >= MOVES_MOST:
        return False
    if task.ends_s is None or not 0 < stp < 1:
        return False
    lost_s = RESTART_S + (0.0 if task.can_move else age_s)
    if (1 / stp - 1) * max(task.ends_s - view.now_s, 0.0) <= lost_s:
        return False
    need_mib = max(task.reserved_mib, task.peak_mib or 0)
    return any(
        not here.get(gpu.facts.uuid)
        and not (gpu.is_out or gpu.problem or gpu.held_for is not None or gpu.clients_elsewhere)
        and gpu.can_measure
        and room(gpu, ()) >= need_mib
        for gpu in view.gpus
    )
