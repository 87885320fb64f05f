"""The values for a daemon's cgroup, and the program that restricts its devices."""

from __future__ import annotations

import struct

import pytest

from slurm_share.core.records import DaemonGroup
from slurm_share.mps.rules import cgroups

GROUP = DaemonGroup("/sys/fs/cgroup", 2001, "5131194a-9e2f6f", minor=2, memory_mib=4096, processes=256)
BLOCK, CHARACTER = 1, 2
READ_WRITE = 6 << 16


def answer(program: bytes, kind: int, major: int, minor: int) -> int:
    """Return the answer of a BPF program, interpreted by the kernel's documentation."""
    context, registers, at = {0: kind | READ_WRITE, 4: major, 8: minor}, [0] * 11, 0
    while True:
        code, which, offset, value = struct.unpack_from("=BBhi", program, 8 * at)
        to, at = which & 15, at + 1
        if code == 0x61:
            registers[to] = context[offset]
        elif code == 0x57:
            registers[to] &= value
        elif code == 0xB7:
            registers[to] = value
        elif code == 0x95:
            return registers[0]
        elif {0x05: True, 0x15: registers[to] == value, 0x55: registers[to] != value, 0x35: registers[to] >= value}[
            code
        ]:
            at += offset


@pytest.mark.parametrize(
    ("kind", "major", "minor", "expected"),
    [
        (CHARACTER, 195, 2, 1),
        (CHARACTER, 195, 0, 0),
        (CHARACTER, 195, 1, 0),
        (CHARACTER, 195, 253, 0),
        (CHARACTER, 195, 254, 1),
        (CHARACTER, 195, 255, 1),
        (CHARACTER, 1, 3, 1),
        (CHARACTER, 510, 0, 1),
        (BLOCK, 195, 0, 1),
    ],
)
def test_the_guard_lets_no_gpu_through_but_the_daemons_own(kind: int, major: int, minor: int, expected: int) -> None:
    assert answer(cgroups.device_program(2), kind, major, minor) == expected


def test_v1_denies_every_gpu_but_the_daemons_own() -> None:
    """One line for each, also for a GPU that comes later; another controller is told nothing of it."""
    lines = cgroups.values(GROUP, "devices")
    assert len(lines) == 253
    assert ("devices.deny", "c 195:2 rwm") not in lines
    assert {file for file, _ in lines} == {"devices.deny"}


@pytest.mark.parametrize(
    ("controller", "expected"),
    [
        ("", {"memory.max": "4294967296", "pids.max": "256"}),
        ("memory", {"memory.limit_in_bytes": "4294967296"}),
        ("pids", {"pids.max": "256"}),
        ("freezer", {}),
    ],
)
def test_memory_and_processes_are_limited_where_their_controller_is(controller: str, expected: dict[str, str]) -> None:
    assert dict(cgroups.values(GROUP, controller)) == expected


def test_a_gpu_of_unknown_number_denies_none() -> None:
    unknown = DaemonGroup("/sys/fs/cgroup", 2001, "5131194a-9e2f6f")
    assert cgroups.values(unknown, "devices") == ()
    assert cgroups.values(unknown, "memory") == ()
    assert cgroups.needed_controllers(unknown) == ()
