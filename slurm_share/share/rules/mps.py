"""What MPS can carry, and the variables of a task that it serves: values only."""

from __future__ import annotations

from ...core import names
from ..records import Assignment, Slot

CONNECTIONS = 2
"""Connections of a client of MPS to its GPU if CUDA_DEVICE_MAX_CONNECTIONS is not set (docs.nvidia.com/deploy/mps)."""


def clients(driver_version: str | None) -> int:
    """Return how many clients of MPS one GPU takes: 60 since CUDA 13.1, which is driver 590; 48 before, from Volta on.

    Source: docs.nvidia.com/deploy/mps, "Limitations". An unknown version counts as an old one.
    """
    major = (driver_version or "").partition(".")[0]
    return 60 if major.isdecimal() and int(major) >= 590 else 48


def clients_with(most: int, connections: int | None) -> int:
    """Return how many of the `most` clients are left if each has so many connections (CUDA_DEVICE_MAX_CONNECTIONS).

    NVIDIA's manual says that more connections of a client leave room for fewer clients, and not how many. Here the sum
    of all connections stays the same.
    """
    return max(1, most * CONNECTIONS // max(CONNECTIONS, connections or 0))


def why_no_program(program: str, *, is_executable: bool) -> str | None:
    """Return why a node whose configuration names that MPS control `program` cannot start MPS; None: it can."""
    if not program:
        return "this site has switched MPS off (mps_control)"
    return None if is_executable else f"there is no {program} on this node"


def client_environment(slot: Slot) -> tuple[Assignment, ...]:
    """Return the variables that make the slot's task a client of its daemon, with its caps.

    The task sees one GPU, so that is its ordinal 0: an entry for a GPU that a client cannot see would void the whole
    list of limits (NVIDIA Dynamo, "per-GPU limits with MPS").
    """
    return (
        Assignment(names.ENV_MPS, names.MPS_ON),
        Assignment(names.ENV_MPS_PIPE, slot.mps_directory or ""),
        *(() if slot.sm_percent is None else (Assignment(names.ENV_MPS_THREADS, f"{slot.sm_percent:g}"),)),
        *(() if slot.memory_cap_mib is None else (Assignment(names.ENV_MPS_MEMORY, f"0={slot.memory_cap_mib}M"),)),
    )
