"""Time-slicing: the driver lets the tasks of a GPU take turns on it. There is no daemon, and no cap is enforced."""

from __future__ import annotations

from ..records import Limits
from ..rules import environment
from .base import Backend, CleanedUp, Health, Prepared, Served

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ...core.process import Deadline
    from ...core.records import Owner
    from ...node.records import Gpu
    from ..records import Assignment, Slot
    from .base import Examination, Host, Leftovers, UserGpu


class TimeSlicing(Backend):
    """Serves every share, on every node, and needs nothing."""

    name = "time-slicing"
    title = "time-slicing"
    needs_no_driver = True
    effect = "the tasks of a GPU take turns on it, and no cap is enforced"

    def describe(self, slots: int | None = None) -> str:
        """Return it in the words that a plan without daemons has always had in the log."""
        return "without MPS" if slots is None else "0 under MPS"

    def limits(self, driver: str | None, host: Host | None = None, *, connections: int | None = None) -> Limits:
        """Return no limit."""
        return Limits(self.name, self.title, effect=self.effect)

    def prepare(
        self, host: Host, owner: Owner, gpus: Sequence[Gpu], in_use: Collection[str], deadline: Deadline
    ) -> Prepared:
        """Return every GPU as served: there is nothing to start."""
        return Prepared({gpu.uuid: Served() for gpu in gpus})

    def environment(self, slot: Slot) -> tuple[Assignment, ...]:
        """Return the variables that keep a task away from any MPS daemon."""
        return environment.WITHOUT_MPS

    def clean_up(self, host: Host, leftovers: Leftovers, deadline: Deadline) -> CleanedUp:
        """Do nothing."""
        return CleanedUp()

    def health(
        self,
        host: Host,
        of: Collection[UserGpu] | None = None,
        *,
        folders: Collection[str] = (),
        with_processes: bool = False,
        examination: Examination | None = None,
    ) -> Health:
        """Return that there is no daemon."""
        return Health()
