"""Reduce a snapshot to what a user may see: the user's own load, and the presence of other users' load.

The result is built only from fields that are declared as visible: figures of a GPU by the `Metric` at the field, all
other fields by name here. A field that is not declared is hidden.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeVar

from msgspec import Struct, structs

from ...core.metric import Seen, measured
from ...mps.records import MPS_NAME
from ...node.gpu_figures import WINDOWED, Activity
from ..snapshot import GpuBooking, GpuLoad, GpuUser, JobLoad, OnGpu, ProcessLoad, Snapshot, UserLoad
from . import thresholds

OTHERS = "others use parts of this GPU"
OTHERS_TOO = "other users are on this GPU, and their number of processes is not kept"
BEFORE = "it would show what others did here before"

OF_THE_NODE = (
    *("schema", "node", "taken", "source", "measured_s", "interval_s", "version", "driver", "cpus", "cores", "load"),
    *("cpu_cores", "memory_total_mib", "memory_used_mib", "unknown"),
)
"""Fields of a Snapshot that every user may see: the kernel shows them to every user of the node."""
OF_THE_GPU = ("uuid", "index", "name", "minor", "mig_parent", "mig_of", "simulated", "is_host_memory", "problem")
"""Fields of every GPU that is shown; figures are declared at the field (`Metric.seen`)."""
OWN: dict[type[Struct], tuple[str, ...]] = {
    ProcessLoad: (
        *("pid", "start_ticks", "name", "uid", "user", "job", "step", "task", "slot", "gpus", "cap_mib", "connections"),
        *("in_advance", "cpu_cores", "memory_mib", "progress", "unknown"),
    ),
    OnGpu: ("uuid", "memory_mib", "peak_mib", "sm_time_percent"),
    JobLoad: (
        *("job", "uid", "user", "share", "slots", "sharing", "tasks", "gpus", "granted", "gpu_memory_mib", "gpu_load"),
        *(
            "cpu_cores",
            "cpu_cores_windows",
            "memory_mib",
            "memory_kills",
            "task_peak_mib",
            "task_host_peak_mib",
            "tasks_measured",
        ),
        *("tasks_at_once", "measured_s", "energy_j", "progress", "unknown"),
    ),
    UserLoad: (
        *("uid", "user", "jobs", "processes", "gpus", "gpu_memory_mib", "gpu_load", "cpu_cores", "memory_mib"),
        *("energy_j", "unknown"),
    ),
    GpuUser: ("uid", *(one.windows for one in WINDOWED)),
    GpuBooking: ("uid", "job", "booked_mib", "tasks", "clients", "held_for", "held_since"),
}
"""Fields of the user's own processes, jobs and sums."""


def _shown_to(record: type[Struct], *seen: Seen) -> tuple[str, ...]:
    return tuple(one.name for one in measured(record) if not one.is_windows and one.metric.seen in seen)


_TO_ALL = (*OF_THE_GPU, *_shown_to(GpuLoad, "all"))
_OF_A_FREE_ONE = (*OF_THE_GPU, *_shown_to(GpuLoad, "all", "free"))
_ON_IT = (*OF_THE_GPU, *_shown_to(GpuLoad, "all", "free", "own"))
_PARTS = _shown_to(Activity, "all", "free", "own")
_FIGURES = {one.name: one.json for one in measured(GpuLoad)}
"""Figure of a GPU -> its name in `unknown`."""


