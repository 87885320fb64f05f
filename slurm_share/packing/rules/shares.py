"""Find by trials the share of the multiprocessors that a family of tasks gets under MPS (`sm=auto`).

A share is set when a task starts and stays until its end, so each start tries one arm: no limit (free), a guess from
the task's load, or an even part. The score is the aggregate speed (STP) of the GPU over the predicted one, so that
different neighbours can be compared. A share is used only if it wins clearly.

Sources: Pan 2021, Table 2 (90-10 against 100-100 for two networks) and Figure 2 (the least share with at most 10 %
loss is 1.3 to 1.7 times the part of the cores that is used).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable
from statistics import median

from msgspec import Struct

from ..speed_records import LevelRun, Load, SearchRun
from .tune import pays

FREE = "free"
EVEN = "even"
HEADROOM = 1.5
"""The guess is this many times the measured load."""
LEAST_PERCENT = 10
STEP_PERCENT = 5
LOSS = 0.10
"""Part of its speed that a task under trial may lose: assumed for an even part beside a task that needs more."""
SCORES_MIN = 2
"""Trials of each arm before one is chosen."""
STP_GAIN = 1.06
ANTT_GAIN = 0.90
STP_SAME = 0.03
"""An arm wins with STP_GAIN times the aggregate speed, or with ANTT_GAIN times the mean slowdown if the speeds differ
by at most STP_SAME. With a gain of 1.05, chance chose arms up to 3.2 % worse than no limit
(tests/bench/measured.py)."""
BAD_RATIO = 1.25
"""A slowdown of this multiple of the predicted one over BAD_WINDOWS shows that a share is too small."""
BAD_WINDOWS = 3

_Key = tuple[str, str, frozenset[str]]
"""(family, GPU model, families of the neighbours)"""


class Share(Struct, frozen=True):
    """The share of a starting task."""

    arm: str
    percent: float | None
    """None: no limit."""
    is_trial: bool
    """False: the family's arm is chosen, or no trials are made."""


def guess_percent(load: Load | None) -> int:
    """Return the first guess for a task; 100: its load was not measured."""
    if load is None:
        return 100
    wanted = math.ceil(100.0 * load.sm_ratio * HEADROOM / STEP_PERCENT - 1e-9) * STEP_PERCENT
    return min(100, max(LEAST_PERCENT, wanted))


def choose(scores: Iterable[LevelRun]) -> str | None:
    """Return the arm with the best medians, `free` unless another arm wins clearly; None: there are too few scores."""
    found: dict[str, list[LevelRun]] = defaultdict(list)
    for score in scores:
        found[score.part].append(score)
    if any(len(of_arm) < SCORES_MIN for of_arm in found.values()) or FREE not in found:
        return None
    stp = {arm: median(one.per_s for one in of_arm) for arm, of_arm in found.items()}
    antt = {arm: median(one.slowdown for one in of_arm) for arm, of_arm in found.items()}
    winners = [
        arm
        for arm in found
        if arm != FREE
        and (
            stp[arm] >= STP_GAIN * stp[FREE]
            or (abs(stp[arm] / stp[FREE] - 1.0) <= STP_SAME and antt[arm] <= ANTT_GAIN * antt[FREE])
        )
    ]
    return max(winners, key=lambda arm: (stp[arm], -antt[arm]), default=FREE)


def _kinds(arms: Iterable[str]) -> set[str]:
    """Return the kinds of arms: free, even, and any percentage as one."""
    return {arm if arm in (FREE, EVEN) else "percent" for arm in arms}


class Shares:
    """The trials of one run, which go on with those of earlier runs."""

    def __init__(self, history: Iterable[SearchRun] = ()) -> None:
        """Start from the trials of earlier runs (`history`, oldest first)."""
        self._scores: dict[_Key, list[LevelRun]] = {}
        self._bad: dict[_Key, set[str]] = {}
        self._running: dict[_Key, list[str]] = {}
        self._offered: dict[_Key, set[str]] = {}
        """The kinds of arms that are to be tried before one is chosen."""
        for run in history:
            if run.neighbours:
                key = (run.family, run.gpu_model, frozenset(run.neighbours))
                self._scores.setdefault(key, []).extend(run.levels)

    def start(
        self,
        family: str,
        gpu_model: str,
        load: Load | None,
        neighbours: Collection[str],
        tasks_left: int,
        *,
        may_try: bool = True,
    ) -> Share:
        """Return the share of a task that starts now.

        neighbours: family of each task on its GPU. tasks_left: remaining tasks of its family, including this one.
        may_try: False if a neighbour is under trial, because the two results would mix.
        """
        if not neighbours or not family:
            return Share(FREE, None, is_trial=False)
        key = (family, gpu_model, frozenset(neighbours))
        count = len(neighbours) + 1
        bad = self._bad.get(key, set())
        scores = [one for one in self._scores.get(key, []) if one.part not in bad]
        arms = [arm for arm in self._arms(load, count) if arm not in bad]
        chosen = choose(scores)
        known = {one.part for one in scores}
        self._offered[key] = _kinds(arms)
        # A chosen arm stays when the guess changes with the measured load.
        if chosen is not None and (known >= set(arms) or (chosen != FREE and _kinds(known) >= _kinds(arms))):
            return self._share(chosen, count, is_trial=False)
        under_way = self._running.setdefault(key, [])
        tried = [*(one.part for one in scores), *under_way]
        missing = sum(max(SCORES_MIN - tried.count(one), 0) for one in arms)
        if not may_try or len(arms) < 2 or not pays(tasks_left, STP_GAIN - 1.0, missing, LOSS):
            return Share(FREE, None, is_trial=False)
        arm = min(arms, key=lambda one: (tried.count(one), arms.index(one)))
        under_way.append(arm)
        return self._share(arm, count, is_trial=True)

    def ended(
        self, family: str, gpu_model: str, neighbours: Collection[str], share: Share, score: LevelRun | None
    ) -> str | None:
        """Record the end of a task under trial. Return the arm that is chosen now; None: no arm is chosen yet.

        `neighbours`: those at its start. `score`: aggregate speed of its GPU and mean slowdown there, each over the
        predicted one; None: not measured.
        """
        key = (family, gpu_model, frozenset(neighbours))
        under_way = self._running.get(key, [])
        if share.is_trial and share.arm in under_way:
            under_way.remove(share.arm)
        if share.is_trial and score is not None:
            self._scores.setdefault(key, []).append(score)
        scores = self._scores.get(key, [])
        if not _kinds(one.part for one in scores) >= self._offered.get(key, set()):
            return None
        return choose(scores)

    def slowed(
        self, family: str, gpu_model: str, neighbours: Collection[str], share: Share, ratio: float, windows: int
    ) -> bool:
        """Record the slowdown of a running task over the predicted one. Return whether its share is newly excluded."""
        if share.arm == FREE or ratio <= BAD_RATIO or windows < BAD_WINDOWS:
            return False
        bad = self._bad.setdefault((family, gpu_model, frozenset(neighbours)), set())
        is_new = share.arm not in bad
        bad.add(share.arm)
        return is_new

    def _arms(self, load: Load | None, count: int) -> list[str]:
        guess = guess_percent(load)
        arms = [FREE]
        if guess < 100:
            arms.append(str(guess))
        if count > 1 and guess != 100 // count:
            arms.append(EVEN)
        return arms

    def _share(self, arm: str, count: int, *, is_trial: bool) -> Share:
        percent = None if arm == FREE else round(100.0 / count, 1) if arm == EVEN else float(arm)
        return Share(arm, percent, is_trial=is_trial)
