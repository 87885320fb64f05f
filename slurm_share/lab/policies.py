"""Parse policies as a user writes them: `booked`, `lug`, `magm,free_min=2G`, `worst-fit`, `booked,history,long`."""

from __future__ import annotations

from typing import Any, cast, get_args

import msgspec

from ..core import numbers
from ..core.errors import UsageError, quoted, shown
from ..core.text import did_you_mean
from ..packing.records import BOOKING, POLICIES, PackSettings, PolicyName, Undo
from .records import ComparedPolicy

ORACLES = ("first-fit", "best-fit", "worst-fit", "oracle-lug")
"""Policies that need each task's size before it starts. Source: Yousefzadeh 2025, 6.3.3."""
RANDOM = "random"
"""Booking, and a GPU by chance: what `booked` is without its choice of GPU."""
NAMES: tuple[str, ...] = (*POLICIES, "oracle-lug", RANDOM)
MODIFIERS = """\
oracle (sizes are known), estimates (of the tasks so far), history (the second run of the same \
tasks), fifo, short, long (the order of the queue), \
book (free memory is what is not booked), smact_max=0.75 or none, sm_guard=0.95 or none, free_min=2G or none, \
max_per_gpu=N, undo=off or pause"""
COMPARED = ("exclusive", "lug", "worst-fit", "booked", "gain")
"""The default policies of a comparison."""


def parse(text: str, **settings: Any) -> ComparedPolicy:
    """Return the policy of a text. `settings`: further fields of PackSettings. Raises UsageError.

    As published, the policies of Yousefzadeh 2025 keep the order of submission, and a task that ran out of memory gets
    a GPU to itself before any other task starts.
    """
    name, *modifiers = (part.strip() for part in text.split(","))
    if name not in NAMES:
        hint = did_you_mean(name, NAMES) or "."
        raise UsageError(
            f"--policy {shown(text)}: there is no policy {shown(name)!r}{hint} There are {', '.join(NAMES)}"
        )
    is_random = name == RANDOM
    name = "booked" if is_random else name
    chosen: dict[str, Any] = {"policy": cast(PolicyName, name), **settings}
    if name not in BOOKING:
        chosen |= {"recovery": "exclusive", "backfills": False}
    if name == "rr":  # Table 6.3: without conditions, unless they are written
        chosen |= {"smact_max": None, "free_min_mib": None}
    knows, estimates, has_history = name in ORACLES, name in BOOKING, False
    for modifier in modifiers:
        key, equals, value = modifier.partition("=")
        if name != "gain" and key == "undo":
            raise UsageError(f"--policy {shown(text)}: undo= is for gain, and has no effect with {name}; leave it out")
        if modifier == "oracle":
            knows = True
        elif modifier == "estimates":
            estimates = True
        elif modifier == "history":
            estimates = has_history = True
        elif modifier in ("fifo", "short", "long"):
            chosen["order"] = modifier
        elif modifier == "book":
            chosen["uses_booking"] = True
        elif equals and key in ("smact_max", "sm_guard"):
            chosen[key] = None if value == "none" else _ratio(text, value)
        elif equals and key == "undo" and value in get_args(Undo):
            chosen["undo"] = value
        elif equals and key == "free_min":
            chosen["free_min_mib"] = None if value == "none" else mib(f"--policy {text}", value)
        elif equals and key == "max_per_gpu" and (number := numbers.whole(value)):
            chosen["max_per_gpu"] = number
        else:
            raise UsageError(
                f"--policy {shown(text)}: {quoted(modifier)} is not known; the name may be followed by {MODIFIERS}"
            )
    return ComparedPolicy(
        name=text,
        settings=PackSettings(**chosen),
        knows_sizes=knows,
        estimates=estimates,
        has_history=has_history,
        is_random=is_random,
    )


def settled(policy: ComparedPolicy, settle_s: float) -> ComparedPolicy:
    """Return the policy with another time for which a GPU is closed after a start.

    This does not affect `booked`, which closes a GPU only until a task of unknown size shows its first memory.
    """
    settings = msgspec.structs.replace(
        policy.settings, settle_s=settle_s, settle_max_s=max(policy.settings.settle_max_s, settle_s), warm_up_s=settle_s
    )
    return msgspec.structs.replace(policy, settings=settings)


def _ratio(text: str, value: str) -> float:
    try:
        ratio = float(value)
    except ValueError:
        ratio = -1.0
    if not 0.001 <= ratio <= 1.0:
        raise UsageError(
            f"--policy {shown(text)}: {quoted(value)} is not a part from 0 to 1, as smact_max=0.8, or none"
        )
    return ratio


def mib(text: str, value: str) -> int:
    """Return a size such as 5G, 512M or 5120 (MiB). Raises UsageError, which shows `text`."""
    number, unit = (value[:-1], value[-1].upper()) if value[-1:].isalpha() else (value, "M")
    try:
        size = (float(number) if number.isascii() else 0.0) * {"M": 1, "G": 1024, "T": 1024 * 1024}[unit]
    except (ValueError, KeyError):
        size = 0.0
    if not 1 <= size < 2**40:
        raise UsageError(f"{text}: {quoted(value)} is not a size; write 512M, 40G or a number of MiB")
    return int(size)
