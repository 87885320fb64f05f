"""Name the outcomes of attempts, and say what had too little memory and what helps."""

from __future__ import annotations

import errno
import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

from ...core.text import counted
from ...node.records import MemoryLimit
from ..records import Outcome

TYPE_CHECKING = False  # as mypy knows it
if TYPE_CHECKING:
    from ...packing import Budget, EndKind

RETRIES_ENOUGH = 2
"""Retries after which a task has had a GPU alone."""
_GIB_MIB = 1024
RESERVE = 0.02
"""Part of a GPU's memory kept free for driver and fragmentation, as in `Settings.memory_reserve_percent`."""


OUTCOMES: Mapping[EndKind, Outcome] = {
    "done": "done",
    "gpu memory": "gpu memory",
    "gpu memory likely": "gpu memory",
    "gpu memory suspected": "gpu memory",
    "neighbour's memory": "disturbed",
    "neighbour's fault": "disturbed",
    "device": "disturbed",
    "host memory": "host memory",
    "time limit": "time limit",
    "signal": "signal",
    "failed": "failed",
    "not started": "not started",
    "saved": "saved",
    "unfinished": "unfinished",
    "above guarantee": "disturbed",
}
"""How an attempt ended (`packing.EndKind`) -> its outcome in results."""


def host_memory_text(limit: MemoryLimit | None, peak_mib: int | None) -> str:
    """Return the text after the reason of a kill for host memory: the limit in force, and the peak of the task."""
    said = ""
    if limit is not None:
        said = f"; {'the node has' if limit.is_machine else 'the limit of the job on the node was'} {limit.mib} MiB"
    return said if peak_mib is None else f"{said}; its largest process used up to {peak_mib} MiB"


def host_memory_advice(
    tasks: int, limit: MemoryLimit | None, peak_mib: int | None, processes: int, retries: int, *, can_ask_more: bool
) -> str:
    """Return the advice at the end of a node's part of a run in which `tasks` tasks ran out of host memory.

    peak_mib: the largest of their processes; None: not known. processes: on this node.
    can_ask_more: the job did not ask Slurm for all memory of the node.
    """
    said = f"{counted(tasks, 'task')} ran out of host memory"
    if limit is not None:
        said += f" on a node with {limit.mib} MiB" if limit.is_machine else f" under the job's limit of {limit.mib} MiB"
    if peak_mib is not None:
        said += f", the largest process used up to {peak_mib} MiB"
    options = []
    if processes > 1:
        room = processes - 1
        if limit is not None and peak_mib:
            room = max(1, min(room, int(limit.mib * (1 - RESERVE)) // peak_mib))
        options.append(f"at most {counted(room, 'process')} on a node")
        if retries == 0:
            options.append("--retries 1, which runs them when the node has enough free memory")
    if limit is not None and not limit.is_machine and can_ask_more:
        options.append("--options=--mem=0 for all memory of the node")
    return f"{said}; write {' or '.join(options)}" if options else f"{said}; make tasks smaller, or use larger nodes"


def why_not_started(program: str, error: OSError, head: bytes) -> str:
    """Return why a program could not be executed. `head`: the beginning of its file; empty: it cannot be read.

    ENOENT for an existing file means that its interpreter or its dynamic linker is missing (execve(2)).
    """
    line = head.partition(b"\n")[0]
    if error.errno == errno.ENOENT and line.startswith(b"#!"):
        if line.endswith(b"\r"):
            return f"{program}: its lines have Windows line ends, which Linux takes as part of the interpreter's name"
        interpreter = (line[2:].split() or [b""])[0].decode(errors="replace")
        return f"{program}: its first line names {interpreter}, which does not exist"
    if error.errno == errno.ENOENT and head:
        return f"{program}: its dynamic linker does not exist"
    if error.errno == errno.ETXTBSY:
        return f"{program}: {error.strerror} (a process has it open for writing)"
    return f"{program}: {error.strerror}"


class MemoryFailure(Struct, frozen=True):
    """A task that ran out of GPU memory, under a cap or alone on a GPU, and has no attempt left."""

    cap_mib: int | None
    """Largest cap under which an attempt ran out of memory; None: there was no cap."""
    need_mib: int | None = None
    """Least need: the measured use of an attempt plus its failed allocation. None: not known."""
    was_alone: bool = False


def gpu_memory_text(cap_mib: int | None, peak_mib: int | None, asked_mib: int | None, *, is_alone: bool) -> str:
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


def gpu_memory_advice(
    lost: Sequence[MemoryFailure], budgets: Sequence[Budget], retries: int, *, is_number_fixed: bool = False
) -> str:
    """Return the advice at the end of a node's part of a run: the options for the next run.

    lost: at least one task that ran out of memory, under a cap or alone on a GPU, and has no attempt left. budgets: of
    the node's GPUs. is_number_fixed: the user wrote the number of tasks on a GPU, so fewer processes do not make the
    caps larger.
    """
    most = max(budget.total_mib for budget in budgets)
    alone = [one for one in lost if one.was_alone]
    capped = [one for one in lost if not one.was_alone]
    if not alone:
        return _advice_of_capped(capped, budgets, retries, is_number_fixed=is_number_fixed)
    less = f"alone on a GPU, where tasks can have {most} MiB; make tasks smaller (for example the batch size)"
    if capped:
        first = _advice_of_capped(capped, budgets, retries, is_number_fixed=is_number_fixed)
        return f"{first}; {len(alone)} more ran out of GPU memory {less}"
    what = counted(len(lost), "task")
    caps = [one.cap_mib for one in alone if one.cap_mib is not None]
    under = f"under a cap of {max(caps)} MiB, and " if caps else ""
    return f"{what} ran out of GPU memory {under}{less}"


def _advice_of_capped(
    lost: Sequence[MemoryFailure], budgets: Sequence[Budget], retries: int, *, is_number_fixed: bool
) -> str:
    cap_mib = max(one.cap_mib or 0 for one in lost)
    need_mib = max(one.need_mib or 0 for one in lost)
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
