"""Decide the GPU memory cap of each attempt, which attempts fit on a GPU together, and the advice for the next run.

The caps of all slots of a GPU fit together. A task that ran out of memory under its cap runs again with a larger cap,
then alone on a GPU. While a larger cap is in force, an attempt starts on that GPU only if the sum of all caps fits, so
no task loses memory within its cap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

from ...core.text import counted
from ..records import Ended

LARGER = 2
"""Factor from the cap that was too small to the larger cap."""
MARGIN = 1.1
"""Least factor from the known need to the larger cap: allocators ask for blocks, and may ask several times."""
ALONE_AFTER = 2
"""Attempts out of memory after which the next attempt has a GPU alone."""
RETRIES_ENOUGH = 2
"""Retries after which a task has had a GPU alone."""
LEARN_AFTER = 3
"""Tasks out of memory under the slots' cap after which further tasks begin with a larger cap, if fewer are done."""
_GIB_MIB = 1024


class Budget(Struct, frozen=True):
    """The memory of one GPU that a launcher divides among its slots there."""

    cap_mib: int
    """Cap of each slot."""
    total_mib: int
    """Limit of the sum of all caps."""
    slots: int
    is_whole: bool
    """True: no other step or job has a slot of this GPU, so a task alone on it needs no cap."""

    @property
    def is_overcommitted(self) -> bool:
        """Return whether the slots' caps together exceed the GPU's memory, as with `--share-gpu=4,mem=40G`."""
        return self.cap_mib * self.slots > self.total_mib


class Memory(Struct, frozen=True):
    """The need of GPU memory that the attempts of a task have shown."""

    failures: int = 0
    cap_mib: int | None = None
    """Largest cap under which an attempt ran out of memory; None: there was no cap."""
    need_mib: int | None = None
    """Least need: the measured use of an attempt plus its failed allocation. None: not known."""
    was_alone: bool = False
    """True: an attempt ran out of memory while it was alone on its GPU."""


class Allowance(Struct, frozen=True):
    """The memory that an attempt may use on a GPU."""

    cap_mib: int | None
    """None: no cap."""
    booked_mib: int
    """Its part of the sum of all caps."""
    is_alone: bool = False
    """True: no other task of the launcher runs on the GPU."""


def after_failure(
    before: Memory, cap_mib: int | None, peak_mib: int | None, asked_mib: int | None, *, is_alone: bool = False
) -> Memory:
    """Return the memory of a task after one more attempt ran out of memory under `cap_mib` (None: no cap)."""
    known = (peak_mib or 0) + (asked_mib or 0) or None
    needs = [need for need in (before.need_mib, known) if need is not None]
    caps = [cap for cap in (before.cap_mib, cap_mib) if cap is not None]
    return Memory(
        before.failures + 1, max(caps, default=None), max(needs, default=None), was_alone=before.was_alone or is_alone
    )


def from_before(last: Mapping[int, Ended]) -> dict[int, Memory]:
    """Return the memory of tasks from the last attempts (`last`) of earlier jobs that ran out of GPU memory."""
    return {
        task: Memory(1, one.gpu_cap_mib, one.peak_gpu_mib) for task, one in last.items() if one.outcome == "gpu memory"
    }


def allowance(budget: Budget, memory: Memory) -> Allowance:
    """Return the allowance of a task's next attempt on a GPU.

    The first attempt has the slot's cap, the next one a larger cap. An attempt has the GPU alone if the larger cap was
    too small too, or would leave no room for another task.
    """
    if memory.failures == 0:
        return Allowance(budget.cap_mib, budget.cap_mib)
    too_small = max(budget.cap_mib, memory.cap_mib or 0)
    larger = max(LARGER * too_small, math.ceil(MARGIN * (memory.need_mib or 0)))
    if memory.failures < ALONE_AFTER and larger + budget.cap_mib <= budget.total_mib:
        return Allowance(larger, larger)
    return Allowance(None if budget.is_whole else budget.total_mib, budget.total_mib, is_alone=True)


def fits(budget: Budget, booked_mib: Sequence[int], wanted: Allowance) -> bool:
    """Return whether an attempt may start on a GPU with these bookings; always True on an empty GPU."""
    if not booked_mib:
        return True
    return not wanted.is_alone and sum(booked_mib) + wanted.booked_mib <= budget.total_mib


def is_too_small(failures: int, done: int) -> bool:
    """Return whether first attempts should have a larger cap than the slot's.

    failures, done: number of tasks that ran out of memory, and that were done, under the slots' cap.
    """
    return failures >= LEARN_AFTER and failures > done


