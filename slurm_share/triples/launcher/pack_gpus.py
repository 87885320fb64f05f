"""The GPUs of a node for a packed run: sizes, limits on tasks, and booked memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...core.errors import DriverError, StateError
from ...core.live import LiveFolder
from ...core.paths import Paths
from ...core.records import MPS_CLIENTS_MIN
from ...core.settings import Settings
from ...core.text import fold
from ...node.gpus import binding
from ...node.gpus import driver as nvml
from ...node.records import Gpu
from ...packing import Bookings, Budget, GpuFacts
from ...share import BACKEND_MPS, Host, Limits, Slot, limits, registry
from . import slot_assignment
from .slot_assignment import LauncherJob, SlotAssignment, cannot_run


def prepare(
    here: LauncherJob,
    found: SlotAssignment,
    budgets: Mapping[int, Budget],
    paths: Paths,
    settings: Settings,
    live: LiveFolder | None,
) -> tuple[tuple[Slot, ...], tuple[GpuFacts, ...], Bookings | None, list[str]]:
    """Return a slot of each GPU on which this launcher has one, what packing needs of these GPUs, bookings, and notes.

    `live`: this launcher's folder; None: there is none, and no bookings. Raises LaunchError if there is no such GPU.
    """
    by_place = _whole_gpus(found) | dict(zip(found.positions, found.gpu_slots, strict=True))
    if found.plan is not None and found.leases is None:
        # In the launcher's own plan, the processes may use all GPUs, even if there are more GPUs than processes.
        by_place = {slot.number % len(found.plan.gpus): slot for slot in found.plan.slots} | by_place
    if not by_place:
        way = "ask for some (-g 1)" if here.job_id is not None else "use a machine with GPUs; nvidia-smi -L lists them"
        raise cannot_run(here, f"--pack and [N,auto] place tasks on GPUs, and it has none for this run; {way}")
    places = sorted(by_place)
    slots = tuple(by_place[place] for place in places)
    try:
        version = binding.read_driver().version
    except DriverError:
        version = None
    offer = registry.get(BACKEND_MPS).limits(version, Host(paths=paths, settings=settings))
    # The slots of a GPU do not limit the tasks that are packed onto it, unless each has a static partition.
    most = min(offer.client_limit or MPS_CLIENTS_MIN, settings.max_share)
    partitions = partition_slots(found)
    facts = tuple(
        _facts(index, slot, budgets.get(place), most, settings, len(partitions.get(slot.gpu.uuid, ())), offer)
        for index, (place, slot) in enumerate(zip(places, slots, strict=True))
    )
    notes = []
    without = [one.index for one in facts if not one.is_mps]
    if without:
        notes.append(
            f"no memory cap is enforced on GPU {fold(without)} of {here.node}: tasks are placed by their booked "
            "memory, and a task that takes more can make other tasks there fail"
        )
    notes += size_notes(here, [slot.gpu for slot in slots])
    bookings = None
    try:
        bookings = None if live is None else Bookings(live, here.job, [one.uuid for one in facts])
    except StateError as error:
        notes.append(f"{error}; the memory that your other launchers book on {here.node} is not known")
    return slots, facts, bookings, notes


def size_notes(here: LauncherJob, gpus: Sequence[Gpu]) -> list[str]:
    """Return on which GPUs the size that packing needs is not known, or is that of the node's memory."""
    unknown = [gpu.index for gpu in gpus if gpu.is_listed and not gpu.memory_total_mib]
    of_node = [gpu for gpu in gpus if gpu.memory_total_mib and gpu.is_host_memory]
    notes = []
    if unknown:
        notes.append(
            f"the driver does not say how much memory GPU {fold(unknown)} of {here.node} has: it takes one "
            "task at a time"
        )
    if of_node:
        notes.append(
            f"GPU {fold(gpu.index for gpu in of_node)} of {here.node} uses the node's memory: its "
            f"{of_node[0].memory_total_mib} MiB (MemTotal) are booked, and programs without a GPU take some of it"
        )
    return notes


def _whole_gpus(found: SlotAssignment) -> dict[int, Slot]:
    """Return one slot, by GPU position, of each GPU of the Prolog's plan that this launcher holds completely."""
    if found.plan is None:
        return {}
    held, per_gpu = slot_assignment.held_slots(found), found.plan.share.per_gpu
    first: dict[str, Slot] = {}
    for slot in found.plan.slots:
        first.setdefault(slot.gpu.uuid, slot)
    return {place: slot for place, (uuid, slot) in enumerate(first.items()) if held[uuid] == per_gpu}


def partition_slots(found: SlotAssignment) -> dict[str, tuple[Slot, ...]]:
    """Return the slots with a static partition that this launcher has on each GPU (UUID)."""
    if found.plan is None:
        return {}
    held = None if found.leases is None else frozenset(found.leases.slots)
    divided: dict[str, list[Slot]] = {}
    for slot in found.plan.slots:
        if slot.partition is not None and (held is None or slot.number in held):
            divided.setdefault(slot.gpu.uuid, []).append(slot)
    return {gpu: tuple(its) for gpu, its in divided.items()}


def _facts(
    index: int,
    slot: Slot,
    budget: Budget | None,
    clients_max: int,
    settings: Settings,
    partitions: int,
    offer: Limits,
) -> GpuFacts:
    gpu, is_mps = slot.gpu, slot.mps_directory is not None
    usable = limits.usable_mib(gpu, settings)
    if budget is not None and not budget.is_whole:
        usable = budget.total_mib  # other steps or jobs have slots of this GPU
    return GpuFacts.of(
        index,
        gpu,
        usable,
        clients_max,
        is_mps=is_mps,
        is_exclusive=_is_exclusive(gpu),
        has_limits=slot.is_cap_of_driver,
        partitions=partitions,
        has_own_faults=offer.has_own_faults,
    )


def _is_exclusive(gpu: Gpu) -> bool:
    """Return whether a GPU is in compute mode EXCLUSIVE_PROCESS."""
    try:
        return gpu.is_listed and nvml.read_compute_mode(gpu.uuid) == nvml.EXCLUSIVE_PROCESS
    except DriverError:
        return False
