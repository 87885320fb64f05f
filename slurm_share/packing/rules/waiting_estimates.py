"""Cache the estimates of waiting tasks, and renew them when something new is known of their family."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from ..attempt import Attempt
from ..records import Estimate, TaskAsk
from ..speed_records import Load
from .estimate.estimator import Estimator
from .speeds import Speeds

FRESH_ENDS = 8
FRESH_S = 30.0
"""Tasks of a family are estimated again after each of its first FRESH_ENDS ends, then at each doubling and after
FRESH_S: one run among many changes little, and an estimate costs more than a decision."""
ESTIMATES_MOST = 4096
"""Most cached estimates: a run may have a hundred thousand commands."""


class _Family(Struct):
    """Events that make the estimates of a family's tasks outdated."""

    epoch: int = 0
    ends: int = 0
    fresh_s: float = 0.0


class WaitingEstimates:
    """The estimates of one board's waiting tasks."""

    def __init__(
        self, estimator: Estimator | None, speeds: Speeds, models: Mapping[str, int | None], *, has_speeds: bool
    ) -> None:
        """Start without estimates. `models`: GPU model -> memory in MiB. `has_speeds`: the policy uses speeds.
        `estimator` None: sizes are not estimated."""
        self._estimator = estimator
        self._speeds = speeds
        self._models = models
        self._has_speeds = has_speeds
        self._families: dict[str, _Family] = {}
        self._kept: dict[object, tuple[int, tuple[tuple[str, Estimate], ...], tuple[tuple[str, Load], ...], bool]] = {}

    def update(self, attempt: Attempt) -> None:
        """Give a waiting attempt the current estimates of its task."""
        if self._estimator is None:
            return
        ask = attempt.ask
        family = self._families.get(ask.key.family) if ask.key is not None else None
        epoch = 0 if family is None else family.epoch
        if attempt.epoch == epoch:
            return
        known = (ask.key, ask.gpu_mem_mib, ask.gpus)
        kept = self._kept.get(known)
        if kept is None or kept[0] != epoch:
            estimate = self._estimator.estimate
            found = tuple((model, estimate(ask, model, total)) for model, total in self._models.items())
            kept = (epoch, found, self._loads(ask), self._has_speeds and self._speeds.is_new(ask, self._models))
            if len(self._kept) >= ESTIMATES_MOST:
                self._kept.clear()
            self._kept[known] = kept
        attempt.epoch = epoch
        if (attempt.estimates, attempt.loads, attempt.is_new) != kept[1:]:
            attempt.estimates, attempt.loads, attempt.is_new = kept[1:]
            attempt.waiting_view = None

    def learned(self, family: str) -> None:
        """Renew the estimates of a family's waiting tasks, or of all if `family` is empty."""
        for name in [family] if family else list(self._families):
            self._families.setdefault(name, _Family()).epoch += 1

    def freshen(self, name: str, now_s: float) -> None:
        """Renew the estimates of a family's waiting tasks, and note the time."""
        family = self._families.setdefault(name, _Family())
        family.epoch += 1
        family.fresh_s = now_s

    def ended(self, name: str, now_s: float, *, is_memory: bool) -> bool:
        """Count the end of a task of a family. Return whether the family's estimates should be renewed.

        `is_memory`: the task ran out of GPU memory, which always renews them.
        """
        family = self._families.setdefault(name, _Family())
        family.ends += 1
        is_few = family.ends <= FRESH_ENDS or family.ends & (family.ends - 1) == 0
        return is_few or now_s - family.fresh_s >= FRESH_S or is_memory

    def _loads(self, ask: TaskAsk) -> tuple[tuple[str, Load], ...]:
        """Return the measured load of a task on each GPU model on which it is known."""
        if not self._has_speeds:
            return ()
        found = ((model, self._speeds.load(ask, model)) for model in self._models)
        return tuple((model, load) for model, load in found if load is not None)
