"""Compute the bounds of NPPN, which each resource of a node sets, from the evidence of all nodes, and the class of its
load, such as CPU-bound or idle.

The worst node decides the hard bounds (memory, clients, cores), beyond which tasks fail. Load is the mean over all
nodes; its soft bounds only mean that more tasks gain nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from ....core import names
from ....core.settings import Settings
from ....core.text import counted, gib_text
from ....share import Backend
from ...snapshot import Bound, WorkClass
from .. import thresholds
from .evidence import Evidence, Room


def in_gpus(nppn: int, gpus: int) -> int:
    """Return NPPN rounded down to a multiple of the GPUs, so that each has the same number of tasks; a number below the
    GPUs stays as it is."""
    return nppn // gpus * gpus if gpus and nppn >= gpus else nppn


# ---- Hard ----


def hard(nodes: Sequence[Evidence], settings: Settings, backend: Backend) -> tuple[Bound, ...]:
    """Return all known hard bounds, GPU memory first. `backend`: the one that will serve the tasks."""
    found = [
        _worst("GPU memory", [gpu_memory(node, settings) for node in nodes if node.gpus]),
        _worst("host memory", [_host_memory(node, settings) for node in nodes]),
        _worst("MPS clients", [_clients(node, settings, backend) for node in nodes if node.gpus]),
        _worst("cores", [(node.cores, f"{counted(node.cores, 'core')}, at least one for each task") for node in nodes]),
    ]
    return tuple(bound for bound in found if bound is not None)


_Known = tuple[int, str]
"""(NPPN, the arithmetic)."""


def _worst(resource: object, known: Sequence[_Known | None]) -> Bound | None:
    worst = min((one for one in known if one is not None), default=None)
    if worst is None:
        return None
    return Bound(resource=resource, nppn=worst[0], hard=True, why=worst[1])  # type: ignore[arg-type]


def usable_mib(room: Room, settings: Settings) -> int:
    """Return the GPU memory for tasks: all but memory_reserve_percent, or all but the measured use of others, the
    driver and the MPS server if that is more."""
    return room.total - max(math.ceil(room.total * settings.memory_reserve_percent / 100), room.outside)


def gpu_memory(node: Evidence, settings: Settings, *, margin: bool = True) -> _Known | None:
    """Return the bound by the size of the largest task, and its arithmetic; None if it is not known. It is at least one
    task per GPU, since that runs, and at least the tasks that run now if the peaks of all of them fit: unlike tasks are
    not reduced for the largest of them. `margin` False: divide the whole memory of a GPU."""
    if not node.size_mib or not node.rooms:
        return None
    usable = [usable_mib(room, settings) if margin else room.total for room in node.rooms]
    each = max(1, min(usable) // node.size_mib)
    fit = _fit_now(node, usable)
    if fit > each * node.gpus:
        own = sum(room.own or 0 for room in node.rooms)
        why = f"{fit} tasks as they are now have room, {gib(own)} at their peaks; "
        return (
            fit,
            f"{why}of {_largest(node)}, {gib(node.size_mib)}, there would be room for {each * node.gpus}",
        )
    room = min(node.rooms, key=lambda room: usable_mib(room, settings))
    kept = room.total - usable_mib(room, settings)
    whose = " of the node (MemTotal)" if room.is_host else ""
    what = (
        f"{gib(room.total)}{whose} less {gib(kept)} kept or used by others, / {gib(node.size_mib)} of {_largest(node)}"
    )
    return each * node.gpus, f"{node.gpus} x {each} ({what})"


def _largest(node: Evidence) -> str:
    return "the largest task" if node.largest is None else f"the largest, task {node.largest}"


def _fit_now(node: Evidence, usable: Sequence[int]) -> int:
    """Return how many of the tasks that ran at once fit, by the peaks of those that run now; 0 if these do not fit.
    A task that does not run at the moment counts as the mean of those that do."""
    own = [room.own for room in node.rooms if room.own is not None]
    if not node.running or len(own) < len(usable) or not any(own):
        return 0
    if any(taken > limit for taken, limit in zip(own, usable, strict=True)):
        return 0
    mean = sum(own) / node.running
    more = sum(int((limit - taken) // mean) for taken, limit in zip(own, usable, strict=True))
    return min(max(node.now or 0, node.running), node.running + more)


def are_unlike(node: Evidence, settings: Settings) -> bool:
    """Return whether the running tasks fit only because not all of them are as large as the largest."""
    found = gpu_memory(node, settings)
    if found is None or not node.size_mib:
        return False
    return found[0] > node.gpus * max(1, min(usable_mib(room, settings) for room in node.rooms) // node.size_mib)


def _host_memory(node: Evidence, settings: Settings) -> _Known | None:
    """Return the bound by the largest task's host memory, and its arithmetic. It is at least the tasks that run now if
    they fit: a task's memory outside its own process is not known well enough to take a task away."""
    if not node.host_peak_mib or not node.host_total_mib:
        return None
    percent = settings.memory_reserve_percent
    usable = node.host_total_mib * (1 - percent / 100)
    by_peak = max(1, int(usable // node.host_peak_mib))
    subject = "that Slurm gave the job" if node.host_limited else "of the node for it"
    now = max(node.now or 0, node.running)
    if node.running and by_peak < now and node.host_used_mib and node.host_used_mib <= usable:
        fit = min(now, int(usable * node.running // node.host_used_mib))
        if fit > by_peak:
            return fit, f"{node.running} use {gib(node.host_used_mib)} now of {gib(node.host_total_mib)} {subject}"
    why = f"{gib(node.host_total_mib)} {subject} less {percent:g} %, / {gib(node.host_peak_mib)} of the largest task"
    return by_peak, why


def _clients(node: Evidence, settings: Settings, backend: Backend) -> _Known:
    limits = backend.limits(node.driver)
    if limits.client_limit is None or (node.is_mig and not limits.serves_mig):
        return settings.max_share * node.gpus, f"{node.gpus} x {settings.max_share} tasks, the site's max_share"
    most, of_task = limits.client_limit, node.processes_of_task
    clients = max(1, (most - node.other_clients) // of_task)
    # How connections add up is not documented. Tasks that run as clients now prove that as many fit.
    running = min(clients, -(-(node.now or 0) // node.gpus))
    fewer = backend.limits(node.driver, connections=node.connections).client_limit or most
    with_connections = max(running, (fewer - node.other_clients) // of_task, 1)
    if with_connections < min(clients, settings.max_share):
        each = with_connections
        subject = (
            f"clients: the tasks set {names.ENV_CONNECTIONS}={node.connections}, and {limits.title} takes {most} "
            f"clients with {limits.connections} connections each; without the variable more would fit"
        )
    elif settings.max_share <= clients:
        each, subject = settings.max_share, "tasks, the site's max_share"
    else:
        less_others = f" less {node.other_clients} of other jobs" if node.other_clients else ""
        each = clients
        subject = f"clients, the most of {limits.title} with driver {node.driver or 'of unknown version'}{less_others}"
        if of_task > 1:
            subject = f"tasks of {of_task} processes; {most} {subject}"
    return each * node.gpus, f"{node.gpus} x {each} {subject}"


def gib(mib: float) -> str:
    """Return memory as text, in GiB; below one in MiB."""
    return f"{mib:.0f} MiB" if mib < 1024 else gib_text(mib)


# ---- Soft ----


class LoadBound(Struct, frozen=True):
    """A bound by load, and whether the load has reached it, so that no task is added."""

    bound: Bound
    stops: bool


def room(soft: LoadBound) -> int:
    """Return the NPPN of a soft bound; a number above all others if it has none."""
    return 1 << 30 if soft.bound.nppn is None else soft.bound.nppn


def gpu_load(nodes: Sequence[Evidence]) -> LoadBound | None:
    """Return how many tasks bring the GPUs to the load at which more would only wait; at that load, the tasks that run
    now. None if a load is not known."""
    loads = [node.load / node.gpus for node in nodes if node.load is not None]
    if len(loads) < len(nodes) or not all(node.running for node in nodes):
        return None
    gpus, now, running = min(node.gpus for node in nodes), most_now(nodes), _mean([node.running for node in nodes])
    # The mean per GPU, for as many GPUs as the node with the fewest has.
    load = gpus * _mean(loads)
    own = gpus * _mean([(node.own_load or 0.0) / node.gpus for node in nodes])
    of_these = gpus * _mean([node.running / node.gpus for node in nodes])
    counter = "SM activity" if all(node.is_sm for node in nodes) else "utilisation"
    dram = max((node.dram_percent or 0.0 for node in nodes), default=0.0)
    aim = thresholds.GPU_FULL / 100 * gpus
    at_least = "" if counter == "SM activity" else "at least: "
    if load >= aim:
        why = f"{at_least}{counter} {load:.2f} of {gpus}; from {thresholds.GPU_FULL:g} % on more tasks only wait"
        return LoadBound(Bound(resource="GPU load", nppn=now, hard=False, why=why), stops=True)
    if dram >= thresholds.DRAM_FULL:
        why = f"memory bandwidth {dram:.0f} %; from {thresholds.DRAM_FULL:g} % on more tasks only wait"
        return LoadBound(Bound(resource="GPU load", nppn=now, hard=False, why=why), stops=True)
    if own < thresholds.IDLE / 100:
        return None
    others = load - own
    found = max(now, math.floor(of_these * (aim - others) / own + 1e-9))
    less_others = f", {others:.2f} of it others'" if others > 0 else ""
    why = f"{at_least}{_make(running)} {counter} {load:.2f} of {gpus}{less_others}, up to {aim:.2f}"
    return LoadBound(Bound(resource="GPU load", nppn=found, hard=False, why=why), stops=False)


def cpu_load(nodes: Sequence[Evidence]) -> LoadBound | None:
    """Return how many tasks bring the CPUs to the load at which more would only wait; None if a load is not known."""
    loads = [node.cpu_cores / node.cpus for node in nodes if node.cpu_cores is not None]
    if len(loads) < len(nodes) or not all(node.running for node in nodes):
        return None
    now, running = most_now(nodes), _mean([node.running for node in nodes])
    cpus = min(node.cpus for node in nodes)
    percent = 100 * _mean(loads)
    load = cpus * percent / 100
    # A job without GPUs should use the CPUs, so tasks are added only below LLSC's band.
    full = thresholds.CPU_FULL if nodes[0].gpus else thresholds.CPU_BAND[0]
    if percent >= full:
        why = f"CPU time {load:.1f} of {counted(cpus, 'CPU')}; from {full:g} % on, twice as many tasks are too many"
        return LoadBound(Bound(resource="CPU load", nppn=now, hard=False, why=why), stops=True)
    found = max(now, math.floor(running * thresholds.CPU_AIM / max(percent, 0.01) + 1e-9))
    why = f"{_make(running)} CPU time {load:.2f} of {counted(cpus, 'CPU')}"
    # So little CPU time says nothing on so many tasks.
    is_bound = found <= min(node.cores for node in nodes)
    return LoadBound(Bound(resource="CPU load", nppn=found if is_bound else None, hard=False, why=why), stops=False)


def level(nodes: Sequence[Evidence]) -> int | None:
    """Return the NPPN at which every GPU has as many tasks as a full one has now; None if no GPU is full. For a job on
    several nodes, more than half of them must have a full GPU."""
    full = [[card for card in node.busy if (card.load or 0.0) >= thresholds.GPU_FULL] for node in nodes]
    if 2 * sum(bool(cards) for cards in full) <= len(nodes):
        return None
    return min(max(card.tasks for card in cards) for cards in full if cards) * min(node.gpus for node in nodes)


def cpu_percent(nodes: Sequence[Evidence]) -> float | None:
    """Return the job's mean CPU time of a CPU, in percent; None if it is not known."""
    known = [100 * node.cpu_cores / node.cpus for node in nodes if node.cpu_cores is not None]
    return _mean(known) if known else None


def nodes_disagree(nodes: Sequence[Evidence]) -> bool:
    """Return whether the GPUs of one node are used much more than those of another."""
    percents = [node.busy_percent for node in nodes if node.busy_percent is not None]
    least, most = min(percents, default=0.0), max(percents, default=0.0)
    return most - least >= thresholds.DISAGREE and most > thresholds.DISAGREE_TIMES * least


def average_percent(nodes: Sequence[Evidence]) -> float | None:
    """Return the load average in percent of the CPUs, the mean of the nodes; None if it is not known, or may be in part
    another job's, on any of them."""
    known = [100 * node.load_average / node.cpus for node in nodes if node.load_average is not None]
    return _mean(known) if known and len(known) == len(nodes) else None


def is_crowded(nodes: Sequence[Evidence]) -> bool:
    """Return whether more threads than CPUs want to run. The load average alone does not show it, because it also
    counts processes that wait for storage: the job's CPU time has to fill the CPUs as well."""
    cpu, average = cpu_percent(nodes), average_percent(nodes)
    if cpu is None:
        return False
    most = thresholds.CPU_BAND[1]
    return cpu > most or (cpu >= thresholds.CPU_FULL and average is not None and average > most)


def is_waiting(nodes: Sequence[Evidence]) -> bool:
    """Return whether the load average is high without CPU time, so that most of it does not run: state D (storage,
    locks of the kernel), or many threads on few CPUs. Without the CPU time outside the job that is not known."""
    cpu, average = cpu_percent(nodes), average_percent(nodes)
    others = [100 * node.others_cores / node.cpus for node in nodes if node.others_cores is not None]
    if cpu is None or average is None or len(others) < len(nodes):
        return False
    runs = cpu + _mean(others)
    return runs < thresholds.CPU_BAND[0] <= average - runs and average >= 2 * runs


def _make(running: float) -> str:
    return f"{running:g} task makes" if running == 1 else f"{running:g} tasks make"


def most_now(nodes: Sequence[Evidence]) -> int:
    """Return the present NPPN: the tasks of the node with the most."""
    return max((node.now or 0 for node in nodes), default=0)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# ---- The class of a job's load ----


def work_class(nodes: Sequence[Evidence], hard: Sequence[Bound], settings: Settings) -> WorkClass:
    """Return the first class that applies, the most harmful first; `unknown` if no load is known."""
    loads = [100 * node.load / node.gpus for node in nodes if node.load is not None and node.gpus]
    gpu = _mean(loads) if loads else None
    owns = [100 * node.own_load / node.gpus for node in nodes if node.own_load is not None and node.gpus]
    own = _mean(owns) if owns else None
    cpu = cpu_percent(nodes)
    has_gpus = any(node.gpus for node in nodes)
    now = most_now(nodes)
    if any(bound.nppn is not None and now > bound.nppn for bound in hard) or is_crowded(nodes):
        return "over-subscribed"
    if any((node.dram_percent or 0.0) >= thresholds.DRAM_FULL for node in nodes):
        return "memory-bandwidth-bound"
    # Utilisation is an upper bound of SM activity: it does not show that a GPU can do no more.
    if (gpu or 0.0) >= thresholds.GPU_FULL and all(node.is_sm for node in nodes):
        return "GPU-compute-bound"
    if _memory_is_full(nodes, hard, settings):
        return "memory-full"
    if (cpu or 0.0) >= (thresholds.CPU_FULL if has_gpus else thresholds.CPU_AIM):
        return "CPU-bound"
    judged = own if has_gpus else cpu
    if judged is None:
        return "unknown"
    if judged < thresholds.IDLE:
        return "idle"
    low = thresholds.GPU_BAND[0] if has_gpus else thresholds.CPU_BAND[0]
    return "under-used" if judged < low else "well-used"


def _memory_is_full(nodes: Sequence[Evidence], hard: Sequence[Bound], settings: Settings) -> bool:
    """Return whether no further task fits on each GPU (or in host memory), or a GPU has no free memory."""
    now, gpus = most_now(nodes), min(node.gpus for node in nodes)
    bounds = {bound.resource: bound.nppn for bound in hard if bound.nppn is not None}
    more = now // gpus * gpus + gpus if gpus else now + 1
    no_room = bounds.get("GPU memory", more) < more or bounds.get("host memory", now + 1) <= now
    reserve = settings.memory_reserve_percent / 100
    rooms = [room for node in nodes for room in node.rooms]
    return no_room or any(room.used is not None and room.used >= room.total * (1 - reserve) for room in rooms)
