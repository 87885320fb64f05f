"""Say before a run what is known of its tasks' sizes, and which of them start at once on idle GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ..records import BOOKING, Estimate, GiveUp, GpuFacts, PackSettings, Start, TaskAsk
from .board import Board
from .estimate.estimator import Estimator

ROWS = 20
"""Groups that are shown; the smallest are put together."""


class SizeGroup(Struct, frozen=True):
    """Tasks whose sizes have the same source."""

    tasks: int
    least_mib: int | None
    """What the smallest of them is booked with; None: their size is not known."""
    most_mib: int | None
    words: str
    """Where the sizes come from."""


class Preview(Struct, frozen=True):
    """What is known of a run's tasks before it begins."""

    groups: tuple[SizeGroup, ...]
    """Known sizes first, those of most tasks first."""
    placements: tuple[tuple[int, tuple[int, ...]], ...]
    """For each GPU, by its index, the tasks that start there at once; empty where no GPU is known."""
    whole: tuple[tuple[int, int], ...]
    """Tasks that ask for several GPUs, and how many."""
    given_up: tuple[tuple[int, str], ...]
    """Tasks that cannot run on these GPUs, and why."""


def preview_run(
    asks: Sequence[TaskAsk], gpus: Sequence[GpuFacts], workers: int, settings: PackSettings, estimator: Estimator
) -> Preview:
    """Return the sizes of the tasks, and the first placements on these GPUs, which are idle.

    gpus: of one node; none: they are not known. workers: how many tasks may run at once there.
    """
    model, total_mib = (gpus[0].model, gpus[0].total_mib) if gpus else ("", None)
    groups = _groups([estimator.estimate(ask, model, total_mib) for ask in asks], settings)
    whole = tuple((ask.task, ask.gpus) for ask in asks if ask.gpus > 1)
    if not gpus:
        return Preview(groups, (), whole, ())
    board = Board(gpus, workers, settings, estimator)
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
    return Preview(
        groups,
        tuple((gpu.index, tuple(placed[gpu.uuid])) for gpu in gpus),
        whole,
        tuple(given_up.items()),
    )


def _groups(estimates: Sequence[Estimate], settings: PackSettings) -> tuple[SizeGroup, ...]:
    found: dict[tuple[bool, str], list[int]] = {}
    for one in estimates:
        is_known = one.safe_mib is not None
        found.setdefault((is_known, one.words if is_known else _unknown(settings)), []).append(one.safe_mib or 0)
    groups = [
        SizeGroup(len(sizes), min(sizes) if is_known else None, max(sizes) if is_known else None, words)
        for (is_known, words), sizes in found.items()
    ]
    groups.sort(key=lambda group: (group.least_mib is None, -group.tasks, group.words))
    if len(groups) <= ROWS:
        return tuple(groups)
    known = [group for group in groups if group.most_mib is not None]
    shown, rest = known[: ROWS - 2], known[ROWS - 2 :]
    if rest:
        least = min(group.least_mib or 0 for group in rest)
        most = max(group.most_mib or 0 for group in rest)
        shown.append(SizeGroup(sum(group.tasks for group in rest), least, most, f"{len(rest)} further sources"))
    return (*shown, *(group for group in groups if group.most_mib is None))


def _unknown(settings: PackSettings) -> str:
    if settings.policy not in BOOKING and not settings.uses_booking:
        return "first of a kind"
    part = "half of a GPU" if settings.probe_ratio == 0.5 else f"{settings.probe_ratio:.0%} of a GPU"
    return f"first of a kind: {part} is booked until its memory is flat"
