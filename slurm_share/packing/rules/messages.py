"""Recognise in a program's output that it ran out of GPU memory, or that a neighbour or the device ended it.

All messages are here, each with the program that prints it. None of them is about the host's memory.
"""

from __future__ import annotations

import math
import re

from msgspec import Struct

GPU_MEMORY_MESSAGES: tuple[bytes, ...] = (
    b"CUDA out of memory",  # PyTorch: torch.OutOfMemoryError
    b"CUDA error: out of memory",  # PyTorch: the context or a library, without an OutOfMemoryError
    b"CUDA driver error: out of memory",  # PyTorch: expandable segments
    b"cuda runtime error (2) : out of memory",  # PyTorch before 1.5
    b"CUDA_ERROR_OUT_OF_MEMORY",  # the driver's name of error 2: XLA, TensorFlow, numba, cuda-python
    b"cudaErrorMemoryAllocation",  # the runtime's name of the same: CuPy, cuML
    b"RESOURCE_EXHAUSTED: Out of memory",  # JAX: XlaRuntimeError
    b"RESOURCE_EXHAUSTED: Failed to allocate",  # the same, XLA's BFC allocator
    b"Out of memory while trying to allocate",  # the same, without its status
    b"OOM when allocating tensor",  # TensorFlow: ResourceExhaustedError
    b"CUBLAS_STATUS_ALLOC_FAILED",  # cuBLAS found no room for its handle
    b"CUDNN_STATUS_ALLOC_FAILED",
    b"cudaMalloc failed: out of memory",  # ggml
    b"out_of_memory: CUDA error",  # RAPIDS memory manager
    b"Triton Error [CUDA]: out of memory",
    b"No available memory for the cache blocks",  # vLLM
    b"Kokkos failed to allocate memory",
)
"""What programs print when an allocation on the GPU failed. No word of it is a message about the host's memory."""

_ASKED = re.compile(
    rb"(?:[Tt]ried to allocate|trying to allocate|allocate request for|Out of memory allocating)"
    rb" ([0-9][0-9,]{0,17}(?:\.[0-9]{1,6})?) ?(bytes|B|KiB|MiB|GiB)\b"
)
"""The size in such a message: PyTorch's, XLA's in two forms, CuPy's."""
_UNIT_BYTES = {b"bytes": 1, b"B": 1, b"KiB": 2**10, b"MiB": 2**20, b"GiB": 2**30}


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


LIKELY_MESSAGES: tuple[bytes, ...] = (
    b"CUBLAS_STATUS_NOT_INITIALIZED",  # often no room for the library's handle, sometimes another fault
    b"CUDNN_STATUS_NOT_INITIALIZED",
    b"ran out of memory trying to allocate",  # TensorFlow: also a warning, after which it goes on
)
"""Messages that mean GPU memory only where the GPU was full as well."""

HOST_MESSAGES: tuple[bytes, ...] = (
    b"DefaultCPUAllocator: can't allocate memory",
    b"MemoryError",
    b"std::bad_alloc",
    b"MPS backend out of memory",  # Apple's GPUs
)
"""Messages of other memory than the GPU's. A failure with one of them is not suspected of GPU memory."""

FAULT_MESSAGES: tuple[bytes, ...] = (
    b"an illegal memory access was encountered",  # 700
    b"CUDA_ERROR_ILLEGAL_ADDRESS",
    b"device-side assert triggered",  # 710
    b"misaligned address",  # 716
    b"invalid program counter",  # 718
    b"unspecified launch failure",  # 719
    b"CUDA_ERROR_LAUNCH_FAILED",
)
"""CUDA faults. Under MPS one client's fault ends all clients of its GPU (NVIDIA's MPS manual, "Error Containment")."""

SERVER_MESSAGES: tuple[bytes, ...] = (
    b"the remote procedural call between the MPS server and the MPS client failed",  # 806
    b"CUDA_ERROR_MPS_RPC_FAILURE",
    b"MPS server is not ready",  # 807
    b"CUDA_ERROR_MPS_SERVER_NOT_READY",
    b"MPS client has been terminated",  # 810
    b"CUDA_ERROR_MPS_CLIENT_TERMINATED",
)
"""The MPS server ended, or ended this client, which is never the client's own doing."""

DEVICE_MESSAGES: tuple[bytes, ...] = (
    b"GPU has fallen off the bus",
    b"GPU is lost",
    b"uncorrectable ECC error encountered",  # 214
    b"CUDA_ERROR_ECC_UNCORRECTABLE",
)
"""The GPU itself failed."""

LAST_LINES = 40
"""A message in so many last lines is the reason of the end, if no later exception is another."""

_EXCEPTION = re.compile(
    rb"(?m)^(?:\[[^\]\n]{1,40}\][:\s]*)?((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt))(?::|\s*$)"
)
_WRAPPERS = (b"ChildFailedError", b"ProcessRaisedException", b"Engine core initialization failed", b"EngineDeadError")
"""Exceptions that only report that a process or a thread of the same program failed before."""


class Found(Struct, frozen=True):
    """What a log's tail says about the reason of a failure; each empty where it says nothing."""

    certain: str = ""
    is_last: bool = False
    """The certain message is in the last lines, and no other exception came after it."""
    likely: str = ""
    excuse: str = ""
    fault: str = ""
    server: str = ""
    device: str = ""


def find(tail: bytes) -> Found:
    """Look for all messages in the end of a log."""
    certain, at = _last_of(tail, GPU_MEMORY_MESSAGES)
    is_last = False
    if certain:
        lines_after = tail.count(b"\n", at)
        later = [
            seen
            for seen in _EXCEPTION.finditer(tail, at)
            if not any(message in _line(tail, seen.start()) for message in (*GPU_MEMORY_MESSAGES, *_WRAPPERS))
        ]
        is_last = not later and lines_after <= LAST_LINES
    return Found(
        certain=certain,
        is_last=is_last,
        likely=_last_of(tail, LIKELY_MESSAGES)[0],
        excuse=_last_of(tail, HOST_MESSAGES)[0],
        fault=_last_of(tail, FAULT_MESSAGES)[0],
        server=_last_of(tail, SERVER_MESSAGES)[0],
        device=_last_of(tail, DEVICE_MESSAGES)[0],
    )


def _line(tail: bytes, at: int) -> bytes:
    end = tail.find(b"\n", at)
    return tail[at : end if end >= 0 else len(tail)]


def _last_of(tail: bytes, listed: tuple[bytes, ...]) -> tuple[str, int]:
    """Return the message of a list that comes last in a log, and where; empty and -1: none is there."""
    best, at = b"", -1
    for message in listed:
        where = tail.rfind(message)
        if where > at:
            best, at = message, where
    return best.decode(), at


_IN_USE = re.compile(rb"this process has ([0-9]+(?:\.[0-9]+)?) ?(KiB|MiB|GiB) memory in use")
"""PyTorch: what the process had in use when it asked for more."""


def wanted_mib(log_tail: bytes, peak_mib: int | None) -> int | None:
    """Return what a program had and asked for in vain, in MiB; None: its log does not say how much it asked for.

    PyTorch says both. Of others, `peak_mib` is taken for what they had.
    """
    asked = asked_mib(log_tail)
    if asked is None:
        return None
    in_use = _IN_USE.findall(log_tail)
    if in_use:
        number, unit = in_use[-1]
        return asked + math.ceil(float(number) * _UNIT_BYTES[unit] / 2**20)
    return asked + (peak_mib or 0)