def seen(cap_mib: int | None, peak_mib: int | None, asked_mib: int | None, *, is_alone: bool) -> str:
    """Return the text after "out of GPU memory": the cap in force, and the known need."""
    if cap_mib is not None:
        found = [f"its memory cap was {cap_mib} MiB"]
    else:
        found = ["it was alone on its GPU, without a cap" if is_alone else "it had no memory cap"]
    if peak_mib is not None:
        found.append(f"it used up to {peak_mib} MiB")
    if asked_mib is not None:
        found.append(f"it asked for {asked_mib} MiB{'' if peak_mib is None else ' more'}")
    return ", ".join(found)


def had_most(budgets: Sequence[Budget], budget: Budget, allowed: Allowance | None) -> bool:
    """Return whether an attempt had as much memory as any attempt of the node can have, so that a retry cannot help.

    budget: of its GPU. allowed: its allowance; None: the cap of its slot.
    """
    had_mib = budget.cap_mib if allowed is None else allowed.booked_mib
    if budget.is_overcommitted and (allowed is None or not allowed.is_alone):
        return False  # other tasks may have had its memory
    return had_mib >= max(one.total_mib for one in budgets)


def advice(lost: Sequence[Memory], budgets: Sequence[Budget], retries: int, *, is_number_fixed: bool = False) -> str:
    """Return the advice at the end of a node's part of a run: the options for the next run.

    lost: at least one task that ran out of memory, under a cap or alone on a GPU, and has no attempt left. budgets: of
    the node's GPUs. is_number_fixed: the user wrote the number of tasks on a GPU, so fewer processes do not make the
    caps larger.
    """
    most = max(budget.total_mib for budget in budgets)
    alone = [memory for memory in lost if memory.was_alone]
    capped = [memory for memory in lost if not memory.was_alone]
    if not alone:
        return _advice_of_capped(capped, budgets, retries, is_number_fixed=is_number_fixed)
    less = f"alone on a GPU, where tasks can have {most} MiB; make tasks smaller (for example the batch size)"
    if capped:
        first = _advice_of_capped(capped, budgets, retries, is_number_fixed=is_number_fixed)
        return f"{first}; {len(alone)} more ran out of GPU memory {less}"
    what = counted(len(lost), "task")
    caps = [memory.cap_mib for memory in alone if memory.cap_mib is not None]
    under = f"under a cap of {max(caps)} MiB, and " if caps else ""
    return f"{what} ran out of GPU memory {under}{less}"


def _advice_of_capped(lost: Sequence[Memory], budgets: Sequence[Budget], retries: int, *, is_number_fixed: bool) -> str:
    cap_mib = max(memory.cap_mib or 0 for memory in lost)
    need_mib = max(memory.need_mib or 0 for memory in lost)
    said = f"{counted(len(lost), 'task')} ran out of GPU memory under a cap of {cap_mib} MiB"
    most = max(budget.total_mib for budget in budgets)
    again = [f"--retries {RETRIES_ENOUGH}, which runs them with a larger cap and then alone on a GPU"]
    is_most = most == cap_mib and not any(budget.is_overcommitted for budget in budgets)
    if retries >= RETRIES_ENOUGH or is_most:
        again = []
    fewer = "a smaller number in --share-gpu=N" if is_number_fixed else "fewer processes on a node"
    if is_most and not any(budget.is_whole for budget in budgets):
        return f"{said}, all that the job's part of a GPU gives; write {fewer}, or make tasks smaller"
    if need_mib <= cap_mib:
        larger = [f"--share-gpu=mem=SIZE with more than {cap_mib}M"] if cap_mib < most else []
        return f"{said}; write {_either([fewer, *larger, *again])}"
    said += f" and {'needs' if len(lost) == 1 else 'need'} at least {need_mib} MiB"
    size = math.ceil(need_mib / _GIB_MIB) * _GIB_MIB if need_mib > _GIB_MIB else need_mib
    at_most = sum(budget.total_mib // size for budget in budgets)
    if at_most < 1:
        return f"{said}, more than the {most} MiB that a GPU of this node has for tasks"
    is_less = at_most < sum(budget.slots for budget in budgets)
    node_limit = f" and at most {at_most} processes on a node" if is_less else ""
    text = f"{size}M" if size % _GIB_MIB else f"{size // _GIB_MIB}G"
    return f"{said}; write {', or '.join([f'--share-gpu=mem={text}{node_limit}', *again])}"


def _either(options: Sequence[str]) -> str:
    """Return options as text: "a", "a or b", "a, b, or c"."""
    if len(options) < 3:
        return " or ".join(options)
    return f"{', '.join(options[:-1])}, or {options[-1]}"
