"""Preview a run: the known sizes and loads of its tasks, and which of them start at once on idle GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ..decision_records import GiveUp, Start
from ..records import BOOKING, Estimate, GpuFacts, PackSettings, TaskAsk
from ..speed_records import Load
from . import place
from .board import Board
from .estimate.estimator import Estimator
from .policy import Decide
from .speeds import Speeds

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
    model, total_mib = (gpus[0].model, gpus[0].total_mib) if gpus else ("", None)
    known = Speeds() if speeds is None else speeds
    loads = [known.load(ask, model) for ask in asks] if settings.policy == "gain" else None
    groups = _groups([estimator.estimate(ask, model, total_mib) for ask in asks], loads, settings)
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
        source = _unknown(settings) if one.safe_mib is None else one.text
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
