"""Estimates of waiting tasks: asked for again where their family has something new, and kept meanwhile."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from ..records import Estimate, TaskAsk, WaitingView
from ..speed_records import Belief
from .estimate.estimator import Estimator
from .speeds import Speeds

FRESH_ENDS = 8
"""After each of so many ends of a family its tasks are estimated again; later, at each doubling and after"""
ESTIMATES_MOST = 4096
"""So many estimates are kept: a run may have a hundred thousand commands."""
FRESH_S = 30.0
"""so many seconds: one more run among many changes little, and an estimate costs more than a decision."""


class Wait:
    """One waiting task."""

    __slots__ = ("epoch", "seq", "view")

    def __init__(self, view: WaitingView, seq: int) -> None:
        self.view = view
        self.seq = seq
        self.epoch = -1  # its estimates have never been asked for


class _Family:
    """What changes the estimates of a family's tasks."""

    __slots__ = ("ends", "epoch", "fresh_s")

    def __init__(self) -> None:
        self.epoch = 0
        self.ends = 0
        self.fresh_s = 0.0


class WaitingEstimates:
    """The estimates of one board's waiting tasks."""

    def __init__(
        self, estimator: Estimator, speeds: Speeds, models: Mapping[str, int | None], *, has_speeds: bool
    ) -> None:
        """`models`: GPU model -> its memory in MiB. `has_speeds`: the policy asks for beliefs."""
        self._estimator = estimator
        self._speeds = speeds
        self._models = models
        self._has_speeds = has_speeds
        self._families: dict[str, _Family] = {}
        self._kept: dict[object, tuple[int, tuple[tuple[str, Estimate], ...], tuple[tuple[str, Belief], ...]]] = {}

    def update(self, wait: Wait) -> WaitingView:
        """Return a waiting task's view with estimates that are not out of date."""
        ask = wait.view.ask
        family = self._families.get(ask.key.family) if ask.key is not None else None
        epoch = 0 if family is None else family.epoch
        if wait.epoch == epoch:
            return wait.view
        known = (ask.key, ask.gpu_mem_mib, ask.gpus)
        kept = self._kept.get(known)
        if kept is None or kept[0] != epoch:
            found = tuple((model, self._estimator.estimate(ask, model, total)) for model, total in self._models.items())
            kept = (epoch, found, self._beliefs(ask))
            if len(self._kept) >= ESTIMATES_MOST:
                self._kept.clear()
            self._kept[known] = kept
        wait.epoch = epoch
        if wait.view.estimates != kept[1] or wait.view.beliefs != kept[2]:
            wait.view = replace(wait.view, estimates=kept[1], beliefs=kept[2])
        return wait.view

    def learned(self, family: str) -> None:
        """Ask again for the waiting tasks of a family, or for all of them if it is empty."""
        for name in [family] if family else list(self._families):
            self._families.setdefault(name, _Family()).epoch += 1

    def freshen(self, name: str, now_s: float) -> None:
        """Ask again for the waiting tasks of a family, of which something was seen now."""
        family = self._families.setdefault(name, _Family())
        family.epoch += 1
        family.fresh_s = now_s

    def ended(self, name: str, now_s: float, *, is_memory: bool) -> bool:
        """Note the end of a task of a family; return whether its waiting tasks are to be asked for again.

        `is_memory`: it ran out of GPU memory, which always counts.
        """
        family = self._families.setdefault(name, _Family())
        family.ends += 1
        is_few = family.ends <= FRESH_ENDS or family.ends & (family.ends - 1) == 0
        return is_few or now_s - family.fresh_s >= FRESH_S or is_memory

    def _beliefs(self, ask: TaskAsk) -> tuple[tuple[str, Belief], ...]:
        """Return what a task is believed to take on each GPU model; nothing where nothing is known of it."""
        if not self._has_speeds:
            return ()
        found = tuple((model, self._speeds.belief(ask, model)) for model in self._models)
        return () if all(one == _NO_BELIEF for _, one in found) else found


_NO_BELIEF = Belief()
