"""The list of backends, in order of preference. A backend's module is imported when it is needed.

A share that names no backend is served by the first one that can serve it on its node. The last one serves every share.
"""

from __future__ import annotations

from ...core.errors import StateError
from .. import option
from ..records import BACKEND_TIME_SLICING
from ..rules import environment
from .base import Backend

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...core.records import ShareRequest
    from ...core.settings import Settings
    from ..records import Assignment, Plan, Slot


def _mps() -> Backend:
    from .mps import Mps

    return Mps()


def _time_slicing() -> Backend:
    from .time_slicing import TimeSlicing

    return TimeSlicing()


BACKENDS: dict[str, Callable[[], Backend]] = {
    "mps": _mps,
    "time-slicing": _time_slicing,
}
"""Name -> function that imports and makes the backend, the preferred one first."""


def get(name: str) -> Backend:
    """Return the backend of that name. Raises StateError if this release has none."""
    if name not in BACKENDS:
        raise StateError(name, f"is not a backend of this release ({', '.join(BACKENDS)})")
    return BACKENDS[name]()


def every() -> Iterator[Backend]:
    """Return all backends, the preferred one first."""
    return (load() for load in BACKENDS.values())


def wanted(share: ShareRequest | None, settings: Settings) -> tuple[Backend, ...]:
    """Return the backends that may serve a share, in order of preference: the one that it or the site names, or all."""
    name = option.backend_of(share, settings.sharing)
    return tuple(every()) if name is None else (get(name),)


def slot_environment(plan: Plan, slot: Slot) -> tuple[Assignment, ...]:
    """Return all variables of the task in one of the plan's slots.

    A backend that this release does not have needs only the variables in the plan.
    """
    name = slot.backend if slot.backend in BACKENDS else BACKEND_TIME_SLICING
    return environment.slot_environment(plan, slot, get(name).environment(slot))


def is_own_process(name: str) -> bool:
    """Return whether a process of that name on a GPU is a backend's own and not a task."""
    return any(one.process_name and name.startswith(one.process_name) for one in every())
