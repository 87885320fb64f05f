"""Find what to change before the number of tasks: why the present tasks use the node badly, and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from ....core.text import counted
from ...snapshot import Confidence, Verdict
from .. import thresholds
from .bounds import gib, is_crowded, is_waiting, level
from .evidence import Card, Evidence

Remedy = Literal["", "threads", "memory in advance"]
WAITS = "storage, locks"
"""`decided_by` of the verdict `waits`, and of the verdict `stay` while threads wait."""


class AdviceDraft(Struct, frozen=True):
    """An advice before its sentences are made."""

    verdict: Verdict
    nppn: int | None
    decided_by: str
    """The resource, as in a bound."""
    why: str = ""
    """For the verdicts of CAUSES, and for stay while threads wait: what is wrong, and what to do about it."""
    remedy: Remedy = ""
    """The change in the next submission; empty: no option can change it."""
    threads: int = 0
    """Threads of a task, with the remedy threads."""
    surest: Confidence = "high"
    """The highest confidence that it can have."""
    rate_windows: int = 0
    """Windows on which the deciding comparison of rates rests; 0: rates did not decide."""

    @property
    def cause(self) -> str:
        """Return the resource that a change is about; empty for other verdicts."""
        return self.decided_by if self.verdict == "change" else ""


def threads(nodes: Sequence[Evidence], now: int, given: int | None) -> AdviceDraft | None:
    """Return the answer if the tasks, no more than the cores, run more threads than there are CPUs. `given`: NTPP of
    their triple, if any."""
    cores = min(node.cores for node in nodes)
    if not now or now > cores or not is_crowded(nodes):
        return None
    worst = max(nodes, key=lambda node: (node.load_average or node.cpu_cores or 0.0) / node.cpus)
    each = cores // now
    used, average = worst.cpu_cores or 0.0, worst.load_average
    has = max(used, average or 0.0) / now
    said = (
        f"fewer threads, not fewer tasks: the job's CPU time is {used:.0f} of {counted(worst.cpus, 'CPU')}"
        + (f" and the load average {average:.0f}" if average is not None else "")
        + f", about {has:.0f} running threads in {f'each of {now} tasks' if now > 1 else 'its task'}"
    )
    if given is not None and given <= each:
        why = (
            f"{said}, though each was given {given} (OMP_NUM_THREADS={given}, NTPP {given}): the program ignores that; "
            "look for workers of a data loader (num_workers) and thread pools of its own, and set them to that number"
        )
        return AdviceDraft("change", now, "CPU load", why)
    why = (
        f"{said}, and there are {cores} cores: {each} for each task (OMP_NUM_THREADS={each}, which is NTPP {each} of a "
        "triple; workers of a data loader count as well)"
    )
    return AdviceDraft("change", now, "CPU load", why, "threads", each)


def waits(nodes: Sequence[Evidence], now: int) -> AdviceDraft | None:
    """Return the answer if the load average is high without CPU time: the processes do not run. Tasks that use their
    GPUs do not wait all the time, so only none is added, and full GPUs have enough to do."""
    if not now or not is_waiting(nodes) or any((node.busy_percent or 0.0) >= thresholds.GPU_FULL for node in nodes):
        return None

    def still(node: Evidence) -> float:
        return (node.load_average or 0.0) - (node.cpu_cores or 0.0) - (node.others_cores or 0.0)

    worst = max(nodes, key=lambda node: still(node) / node.cpus)
    used, average = worst.cpu_cores or 0.0, worst.load_average or 0.0
    seen = (
        f"the load average{_where(worst, nodes)} is {average:.0f} on "
        f"{counted(worst.cpus, 'CPU')}, but the CPU time of the job is {used:.1f} and of others "
        f"{worst.others_cores or 0.0:.1f}, so about {still(worst):.0f} threads there do not run"
    )
    find = (
        "on the node, `ps -eLo stat,user,wchan:20,comm` shows which: D waits for storage or a lock "
        "of the kernel, many R are bound to few CPUs"
    )
    # The load average counts every process of the node: a hung daemon of the system as well.
    if any(node.gpus and (node.own_percent or 0.0) >= thresholds.LOW_USE for node in nodes):
        why = f"add none while threads wait for storage or locks: {seen}; {find}"
        return AdviceDraft("stay", now, WAITS, why, surest="medium")
    why = f"it waits for storage or locks: {seen}, and more tasks would wait as well; {find}"
    return AdviceDraft("waits", None, WAITS, why, surest="medium")


def low_use(nodes: Sequence[Evidence], now: int) -> AdviceDraft | None:
    """Return the answer if tasks hardly use their GPU (without GPUs: a CPU), so that more of them would not help."""
    cpu = _cpu_text(nodes)
    see = _see(cpu, now)
    if not any(node.gpus for node in nodes):
        loads = [node.cpu_cores for node in nodes if node.cpu_cores is not None]
        each = 100 * sum(loads) / len(loads) / now if loads and now else None
        if each is None or each >= thresholds.LOW_USE_CPU:
            return None
        used = (
            f"less than 1 % of a CPU{' each' * (now > 1)}"
            if each < 1
            else f"{each:.0f} % of a CPU{' each' * (now > 1)}"
        )
        return AdviceDraft(
            "look", None, "CPU load", f"its {counted(now, 'task')} {'uses' if now == 1 else 'use'} {used}: {see}"
        )
    low = [(node, card) for node in nodes for card in node.busy if (card.load or 0.0) < thresholds.LOW_USE]
    if not low:
        own = [node.own_percent for node in nodes if node.own_percent is not None]
        if not own or min(own) >= thresholds.LOW_USE:
            return None
        use = "task uses" if now == 1 else "tasks use"
        return AdviceDraft("look", None, "GPU load", f"its own {use} {min(own):.0f} % of {_their(nodes)}: {see}{cpu}")
    on = _gpus(low, nodes)
    most, them = max(card.load or 0.0 for _, card in low), "it" if len(low) == 1 else "them"
    is_one = sum(card.tasks for _, card in low) == 1
    if most < thresholds.IDLE:
        return AdviceDraft(
            "look",
            None,
            "GPU load",
            f"its {'task on' if is_one else 'tasks on'} {on} {'has' if is_one else 'have'} done nothing there: check "
            f"whether {'it uses' if is_one else 'they use'} the GPU at all{cpu}",
        )
    do = f"its task on {on} uses" if is_one else f"its tasks on {on} use"
    see = _see(cpu, 1 if is_one else now)
    return AdviceDraft("look", None, "GPU load", f"{do} {most:.0f} % of {them}: {see}{cpu}")


def placement(nodes: Sequence[Evidence], now: int, emptier: float) -> AdviceDraft | None:
    """Return the answer if only some of the GPUs have tasks, or if the load is uneven although each has tasks.
    `emptier`: the load is uneven if that of another GPU is below this factor times the load of a full one."""
    for node in nodes:
        empty = [card for card in node.cards if not card.tasks]
        crowded = [card for card in node.cards if card.tasks > 1]
        if empty and crowded and node.running >= (node.now or 0) and node.running >= len(node.cards):
            on = ", ".join(f"{card.tasks} on GPU {card.index}" for card in node.cards if card.tasks)
            free = " and ".join(f"GPU {card.index}" for card in empty)
            why = (
                f"spread them first: its tasks{_where(node, nodes)} are {on}, none on {free}; a task has to use the "
                "GPU that it is given (CUDA_VISIBLE_DEVICES), which it sees as its first GPU; --share-gpu and llsub "
                "give the GPUs to tasks in turn"
            )
            return AdviceDraft("change", now, "GPU load", why)
    # The load of a GPU that others use as well does not show how the job's own tasks are spread.
    uneven = [node for node in nodes if node.alone and node.own_load == node.load and _is_uneven(node, emptier)]
    if 2 * len(uneven) <= len(nodes) or (level(nodes) or 0) > now:
        return None
    node = uneven[0]
    full = max(node.busy, key=lambda card: card.load or 0.0)
    free_one = min(node.busy, key=lambda card: card.load or 0.0)
    why = (
        f"add none while the load is uneven: GPU {full.index}{_where(node, nodes)} is {_full(node, full)}, GPU "
        f"{free_one.index} at {free_one.load:.0f} %, with {full.tasks} and {free_one.tasks} tasks; more tasks would go "
        "to both: mix heavy and light tasks in another order, or give the heavy ones to the emptier GPU"
    )
    return AdviceDraft("change", now, "GPU load", why)


def memory_in_advance(nodes: Sequence[Evidence], now: int) -> AdviceDraft | None:
    """Return the answer if a task without a cap holds most of the memory of a GPU that has room for more work. What the
    task needs is then not known, and may be much less."""
    for node in nodes:
        if not node.rooms or not node.peak_mib or node.cap_mib is not None or not node.busy_percent:
            continue
        if node.in_advance == ():
            continue
        total = max(room.total for room in node.rooms)
        is_most = 100 * node.peak_mib >= thresholds.PREALLOCATED * total
        if not is_most or node.busy_percent >= thresholds.GPU_BAND[0]:
            continue
        libraries = node.in_advance or ()
        begin = "" if libraries else "if it is JAX or TensorFlow, "
        do = f"as {libraries_text(libraries)} at the start" if libraries else "as these two do at their start"
        why = (
            f"{begin}let its program not take memory in advance: {named(node.largest)} holds {gib(node.peak_mib)} of "
            f"{gib(total)} of a GPU that it uses to {node.busy_percent:.0f} %, {do}; "
            "XLA_PYTHON_CLIENT_PREALLOCATE=false (JAX), TF_FORCE_GPU_ALLOW_GROWTH=true (TensorFlow) show what a "
            "task needs, and so how many fit"
        )
        if not libraries:
            why += "; another program needs what it holds"
        surest: Confidence = "high" if libraries else "medium"
        return AdviceDraft("change", now, "GPU memory", why, "memory in advance", surest=surest)
    return None


def _full(node: Evidence, card: Card) -> str:
    """Return how busy a GPU is. Utilisation does not show that it can do no more."""
    return f"full ({card.load:.0f} %)" if node.is_sm else f"at {card.load:.0f} % (utilisation)"


def libraries_text(libraries: Sequence[str]) -> str:
    """Return the clause that libraries take memory, such as: JAX, which its libraries or variables show, does."""
    return (
        f"{' and '.join(libraries)}, which its libraries or variables show, {'does' if len(libraries) == 1 else 'do'}"
    )


def named(task: int | None) -> str:
    """Return the name of a task by its number in its run of llsub; without a number, "a task"."""
    return "a task" if task is None else f"task {task}"


def _is_uneven(node: Evidence, emptier: float) -> bool:
    loads = [card.load or 0.0 for card in node.busy]
    return bool(loads) and max(loads) >= thresholds.GPU_FULL and min(loads) < emptier * max(loads)


def _gpus(low: Sequence[tuple[Evidence, Card]], nodes: Sequence[Evidence]) -> str:
    if len(nodes) == 1:
        return f"GPU {', '.join(str(card.index) for _, card in low)}"
    return ", ".join(dict.fromkeys(f"GPU {card.index} of {node.node}" for node, card in low[:4]))


def _where(node: Evidence, nodes: Sequence[Evidence]) -> str:
    return f" of {node.node}" if len(nodes) > 1 else ""


def _see(cpu: str, tasks: int) -> str:
    """Return what to do about tasks that hardly use anything. `cpu`: their CPU time; empty: not known."""
    ask = "input, start-up, a lock, each other" + (", the CPU" if cpu else "")
    return f"find out first what {'it waits' if tasks == 1 else 'they wait'} for ({ask}), before adding any"


def _cpu_text(nodes: Sequence[Evidence]) -> str:
    known = [node for node in nodes if node.cpu_cores is not None]
    if not known:
        return ""
    node = max(known, key=lambda one: (one.cpu_cores or 0.0) / one.cpus)
    return f"; CPU time {node.cpu_cores:.1f} of {counted(node.cpus, 'CPU')}"


def _their(nodes: Sequence[Evidence]) -> str:
    return "its GPU" if sum(len(node.busy) for node in nodes) == 1 else "their GPUs"
