"""Decide what to undo: neighbours that together do less than one at a time would, by measured rates only.

STP is the sum of the speeds of a GPU's tasks, each its rate over its rate alone; one at a time gives 1. Its standard
error comes from the windows' spread, of both rates. A pair is undone when STP is below 1 by more than chance.

Chance, and many tests. A GPU is tested again and again while its windows become more. With a fixed limit of two
standard errors, every pair would fail such a test one day. So, first, a pair is tested when it has 3, 6, 12, 24, ...
windows, and not between: a day has ten such tests. Second, test number k (from 0) has the level 0.025 / 2^k, so that
all tests together find a pair of STP 1 harmful in about 1 case in 20, and a pair that pays far less often. Third, three
windows give a poor standard error: the limit is Student's, with the degrees of freedom of Welch and Satterthwaite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from ..decision_records import Ban, Move, Pause, Resume
from ..records import GpuView, PackView, RunningView
from .rates import WINDOWS_KEPT
from .room import room

Undoing = Ban | Pause | Resume | Move
WINDOWS_LEAST = 3
"""Fewer windows have no spread to speak of."""
TEST_SPAN = 4 / 3
"""A test that is due with n windows is made up to n times this: counts may go up by more than one at once, where
windows are short. The windows in between are mostly the same, and so is the answer."""
HARMFUL_STP = 0.85
"""Below it, tasks are not only banned as a pair, but one is paused at once. Packing notes, 7.5."""
ERROR_LEAST_RATIO = 0.02
"""No speed is taken to be known better: counts of work are whole numbers, and clocks of windows are not exact. Ours."""
YOUNG_S = 60.0
"""A task younger than this loses little when it is ended and started again."""
RESTART_S = 30.0
"""What a start costs: imports, data, warm-up. Assumed."""
MOVES_MOST = 3
"""So often a task is moved."""
_LEVELS = (1.960, 2.241, 2.498, 2.734, 2.955, 3.163, 3.359, 3.546, 3.725, 3.896, 4.060, 4.219)
"""Normal quantiles of the one-sided levels 0.025, 0.0125, 0.00625, ... (0.025 / 2^k)."""


class _Speed(Struct, frozen=True):
    """The measured speed of one task."""

    task: RunningView
    ratio: float
    """1: as alone."""
    parts: tuple[tuple[float, int], ...]
    """(variance, its degrees of freedom), of the rate and of the rate alone."""


class _Finding(Struct, frozen=True):
    """What the rates of one GPU's tasks say."""

    stp: float
    error: float
    younger: RunningView
    """The one that is paused, or moved."""
    other: RunningView
    is_harmful: bool
    """By so much that nothing is waited for."""
    text: str
    """For people: "7 and 12 together do 0.93 +- 0.03 of one at a time"."""


def actions(view: PackView) -> list[Undoing]:
    """Return the bans, pauses, resumptions and moves that follow from the measured rates of a view."""
    if view.settings.undo == "off" or not any(task.is_paused or task.rate is not None for task in view.running):
        return []
    here: dict[str, list[RunningView]] = {}
    for task in view.running:
        for uuid in task.gpus:
            here.setdefault(uuid, []).append(task)
    banned = _banned(view)
    found: list[Undoing] = []
    for gpu in sorted(view.gpus, key=lambda one: one.facts.index):
        tasks = [task for task in here.get(gpu.facts.uuid, ()) if not task.is_moving]
        if any(task.is_paused for task in tasks) and (going_on := _going_on(view, gpu, tasks, banned)):
            found += going_on
        elif len(tasks) > 1 and (finding := _find(view, tasks)) is not None:
            # One at a time moves: two would find the same idle GPU.
            may_move = not any(isinstance(one, Move) for one in found) and not any(
                one.is_moving for one in view.running
            )
            found += _undo(view, gpu, tasks, finding, banned, here if may_move else None)
    return found


def harmful_gpus(view: PackView) -> frozenset[str]:
    """Return the GPUs (UUIDs) on which two tasks run that are not to share one: no further task starts there."""
    banned = _banned(view)
    if not banned:
        return frozenset()
    here: dict[str, list[RunningView]] = {}
    found: set[str] = set()
    for task in view.running:
        for uuid in task.gpus:
            others = here.setdefault(uuid, [])
            if any(is_banned(task, other, banned) for other in others):
                found.add(uuid)
            others.append(task)
    return frozenset(found)


