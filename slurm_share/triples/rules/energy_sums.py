"""Add up the energy of a run: that of tasks, of attempts that failed, and of GPUs without a task of the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import UNSET, Struct

from ...core.text import joules_text
from ...usage import JobUse
from ..records import Ended, Outcome

FAILED: frozenset[Outcome] = frozenset(
    {"failed", "signal", "gpu memory", "host memory", "time limit", "disturbed", "not started"}
)
"""Outcomes whose work is lost. `saved` goes on where it was, and of `unfinished` that is not known."""


class EnergySums(Struct, frozen=True, kw_only=True):
    """The energy of a run's GPUs while its launchers ran, joules."""

    tasks_j: float
    """Energy that tasks were charged with."""
    failed_j: float
    """The part of that of attempts that failed, as far as they ran for a second."""
    short_j: float
    """The part of `tasks_j` of tasks that ran for less than a second, whose results have no energy."""
    unattributed_j: float
    """Energy of times in which a GPU had no task of the run, and of processes of others there."""

    def sentence(self, done: int) -> str:
        """Return the sums as a sentence. `done`: number of tasks that are done."""
        parts = [f"energy {joules_text(self.tasks_j)} by tasks"]
        if done and self.tasks_j:
            parts.append(f"{joules_text(self.tasks_j / done)} for each that is done")
        if self.failed_j >= 0.001 * self.tasks_j and self.failed_j > 0:
            parts.append(f"{joules_text(self.failed_j)} of it in attempts that failed")
        if self.unattributed_j > 0:
            parts.append(f"beside it {joules_text(self.unattributed_j)} of these GPUs without a task of the run")
        return ", ".join(parts)


class EnergyTally:
    """Adds up the energy of a run from its results and the records of its launchers."""

    def __init__(self, uses: Sequence[JobUse]) -> None:
        """`uses`: of all starts of all nodes."""
        self._gpus = [gpu for use in uses for gpu in use.others]
        self._failed_j = 0.0

    def passed_on(self, attempts: Iterable[tuple[int, Ended]]) -> Iterator[tuple[int, Ended]]:
        """Yield attempts with their places unchanged, and add each of them."""
        for place, ended in attempts:
            if ended.energy_j is not UNSET and ended.outcome in FAILED:
                self._failed_j += ended.energy_j
            yield place, ended

    def sums(self) -> EnergySums:
        """Return the sums of what was added."""
        unattributed_j = sum(gpu.unattributed_j for gpu in self._gpus)
        return EnergySums(
            tasks_j=round(sum(gpu.total_j for gpu in self._gpus) - unattributed_j, 3),
            failed_j=round(self._failed_j, 3),
            short_j=round(sum(gpu.short_j for gpu in self._gpus), 3),
            unattributed_j=round(unattributed_j, 3),
        )