def for_user(snapshot: Snapshot, uid: int, user: str) -> Snapshot:
    """Return the snapshot with only that user's processes, jobs and sums. Applying it twice changes nothing.

    The node's cores, load and memory stay, because the kernel shows them to everybody. A GPU stays if the user or
    nobody is on it. If the user shares it with others, its figures stay, because the driver shows them to everybody on
    it; `others_mib` is the others' memory, and `clients` are the user's. All other GPUs are left out and counted.
    Means over time start when the user came to the GPU, and are left out for a GPU on which the user was not.
    """
    processes = tuple(one for one in snapshot.processes if one.uid == uid)
    hidden = tuple(one for one in snapshot.processes if one.uid != uid)
    own = {on.uuid for one in processes for on in one.gpus}
    keep = {gpu.uuid for gpu in snapshot.gpus if gpu.uuid in own or _has_no_other_user(gpu, hidden, uid)}
    # A GPU in MIG mode is shown for its instances.
    cut = {gpu.mig_of for gpu in snapshot.gpus}
    keep -= {gpu.uuid for gpu in snapshot.gpus if gpu.uuid in cut and gpu.uuid not in own}
    shared_parents = {gpu.mig_of for gpu in snapshot.gpus if gpu.mig_of is not None and gpu.uuid not in keep}
    parents = {gpu.mig_of for gpu in snapshot.gpus if gpu.uuid in keep}
    gpus, gone = [], []
    for gpu in snapshot.gpus:
        if gpu.uuid not in keep and not (gpu.mig_parent and gpu.uuid in parents):
            gone.append(gpu)
        elif gpu.mig_parent and gpu.uuid in shared_parents:
            gpus.append(_without_load(gpu))
        else:
            gpus.append(_gpu(gpu, uid, processes, hidden))
    return Snapshot(
        **_fields(snapshot, OF_THE_NODE),
        view=user,
        gpus=tuple(gpus),
        processes=tuple(map(_process, processes)),
        jobs=tuple(_own(one) for one in snapshot.jobs if one.uid == uid),
        users=tuple(_own(one) for one in snapshot.users if one.uid == uid),
        hidden_gpus=snapshot.hidden_gpus + sum(not gpu.mig_parent for gpu in gone),
        problems=tuple(said for said in snapshot.problems if not any(gpu.uuid in said for gpu in gone)),
    )


def for_user_by_jobs(snapshot: Snapshot, user: str) -> Snapshot:
    """Return the same from a snapshot without processes, as from Prometheus: by the GPUs of jobs and users."""
    jobs = tuple(_own(job) for job in snapshot.jobs if job.user == user)
    users = tuple(_own(one) for one in snapshot.users if one.user == user)
    own = {uuid for job in jobs for uuid in job.gpus} | {uuid for one in users for uuid in one.gpus}
    others = {uuid for one in snapshot.users if one.user != user for uuid in one.gpus}
    keep = {gpu.uuid for gpu in snapshot.gpus if gpu.uuid in own or gpu.clients == 0}
    keep |= {gpu.mig_of for gpu in snapshot.gpus if gpu.uuid in keep and gpu.mig_of is not None}
    shared_parents = {gpu.mig_of for gpu in snapshot.gpus if gpu.mig_of is not None and gpu.uuid not in keep}
    return Snapshot(
        **_fields(snapshot, OF_THE_NODE),
        view=user,
        gpus=tuple(
            _without_load(gpu)
            if gpu.mig_parent and gpu.uuid in shared_parents
            else _without_clients(_without_bookings(gpu, own), others)
            for gpu in snapshot.gpus
            if gpu.uuid in keep
        ),
        jobs=jobs,
        users=users,
        hidden_gpus=sum(gpu.uuid not in keep for gpu in snapshot.whole_gpus),
        gpu_sums=snapshot.gpu_sums,
        problems=snapshot.problems,
    )


def _fields(record: Struct, names: Collection[str]) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


_Own = TypeVar("_Own", bound=Struct)


def _own(record: _Own) -> _Own:
    """Return a record of the user's own with only the fields that are declared as visible."""
    kind = type(record)
    return record if len(OWN[kind]) == len(kind.__struct_fields__) else kind(**_fields(record, OWN[kind]))


