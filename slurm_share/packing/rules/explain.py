"""Explain decisions in sentences: why a task went to its GPU, and why not to the others. Preview those of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from ...core import numbers
from ...core.errors import UsageError
from ...core.text import gib_text
from ..decision_records import Action, Decision, GiveUp, Hold, Reserve, Start, StartRefusal
from ..events import MadeDecision
from ..lab_parts import policy_of
from ..records import BOOKING, Estimate, GpuFacts, PackSettings, PackView, TaskAsk
from ..speed_records import Load
from . import place
from .board import Board
from .estimate.estimator import Estimator
from .policy import Decide
from .refusals import IN_ORDER, NO_CORES, SAME_AS
from .room import size_basis
from .speeds import Speeds

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


ROWS = 20
"""Most groups that are shown; the smallest ones are merged."""


class SizeGroup(Struct, frozen=True):
    """Tasks whose sizes have the same source."""

    tasks: int
    least_mib: int | None
    """Smallest reservation; None: their size is not known."""
    most_mib: int | None
    source: str
    """Source of the sizes, as text."""
    sm: str = ""
    """SM activity of the tasks alone, with its source; empty: the policy does not use it."""


class Preview(Struct, frozen=True):
    """Known facts about the tasks of a run before it begins."""

    groups: tuple[SizeGroup, ...]
    """Known sizes first, then by falling number of tasks."""
    placements: tuple[tuple[int, tuple[int, ...]], ...]
    """(GPU index, tasks that start there at once); empty: no GPU is known."""
    whole: tuple[tuple[int, int], ...]
    """(task, number of GPUs) of tasks that ask for several GPUs."""
    given_up: tuple[tuple[int, str], ...]
    """(task, reason) of tasks that cannot run on these GPUs."""


def preview_run(
    asks: Sequence[TaskAsk],
    gpus: Sequence[GpuFacts],
    workers: int,
    settings: PackSettings,
    estimator: Estimator,
    speeds: Speeds | None = None,
    policy: Decide = place.decide,
) -> Preview:
    """Return the sizes of the tasks, and the first placements on these GPUs when they are idle.

    gpus: of one node; empty: not known. workers: tasks that may run at once there. policy: makes the decisions.
    """
    model = gpus[0].model if gpus else ""
    known = Speeds() if speeds is None else speeds
    loads = [known.load(ask, model) for ask in asks] if settings.policy == "gain" else None
    estimates = [estimator.estimate(ask, model, size_basis(ask, gpus).get(model)) for ask in asks]
    groups = _groups(estimates, loads, settings)
    whole = tuple((ask.task, ask.gpus) for ask in asks if ask.gpus > 1)
    if not gpus:
        return Preview(groups, (), whole, ())
    board = Board(gpus, workers, settings, estimator, known, policy=policy)
    for ask in asks:
        board.add(ask, 0.0)
    placed: dict[str, list[int]] = {gpu.uuid: [] for gpu in gpus}
    given_up: dict[int, str] = {}
    for _ in range(workers + len(asks)):  # a decision may start one task only on each GPU
        _, decision = board.decide(0.0)
        changes = [action for action in decision.actions if isinstance(action, Start | GiveUp)]
        for action in changes:
            if isinstance(action, GiveUp):
                given_up[action.task] = action.why
            else:
                for uuid in action.gpus:
                    placed[uuid].append(action.task)
        if not any(isinstance(action, Start) for action in changes):
            break
    return Preview(groups, tuple((gpu.index, tuple(placed[gpu.uuid])) for gpu in gpus), whole, tuple(given_up.items()))


def _groups(
    estimates: Sequence[Estimate], loads: Sequence[Load | None] | None, settings: PackSettings
) -> tuple[SizeGroup, ...]:
    found: dict[str, list[tuple[int | None, Load | None]]] = {}
    for one, load in zip(estimates, loads or [None] * len(estimates), strict=True):
        source = _unknown(settings) if one.safe_mib is None and one.source != "user" else one.text
        found.setdefault(source, []).append((one.safe_mib, load))
    groups = []
    for source, tasks in found.items():
        sizes = [mib for mib, _ in tasks if mib is not None]
        sm = "" if loads is None else sm_text([load for _, load in tasks])
        groups.append(SizeGroup(len(tasks), min(sizes, default=None), max(sizes, default=None), source, sm))
    groups.sort(key=lambda group: (group.least_mib is None, -group.tasks, group.source))
    if len(groups) <= ROWS:
        return tuple(groups)
    known = [group for group in groups if group.most_mib is not None]
    shown, rest = known[: ROWS - 2], known[ROWS - 2 :]
    if rest:
        least = min(group.least_mib or 0 for group in rest)
        most = max(group.most_mib or 0 for group in rest)
        sm = "" if not rest[0].sm else "various"
        shown.append(SizeGroup(sum(group.tasks for group in rest), least, most, f"{len(rest)} further sources", sm))
    return (*shown, *(group for group in groups if group.most_mib is None))


def sm_text(loads: Sequence[Load | None]) -> str:
    """Return the measured SM activity of tasks as text: "0.41 measured", "0.38-0.52 family", "unknown"."""
    known = [load for load in loads if load is not None]
    if not known:
        return "unknown"
    least, most = min(load.sm_ratio for load in known), max(load.sm_ratio for load in known)
    figures = f"{least:.2f}" if f"{least:.2f}" == f"{most:.2f}" else f"{least:.2f}-{most:.2f}"
    sources = {"family" if load.is_family else "measured" for load in known}
    source = sources.pop() if len(sources) == 1 else "measured, some family"
    return f"{figures} {source}" + (", some unknown" if len(known) < len(loads) else "")


def _unknown(settings: PackSettings) -> str:
    if settings.policy not in BOOKING and not settings.uses_booking:
        return "first of a kind"
    part = "half of a GPU" if settings.probe_ratio == 0.5 else f"{settings.probe_ratio:.0%} of a GPU"
    return f"first of a kind: {part} is booked until its memory is flat"
