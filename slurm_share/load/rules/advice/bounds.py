"""What each resource of a node allows: the bounds of NPPN, from the evidence of every node that was seen.

The worst node decides what is hard (memory, clients, cores); load is the mean of all nodes. Hard bounds are what the
tasks need or fail; soft ones only say that more tasks would gain nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from ....core import names
from ....core.settings import Settings
from ....share import Backend
from ...snapshot import Bound
from .. import thresholds
from .evidence import Evidence, Room


def in_gpus(nppn: int, gpus: int) -> int:
    """Round down to a multiple of the GPUs, so that each has as many tasks; fewer than the GPUs stay as they are."""
    return nppn // gpus * gpus if gpus and nppn >= gpus else nppn


# ---- Hard ----


def hard(nodes: Sequence[Evidence], settings: Settings, backend: Backend) -> tuple[Bound, ...]:
    """Return all hard bounds that are known, GPU memory first. `backend` is the one that is to serve the tasks."""
    found = [
        _worst("GPU memory", [gpu_memory(node, settings) for node in nodes if node.gpus]),
        _worst("host memory", [_host_memory(node, settings) for node in nodes]),
        _worst("MPS clients", [_clients(node, settings, backend) for node in nodes if node.gpus]),
        _worst("cores", [(node.cores, f"{node.cores} cores, at least one for each task") for node in nodes]),
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
    """GPU memory for tasks: all but two percent (memory_reserve_percent), or but what is measured as used by others,
    driver and MPS server included, where that is more."""
    return room.total - max(math.ceil(room.total * settings.memory_reserve_percent / 100), room.outside)


def gpu_memory(node: Evidence, settings: Settings, *, margin: bool = True) -> _Known | None:
    """By the largest task's peak. One task has a GPU at least, whatever it takes: it runs. Where those that run have
    room with the peak of each, so many at least: unlike tasks are not told to be fewer for the largest of them.
    Without the margin: what a division of the whole memory says, and what the GPUs have no room for in fact."""
    if not node.peak_mib or not node.rooms:
        return None
    usable = [usable_mib(room, settings) if margin else room.total for room in node.rooms]
    each = max(1, min(usable) // node.peak_mib)
    fit = _fit_now(node, usable)
    if fit > each * node.gpus:
        own = sum(room.own or 0 for room in node.rooms)
        why = f"{fit} tasks as they are now have room, {gib(own)} at their peaks; "
        return (
            fit,
            f"{why}of the largest{_name(node)}, {gib(node.peak_mib)}, there would be room for {each * node.gpus}",
        )
    room = min(node.rooms, key=lambda room: usable_mib(room, settings))
    kept = room.total - usable_mib(room, settings)
    what = f"{gib(room.total)} less {gib(kept)} kept or used by others, / {gib(node.peak_mib)} of the largest task"
    what += _name(node)
    return each * node.gpus, f"{node.gpus} x {each} ({what})"


def _name(node: Evidence) -> str:
    return "" if node.largest is None else f" ({node.largest})"


def _fit_now(node: Evidence, usable: Sequence[int]) -> int:
    """How many of the tasks that there were at once have room by the peaks of those that run now; 0: not all of these
    have. One that is not there at the moment counts as the mean of those that are."""
    own = [room.own for room in node.rooms if room.own is not None]
    if not node.running or len(own) < len(usable) or not any(own):
        return 0
    if any(taken > limit for taken, limit in zip(own, usable, strict=True)):
        return 0
    mean = sum(own) / node.running
    more = sum(int((limit - taken) // mean) for taken, limit in zip(own, usable, strict=True))
    return min(max(node.now or 0, node.running), node.running + more)


def are_unlike(node: Evidence, settings: Settings) -> bool:
    """Whether what runs fits only since not all its tasks are as large as the largest."""
    found = gpu_memory(node, settings)
    if found is None or not node.peak_mib:
        return False
    return found[0] > node.gpus * max(1, min(usable_mib(room, settings) for room in node.rooms) // node.peak_mib)


def _host_memory(node: Evidence, settings: Settings) -> _Known | None:
    """By the largest task's. Where those that run have room now, so many at least: what a task has besides its own
    process is not known well enough to take a task away for it."""
    if not node.host_peak_mib or not node.host_total_mib:
        return None
    percent = settings.memory_reserve_percent
    usable = node.host_total_mib * (1 - percent / 100)
    by_peak = max(1, int(usable // node.host_peak_mib))
    subject = "of the job's limit (--mem)" if node.host_limited else "of the node for it"
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
    most = limits.client_limit
    clients = max(1, most - node.other_clients)
    # How connections add up is not documented: tasks that run as clients now prove that there is room for as many.
    running = min(clients, -(-(node.now or 0) // node.gpus))
    fewer = backend.limits(node.driver, connections=node.connections).client_limit or most
    with_connections = max(running, fewer - node.other_clients, 1)
    if with_connections < min(clients, settings.max_share):
        each = with_connections
        subject = (
            f"clients: the tasks set {names.ENV_CONNECTIONS}={node.connections}, and {limits.title} takes {most} "
            f"clients with {limits.connections} connections each; without the variable there is room for more"
        )
    elif settings.max_share <= clients:
        each, subject = settings.max_share, "tasks, the site's max_share"
    else:
        less_others = f" less {node.other_clients} of other jobs" if node.other_clients else ""
        each = clients
        subject = f"clients, the most of {limits.title} with driver {node.driver or 'of unknown version'}{less_others}"
    return each * node.gpus, f"{node.gpus} x {each} {subject}"


def gib(mib: float) -> str:
    """Return memory as text, in GiB."""
    return f"{mib:.0f} MiB" if mib < 1024 else f"{mib / 1024:.1f} GiB"


# ---- Soft ----


class Soft(Struct, frozen=True):
    """A bound that stops a rise, or does not yet."""

    bound: Bound
    stops: bool


def gpu_load(nodes: Sequence[Evidence]) -> Soft | None:
    """How many tasks bring the GPUs to the load at which more would only wait; None where no load is known. Where the
    GPUs are there already it is what runs now."""
    loads = [node.load / node.gpus for node in nodes if node.load is not None]
    if len(loads) < len(nodes) or not all(node.running for node in nodes):
        return None
    gpus, now, running = min(node.gpus for node in nodes), most_now(nodes), _mean([node.running for node in nodes])
    # Of a GPU, and of so many as the node with the fewest has.
    load = gpus * _mean(loads)
    own = gpus * _mean([(node.own_load or 0.0) / node.gpus for node in nodes])
    of_these = gpus * _mean([node.running / node.gpus for node in nodes])
    counter = "SM activity" if all(node.is_sm for node in nodes) else "utilisation"
    dram = max((node.dram_percent or 0.0 for node in nodes), default=0.0)
    aim = thresholds.GPU_FULL / 100 * gpus
    at_least = "" if counter == "SM activity" else "at least: "
    if load >= aim:
        why = f"{at_least}{counter} {load:.2f} of {gpus}; from {thresholds.GPU_FULL:g} % on more tasks only wait"
        return Soft(Bound(resource="GPU load", nppn=now, hard=False, why=why), stops=True)
    if dram >= thresholds.DRAM_FULL:
        why = f"memory bandwidth {dram:.0f} %; from {thresholds.DRAM_FULL:g} % on more tasks only wait"
        return Soft(Bound(resource="GPU load", nppn=now, hard=False, why=why), stops=True)
    if own < thresholds.IDLE / 100:
        return None
    others = load - own
    found = max(now, math.floor(of_these * (aim - others) / own + 1e-9))
    less_others = f", {others:.2f} of it others'" if others > 0 else ""
    why = f"{at_least}{_make(running)} {counter} {load:.2f} of {gpus}{less_others}, up to {aim:.2f}"
    return Soft(Bound(resource="GPU load", nppn=found, hard=False, why=why), stops=False)


def cpu_load(nodes: Sequence[Evidence]) -> Soft | None:
    """Return how many tasks bring the CPUs to that load; None where no load is known."""
    loads = [node.cpu_load / node.cpus for node in nodes if node.cpu_load is not None]
    if len(loads) < len(nodes) or not all(node.running for node in nodes):
        return None
    now, running = most_now(nodes), _mean([node.running for node in nodes])
    cpus = min(node.cpus for node in nodes)
    percent = 100 * _mean(loads)
    load = cpus * percent / 100
    # Without GPUs the CPUs are what is to be used: low is what LLSC calls low.
    full = thresholds.CPU_FULL if nodes[0].gpus else thresholds.CPU_BAND[0]
    if percent >= full:
        why = f"load {load:.1f} of {cpus} CPUs; from {full:g} % on, twice as many tasks are too many"
        return Soft(Bound(resource="CPU load", nppn=now, hard=False, why=why), stops=True)
    found = max(now, math.floor(running * thresholds.CPU_AIM / max(percent, 0.01) + 1e-9))
    why = f"{_make(running)} load {load:.2f} of {cpus} CPUs"
    return Soft(Bound(resource="CPU load", nppn=found, hard=False, why=why), stops=False)


def level(nodes: Sequence[Evidence]) -> int | None:
    """Return NPPN at which every GPU has as many tasks as a full one has now; None if no GPU is full.

    For a job on several nodes, more than half of them must have a full GPU.
    """
    full = [[card for card in node.busy if (card.load or 0.0) >= thresholds.GPU_FULL] for node in nodes]
    if 2 * sum(bool(cards) for cards in full) <= len(nodes):
        return None
    return min(max(card.tasks for card in cards) for cards in full if cards) * min(node.gpus for node in nodes)


def cpu_percent(nodes: Sequence[Evidence]) -> float | None:
    """Return the mean load of a CPU, in percent; None if it is not known."""
    known = [100 * node.cpu_load / node.cpus for node in nodes if node.cpu_load is not None]
    return _mean(known) if known else None


def _make(running: float) -> str:
    return f"{running:g} task makes" if running == 1 else f"{running:g} tasks make"


def most_now(nodes: Sequence[Evidence]) -> int:
    """NPPN as it is: of the fullest node."""
    return max((node.now or 0 for node in nodes), default=0)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
