"""Compute the figures of llload's line for a node: sums over its GPUs, and what Slurm has given to jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from msgspec import Struct

from ...core.text import natural
from ...mps.records import MPS_NAME
from ...slurm.records import SlurmNode
from ...slurm.rules.free import KEPT_BACK
from ..snapshot import GpuLoad, NodeLoad, ProcessLoad, Snapshot
from . import idle

LoadBy = Literal["sm", "util", "both", ""]
"""The counter on which GPU load rests: SM activity, utilisation (an upper bound of it), both (some GPUs each), none."""


CLOSED = KEPT_BACK | {"DOWN", "DRAIN", "FAIL", "ERROR", "UNKNOWN", "FUTURE"}
"""Slurm's states of nodes that start no job now, so that nothing of them is free."""


class NodeFigures(Struct, frozen=True, gc=False, kw_only=True):
    """The figures of one node, not rounded. None: not known."""

    name: str
    cpus: int | None = None
    """CPUs as Slurm counts them; without Slurm, hardware threads."""
    cpus_used: int | None = None
    """CPUs of all jobs; None: no Slurm."""
    load: float | None = None
    """Load average over 5 minutes: the node's own; Slurm's (up to two minutes old) if the sampler is silent."""
    memory_mib: int | None = None
    memory_used_mib: int | None = None
    """Measured use, without page cache."""
    gpus: int | None = None
    gpus_used: int | None = None
    """GPUs that jobs have, whole or in part; None: no Slurm."""
    gpus_idle: int | None = None
    """GPUs that running jobs hold and leave idle (`idle.py`); None: not known for any of them."""
    gpu_load: float | None = None
    """Sum over the GPUs, 2.0 is two fully busy: mean over 5 minutes, or over the time that was measured."""
    gpu_load_by: LoadBy = ""
    gpu_load_over_s: float = 0.0
    """The shortest time over which one of these means was measured, at most 300 s."""
    gpu_memory_mib: int | None = None
    gpu_memory_used_mib: int | None = None
    is_open: bool = True
    """False: Slurm starts no job there now, so nothing is free."""
    partial_gpu_load: bool = False
    """True: the load of some GPU is not known, and the sum is without it."""
    partial_gpu_memory: bool = False
    partial_gpus_idle: bool = False
    """True: it is not known for some of the held GPUs."""

    @property
    def cpus_free(self) -> int | None:
        """Return the CPUs that a job could get; None: not known, or no job can start there."""
        return _less(self.cpus, self.cpus_used) if self.is_open else None

    @property
    def memory_free_mib(self) -> int | None:
        """Return the host memory that is not in use. Page cache counts as free."""
        return _less(self.memory_mib, self.memory_used_mib)

    @property
    def gpus_free(self) -> int | None:
        """Return the GPUs that a job could get; None: not known, or no job can start there."""
        return _less(self.gpus, self.gpus_used) if self.is_open else None

    @property
    def gpu_memory_free_mib(self) -> int | None:
        """Return the GPU memory of all its GPUs that is not in use."""
        return _less(self.gpu_memory_mib, self.gpu_memory_used_mib)

    @property
    def load_per_cpu(self) -> float | None:
        """Return the load per CPU that jobs have, 1.0 is all busy; None: no job has any, or not known."""
        return _ratio(self.load, self.cpus if self.cpus_used is None else self.cpus_used)

    @property
    def load_per_gpu(self) -> float | None:
        """Return the load per GPU that jobs have; None: no job has any, or not known."""
        return _ratio(self.gpu_load, self.gpus if self.gpus_used is None else self.gpus_used)


def _less(total: int | None, used: int | None) -> int | None:
    return None if total is None or used is None else total - used


def _ratio(load: float | None, over: int | None) -> float | None:
    return load / over if load is not None and over else None


def percent(part: float | None, whole: float | None) -> float | None:
    """Return the part in percent of the whole, above 100 possible; None if either is not known or the whole is 0."""
    return 100.0 * part / whole if part is not None and whole else None


