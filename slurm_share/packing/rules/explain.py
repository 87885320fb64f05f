"""Explain decisions in sentences: why a task went to its GPU, and why not to the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...core import numbers
from ...core.errors import UsageError
from ...core.text import gib_text
from ..decision_records import Action, Decision, GiveUp, Hold, Reserve, Start, StartRefusal
from ..events import MadeDecision
from ..lab_parts import policy_of
from ..records import PackView
from .refusals import IN_ORDER, NO_CORES, SAME_AS

_SAME_BEGIN, _SAME_END = SAME_AS.split("{}")


def explain_task(entries: Iterable[MadeDecision], task: int) -> Iterator[tuple[float, tuple[str, ...]]]:
    """Yield the Unix time and the sentences of each decision about a task, unless they equal those before."""
    before: tuple[str, ...] = ()
    for entry in entries:
        if entry.repeats is not None:
            if entry.actions[0].task == task:
                yield entry.unix_s, of_task(task, entry.view, Decision(actions=entry.actions))
            continue
        waits = any(one.ask.task == task for one in entry.view.waiting)
        if not waits and not any(action.task == task for action in entry.actions):
            continue
        try:
            refused = policy_of(entry.view.settings)(entry.view).refused if waits else ()
            lines = of_task(task, entry.view, Decision(actions=entry.actions, refused=refused))
        except (ArithmeticError, UsageError):  # impossible figures, or a policy of a laboratory that is not here
            continue
        if lines and lines != before:
            yield entry.unix_s, lines
        before = lines


def of_task(task: int, view: PackView, decision: Decision) -> tuple[str, ...]:
    """Return what one decision says about a task: its start, end or hold, and the refusal on each GPU.

    The result is empty if the decision is not about the task.
    """
    index = {gpu.facts.uuid: gpu.facts.index for gpu in view.gpus}
    lines = [line for action in decision.actions if (line := _of_action(task, action)) is not None]
    rows = [row for row in decision.refused if row.task == task]
    for row in rows:
        if row.gpu:
            lines.append(_refusal(row, index))
            continue
        sizes = _sizes(row)
        lines.append(f"does not start: {row.why}{sizes}")
        same = _same_as(row)
        lines += [_refusal(other, index) for other in decision.refused if other.task == same and other.gpu]
    if not lines and any(one.ask.task == task for one in view.waiting):
        # The decision ended at a task before this one.
        last = next((row for row in reversed(decision.refused) if row.why in (NO_CORES, IN_ORDER)), None)
        if last is not None:
            lines.append(f"does not start: {last.why} (task {last.task} is before it)")
    return tuple(lines)


def _of_action(task: int, action: Action) -> str | None:
    match action:
        case Start(task=number) if number == task:
            cap = "no cap" if action.cap_mib is None else f"a cap of {gib_text(action.cap_mib)} for each process"
            return f"starts on {action.why}; {gib_text(action.reserve_mib)} reserved, {cap}"
        case Reserve(task=number) if number == task:
            return f"its reservation changes, {action.why}"
        case GiveUp(task=number) if number == task:
            return f"ends without another attempt: {action.why}"
        case Hold(task=number) if number == task:
            return action.why
        case _:
            return None


def _refusal(row: StartRefusal, index: dict[str, int]) -> str:
    where = f"GPU {index[row.gpu]}" if row.gpu in index else row.gpu
    return f"not on {where}: {row.why}{_sizes(row)}"


def _sizes(row: StartRefusal) -> str:
    if row.needs_mib is None or row.room_mib is None:
        return ""
    return f" ({gib_text(max(row.room_mib, 0))} to be booked, {gib_text(row.needs_mib)} wanted)"


def _same_as(row: StartRefusal) -> int | None:
    """Return the task to whose refusals this row refers; None: it has its own."""
    number = row.why.removeprefix(_SAME_BEGIN).removesuffix(_SAME_END)
    return numbers.whole(number) if row.why.startswith(_SAME_BEGIN) else None
