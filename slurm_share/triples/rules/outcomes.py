"""Decide how an attempt at a task ended, and when there is room to try again."""

from __future__ import annotations

import errno
import signal
from collections.abc import Sequence

from msgspec import Struct

from ...node.records import Room
from ...packing import how_ended, memory_message
from ..records import Outcome

RESERVE = 0.02
"""Part of a GPU's memory that no plan counts on: driver and fragmentation, as in `Settings.memory_reserve_percent`."""


class Ending(Struct, frozen=True):
    """The facts about an attempt that has ended."""

    code: int | None
    """Exit code; None: a signal ended it."""
    signal: int | None = None
    log_tail: bytes = b""
    """The end of what it printed; read only where it failed."""
    host_oom: bool = False
    """The kernel has killed a process of this cgroup for memory since the last task that failed."""
    stopped_by_us: bool = False
    """It was told to end, by the scheduler or by the user."""


def outcome(ending: Ending) -> tuple[Outcome, str]:
    """Return the outcome, and the reason as text; empty if it is done.

    A task that was told to end is unfinished even with exit code 0: a program that saves its state and leaves ends so.
    """
    how = how_ended(ending.code, ending.signal)
    if ending.stopped_by_us:
        return "unfinished", f"told to end, {how}"
    if ending.code == 0:
        return "done", ""
    if ending.host_oom:
        return "host memory", f"the kernel killed it for memory ({how})"
    message = memory_message(ending.log_tail)
    if message is not None:
        return "gpu memory", f'its log says "{message}" ({how})'
    return ("failed" if ending.code is not None else "signal"), how


def why_not_started(program: str, error: OSError, head: bytes) -> str:
    """Return why a program could not be executed. `head` is the beginning of its file, empty where that cannot be read.
    ENOENT for a file that is there means its interpreter or its dynamic linker (execve(2))."""
    line = head.partition(b"\n")[0]
    if error.errno == errno.ENOENT and line.startswith(b"#!"):
        if line.endswith(b"\r"):
            return f"{program}: its lines end as on Windows, which Linux takes for a part of its interpreter's name"
        interpreter = (line[2:].split() or [b""])[0].decode(errors="replace")
        return f"{program}: its first line names {interpreter}, which is not there"
    if error.errno == errno.ENOENT and head:
        return f"{program}: the dynamic linker that it needs is not there"
    if error.errno == errno.ETXTBSY:
        return f"{program}: {error.strerror} (somebody has it open for writing)"
    return f"{program}: {error.strerror}"


def may_be_memory(ending: Ending) -> bool:
    """Return whether the kernel's count of memory kills has to be read.

    After SIGKILL, or a failure, by which a shell may report the SIGKILL of its child.
    """
    return ending.signal == signal.SIGKILL or (ending.code is not None and ending.code != 0)


def is_sigkill(ending: Ending) -> bool:
    """Return whether SIGKILL ended it, or a child of its shell (128 + 9)."""
    return ending.signal == signal.SIGKILL or ending.code == 128 + signal.SIGKILL


def need_mib(own_peak_mib: int | None, peaks_mib: Sequence[int]) -> int | None:
    """Return the expected need of a task out of memory: the largest use seen of it or of a task of the same run.
    None: nothing was seen, and only an empty GPU can be said to be room enough."""
    seen = [peak for peak in (own_peak_mib, *peaks_mib) if peak]
    return max(seen) if seen else None


def has_room(need: int | None, room: Room | None, running: int) -> bool:
    """Return whether a task with that need fits beside what is in use.

    Tasks that have just begun will grow to the same need: each counts with the larger of what it has and what it will
    want. A place where nothing of ours runs is room in any case: there is nothing to wait for.
    """
    if running == 0:
        return True
    if need is None or room is None:
        return False
    # A task that nothing is known of (it began after the last look) has nothing yet.
    ours = list(room.tasks_mib) + [0] * (running - len(room.tasks_mib))
    others = max(room.used_mib - sum(ours), 0)
    committed = sum(max(need, one) for one in ours)
    return room.total_mib * (1 - RESERVE) - others - committed >= need
