"""Compute the settings of a user's MPS daemon's cgroup, and the BPF program that restricts devices in cgroup v2."""

from __future__ import annotations

import struct

from ...core.records import DaemonGroup

NVIDIA_MAJOR = 195
"""NVIDIA's character devices (Linux Documentation/admin-guide/devices.txt)."""
GPU_MINORS = 254
"""The number of minors for GPUs; 254 is nvidia-modeset, 255 nvidiactl."""

_MIB = 1024 * 1024
_CHARACTER_DEVICE = 2
"""BPF_DEVCG_DEV_CHAR of linux/bpf.h."""


def values(group: DaemonGroup, controller: str) -> tuple[tuple[str, str], ...]:
    """Return (file, value) for each limit of the group in the tree of a v1 controller; "" stands for v2's one tree."""
    if controller == "devices" and group.minor is not None:
        others = (minor for minor in range(GPU_MINORS) if minor != group.minor)
        return tuple(("devices.deny", f"c {NVIDIA_MAJOR}:{minor} rwm") for minor in others)
    memory = None if group.memory_mib is None else group.memory_mib * _MIB
    pids = ("pids.max", group.processes)
    wanted = {
        "": (("memory.max", memory), pids),
        "memory": (("memory.limit_in_bytes", memory),),
        "pids": (pids,),
    }
    return tuple((file, str(limit)) for file, limit in wanted.get(controller, ()) if limit is not None)


def swap_values(group: DaemonGroup, controller: str) -> tuple[tuple[str, str], ...]:
    """Return (file, value) for the limit of swap, which not every kernel supports."""
    if group.memory_mib is None:
        return ()
    wanted = {"": ("memory.swap.max", "0"), "memory": ("memory.memsw.limit_in_bytes", str(group.memory_mib * _MIB))}
    return (wanted[controller],) if controller in wanted else ()


def needed_controllers(group: DaemonGroup) -> tuple[str, ...]:
    """Return the v2 controllers that the group's limits need."""
    limits = {"memory": group.memory_mib, "pids": group.processes}
    return tuple(name for name, limit in limits.items() if limit is not None)


def device_program(own: int) -> bytes:
    """Return a BPF program of type CGROUP_DEVICE, in this machine's byte order, that denies all GPUs but `own` and
    allows every other device.

    Its argument is struct bpf_cgroup_dev_ctx { u32 access_type; u32 major; u32 minor; }, with the type of the device in
    the lower half of access_type; it returns 1 to allow, 0 to deny (linux/bpf.h).
    """
    load, move, both = 0x61, 0xB7, 0x57  # BPF_LDX | BPF_MEM | BPF_W; BPF_ALU64 | BPF_MOV, BPF_AND, with BPF_K
    equal, unequal, at_least = 0x15, 0x55, 0x35  # BPF_JMP | BPF_JEQ, BPF_JNE, BPF_JGE (unsigned), with BPF_K
    leave = 0x95  # BPF_JMP | BPF_EXIT
    program = (
        _instruction(load, to=2, source=1, offset=0),
        _instruction(both, to=2, value=0xFFFF),
        _instruction(unequal, to=2, offset=6, value=_CHARACTER_DEVICE),  # to the answer "allow"
        _instruction(load, to=2, source=1, offset=4),
        _instruction(unequal, to=2, offset=4, value=NVIDIA_MAJOR),
        _instruction(load, to=2, source=1, offset=8),
        _instruction(at_least, to=2, offset=2, value=GPU_MINORS),
        _instruction(equal, to=2, offset=1, value=own),
        _instruction(0x05, offset=2),  # BPF_JA, to the answer "deny"
        _instruction(move, to=0, value=1),
        _instruction(leave),
        _instruction(move, to=0, value=0),
        _instruction(leave),
    )
    return b"".join(program)


def _instruction(code: int, *, to: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    """Return a struct bpf_insn; the two registers share a byte, the lower half first on a little-endian machine."""
    registers = to | source << 4 if struct.pack("=H", 1)[0] else to << 4 | source
    return struct.pack("=BBhi", code, registers, offset, value)
