"""Decide which placements to undo: neighbours that, by measured rates, do less together than one at a time.

STP is the sum of the speeds of a GPU's tasks; a speed is a rate over the rate alone, so one task at a time gives 1. Its
standard error comes from the spread of the windows of both rates. A pair is undone when STP is significantly below 1.

Repeated tests need stricter limits: with a fixed limit of two standard errors, every pair would fail one day. First, a
pair is tested only when it has 3, 6, 12, 24, ... windows: ten tests in a day. Second, test k (from 0) has the level
0.025 / 2^k, so all tests together reject a pair of STP 1 in about 1 case in 20, and a useful pair far less often.
Third, three windows give a poor standard error, so the limit is Student's quantile with the degrees of freedom of Welch
and Satterthwaite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

from msgspec import Struct

from ..decision_records import Ban, Move, Pause, Resume
from ..records import GpuView, PackView, RunningView
from .predicted_speeds import Pairs
from .rates import WINDOWS_KEPT
from .room import room

Undoing = Ban | Pause | Resume | Move
WINDOWS_LEAST = 3
"""With fewer windows, the spread is not meaningful."""
TEST_SPAN = 4 / 3
"""A test that is due at n windows is made until this multiple of n: several short windows may close at once. Most of
the windows in between are the same, and so is the result."""
HARMFUL_STP = 0.85
"""Below this aggregate speed, a pair is banned and one of its tasks is paused at once."""
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


class _Speed(Struct, frozen=True):
    """The measured speed of one task."""

    task: RunningView
    ratio: float
    """Rate over the rate alone."""
    parts: tuple[tuple[float, int], ...]
    """(variance, degrees of freedom) of the rate and of the rate alone."""


class _Finding(Struct, frozen=True):
    """A placement that does not pay, by the rates of a GPU's tasks."""

    stp: float
    error: float
    younger: RunningView
    """The task that is paused or moved."""
    other: RunningView
    is_harmful: bool
    """The harm is so large that the younger task is paused at once."""
    text: str
    """For example "7 and 12 together do 0.93 +- 0.03 of one at a time"."""


def actions(view: PackView) -> list[Undoing]:
    """Return the bans, pauses, resumptions and moves that follow from the measured rates of a view."""
    if view.settings.undo == "off" or not any(task.is_paused or task.rate is not None for task in view.running):
        return []
    here = _by_gpu(view)
    pairs = Pairs(view.pairs)
    found: list[Undoing] = []
    for gpu in sorted(view.gpus, key=lambda one: one.facts.index):
        tasks = [task for task in here.get(gpu.facts.uuid, ()) if not task.is_moving]
        if any(task.is_paused for task in tasks) and (going_on := _going_on(view, gpu, tasks, pairs)):
            found += going_on
        elif len(tasks) > 1 and (finding := _find(view, tasks)) is not None:
            # Only one task moves at a time: two would choose the same idle GPU.
            may_move = not any(isinstance(one, Move) for one in found) and not any(
                one.is_moving for one in view.running
            )
            found += _undo(view, gpu, tasks, finding, pairs, here if may_move else None)
    return found


def harmful_gpus(view: PackView, pairs: Pairs) -> frozenset[str]:
    """Return the GPUs (UUIDs) with two tasks of a banned pair. No further task starts there."""
    if not pairs.has_bans:
        return frozenset()
    return frozenset(
        uuid
        for uuid, tasks in _by_gpu(view).items()
        if any(pairs.is_banned(one.ask, other.ask) for one, other in combinations(tasks, 2))
    )


def _by_gpu(view: PackView) -> dict[str, list[RunningView]]:
    found: dict[str, list[RunningView]] = {}
    for task in view.running:
        for uuid in task.gpus:
            found.setdefault(uuid, []).append(task)
    return found


# ---- Paused tasks ----


def _going_on(view: PackView, gpu: GpuView, tasks: Sequence[RunningView], pairs: Pairs) -> list[Undoing]:
    """Return the actions that resume a paused task: no other task runs on its GPU, or its pause has lasted long enough.

    One task is resumed per decision, the one that was paused first. If its pause is over, the youngest banned neighbour
    is paused instead. So the tasks take turns, and STP approaches 1.
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
    unsuited = [task for task in active if pairs.is_banned(first.ask, task.ask)] or active
    other = _youngest(unsuited)
    why = f"GPU {index}: task {number} goes on after {view.settings.pause_max_s:g} s; task {other.ask.task} is paused"
    return [
        Pause(task=other.ask.task, gpu=uuid, why=f"{why} instead"),
        Resume(task=number, gpu=uuid, why=f"{why} instead"),
    ]


def _youngest(tasks: Sequence[RunningView]) -> RunningView:
    return max(tasks, key=lambda task: (task.started_s, task.ask.task))


# ---- Tests ----


def _find(view: PackView, tasks: Sequence[RunningView]) -> _Finding | None:
    """Return the finding about the tasks of a GPU; None: they pay, a rate is not known, or no test is due."""
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
    # A second test of the same windows uses the level of the next test.
    own_error, own_freedom = _error([slowest])
    least = view.settings.min_speed
    if slowest.ratio + student(_LEVELS[min(test + 1, len(_LEVELS) - 1)], own_freedom) * own_error >= least:
        return None
    younger = _youngest([task for task in active if task is not slowest.task])
    said = f"{slowest.task.ask.task} keeps {slowest.ratio:.2f} +- {own_error:.2f} of its speed, of at least {least:g}"
    return _Finding(stp, error, younger, slowest.task, is_harmful=False, text=said)


def _speed(task: RunningView) -> _Speed | None:
    """Return the speed of a task; None: not known well enough, or the task still warms up (its memory grows)."""
    rate, alone = task.rate, task.rate_alone
    if rate is None or alone is None or not task.is_flat or len(task.gpus) > 1 or rate.windows < WINDOWS_LEAST:
        return None
    ratio = rate.ratio_to(alone)
    if ratio is None:
        return None
    own = max(rate.error_per_s / alone.per_s, ERROR_LEAST_RATIO * ratio)
    by_alone = ratio * (alone.error_per_s / alone.per_s)
    if not all(part <= RATIO_MOST for part in (ratio, own, by_alone)):
        return None
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
    view: PackView,
    gpu: GpuView,
    tasks: Sequence[RunningView],
    finding: _Finding,
    pairs: Pairs,
    here: dict[str, list[RunningView]] | None,
) -> list[Undoing]:
    """Return the actions that follow from a finding. `here`: GPU -> its tasks; None: no task may move now.

    The pair is banned at once. The younger task is paused or moved at the next test, three windows later, if the
    finding still holds; if the pair is harmful, at once. Among more than two tasks, the pair is the youngest task and
    the one of the others that loses most; if one task keeps too little of its speed, it is that task and the youngest
    of the others.
    """
    found: list[Undoing] = []
    younger, other, index = finding.younger, finding.other, gpu.facts.index
    number = younger.ask.task
    is_known = younger.ask.key is not None and other.ask.key is not None
    was_banned = pairs.is_banned(younger.ask, other.ask)
    if is_known and not was_banned:
        pair = "no such pair" if len(tasks) == 2 else f"no pair such as {other.ask.task} and {number}"
        why = f"GPU {index}: {finding.text}; {pair} again"
        found.append(
            Ban(task=number, other=other.ask.task, gpu=gpu.facts.uuid, stp=finding.stp, error=finding.error, why=why)
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
    """Return whether the younger task gains more by a start on another GPU than it loses.

    It loses the cost of a start and, if it cannot save its state, all its work. It moves to an idle GPU of this node,
    where it has its speed alone.
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
