"""Derive a belief about a task's load from measured loads of its command or family."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from statistics import median

from msgspec import Struct

from ..history_records import TaskRun
from ..records import TaskKey
from ..speed_records import Belief, BeliefSource

NEWEST = 5
"""Number of newest loads of a command that count."""
NEWEST_OF_FAMILY = 15
"""The same for a family, whose loads differ more."""
COMMANDS_MOST = 4096
"""Number of commands and families that are kept; the one with the oldest load is dropped first."""
ALONE_S = 60.0
"""Least time alone for a load; for a task shorter than twice this, half of its time."""
LEAST_S = 5.0
UTIL_FACTOR = 0.9
"""SM activity over utilisation, where only that is known. Utilisation is an upper bound."""
STRENGTHS: dict[str, float] = {
    "A10": 72 * 1695,
    "A30": 56 * 1440,
    "A40": 84 * 1740,
    "A100": 108 * 1410,
    "H100 PCIe": 114 * 1755,
    "H100": 132 * 1980,
    "H200": 132 * 1980,
    "L4": 58 * 2040,
    "L40": 142 * 2490,
    "L40S": 142 * 2520,
    "P100": 56 * 1328,
    "T4": 40 * 1590,
    "V100": 80 * 1530,
}
"""Multiprocessors times the highest clock in MHz. Source: NVIDIA's data sheets and architecture white papers."""


class Load(Struct, frozen=True, kw_only=True):
    """A task's measured load on one GPU. None: not measured."""

    sm_ratio: float | None
    """None: only utilisation is known."""
    util_ratio: float | None = None
    dram_ratio: float | None = None
    pcie_ratio: float | None = None
    source: BeliefSource = "alone"


def load_of(run: TaskRun) -> Load | None:
    """Return the load of a finished attempt; None: it was not alone for long enough."""
    wanted_s = max(LEAST_S, min(ALONE_S, 0.5 * run.seconds))
    if run.alone_seconds < wanted_s or (run.sm_ratio is None and run.util_ratio is None):
        return None
    # If the driver gives no SM activity, the sampler gives utilisation instead.
    is_util = run.dram_ratio is None and run.sm_ratio == run.util_ratio
    return Load(
        sm_ratio=None if is_util else run.sm_ratio,
        util_ratio=run.util_ratio,
        dram_ratio=run.dram_ratio,
        pcie_ratio=run.pcie_ratio,
    )


class Loads:
    """The newest loads of each command and family, on each GPU model."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], deque[Load]] = {}
        self._models: dict[str, dict[str, None]] = {}
        """Command or family -> GPU models on which it was seen, in the order of their first load."""
        self._util_factor = UTIL_FACTOR
        self._summed_up: dict[tuple[str, str], dict[bool, Belief]] = {}
        """(name, GPU model) -> whether it is a family -> the belief from its loads. One name may be both."""

    @property
    def util_factor(self) -> float:
        """Return the assumed SM activity over utilisation, for loads without SM activity."""
        return self._util_factor

    @util_factor.setter
    def util_factor(self, factor: float) -> None:
        self._util_factor = factor
        self._summed_up.clear()

    def add(self, key: TaskKey, gpu_model: str, load: Load) -> None:
        if load.sm_ratio is None and load.util_ratio is None:
            return
        for name, most in ((key.exact, NEWEST), (key.family, NEWEST_OF_FAMILY)):
            if name:
                known = self._of.pop((name, gpu_model), None) or deque(maxlen=most)
                known.append(load)
                self._of[name, gpu_model] = known
                self._summed_up.pop((name, gpu_model), None)
                self._models.setdefault(name, {})[gpu_model] = None
        while len(self._of) > COMMANDS_MOST:
            name, model = next(iter(self._of))
            del self._of[name, model]
            self._summed_up.pop((name, model), None)
            self._models[name].pop(model, None)
            if not self._models[name]:
                del self._models[name]

    def belief(self, key: TaskKey | None, gpu_model: str) -> Belief:
        """Return the belief about a task: from its command, else its family, on this or else another GPU model."""
        if key is None:
            return Belief()
        for name, is_family in ((key.exact, False), (key.family, True)):
            if known := self._of.get((name, gpu_model)):
                kept = self._summed_up.setdefault((name, gpu_model), {})
                if is_family not in kept:
                    kept[is_family] = self._summed(known, is_family=is_family)
                return kept[is_family]
            if others := self._models.get(name):
                other = next(reversed(others))
                return self._summed(self._of[name, other], is_family=is_family, part=scale(other, gpu_model))
        return Belief()

    def _summed(self, loads: Sequence[Load], *, is_family: bool, part: float = 1.0) -> Belief:
        """Return the belief from some loads. `part`: factor for SM activity that was measured on another GPU model."""
        measured = [load for load in loads if load.sm_ratio is not None]
        is_from_util = not measured
        util = _middle(load.util_ratio for load in loads)
        sm = self.util_factor * (util or 0.0) if is_from_util else _middle(load.sm_ratio for load in measured) or 0.0
        is_step = all(load.source == "step" for load in loads)
        return Belief(
            sm_ratio=_ratio(part * sm),
            dram_ratio=_ratio(_middle(load.dram_ratio for load in loads)),
            pcie_ratio=_ratio(_middle(load.pcie_ratio for load in loads)),
            busy_ratio=1.0 if util is None else _ratio(util),
            source="family" if is_family else "step" if is_step else "alone",
            is_from_util=is_from_util,
        )


def _middle(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return median(known) if known else None


def _ratio(value: float | None) -> float:
    """Return a ratio from 0 to 1, rounded to 0.01 so that noise does not make the journal grow."""
    return 0.0 if value is None else round(min(max(value, 0.0), 1.0), 2)


def strength(model: str) -> float | None:
    """Return the strength of a GPU model by the driver's name for it; None: not known, or a MIG instance."""
    if "MIG" in model:
        return None
    words = model.replace("-", " ").split()
    for name, value in STRENGTHS.items():
        parts = name.split()
        if all(part in words for part in parts):
            return value
    return None


def scale(measured_on: str, used_on: str) -> float:
    """Return the factor that converts a load from one GPU model to another; 1 if one of them is not known.

    Only clock and number of multiprocessors are compared, not memory or instructions.
    """
    there, here = strength(measured_on), strength(used_on)
    return 1.0 if there is None or here is None else there / here
