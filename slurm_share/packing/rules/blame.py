"""Decide why an attempt ended: by its own fault, by a neighbour's, or because the GPU failed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ...core.text import gib_text
from ..attempt import Attempt
from ..records import EndFacts, EndKind
from . import endings, guarantee, log_messages, recover
from .gpu_state import GpuState
from .room import usable

FAULT_WINDOW_S = 10.0
"""If several tasks on one GPU end by a CUDA fault within this time, the first of them is the cause."""


_NO_MORE = "and its GPU had no more free memory"


class EndCause(Struct, frozen=True, kw_only=True):
    """How an attempt ended, and what caused it."""

    kind: EndKind
    reason: str
    had: recover.AttemptMemory
    """The memory that the attempt had and could have had."""
    is_moved: bool = False
    """The task was told to save its state and end, and did so."""


def judge(
    facts: EndFacts,
    task: Attempt,
    gpus: Collection[GpuState],
    *,
    is_blind: bool,
    had: recover.AttemptMemory | None = None,
) -> EndCause:
    """Return how a task ended that still counts as running. `gpus`: all GPUs of the node.

    Also records a CUDA fault, and takes a failed GPU out of service. `had`: what the attempt had in its slot; then no
    neighbour is blamed, since caps keep tasks apart and --retries pays for each end. None: that follows from bookings.
    """
    on = [gpu for gpu in gpus if gpu.facts.uuid in task.gpus]
    is_slot, room_mib = had is not None, 0
    cap_mib = None if task.cap_mib is None else task.cap_mib * max(task.estimate.processes, 1)
    if had is None:
        room_mib = on[0].room_mib(is_blind=is_blind)
        had = _had(facts, task, on[0], room_mib, cap_mib, is_blind=is_blind)
    cap_ratio = None if not cap_mib or task.memory_mib is None else task.memory_mib / cap_mib
    kind, reason = endings.classify(facts, cap_ratio, guarantee.above_mib(task))
    wanted_mib = log_messages.wanted_mib(facts.log_tail, task.memory_mib)
    if kind in ("gpu memory", "gpu memory likely") and guarantee.is_below_most(task, wanted_mib, cap_mib):
        kind, reason = guarantee.ABOVE, f"above its guaranteed {gib_text(task.least_mib or 0)}, {_NO_MORE} ({reason})"
    is_job_ending = facts.is_stopped_by_us or facts.is_told_to_save
    is_moved = task.is_moving and not is_job_ending and kind in recover.MOVED_KINDS
    if is_moved:
        # A program that has saved its state may end with exit code 0.
        return EndCause(kind="unfinished", reason=reason, had=had, is_moved=True)
    if kind == "device":
        kind, reason = _judge_device(reason, facts, on, gpus)
        return EndCause(kind=kind, reason=reason, had=had)
    if is_slot:
        return EndCause(kind=kind, reason=reason, had=had)
    if kind in ("gpu memory", "gpu memory likely"):
        return _judge_memory(kind, reason, facts, task, had, room_mib, on)
    if kind in ("failed", "signal") and endings.is_fault(facts):
        return _judge_fault(kind, reason, facts, task, had, on)
    return EndCause(kind=kind, reason=reason, had=had)


def _judge_memory(
    kind: EndKind,
    reason: str,
    facts: EndFacts,
    task: Attempt,
    had: recover.AttemptMemory,
    room_mib: int,
    on: Sequence[GpuState],
) -> EndCause:
    """Return whether a task ran out of memory by its own need."""
    blamed = _outgrown(task, had, on)
    if blamed:
        return EndCause(kind="neighbour's memory", reason=_blame_text(blamed), had=had)
    if room_mib < 0 and not had.is_alone and _stayed_within(task, had) and not _had_its_grant(task, facts, on[0]):
        reason = f"other processes took memory of its GPU that was booked ({reason})"
        return EndCause(kind="neighbour's memory", reason=reason, had=had)
    return EndCause(kind=kind, reason=reason, had=had)


def _judge_fault(
    kind: EndKind, reason: str, facts: EndFacts, task: Attempt, had: recover.AttemptMemory, on: Sequence[GpuState]
) -> EndCause:
    """Return whether a task caused the CUDA fault that ended it."""
    if task.partition is not None and on[0].facts.has_own_faults:
        # The fault of a task in another partition does not end this one (docs.nvidia.com/deploy/mps, release 610).
        return EndCause(kind=kind, reason=reason, had=had)
    culprit = _culprit(task, facts, on)
    if culprit is not None:
        reason = f"a CUDA fault ended it; task {culprit} was the first that it ended ({reason})"
        return EndCause(kind="neighbour's fault", reason=reason, had=had)
    gpu = on[0]
    if gpu.facts.is_mps and len(gpu.running) > 1 and not task.is_alone:
        # MPS does not show which client caused a fault: the first to end may be a victim, too.
        reason = f"a CUDA fault ended it, its own or a neighbour's ({reason})"
        return EndCause(kind="neighbour's fault", reason=reason, had=replace(had, is_suspect=True))
    return EndCause(kind=kind, reason=reason, had=had)


def _judge_device(
    reason: str, facts: EndFacts, its: Sequence[GpuState], gpus: Collection[GpuState]
) -> tuple[EndKind, str]:
    """Return whether the GPU of a task has failed, and the reason.

    Takes a failed GPU out of service, or gives GPUs back to it that only this task's log took out: then the task has
    failed, and not they. `its`: the GPUs of the task. `gpus`: all GPUs of the node.
    """
    if facts.is_device_lost or _is_believed(facts.task, its, gpus):
        for gpu in its:
            gpu.out_by = None if facts.is_device_lost or gpu.is_out else facts.task
            gpu.is_out, gpu.problem, gpu.view = True, gpu.problem or reason, None
        return "device", reason
    _give_back(facts.task, gpus)
    return "failed", f"{reason}, which the driver does not confirm"


# ---- Memory ----


def _had(
    facts: EndFacts, task: Attempt, gpu: GpuState, room_mib: int, cap_mib: int | None, *, is_blind: bool
) -> recover.AttemptMemory:
    """Return the memory that a task had and could have had."""
    # Without a cap and without a neighbour it could use the whole GPU.
    had_all = task.is_alone or (cap_mib is None and not task.was_joined and not gpu.booked_elsewhere)
    had_mib = usable(gpu.make_view(is_blind=is_blind)) if had_all else _had_room(task, room_mib, cap_mib)
    own_mib = task.estimate.safe_mib if task.ask.gpu_mem_mib is None else task.ask.gpu_mem_mib
    return recover.AttemptMemory(
        reserved_mib=task.reserved_mib,
        cap_mib=cap_mib,
        peak_mib=task.peak_mib,
        room_mib=had_mib,
        is_alone=had_all,
        by_user=task.estimate.source == "user" and task.reserved_mib == own_mib,
        wanted_mib=log_messages.wanted_mib(facts.log_tail, task.peak_mib),
        least_mib=task.least_mib,
        most_mib=guarantee.most_of(task.ask),
    )


def _had_room(task: Attempt, room_mib: int, cap_mib: int | None) -> int:
    """Return what a task with neighbours could have had on its GPU, in MiB."""
    have = max(room_mib, 0) + max(task.reserved_mib, task.memory_mib or 0)
    return have if cap_mib is None else min(have, max(cap_mib, task.reserved_mib))


def _outgrown(task: Attempt, had: recover.AttemptMemory, on: Sequence[GpuState]) -> Sequence[tuple[int, Attempt]]:
    """Return the neighbours that outgrew their grant, if this task stayed within its own; else none."""
    if not _stayed_within(task, had):
        return ()
    found = {
        number: one
        for gpu in on
        for number, one in gpu.running.items()
        if one is not task and (one.peak_mib or 0) > one.granted_mib
    }
    return tuple((number, found[number]) for number in sorted(found))


def _stayed_within(task: Attempt, had: recover.AttemptMemory) -> bool:
    """Return whether a task neither had nor asked for more than it was granted."""
    return max(had.peak_mib or 0, had.wanted_mib or 0) <= task.granted_mib


def _had_its_grant(task: Attempt, facts: EndFacts, gpu: GpuState) -> bool:
    """Return whether the rest of a task's grant was free on its GPU. Then its own cap ended it.

    For a moment, a new task of another launcher counts twice: as booked, and as memory without an owner.
    """
    total_mib = gpu.facts.total_mib
    if total_mib is None or facts.room_ratio is None:
        return False
    return facts.room_ratio * total_mib >= task.granted_mib - (task.memory_mib or 0)


def _blame_text(blamed: Sequence[tuple[int, Attempt]]) -> str:
    """Return which tasks outgrew their reservations: "task 12 outgrew its 6.0 GiB (7.8)"."""
    return "; ".join(
        f"task {number} outgrew its {gib_text(one.granted_mib)} ({(one.peak_mib or 0) / 1024:.1f})"
        for number, one in blamed
    )


# ---- CUDA faults and failed GPUs ----


def _culprit(task: Attempt, facts: EndFacts, on: Sequence[GpuState]) -> int | None:
    """Return the first task that a recent CUDA fault ended on the same GPU; None: this task is the first.

    An older fault did not end a task that started after it.
    """
    for gpu in on:
        if gpu.fault is None or gpu.fault[1] == facts.task:
            continue
        at_s, first = gpu.fault
        if task.started_s <= at_s and facts.now_s - at_s <= FAULT_WINDOW_S:
            return first
    for gpu in on:
        gpu.fault = (facts.now_s, facts.task)
    return None


def _is_believed(task: int, its: Sequence[GpuState], gpus: Collection[GpuState]) -> bool:
    """Return whether the log of a task is enough to take its GPU out of service.

    It is not if the same task alone has reported another GPU, or if no other GPU would be left: a program that prints
    such a message by mistake must not end the run.
    """
    others = [gpu for gpu in gpus if gpu not in its]
    if any(task in gpu.doubted for gpu in gpus) or any(gpu.out_by == task for gpu in others):
        return False
    return any(not (gpu.is_out or gpu.problem) for gpu in others)


def _give_back(task: int, gpus: Collection[GpuState]) -> None:
    """Return to service the GPUs that only this task's log took out."""
    for gpu in gpus:
        if gpu.out_by == task:
            gpu.is_out, gpu.out_by, gpu.problem, gpu.view = False, None, "", None
            gpu.doubted.add(task)