def _banned(view: PackView) -> set[frozenset[str]]:
    return {frozenset((pair.a, pair.b)) for pair in view.pairs if pair.is_banned}


def is_banned(a: RunningView, b: RunningView, banned: set[frozenset[str]]) -> bool:
    """Return whether two tasks are of kinds that may not share a GPU."""
    one, two = a.ask.key, b.ask.key
    if one is None or two is None:
        return False
    return frozenset((one.family, two.family)) in banned or frozenset((one.exact, two.exact)) in banned


# ---- Paused tasks ----


def _going_on(view: PackView, gpu: GpuView, tasks: Sequence[RunningView], banned: set[frozenset[str]]) -> list[Undoing]:
    """Return what lets a paused task go on: nothing else runs on its GPU, or its time is over.

    The task that was paused first goes first, one in a decision. When its time is over, a neighbour is paused instead:
    one that it may not share a GPU with, the youngest of them. So they take turns, and STP goes to 1.
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
    unsuited = [task for task in active if is_banned(first, task, banned)] or active
    other = _youngest(unsuited)
    why = f"GPU {index}: task {number} goes on after {view.settings.pause_max_s:g} s; task {other.ask.task} is paused"
    return [
        Pause(task=other.ask.task, gpu=uuid, why=f"{why} instead"),
        Resume(task=number, gpu=uuid, why=f"{why} instead"),
    ]


def _youngest(tasks: Sequence[RunningView]) -> RunningView:
    return max(tasks, key=lambda task: (task.started_s, task.ask.task))


# ---- What the rates say ----


def _find(view: PackView, tasks: Sequence[RunningView]) -> _Finding | None:
    """Return what is wrong with the tasks of a GPU; None: nothing, or that is not known, or no test is due."""
    active = [task for task in tasks if not task.is_paused]
    speeds = [speed for task in active if (speed := _speed(task)) is not None]
    if len(active) < 2 or len(speeds) < len(active):
        return None
    test = _test(min(task.rate.windows for task in active if task.rate is not None))
    if test is None:
        return None
    stp = sum(speed.ratio for speed in speeds)
    error, freedom = _error(speeds)
    upper = stp + student(_LEVELS[test], freedom) * error
    slowest = min(speeds, key=lambda speed: speed.ratio)
    if upper < 1:
        younger = _youngest(active)
        others = [speed for speed in speeds if speed.task is not younger]
        other = min(others, key=lambda speed: speed.ratio).task
        numbers = [str(task.ask.task) for task in sorted(active, key=lambda task: task.ask.task)]
        said = f"{', '.join(numbers[:-1])} and {numbers[-1]} together do {stp:.2f} +- {error:.2f} of one at a time"
        return _Finding(stp, error, younger, other, upper < HARMFUL_STP, said)
    # One more test of the same windows: at the level of the next.
    own_error, own_freedom = _error([slowest])
    least = view.settings.min_speed
    if slowest.ratio + student(_LEVELS[min(test + 1, len(_LEVELS) - 1)], own_freedom) * own_error >= least:
        return None
    younger = _youngest([task for task in active if task is not slowest.task])
    said = f"{slowest.task.ask.task} keeps {slowest.ratio:.2f} +- {own_error:.2f} of its speed, of at least {least:g}"
    return _Finding(stp, error, younger, slowest.task, is_harmful=False, text=said)


def _speed(task: RunningView) -> _Speed | None:
    """Return how fast a task is; None: not known well enough, or its memory may still grow, and it with it."""
    rate, alone = task.rate, task.rate_alone
    if rate is None or alone is None or not task.is_flat or len(task.gpus) > 1 or rate.windows < WINDOWS_LEAST:
        return None
    ratio = rate.ratio_to(alone)
    if ratio is None or not all(map(math.isfinite, (ratio, rate.error_per_s, alone.error_per_s))):
        return None
    own = max(rate.error_per_s / alone.per_s, ERROR_LEAST_RATIO * ratio)
    by_alone = ratio * alone.error_per_s / alone.per_s
    freedom, by_freedom = (min(one.windows, WINDOWS_KEPT) - 1 for one in (rate, alone))
    parts = ((own**2, freedom), (by_alone**2, max(by_freedom, WINDOWS_LEAST - 1)))
    return _Speed(task, ratio, parts)


def _error(speeds: Sequence[_Speed]) -> tuple[float, float]:
    """Return the standard error of the sum of speeds, and its degrees of freedom (Welch, Satterthwaite)."""
    parts = [part for speed in speeds for part in speed.parts]
    variance = sum(part for part, _ in parts)
    spread = sum(part**2 / freedom for part, freedom in parts)
    return math.sqrt(variance), variance**2 / spread if spread else math.inf


def _test(windows: int) -> int | None:
    """Return the number of the test that is due with so many windows, from 0; None: none is."""
    test, due = 0, WINDOWS_LEAST
    while windows > due * TEST_SPAN:
        test, due = test + 1, 2 * due
    return min(test, len(_LEVELS) - 1) if windows >= due else None


def student(normal: float, freedom: float) -> float:
    """Return the quantile of Student's distribution at the level of a normal quantile.

    The first terms of Cornish and Fisher's expansion (Abramowitz and Stegun, 26.7.5), within 4 % from four degrees on.
    """
    if math.isinf(freedom):
        return normal
    first = (normal**3 + normal) / (4 * freedom)
    second = (5 * normal**5 + 16 * normal**3 + 3 * normal) / (96 * freedom**2)
    third = (3 * normal**7 + 19 * normal**5 + 17 * normal**3 - 15 * normal) / (384 * freedom**3)
    return normal + first + second + third


# ---- What follows ----


def _undo(
    view: PackView,
    gpu: GpuView,
    tasks: Sequence[RunningView],
    finding: _Finding,
    banned: set[frozenset[str]],
    here: dict[str, list[RunningView]] | None,
) -> list[Undoing]:
    """Return what follows from a finding. `here`: GPU -> its tasks; None: no task may move now.

    The pair is banned once. Three windows later, which is the next test, the younger one is paused, or moved, if the
    finding still holds; at once, where it is harmful. With more than two tasks, the pair is the youngest of all, which
    the others had been without, and the one of them that loses most; where one task keeps too little of its speed, the
    pair is that one and the youngest of the others.
    """
    found: list[Undoing] = []
    younger, other, index = finding.younger, finding.other, gpu.facts.index
    number = younger.ask.task
    is_known = younger.ask.key is not None and other.ask.key is not None
    was_banned = is_banned(younger, other, banned)
    if is_known and not was_banned:
        pair = "no such pair" if len(tasks) == 2 else f"no pair such as {other.ask.task} and {number}"
        why = f"GPU {index}: {finding.text}; {pair} again"
        found.append(
            Ban(task=number, beside=other.ask.task, gpu=gpu.facts.uuid, stp=finding.stp, error=finding.error, why=why)
        )
    windows = min(task.rate.windows for task in (younger, other) if task.rate is not None)
    is_confirmed = (was_banned or not is_known) and windows >= 2 * WINDOWS_LEAST
    if view.settings.undo != "pause" or not (finding.is_harmful or is_confirmed):
        return found
    if here is not None and _pays_to_move(view, finding, here):
        why = f"GPU {index}: task {number} moves to another GPU, since {finding.text}"
        found.append(Move(task=number, gpu=gpu.facts.uuid, why=why))
    else:
        why = f"GPU {index}: task {number} is paused, since {finding.text}"
        found.append(Pause(task=number, gpu=gpu.facts.uuid, why=why))
    return found


def _pays_to_move(view: PackView, finding: _Finding, here: dict[str, list[RunningView]]) -> bool:
    """Return whether the younger task gains by a start elsewhere more than it loses.

    What it loses is a start and, where it cannot save its state, all that it has done. It moves to a GPU of this node
    on which nothing runs: there it is known to be as fast as alone.
    """
    task = finding.younger
    age_s = view.now_s - task.started_s
    if not (task.can_move or age_s < YOUNG_S) or task.tries.moved >= MOVES_MOST:
        return False
    if task.ends_s is None or not 0 < finding.stp < 1:
        return False
    lost_s = RESTART_S + (0.0 if task.can_move else age_s)
    if (1 / finding.stp - 1) * max(task.ends_s - view.now_s, 0.0) <= lost_s:
        return False
    need_mib = max(task.reserved_mib, task.peak_mib or 0)
    return any(
        not here.get(gpu.facts.uuid)
        and not (gpu.is_out or gpu.problem or gpu.held_for is not None or gpu.clients_elsewhere)
        and gpu.can_measure
        and room(gpu, ()) >= need_mib
        for gpu in view.gpus
    )
