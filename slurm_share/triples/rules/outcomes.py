"""Decide how an attempt at a task ended, and when there is room to try again."""

from __future__ import annotations

import errno
import math
import re
import signal
from collections.abc import Sequence

from msgspec import Struct

from ...node.records import Room
from ..records import Outcome

GPU_MEMORY_MESSAGES: tuple[bytes, ...] = (
    b"CUDA out of memory",  # PyTorch: torch.OutOfMemoryError
    b"CUDA_ERROR_OUT_OF_MEMORY",  # the driver's name of error 2: XLA, TensorFlow, numba, cuda-python
    b"cudaErrorMemoryAllocation",  # the runtime's name of the same: CuPy, cuML
    b"RESOURCE_EXHAUSTED: Out of memory",  # JAX: XlaRuntimeError
    b"RESOURCE_EXHAUSTED: Failed to allocate",  # the same, XLA's BFC allocator
    b"OOM when allocating tensor",  # TensorFlow: ResourceExhaustedError
    b"CUBLAS_STATUS_ALLOC_FAILED",  # cuBLAS found no room for its handle
    b"CUDNN_STATUS_ALLOC_FAILED",
    b"cudaMalloc failed: out of memory",  # ggml
    b"out_of_memory: CUDA error",  # RAPIDS memory manager
)
"""What programs print when an allocation on the GPU failed. No word of it is a message about the host's memory."""

_ASKED = re.compile(
    rb"(?:[Tt]ried to allocate|trying to allocate|allocate request for|Out of memory allocating)"
    rb" ([0-9][0-9,]{0,17}(?:\.[0-9]{1,6})?) ?(bytes|B|KiB|MiB|GiB)\b"
)
"""The size in such a message: PyTorch's, XLA's in two forms, CuPy's."""
_UNIT_BYTES = {b"bytes": 1, b"B": 1, b"KiB": 2**10, b"MiB": 2**20, b"GiB": 2**30}

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
    how = _how(ending)
    if ending.stopped_by_us:
        return "unfinished", f"told to end, {how}"
    if ending.code == 0:
        return "done", ""
    if ending.host_oom:
        return "host memory", f"the kernel killed it for memory ({how})"
    for message in GPU_MEMORY_MESSAGES:
        if message in ending.log_tail:
            return "gpu memory", f'its log says "{message.decode()}" ({how})'
    return ("failed" if ending.code is not None else "signal"), how


def _how(ending: Ending) -> str:
    if ending.code is not None:
        return f"exit code {ending.code}"
    try:
        return f"ended by {signal.Signals(ending.signal or 0).name}"
    except ValueError:
        return f"ended by signal {ending.signal}"


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


def asked_mib(log_tail: bytes) -> int | None:
    """Return how much GPU memory a program last asked for in vain, in MiB rounded up; None: its log does not say.

    PyTorch: "Tried to allocate 2.00 GiB". XLA: "trying to allocate 4294967296 bytes", "Failed to allocate request for
    2.00GiB". CuPy: "Out of memory allocating 1,073,741,824 bytes".
    """
    found = _ASKED.findall(log_tail)
    if not found:
        return None
    number, unit = found[-1]
    return math.ceil(float(number.replace(b",", b"")) * _UNIT_BYTES[unit] / 2**20) or None


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
