"""Say how an attempt ended, with what is known of its GPU: whether it, a neighbour or the GPU itself was the cause."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ...core.text import gib_text
from ..records import EndFacts, EndKind, RunningView
from . import endings, log_messages, recover
from .gpu_state import GpuState, TaskState
from .room import usable

FAULT_WINDOW_S = 10.0
"""Tasks on one GPU that end by a CUDA fault within so many seconds ended by the fault of the first of them."""


class Verdict(Struct, frozen=True, kw_only=True):
    """How an attempt ended, and whose fault it was."""

    kind: EndKind
    reason: str
    had: recover.Had
    """The memory that it had and could have had."""
    blamed: tuple[int, ...] = ()
    """Other tasks that were the cause."""
    returned: tuple[str, ...] = ()
    """GPUs (UUIDs) that are back in service, since it was the task and not they that failed."""
    is_moved: bool = False
    """It was told to save its state and end, and did."""


def judge(facts: EndFacts, task: TaskState, gpus: Collection[GpuState], *, is_blind: bool) -> Verdict:
    """Return how a task ended that still counts as running. `gpus`: all of the node.

    Also notes a CUDA fault, and takes a failed GPU out of service.
    """
    view = task.view
    room_mib = task.gpus[0].room_mib(is_blind=is_blind)
    cap_mib = None if view.cap_mib is None else view.cap_mib * max(view.estimate.processes, 1)
    had = _had(facts, task, room_mib, cap_mib, is_blind=is_blind)
    cap_ratio = None if not cap_mib or view.memory_mib is None else view.memory_mib / cap_mib
    kind, reason = endings.classify(facts, cap_ratio)
    is_moved = view.is_moving and not facts.is_stopped_by_us and kind in recover.MOVED_KINDS
    if is_moved:
        # Also with exit code 0: so ends a program that has saved its state.
        return Verdict(kind="unfinished", reason=reason, had=had, is_moved=True)
    if kind in ("gpu memory", "gpu memory likely"):
        return _judge_memory(kind, reason, facts, task, had, room_mib)
    if kind in ("failed", "signal") and endings.is_fault(facts):
        return _judge_fault(kind, reason, facts, task, had)
    if kind == "device":
        return _judge_device(reason, facts, task, had, gpus)
    return Verdict(kind=kind, reason=reason, had=had)


def _judge_memory(
    kind: EndKind, reason: str, facts: EndFacts, task: TaskState, had: recover.Had, room_mib: int
) -> Verdict:
    """Return whether a task that ran out of memory did so by its own need."""
    blamed = _outgrown(task, had)
    if blamed:
        numbers = tuple(number for number, _ in blamed)
        return Verdict(kind="neighbour's memory", reason=_blame_text(blamed), had=had, blamed=numbers)
    if room_mib < 0 and not had.is_alone and _stayed_within(task, had) and not _had_its_grant(task, facts):
        reason = f"other processes took memory of its GPU that was booked ({reason})"
        return Verdict(kind="neighbour's memory", reason=reason, had=had)
    return Verdict(kind=kind, reason=reason, had=had)


def _judge_fault(kind: EndKind, reason: str, facts: EndFacts, task: TaskState, had: recover.Had) -> Verdict:
    """Return whether a task that a CUDA fault ended was the one that caused it."""
    culprit = _culprit(task, facts)
    if culprit is not None:
        reason = f"a CUDA fault ended it; task {culprit} was the first that it ended ({reason})"
        return Verdict(kind="neighbour's fault", reason=reason, had=had, blamed=(culprit,))
    gpu = task.gpus[0]
    if gpu.facts.is_mps and len(gpu.running) > 1 and not task.view.is_alone:
        # Which client of an MPS server caused a fault cannot be seen: the first to end may be a victim, too.
        reason = f"a CUDA fault ended it, its own or a neighbour's ({reason})"
        return Verdict(kind="neighbour's fault", reason=reason, had=replace(had, is_suspect=True))
    return Verdict(kind=kind, reason=reason, had=had)


def _judge_device(
    reason: str, facts: EndFacts, task: TaskState, had: recover.Had, gpus: Collection[GpuState]
) -> Verdict:
    """Return whether the GPU of a task has failed; then it is out of service from now on."""
    if facts.is_device_lost or _is_believed(task, gpus):
        for gpu in task.gpus:
            gpu.out_by = None if facts.is_device_lost or gpu.is_out else facts.task
            gpu.is_out, gpu.problem, gpu.view = True, gpu.problem or reason, None
        return Verdict(kind="device", reason=reason, had=had)
    returned = _give_back(facts.task, gpus)
    reason = f"{reason}, which the driver does not say"
    return Verdict(kind="failed", reason=reason, had=had, returned=returned)


# ---- Memory ----


def _had(facts: EndFacts, task: TaskState, room_mib: int, cap_mib: int | None, *, is_blind: bool) -> recover.Had:
    """Return the memory that a task had and could have had."""
    view = task.view
    gpu = task.gpus[0]
    # Without a cap and without a neighbour it had all that there is, whatever it was started with.
    had_all = view.is_alone or (cap_mib is None and not task.was_joined and not gpu.booked_elsewhere)
    had_mib = usable(gpu.make_view(is_blind=is_blind)) if had_all else _had_room(view, room_mib, cap_mib)
    return recover.Had(
        reserved_mib=view.reserved_mib,
        cap_mib=cap_mib,
        peak_mib=view.peak_mib,
        room_mib=had_mib,
        is_alone=had_all,
        by_user=view.estimate.source == "user" and view.reserved_mib == view.ask.gpu_mem_mib,
        wanted_mib=log_messages.wanted_mib(facts.log_tail, view.peak_mib),
    )


def _had_room(view: RunningView, room_mib: int, cap_mib: int | None) -> int:
    """Return what a task with neighbours could have had on its GPU, in MiB."""
    have = max(room_mib, 0) + max(view.reserved_mib, view.memory_mib or 0)
    return have if cap_mib is None else min(have, max(cap_mib, view.reserved_mib))


def _outgrown(task: TaskState, had: recover.Had) -> Sequence[tuple[int, TaskState]]:
    """Return the tasks that outgrew what they were granted, if this one stayed within its own; else none."""
    if not _stayed_within(task, had):
        return ()
    found = {
        number: one
        for gpu in task.gpus
        for number, one in gpu.running.items()
        if one is not task and (one.view.peak_mib or 0) > one.granted_mib
    }
    return tuple((number, found[number]) for number in sorted(found))


def _stayed_within(task: TaskState, had: recover.Had) -> bool:
    """Return whether a task neither had nor asked for more than it was granted."""
    return max(had.peak_mib or 0, had.wanted_mib or 0) <= task.granted_mib


def _had_its_grant(task: TaskState, facts: EndFacts) -> bool:
    """Return whether its GPU had all that it was granted and had not taken free: then its own cap ended it.

    What other launchers have just started is counted twice for a moment, as booked and as memory of nobody.
    """
    total_mib = task.gpus[0].facts.total_mib
    if total_mib is None or facts.room_ratio is None:
        return False
    return facts.room_ratio * total_mib >= task.granted_mib - (task.view.memory_mib or 0)


def _blame_text(blamed: Sequence[tuple[int, TaskState]]) -> str:
    """Return for people which tasks outgrew their reservations: "task 12 outgrew its 6.0 GiB (7.8)"."""
    return "; ".join(
        f"task {number} outgrew its {gib_text(one.granted_mib)} ({(one.view.peak_mib or 0) / 1024:.1f})"
        for number, one in blamed
    )


# ---- CUDA faults, and GPUs that fail ----


def _culprit(task: TaskState, facts: EndFacts) -> int | None:
    """Return the task that was first to end by a CUDA fault on the same GPU just before; None: this one is.

    A task that was started after that fault has met another one.
    """
    for gpu in task.gpus:
        if gpu.fault is None or gpu.fault[1] == facts.task:
            continue
        at_s, first = gpu.fault
        if task.view.started_s <= at_s and facts.now_s - at_s <= FAULT_WINDOW_S:
            return first
    for gpu in task.gpus:
        gpu.fault = (facts.now_s, facts.task)
    return None


def _is_believed(task: TaskState, gpus: Collection[GpuState]) -> bool:
    """Return whether a task's log is enough to take its GPU out of service.

    Not if it says the same of a second GPU that nobody else complains of, nor if no other GPU would be left: one
    program that prints such words is not to end the run.
    """
    others = [gpu for gpu in gpus if gpu not in task.gpus]
    if any(gpu.out_by == task.view.ask.task for gpu in others):
        return False
    return any(not (gpu.is_out or gpu.problem) for gpu in others)


def _give_back(task: int, gpus: Collection[GpuState]) -> tuple[str, ...]:
    """Put the GPUs back into service that only this task's log took out; return their UUIDs."""
    found = [gpu for gpu in gpus if gpu.out_by == task]
    for gpu in found:
        gpu.is_out, gpu.out_by, gpu.problem, gpu.view = False, None, "", None
    return tuple(gpu.facts.uuid for gpu in found)
