"""Runs a target over many inputs and returns those that it fails on."""

from __future__ import annotations

import itertools
import time
import traceback
from collections.abc import Callable

from changing import endless, smallest
from msgspec import Struct
from target import Target, may_refuse


class Crash(Struct, frozen=True):
    """An input on which a target failed."""

    target: str
    data: bytes
    error: str
    """The end of its traceback."""


def fault_of(target: Target, data: bytes) -> Exception | None:
    """Return the error that the target should not have raised for the input."""
    try:
        with may_refuse(*target.allowed):
            target.call(data)
    except Exception as error:  # noqa: BLE001  (whatever it is: it should not have been raised)
        return error
    return None


def crash_of(target: Target, data: bytes, fault: Exception) -> Crash:
    """Return the same fault with as few bytes as needed."""
    kind = type(fault)
    least = smallest(data, lambda shorter: type(fault_of(target, shorter)) is kind)
    fault = fault_of(target, least) or fault
    text = "".join(traceback.format_exception(fault, limit=-3))
    # A lone surrogate in it could be neither printed nor sent to another process.
    return Crash(target.name, least, text.encode("utf-8", "backslashreplace").decode())


def run(
    target: Target, seed: object, most: int | None, until: Callable[[], bool] = lambda: False
) -> tuple[int, list[Crash]]:
    """Return the number of inputs and the faults found, one of each kind. Stops after `most` inputs, or at `until`."""
    crashes: dict[str, Crash] = {}
    count = 0
    for data in itertools.islice(endless(target.seeds, seed), most):
        count += 1
        fault = fault_of(target, data)
        if fault is not None:
            where = traceback.extract_tb(fault.__traceback__)[-1]
            kind = f"{type(fault).__name__} {where.filename}:{where.lineno}"
            if kind not in crashes:
                crashes[kind] = crash_of(target, data, fault)
        if count % 32 == 0 and until():
            break
    return count, list(crashes.values())


def after(seconds: float) -> Callable[[], bool]:
    """Return a condition that holds after so many seconds."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end
