"""Decide each attempt's cap of GPU memory, which attempts fit on a GPU together, and what to write for the next run.

The caps of a GPU's slots together fit into the GPU. A task that ran out of memory under its cap runs again with a
larger one, then alone on a GPU. A larger cap is booked: while it is in force, an attempt starts on that GPU only if the
sum of all caps fits, so that no other task loses memory that it was given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

from ..records import Ended

LARGER = 2
"""The larger cap is this factor times the cap that was too small. So a task whose need is not known reaches it in few
attempts, and not each of them must be alone."""
MARGIN = 1.1
"""The larger cap is at least this factor times the known need: allocators ask in blocks, and may ask again."""
ALONE_AFTER = 2
"""After so many attempts that ran out of memory, the next one has a GPU alone."""
LEARN_AFTER = 3
"""After so many tasks that ran out of memory under the cap of their slots, and more than were done under it, further
tasks begin with a larger cap."""
_GIB_MIB = 1024


class Budget(Struct, frozen=True):
    """The memory of one GPU that a launcher divides among its slots there. MiB."""

    cap_mib: int
    """The cap of each slot."""
    total_mib: int
    """The most that all caps together may be."""
    slots: int
    is_whole: bool
    """No other step or job has a slot of this GPU: a task alone on it needs no cap."""

    @property
    def is_overcommitted(self) -> bool:
        """Return whether the slots' caps together exceed the GPU's memory, as with `--share-gpu=4,mem=40G`."""
        return self.cap_mib * self.slots > self.total_mib


class Memory(Struct, frozen=True):
    """The need of GPU memory that the attempts at a task have shown."""

    failures: int = 0
    """Attempts that ran out of it."""
    cap_mib: int | None = None
    """The largest cap under which an attempt ran out of memory; None: there was no cap."""
    need_mib: int | None = None
    """It needs at least so much: what an attempt was seen with and asked for beyond that. None: not known."""
    was_alone: bool = False
    """One of them was alone on its GPU: it had all that there is."""


class Allowance(Struct, frozen=True):
    """The memory that an attempt may take of a GPU."""

    cap_mib: int | None
    """None: no cap."""
    booked_mib: int
    """What it adds to the sum of the caps."""
    is_alone: bool = False
    """Nothing else of the launcher runs on the GPU."""


def after_failure(
    before: Memory, cap_mib: int | None, peak_mib: int | None, asked_mib: int | None, *, is_alone: bool = False
) -> Memory:
    """Return what is known of a task after one more attempt ran out of memory under that cap (None: without one)."""
    known = (peak_mib or 0) + (asked_mib or 0) or None
    needs = [need for need in (before.need_mib, known) if need is not None]
    caps = [cap for cap in (before.cap_mib, cap_mib) if cap is not None]
    return Memory(
        before.failures + 1, max(caps, default=None), max(needs, default=None), was_alone=before.was_alone or is_alone
    )


def from_before(last: Mapping[int, Ended]) -> dict[int, Memory]:
    """Return what the attempts of earlier jobs have shown, of tasks whose last attempt (`last`) ran out of memory."""
    return {
        task: Memory(1, one.gpu_cap_mib, one.peak_gpu_mib) for task, one in last.items() if one.outcome == "gpu memory"
    }


def allowance(budget: Budget, memory: Memory) -> Allowance:
    """Return what the next attempt at a task may take on that GPU.

    The first has the slot's cap. After that was too small, the next has a larger cap. It has the GPU alone if the
    larger cap was too small as well, or leaves no room for another task.
    """
    if memory.failures == 0:
        return Allowance(budget.cap_mib, budget.cap_mib)
    too_small = max(budget.cap_mib, memory.cap_mib or 0)
    larger = max(LARGER * too_small, math.ceil(MARGIN * (memory.need_mib or 0)))
    if memory.failures < ALONE_AFTER and larger + budget.cap_mib <= budget.total_mib:
        return Allowance(larger, larger)
    return Allowance(None if budget.is_whole else budget.total_mib, budget.total_mib, is_alone=True)


def fits(budget: Budget, booked_mib: Sequence[int], wanted: Allowance) -> bool:
    """Return whether an attempt may start on a GPU where others have booked these amounts; if none have, it may."""
    if not booked_mib:
        return True
    return not wanted.is_alone and sum(booked_mib) + wanted.booked_mib <= budget.total_mib


def is_too_small(failures: int, done: int) -> bool:
    """Return whether tasks that have not begun should begin with a larger cap.

    failures, done: how many tasks ran out of memory, and how many were done, under the slots' cap.
    """
    return failures >= LEARN_AFTER and failures > done


def seen(cap_mib: int | None, peak_mib: int | None, asked_mib: int | None, *, is_alone: bool) -> str:
    """Return the words that follow "out of GPU memory": the cap in force, and what is known of the need."""
    if cap_mib is not None:
        found = [f"its memory cap was {cap_mib} MiB"]
    else:
        found = ["it was alone on its GPU, without a cap" if is_alone else "it had no memory cap"]
    if peak_mib is not None:
        found.append(f"it was seen with {peak_mib} MiB")
    if asked_mib is not None:
        found.append(f"it asked for {asked_mib} MiB{'' if peak_mib is None else ' more'}")
    return ", ".join(found)


def advice(lost: Sequence[Memory], budgets: Sequence[Budget], retries: int) -> str:
    """Return the sentence at the end of a node's part of a run: what to write next time.

    lost: the tasks, at least one, that ran out of memory under a cap or alone on a GPU and have no attempt left.
    budgets: those of the node's GPUs.
    """
    most = max(budget.total_mib for budget in budgets)
    alone = [memory for memory in lost if memory.was_alone]
    capped = [memory for memory in lost if not memory.was_alone]
    if not alone:
        return _advice_of_capped(capped, budgets, retries)
    less = f"alone on a GPU, where {most} MiB are for tasks; a task must need less (a smaller batch)"
    if capped:
        also = f"{len(alone)} more ran out of it {less}"
        return f"{_advice_of_capped(capped, budgets, retries)}; {also}"
    what = "1 task" if len(lost) == 1 else f"{len(lost)} tasks"
    caps = [memory.cap_mib for memory in alone if memory.cap_mib is not None]
    under = f"under a cap of {max(caps)} MiB, and " if caps else ""
    return f"{what} ran out of GPU memory {under}{less}"


def _advice_of_capped(lost: Sequence[Memory], budgets: Sequence[Budget], retries: int) -> str:
    cap_mib = max(memory.cap_mib or 0 for memory in lost)
    need_mib = max(memory.need_mib or 0 for memory in lost)
    what = "1 task" if len(lost) == 1 else f"{len(lost)} tasks"
    said = f"{what} ran out of GPU memory under a cap of {cap_mib} MiB"
    most = max(budget.total_mib for budget in budgets)
    again = f"--retries {max(retries + 1, 2)}, which tries them with a larger cap and then alone on a GPU"
    fewer = "fewer processes on a node"
    if need_mib <= cap_mib:
        larger = f", --share-gpu=mem=SIZE with more than {cap_mib}M," if cap_mib < most else ""
        return f"{said}; write {fewer}{larger} or {again}"
    said += f" and {'needs' if len(lost) == 1 else 'need'} at least {need_mib} MiB"
    size = _round_up(need_mib)
    at_most = sum(budget.total_mib // size for budget in budgets)
    if at_most < 1:
        return f"{said}, more than the {most} MiB that a GPU of this node has for tasks"
    node_limit = (
        f" and at most {at_most} processes on a node" if at_most < sum(budget.slots for budget in budgets) else ""
    )
    return f"{said}; write --share-gpu=mem={_size(size)}{node_limit}, or {again}"


def _round_up(mib: int) -> int:
    return math.ceil(mib / _GIB_MIB) * _GIB_MIB if mib > _GIB_MIB else mib


def _size(mib: int) -> str:
    return f"{mib // _GIB_MIB}G" if mib % _GIB_MIB == 0 else f"{mib}M"
