"""Load a BPF program that decides which devices a cgroup of v2 may open, as Slurm does for a job's.

With bpf(2) alone: no library and no compiler. The kernel keeps the program as long as the cgroup is there.
"""

from __future__ import annotations

import os
import sys

NUMBERS = {"x86_64": 321, "aarch64": 280, "ppc64le": 361}
"""bpf(2) on the machines that NVIDIA has drivers for (asm/unistd.h)."""
_PROG_LOAD, _PROG_ATTACH = 5, 8
_PROG_TYPE_CGROUP_DEVICE, _CGROUP_DEVICE = 15, 6
_ALLOW_MULTI = 2
"""Beside the programs of the groups above, all of which have to agree."""
_ATTRIBUTES_BYTES = 128


def load(program: bytes) -> int:
    """Load the program into the kernel, which checks it; return its file descriptor. Raises OSError where the
    kernel, or this process's rights, do not allow it."""
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
    """Let the program decide for the processes in the cgroup `folder`. Raises OSError as `load` does."""
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
