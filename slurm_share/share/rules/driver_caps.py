"""Decide where the driver enforces the tasks' memory caps, on their cgroups (driver 615)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from ...core import names
from ...core.records import ShareRequest
from ...core.settings import Settings
from ..records import DriverCaps, Grant, Plan
from . import drivers

NO_CAP = "no cap is enforced"
"""The effect of time-slicing where the driver enforces none."""
CAP_BY_DRIVER = "the driver enforces their memory caps"


def why_none(driver: str | None, settings: Settings, *, has_cgroup_v2: bool) -> str | None:
    """Return why the driver enforces no caps on this node, whatever the GPU; None: it may."""
    if settings.memory_limits == "off":
        return 'memory_limits is "off" in the configuration'
    if not drivers.offers(driver, drivers.MEMORY_LIMITS):
        return f"a memory cap by the driver {drivers.needs(driver, drivers.MEMORY_LIMITS)}"
    if not has_cgroup_v2:
        return "a memory cap by the driver needs jobs in cgroups of version 2, and Slurm keeps none here"
    return None


def of_gpus(grant: Grant, problems: Mapping[str, str]) -> DriverCaps:
    """Return the caps by the driver on the grant's GPUs. problems: GPU -> why the driver cannot limit memory there."""
    able = frozenset(gpu.uuid for gpu in grant.gpus if gpu.uuid not in problems and not gpu.uuid.startswith("MIG-"))
    return DriverCaps(able, next(_why_not(grant, problems), DriverCaps().why_not))


def _why_not(grant: Grant, problems: Mapping[str, str]) -> Iterator[str]:
    for gpu in grant.gpus:
        if gpu.uuid.startswith("MIG-"):
            yield "the driver limits no memory on MIG instances, which have their own"
        elif gpu.uuid in problems:
            yield f"the driver limits no memory on GPU {gpu.index} ({problems[gpu.uuid]})"


def need(share: ShareRequest) -> str | None:
    """Return the words of a request that only the driver can fulfil; None: it has none."""
    if share.mem_mib is not None and share.sharing == "time-slicing":
        least = "" if share.mem_least_mib is None else f"{share.mem_least_mib}M:"
        return f"{names.OPTION_MEM}={least}{share.mem_mib}M with {names.OPTION_SHARING}={share.sharing}"
    return None


def why_refused(grant: Grant, caps: DriverCaps) -> str | None:
    """Return why the driver does not fulfil what the job's user asked for in words; None: it does."""
    asked = None if grant.job.share is None else need(grant.job.share)
    if asked is None or all(gpu.uuid in caps.gpus for gpu in grant.gpus):
        return None
    return (
        f"it asked for {asked}, where only the driver can enforce the cap, and {caps.why_not}; leave "
        f"{names.OPTION_MEM}= away{_with_mps(grant)}"
    )


def _with_mps(grant: Grant) -> str:
    """Return the cap that MPS can hold, as a way out; empty: MPS serves no MIG instances."""
    share = grant.share
    if any(gpu.uuid.startswith("MIG-") for gpu in grant.gpus):
        return ""
    cap = "" if share.mem_least_mib is None else f"{names.OPTION_MEM}={share.mem_mib}M,"
    return f", or write {cap}{names.OPTION_SHARING}={names.SHARING_MPS}"


def notes(plan: Plan) -> Iterator[str]:
    """Yield, once for a job's output, that the driver enforces the caps."""
    capped = [slot for slot in plan.slots if slot.is_cap_of_driver]
    if capped:
        sizes = sorted({slot.memory_cap_mib for slot in capped if slot.memory_cap_mib is not None})
        shown = " or ".join(f"{size} MiB" for size in sizes)
        least = capped[0].memory_least_mib
        sure = "" if least is None else f" ({least} MiB are its own)"
        yield f"the driver limits each task to {shown} of GPU memory{sure}, which its program sees as the GPU's size"


def without(plan: Plan) -> Plan:
    """Return the plan as it is carried out where the driver does not limit memory after all."""
    return replace(plan, slots=tuple(replace(slot, is_cap_of_driver=False) for slot in plan.slots))
