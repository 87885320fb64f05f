"""Sums and rates of figures, some of which may not be known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from ..snapshot import ProcessLoad

ONE_SAMPLE = "one sample so far"
NO_MAPS = "its mapped files cannot be read"
ONLY_AGENT = "only the node's agent adds it up"
UNREPORTED = "the driver does not report it"
SHORTEST_S = 0.01
"""Shortest time over which a difference of two counters is a rate."""

_Known = TypeVar("_Known")


def rate(now: float | None, before: float | None, dt: float | None) -> float | None:
    """Return the rate of a counter; None if too little time has passed, or if the counter went back (a new one)."""
    if now is None or before is None or dt is None or dt < SHORTEST_S or now < before:
        return None
    return (now - before) / dt


def add_up(values: Iterable[float | None]) -> float | None:
    """Return the sum; None if any value is not known."""
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known, 0.0) if len(known) == len(found) else None


def added(values: Sequence[float | None]) -> float | None:
    """Return the sum; None without values, or if one is not known."""
    return add_up(values) if values else None


def whole(value: float | None) -> int | None:
    """Return the value without its fraction; None if it is not known."""
    return None if value is None else int(value)


def most(first: int | None, second: float | None) -> int | None:
    """Return the larger of the known values; None if neither is known."""
    found = [value for value in (first, second) if value is not None]
    return int(max(found)) if found else None


def first_known(values: Iterable[_Known | None]) -> _Known | None:
    """Return the first known value; None if there is none."""
    return next((value for value in values if value is not None), None)


def uuids(processes: Iterable[ProcessLoad]) -> tuple[str, ...]:
    """Return the UUIDs of the GPUs that the processes are on, each once."""
    return tuple(dict.fromkeys(on.uuid for process in processes for on in process.gpus))
