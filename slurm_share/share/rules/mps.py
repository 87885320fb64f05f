"""The limits of MPS, and the variables of its clients."""

from __future__ import annotations

from ...core import names
from ...core.records import MPS_CLIENTS_MIN
from ..records import Assignment, Slot
from . import drivers

CONNECTIONS = 2
"""An MPS client's connections to its GPU if CUDA_DEVICE_MAX_CONNECTIONS is not set (docs.nvidia.com/deploy/mps)."""


def clients(driver_version: str | None) -> int:
    """Return the most MPS clients of one GPU: SHARE_MAX since CUDA 13.1 (driver 590), else MPS_CLIENTS_MIN.

    Source: docs.nvidia.com/deploy/mps, "Limitations". An unknown version counts as an old one.
    """
    return names.SHARE_MAX if drivers.offers(driver_version, drivers.MORE_CLIENTS) else MPS_CLIENTS_MIN


def why_no_limits(driver_version: str | None) -> str | None:
    """Return why the driver does not limit the memory of each task on its cgroup (`Limits.why_no_limits`)."""
    if drivers.offers(driver_version, drivers.MEMORY_LIMITS):
        return None
    return drivers.needs(driver_version, drivers.MEMORY_LIMITS)


def clients_with(most: int, connections: int | None) -> int:
    """Return the most clients if each has so many connections (CUDA_DEVICE_MAX_CONNECTIONS), where `most` is the limit
    without that variable.

    NVIDIA's manual says that more connections reduce the number of clients, but not by how much. Assume that the sum of
    all connections is constant.
    """
    return max(1, most * CONNECTIONS // max(CONNECTIONS, connections or 0))


def why_no_partitions(driver_version: str | None) -> str | None:
    """Return why MPS with that driver has no static partitions, without subject; None: it has them on GPUs that do."""
    if drivers.offers(driver_version, drivers.STATIC_PARTITIONS):
        return None
    return drivers.needs(driver_version, drivers.STATIC_PARTITIONS)


def has_own_faults(driver_version: str | None) -> bool:
    """Return whether a fault in one static partition leaves the clients of the others alone."""
    return drivers.offers(driver_version, drivers.PARTITIONED_FAULTS)


def why_no_program(program: str, *, is_executable: bool) -> str | None:
    """Return why a node with that MPS control `program` in its configuration cannot start MPS; None: it can."""
    if not program:
        return "this site has switched MPS off (mps_control)"
    return None if is_executable else f"there is no {program} on this node"


def client_environment(slot: Slot) -> tuple[Assignment, ...]:
    """Return the variables that make the slot's task a client of its daemon, with its caps.

    The task sees one GPU, whose ordinal is 0. An entry for a GPU that a client does not see would void the whole list
    of limits (NVIDIA Dynamo, "per-GPU limits with MPS").
    """
    return (
        Assignment(names.ENV_MPS, names.MPS_ON),
        Assignment(names.ENV_MPS_PIPE, slot.mps_directory or ""),
        *_partition(slot),
        *(() if slot.sm_percent is None else (Assignment(names.ENV_MPS_THREADS, f"{slot.sm_percent:g}"),)),
        *(() if slot.memory_cap_mib is None else (Assignment(names.ENV_MPS_MEMORY, f"0={slot.memory_cap_mib}M"),)),
    )


def _partition(slot: Slot) -> tuple[Assignment, ...]:
    """Return the variables of a client with a static partition, to which no percentage applies."""
    if slot.partition is None:
        return ()
    return (
        Assignment(names.ENV_MPS_PARTITION, slot.partition),
        *(() if slot.sm_count is None else (Assignment(names.ENV_SMS, str(slot.sm_count)),)),
    )
