"""Name the outcome of an attempt, and decide whether there is memory for a further one."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence

from ...core.text import counted
from ...node.records import MemoryLimit, MemoryUse
from ..records import Outcome

TYPE_CHECKING = False  # as mypy knows it
if TYPE_CHECKING:
    from ...packing import EndKind

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
    "signal": "signal",
    "failed": "failed",
    "not started": "not started",
    "saved": "saved",
    "unfinished": "unfinished",
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


def need_mib(own_peak_mib: int | None, peaks_mib: Sequence[int]) -> int | None:
    """Return the expected need of a task: the largest peak of it and of other tasks of the run; None: not known."""
    seen = [peak for peak in (own_peak_mib, *peaks_mib) if peak]
    return max(seen) if seen else None


def has_room(need: int | None, room: MemoryUse | None, running: int) -> bool:
    """Return whether a task with a need (None: not known) fits into the free memory.

    Running tasks may grow to the same need, so each counts with the larger of its use and `need`. Always True if no
    task of ours runs there: there is nothing to wait for.
    """
    if running == 0:
        return True
    if need is None or room is None:
        return False
    # A task that started after the last sample counts with 0.
    ours = list(room.tasks_mib) + [0] * (running - len(room.tasks_mib))
    others = max(room.used_mib - sum(ours), 0)
    committed = sum(max(need, one) for one in ours)
    return room.total_mib * (1 - RESERVE) - others - committed >= need
