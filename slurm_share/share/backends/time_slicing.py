"""Time-slicing: the driver runs the tasks of a GPU in turn. There is no daemon, and no cap is enforced."""

from __future__ import annotations

from ..records import Limits
from ..rules import environment
from .base import Backend, CleanedUp, Health, PreparedGpu, PreparedGpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ...core.process import Deadline
    from ...core.records import Owner
    from ...mps.records import Namespace
    from ...node.records import Gpu
    from ..records import Assignment, Slot
    from .base import Examination, Host, Leftovers, UserGpu


class TimeSlicing(Backend):
    """The backend that can serve every share on every node."""

    name = "time-slicing"
    title = "time-slicing"
    needs_no_driver = True
    effect = "the tasks of a GPU take turns on it, and no cap is enforced"

    def describe(self, slots: int | None = None) -> str:
        return "without MPS" if slots is None else "0 under MPS"

    def limits(self, driver: str | None, host: Host | None = None, *, connections: int | None = None) -> Limits:
        return Limits(self.name, self.title, effect=self.effect)

    def prepare(
        self,
        host: Host,
        owner: Owner,
        gpus: Sequence[Gpu],
        in_use: Collection[str],
        deadline: Deadline,
        *,
        partitions: int = 0,
        namespaces: Mapping[str, tuple[Namespace, ...]] | None = None,
    ) -> PreparedGpus:
        return PreparedGpus({gpu.uuid: PreparedGpu() for gpu in gpus})

    def environment(self, slot: Slot) -> tuple[Assignment, ...]:
        return environment.WITHOUT_MPS

    def clean_up(self, host: Host, leftovers: Leftovers, deadline: Deadline) -> CleanedUp:
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
        return Health()
