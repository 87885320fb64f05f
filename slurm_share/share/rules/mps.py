"""The limits of MPS, and the variables of its clients."""

from __future__ import annotations

from ...core import names
from ...core.records import MPS_CLIENTS_MIN
from ...core.settings import Settings
from ...mps.records import Namespace
from ..records import Assignment, Grant, Slot
from . import drivers, limits

PROTOCOL_3 = 3

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


def protocol(driver_version: str | None, settings: Settings) -> tuple[int, str]:
    """Return the protocol of the daemons of hooks, and why it is not the one of the site's settings, if it is not."""
    if settings.mps_protocol == PROTOCOL_3 and not drivers.offers(driver_version, drivers.MPS_V3):
        return 2, f"mps_protocol = {PROTOCOL_3} {drivers.needs(driver_version, drivers.MPS_V3)}: its daemons have 2"
    return settings.mps_protocol, ""


def namespaces(grant: Grant, settings: Settings, on_gpu: int | None) -> dict[str, tuple[Namespace, ...]]:
    """Return the namespaces that the daemon of each GPU must have for the grant's tasks; empty with protocol 2.

    on_gpu: the number of the job's part of its GPU, if it has one. Other jobs of the user have the other parts.
    """
    if grant.mps_protocol != PROTOCOL_3:
        return {}
    from ...mps.rules import namespaces as v3  # only tasks with protocol 3 need it

    share, is_capped = grant.share, grant.job.share is not None
    percent = limits.sm_percent(share, settings) if is_capped else None
    numbers = range(share.per_gpu) if on_gpu is None else (on_gpu,)
    found = {}
    for gpu in grant.gpus:
        cap_mib = limits.memory_cap_mib(gpu, share, settings) if is_capped else None
        slots = (Namespace(v3.slot_name(number), cap_mib, percent) for number in numbers)
        found[gpu.uuid] = (*slots, Namespace(v3.ANY))
    return found


def namespace_of(number: int) -> str:
    """Return the path, below the daemon's pipe directory, of the namespace of a task's place on its GPU."""
    from ...mps.rules import namespaces as v3

    return f"{v3.SERVER}/{v3.slot_name(number)}"


def uncapped(namespace: str | None) -> str | None:
    """Return the namespace of a task whose caps are not those of its slot: there its environment alone sets them."""
    if namespace is None:
        return None
    from ...mps.rules import namespaces as v3

    return f"{v3.SERVER}/{v3.ANY}"


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
        Assignment(names.ENV_MPS_PIPE, "/".join(filter(None, (slot.mps_directory, slot.mps_namespace)))),
        Assignment(names.ENV_MPS_PROTOCOL, str(2 if slot.mps_namespace is None else PROTOCOL_3)),
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
