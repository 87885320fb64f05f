"""What of a node a user may see: what is theirs, and of the rest no more than that it is there."""

from __future__ import annotations

import msgspec

from ...node.records import Activity
from ..snapshot import GpuLoad, GpuUser, ProcessLoad, Snapshot
from . import thresholds

OTHERS = "others use parts of this GPU"
BEFORE = "it would tell what others did here before"
_MEASURED = (
    *("memory_used_mib", "utilization_percent", "utilization", "sm", "dram", "power_w", "energy_j", "temperature_c"),
    "clients",
)


def for_user(snapshot: Snapshot, uid: int, user: str) -> Snapshot:
    """The snapshot with that user's processes, jobs and sums alone; the same again for one that is so already.

    The node's cores, load and memory stay, which the kernel tells everybody. A GPU stays where the user is on it, or
    where nobody is. On a GPU that the user is on with others its own figures stay, which the driver tells everybody on
    it; of the others there is `others_mib`, and `clients` are the user's. All other GPUs go, and are counted. What
    looks back begins where the user came, and is not shown of a GPU that was not the user's.
    """
    processes = tuple(one for one in snapshot.processes if one.uid == uid)
    hidden = tuple(one for one in snapshot.processes if one.uid != uid)
    own = {on.uuid for one in processes for on in one.gpus}
    keep = {gpu.uuid for gpu in snapshot.gpus if gpu.uuid in own or _is_nobodys(gpu, hidden, uid)}
    # A GPU in MIG mode is shown for its instances.
    cut = {gpu.mig_of for gpu in snapshot.gpus}
    keep -= {gpu.uuid for gpu in snapshot.gpus if gpu.uuid in cut and gpu.uuid not in own}
    shared_parents = {gpu.mig_of for gpu in snapshot.gpus if gpu.mig_of is not None and gpu.uuid not in keep}
    parents = {gpu.mig_of for gpu in snapshot.gpus if gpu.uuid in keep}
    gpus, gone, unseen = [], [], 0
    for gpu in snapshot.gpus:
        if gpu.uuid not in keep and not (gpu.mig_parent and gpu.uuid in parents):
            gone.append(gpu)
            unseen += not gpu.mig_parent
            continue
        shown = _since_then(_shared(gpu, processes, hidden), uid, gpu.uuid in own)
        gpus.append(_without_load(shown) if gpu.mig_parent and gpu.uuid in shared_parents else shown)
    return msgspec.structs.replace(
        snapshot,
        view=user,
        gpus=tuple(gpus),
        processes=processes,
        jobs=tuple(one for one in snapshot.jobs if one.uid == uid),
        users=tuple(one for one in snapshot.users if one.uid == uid),
        hidden_gpus=snapshot.hidden_gpus + unseen,
        gpu_sums=None,
        problems=tuple(said for said in snapshot.problems if not any(gpu.uuid in said for gpu in gone)),
    )


def _is_nobodys(gpu: GpuLoad, hidden: tuple[ProcessLoad, ...], uid: int) -> bool:
    """Whether nobody else is on it, as far as anybody can say. One whose processes the driver does not list, and that
    is not lost altogether, may be somebody's; a lost one is theirs who were on it lately."""
    if any(on.uuid == gpu.uuid for one in hidden for on in one.gpus) or gpu.others_mib:
        return False
    if gpu.clients is None:
        lost = gpu.memory_used_mib is None and gpu.utilization_percent is None
        return lost and (not gpu.users or any(one.uid == uid for one in gpu.users))
    return gpu.clients == 0


def _shared(gpu: GpuLoad, processes: tuple[ProcessLoad, ...], hidden: tuple[ProcessLoad, ...]) -> GpuLoad:
    theirs = sum(on.memory_mib or 0 for one in hidden for on in one.gpus if on.uuid == gpu.uuid)
    mine = sum(on.uuid == gpu.uuid for one in processes for on in one.gpus)
    return msgspec.structs.replace(
        gpu, others_mib=gpu.others_mib + theirs, clients=None if gpu.clients is None else mine
    )


def _since_then(gpu: GpuLoad, uid: int, own: bool) -> GpuLoad:
    """What looks back, from when the user came: the windows, and `activity`, which is since the look before."""
    mine = next((one for one in gpu.users if one.uid == uid), GpuUser(uid=uid))
    cut: dict[str, object] = {"utilization": mine.utilization, "sm": mine.sm, "dram": mine.dram}
    if mine.utilization is None and mine.sm is None:
        cut["activity"] = Activity()
    if not own:
        cut["energy_j"] = None
        # That nobody was here for ten minutes tells nothing of anybody; when the last one left would.
        is_long = gpu.unused_s is not None and gpu.unused_s >= thresholds.HELD_IDLE_S
        cut["unused_s"] = thresholds.HELD_IDLE_S if is_long else None
    unknown = {field: BEFORE for field, value in cut.items() if not value or value == Activity()}
    return msgspec.structs.replace(
        gpu,
        **cut,
        users=tuple(one for one in gpu.users if one.uid == uid),
        unknown={**unknown, **gpu.unknown},
    )


def _without_load(gpu: GpuLoad) -> GpuLoad:
    """A GPU in MIG mode of which the user has some instances: the figures of the whole are mostly others'."""
    return msgspec.structs.replace(
        gpu,
        **dict.fromkeys(_MEASURED),
        activity=Activity(),
        others_mib=0,
        unused_s=None,
        users=(),
        unknown={**gpu.unknown, **dict.fromkeys((*_MEASURED, "activity"), OTHERS)},
    )