def figures(node: NodeLoad) -> NodeFigures:
    """Return the figures of a node from Slurm's record and its snapshot."""
    slurm, snapshot = node.slurm, node.snapshot
    if snapshot is None:
        if slurm is None:
            return NodeFigures(name=node.name)
        return NodeFigures(
            name=node.name,
            cpus=slurm.cpus,
            cpus_used=slurm.cpus_allocated,
            is_open=_is_open(slurm),
            load=slurm.load5 if slurm.answers else None,
            memory_mib=slurm.memory_mib,
            gpus=slurm.gpus,
            gpus_used=slurm.gpus_allocated,
            gpus_idle=None if slurm.gpus_allocated else 0,
            gpu_load=None if slurm.gpus else 0.0,
            gpu_memory_mib=None if slurm.gpus else 0,
            gpu_memory_used_mib=None if slurm.gpus else 0,
        )
    sums, shown = snapshot.sums, snapshot.whole_gpus
    count = slurm.gpus if slurm is not None else sums.count + snapshot.hidden_gpus
    # The sums of a node whose driver does not answer are not known; those of a node without GPUs are 0.
    silent = bool(count) and not sums.count
    if snapshot.gpu_sums is None:
        spans = [
            gpu.load_percent_windows.over_s if gpu.load_percent_windows is not None else 0.0
            for gpu in shown
            if gpu.load_percent_5min is not None
        ]
        is_load_partial = any(gpu.load_percent_5min is None for gpu in shown)
        is_memory_partial = any(gpu.memory_used_mib is None for gpu in shown)
    else:
        spans = [snapshot.measured_s] if sums.gpu_load_by else []
        is_load_partial = is_memory_partial = sums.partial
    idle_gpus, is_idle_partial = (None, False) if node.held_gpus is None else idle.count(node.held_gpus)
    if not count:
        idle_gpus = 0
    return NodeFigures(
        name=node.name,
        cpus=slurm.cpus if slurm is not None else snapshot.cpus,
        cpus_used=None if slurm is None else slurm.cpus_allocated,
        is_open=slurm is None or _is_open(slurm),
        load=snapshot.load[1] if snapshot.load is not None else slurm.load5 if slurm is not None else None,
        memory_mib=snapshot.memory_total_mib or (None if slurm is None else slurm.memory_mib),
        memory_used_mib=snapshot.memory_used_mib,
        gpus=count,
        gpus_used=None if slurm is None else slurm.gpus_allocated,
        gpus_idle=idle_gpus,
        gpu_load=None if silent else sums.gpu_load,
        gpu_load_by=sums.gpu_load_by,
        gpu_load_over_s=min([300.0, *spans]) if spans else 0.0,
        gpu_memory_mib=None if silent else sums.memory_total_mib,
        gpu_memory_used_mib=None if silent else sums.memory_used_mib,
        partial_gpu_load=is_load_partial and sums.gpu_load is not None,
        partial_gpu_memory=is_memory_partial and sums.memory_used_mib is not None,
        partial_gpus_idle=is_idle_partial,
    )


def _is_open(slurm: SlurmNode) -> bool:
    return not CLOSED & set(slurm.states)


def is_used(node: NodeLoad) -> bool:
    """Return whether jobs have CPUs of the node by Slurm."""
    return node.slurm is not None and node.slurm.cpus_allocated > 0


def tasks_on(snapshot: Snapshot, gpu: GpuLoad) -> tuple[ProcessLoad, ...]:
    """Return the programs on a GPU, without the daemons and servers of MPS."""
    return tuple(
        one
        for one in snapshot.processes
        if not one.name.startswith(MPS_NAME) and any(on.uuid == gpu.uuid for on in one.gpus)
    )


# --- Choosing and sorting ---------------------------------------------------------------------------------------------

COLUMNS: dict[str, Callable[[NodeFigures], float | None]] = {
    "cores": lambda one: one.cpus,
    "cores_used": lambda one: one.cpus_used,
    "cores_free": lambda one: one.cpus_free,
    "load": lambda one: one.load,
    "memory": lambda one: one.memory_mib,
    "memory_used": lambda one: one.memory_used_mib,
    "memory_free": lambda one: one.memory_free_mib,
    "gpus": lambda one: one.gpus,
    "gpus_used": lambda one: one.gpus_used,
    "gpus_free": lambda one: one.gpus_free,
    "gpus_idle": lambda one: one.gpus_idle,
    "gpu_load": lambda one: one.gpu_load,
    "gpumem": lambda one: one.gpu_memory_mib,
    "gpumem_used": lambda one: one.gpu_memory_used_mib,
    "gpumem_free": lambda one: one.gpu_memory_free_mib,
}
"""Columns by which nodes can be sorted, in addition to HOSTNAME."""
HOSTNAME = "hostname"


def in_order(nodes: Iterable[NodeLoad], column: str, *, down: bool) -> tuple[NodeLoad, ...]:
    """Return the nodes sorted by HOSTNAME or one of COLUMNS; nodes without a known value come last."""
    if column == HOSTNAME:
        return tuple(sorted(nodes, key=lambda node: natural(node.name), reverse=down))
    found = [(COLUMNS[column](figures(node)), node) for node in nodes]
    known = [(value, node) for value, node in found if value is not None]
    known.sort(key=lambda pair: pair[0], reverse=down)
    return (*(node for _, node in known), *(node for value, node in found if value is None))


def busiest(nodes: Iterable[NodeLoad], count: int) -> tuple[NodeLoad, ...]:
    """Return the `count` nodes with the highest load per CPU: a full small node comes before a half-full large one."""

    def key(node: NodeLoad) -> float:
        one = figures(node)
        return _ratio(one.load, one.cpus) or -1.0

    return tuple(sorted(nodes, key=key, reverse=True)[:count])