def _has_no_other_user(gpu: GpuLoad, hidden: tuple[ProcessLoad, ...], uid: int) -> bool:
    """Return whether no other user is on the GPU. One whose processes the driver does not list may have other users; a
    lost GPU belongs to its last users."""
    if any(on.uuid == gpu.uuid for one in hidden for on in one.gpus) or gpu.others_mib:
        return False
    if gpu.clients is None:
        lost = gpu.memory_used_mib is None and gpu.utilization_percent is None
        return lost and (not gpu.users or any(one.uid == uid for one in gpu.users))
    return gpu.clients == 0


def _process(process: ProcessLoad) -> ProcessLoad:
    gpus = tuple(map(_own, process.gpus))
    return _own(process if gpus == process.gpus else structs.replace(process, gpus=gpus))


def _gpu(gpu: GpuLoad, uid: int, processes: tuple[ProcessLoad, ...], hidden: tuple[ProcessLoad, ...]) -> GpuLoad:
    """Return a GPU that the user or nobody is on. Its windows, and `activity` since the sample before, are shown only
    for the user's own time."""
    theirs = sum(on.memory_mib or 0 for one in hidden for on in one.gpus if on.uuid == gpu.uuid)
    own = [one for one in processes for on in one.gpus if on.uuid == gpu.uuid]
    mine = len(own)
    bookings = tuple(_own(one) for one in gpu.bookings if one.uid == uid)
    since = next((_own(one) for one in gpu.users if one.uid == uid), None)
    allowed = _ON_IT if mine else _OF_A_FREE_ONE
    shown = _fields(gpu, allowed)
    shown |= {one.windows: None if since is None else getattr(since, one.windows) for one in WINDOWED}
    known = any(shown[one.windows] is not None for one in WINDOWED)
    shown |= {
        "activity": Activity(**_fields(gpu.activity, _PARTS)) if known else Activity(),
        "clients": None if gpu.clients is None else mine,
        "mps_servers": None if gpu.clients is None else sum(one.name.startswith(MPS_NAME) for one in own),
        "others_mib": gpu.others_mib + theirs,
        "booked_mib": sum(one.booked_mib for one in bookings) if bookings else None,
        "bookings": bookings,
        "users": () if since is None else (since,),
    }
    if not mine:
        # That nobody was on it for ten minutes reveals nothing; the time when the last user left would.
        is_long = gpu.unused_s is not None and gpu.unused_s >= thresholds.HELD_IDLE_S
        shown["unused_s"] = thresholds.HELD_IDLE_S if is_long else None
    hidden_ones = [name for name in _FIGURES if name not in allowed and name != "booked_mib"]
    cut = {_FIGURES[name]: BEFORE for name in hidden_ones if shown.get(name) is None}
    if not known:
        cut["activity"] = BEFORE
    return GpuLoad(**shown, unknown={**cut, **gpu.unknown})


def _without_bookings(gpu: GpuLoad, own: Collection[str]) -> GpuLoad:
    """Return the GPU without bookings if the user is not on it, because they are another user's."""
    return gpu if gpu.uuid in own or gpu.booked_mib is None else structs.replace(gpu, booked_mib=None, bookings=())


def _without_clients(gpu: GpuLoad, others: Collection[str]) -> GpuLoad:
    """Return the GPU without the number of its processes if other users are on it, because some are theirs."""
    if gpu.uuid not in others:
        return gpu
    unknown = {**gpu.unknown, **dict.fromkeys(("clients", "mps_servers"), OTHERS_TOO)}
    return structs.replace(gpu, clients=None, mps_servers=None, unknown=unknown)


def _without_load(gpu: GpuLoad) -> GpuLoad:
    """Return a GPU in MIG mode of which the user has some instances, without figures, which include others'."""
    cut = [json for name, json in _FIGURES.items() if name not in _TO_ALL]
    return GpuLoad(**_fields(gpu, _TO_ALL), unknown={**gpu.unknown, **dict.fromkeys((*cut, "activity"), OTHERS)})
