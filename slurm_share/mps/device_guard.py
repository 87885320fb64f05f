"""Attach a BPF program to a cgroup (v2) that decides which devices its processes may open, as Slurm does for jobs.

This uses bpf(2), without a library or a compiler. The kernel keeps the program as long as the cgroup exists.
"""

from __future__ import annotations

import os
import sys

NUMBERS = {"x86_64": 321, "aarch64": 280, "ppc64le": 361}
"""The number of bpf(2) on the architectures with NVIDIA drivers (asm/unistd.h)."""
_PROG_LOAD, _PROG_ATTACH = 5, 8
_PROG_TYPE_CGROUP_DEVICE, _CGROUP_DEVICE = 15, 6
_ALLOW_MULTI = 2
"""BPF_F_ALLOW_MULTI: the programs of the groups above stay in force, and all have to allow a device."""
_ATTRIBUTES_BYTES = 128


def load(program: bytes) -> int:
    """Load the program into the kernel, which verifies it; return its file descriptor. Raises OSError if the kernel or
    this process's rights do not allow it."""
    import ctypes

    code = ctypes.create_string_buffer(program, len(program))
    licence = ctypes.create_string_buffer(b"Apache-2.0")
    fields = (
        *_u32(_PROG_TYPE_CGROUP_DEVICE, len(program) // 8),
        ctypes.addressof(code).to_bytes(8, sys.byteorder),
        ctypes.addressof(licence).to_bytes(8, sys.byteorder),
    )
    return _bpf(_PROG_LOAD, b"".join(fields))


def attach(folder: str, program: bytes) -> None:
    """Attach the program to the cgroup `folder`. Raises OSError as `load` does."""
    group = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        loaded = load(program)
        try:
            _bpf(_PROG_ATTACH, b"".join(_u32(group, loaded, _CGROUP_DEVICE, _ALLOW_MULTI)))
        finally:
            os.close(loaded)
    finally:
        os.close(group)


def _bpf(command: int, attributes: bytes) -> int:
    import ctypes

    number = NUMBERS.get(os.uname().machine)
    if number is None:
        raise OSError(0, f"bpf(2) is not known for {os.uname().machine}", "bpf")
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    given = ctypes.create_string_buffer(attributes, _ATTRIBUTES_BYTES)
    answer: int = syscall(ctypes.c_long(number), ctypes.c_int(command), given, ctypes.c_uint(_ATTRIBUTES_BYTES))
    if answer < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), "bpf")
    return answer


def _u32(*values: int) -> tuple[bytes, ...]:
    return tuple(value.to_bytes(4, sys.byteorder) for value in values)
