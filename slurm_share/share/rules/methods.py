"""The methods of sharing a GPU: what each isolates and costs, what it needs, and whether a node has it.

packaging/docs/methods.md shows METHODS as a table, and `slurm-share methods` judges them for a node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from ...node.records import Gpu
from . import drivers

MPS_CAPABILITY = (7, 0)
"""The least compute capability with memory caps and parts of the multiprocessors under MPS (Volta;
docs.nvidia.com/deploy/mps, "Volta MPS")."""
MIG_WORDS = ("A100", "A30", "A800", "H100", "H200", "H800", "H20", "B100", "B200", "B300", "PRO 6000")
"""Parts of the names of GPUs that can be divided by MIG (NVIDIA's MIG user guide, "Supported GPUs")."""


class NodeOffer(Struct, frozen=True, kw_only=True):
    """The driver, GPUs, cgroups and settings of a node that matter for sharing its GPUs."""

    driver: str | None = None
    """The driver's version; None: there is none, or it does not answer."""
    problem: str = ""
    """Why the driver does not answer."""
    gpus: tuple[Gpu, ...] = ()
    mps_program: str = ""
    """The MPS control program of the settings."""
    has_mps_program: bool = False
    cgroup: int | None = None
    """The version of the cgroups that Slurm uses here: 1 or 2; None: none are mounted."""
    controllers: tuple[str, ...] = ()
    """The controllers of cgroup v2."""
    no_limits: str = ""
    """Why the driver does not answer for the memory limits of a cgroup; empty: it does, or it has not been asked."""
    mode: str = "on"
    memory_limits: str = "auto"
    mps_protocol: int = 2
    simulated_gpus: bool = False


class Method(Struct, frozen=True, kw_only=True):
    """One method, in the words of the table."""

    name: str
    request: str
    """An example: what a user, or for a site's choice the administrator, writes."""
    isolates: str
    costs: str
    driver: str
    gpu: str
    cgroup: str


class MethodHere(Struct, frozen=True, kw_only=True):
    """Whether a node has a method."""

    name: str
    is_here: bool
    why: str
    """Why not; or for which GPUs not, or with what restriction."""
    request: str


TIME_SLICING, MPS, SM_CAP, STATIC = "time-slicing", "MPS", "MPS, sm=even or a percentage", "MPS, sm=static"
HARD, ELASTIC, V3, MIG, EXCLUSIVE = "driver's memory limit", "elastic memory", "MPS protocol 3", "MIG", "exclusive"

METHODS = (
    Method(
        name=TIME_SLICING,
        request="srun --share-gpu=4,sharing=time-slicing ./task.sh",
        isolates="addresses, and faults: a task that fails ends alone. Memory is not capped, unless the driver does it",
        costs="tasks take turns: no two of them compute at the same moment, and each turn costs a switch",
        driver="any",
        gpu="any, and MIG instances",
        cgroup="any",
    ),
    Method(
        name=MPS,
        request="srun --share-gpu=4,mem=8G ./task.sh",
        isolates="addresses. The memory cap holds a task that does not try to escape; a fault ends all tasks of a GPU",
        costs="512 MiB of the GPU for the server; at most 48 tasks on a GPU (60 from driver 590 on)",
        driver="535 or newer",
        gpu="compute capability 7.0 (Volta) or newer, no MIG",
        cgroup="any",
    ),
    Method(
        name=SM_CAP,
        request="srun --share-gpu=4,sm=even ./task.sh",
        isolates="as MPS, and a task uses at most its part of the multiprocessors (SM), which are not its own",
        costs="what an idle neighbour does not use stays unused",
        driver="535 or newer",
        gpu="compute capability 7.0 (Volta) or newer, no MIG",
        cgroup="any",
    ),
    Method(
        name=STATIC,
        request="srun --share-gpu=3,sm=static ./task.sh",
        isolates="as MPS, and a task has SM of its own; from driver 610 on a fault in a kernel ends that task only",
        costs="idle SM are not lent; SM that fill no partition are nobody's (12 of 132 on an H200)",
        driver="590 or newer",
        gpu="compute capability 8.0 (Ampere) or newer, no MIG",
        cgroup="any",
    ),
    Method(
        name=HARD,
        request="srun --share-gpu=4,sharing=time-slicing,mem=8G ./task.sh",
        isolates="the driver refuses a task what exceeds its cap, with or without MPS, in whatever way it allocates "
        "(except managed memory); the task sees the cap as the GPU's memory",
        costs="nothing that the driver's manual names; set by root before the task starts",
        driver="615 or newer",
        gpu="no MIG",
        cgroup="v2; the kernel's dmem controller (Linux 6.14), else the driver counts the memory",
    ),
    Method(
        name=ELASTIC,
        request="srun --share-gpu=4,mem=8G:20G ./task.sh",
        isolates="as the driver's memory limit: the first size is the task's own, up to the second while it is free; "
        "what is above the first can be ended by the driver",
        costs="a task above its first size may be ended when a neighbour needs its own",
        driver="615 or newer",
        gpu="no MIG",
        cgroup="v2, as above",
    ),
    Method(
        name=V3,
        request="mps_protocol = 3",
        isolates="as MPS; a task's environment cannot raise its caps, as they are the daemon's. Its user can, who owns "
        "the daemon",
        costs="615 is a short-lived branch; caps do not change while a task runs",
        driver="615 or newer",
        gpu="as MPS",
        cgroup="any",
    ),
    Method(
        name=MIG,
        request="srun --gres=gpu:1g.10gb:1 ./task.sh",
        isolates="memory, SM, caches and faults, in hardware",
        costs="fixed sizes, at most 7 instances; only root changes them, on an idle GPU",
        driver="any that knows the GPU",
        gpu="A30, A100, H100, H200, B200 and others; divided by the administrator",
        cgroup="any; ConstrainDevices=yes keeps tasks to their instance",
    ),
    Method(
        name=EXCLUSIVE,
        request="srun --share-gpu=1,sharing=exclusive ./task.sh",
        isolates="everything: one task has the GPU",
        costs="what it does not use is lost",
        driver="any",
        gpu="any",
        cgroup="any",
    ),
)


def judge(offer: NodeOffer) -> tuple[MethodHere, ...]:
    """Return, for each method, whether the node has it, and why not."""
    rules = {
        TIME_SLICING: (_is_served,),
        MPS: (_is_served, _has_mps, _can_mps),
        SM_CAP: (_is_served, _has_mps, _can_mps),
        STATIC: (_is_served, _has_mps, _can_mps, _can_static),
        HARD: (_is_served, _can_limit),
        ELASTIC: (_is_served, _can_limit),
        V3: (_is_served, _has_mps, _can_mps, _can_v3),
        MIG: (_is_divided,),
        EXCLUSIVE: (_is_served,),
    }
    return tuple(_judge(method, rules[method.name], offer) for method in METHODS)


Rule = Callable[[NodeOffer, Gpu], str | None]
"""Return why a GPU of the node does not have a method, without subject; None: it has it as far as this rule goes."""


def _judge(method: Method, rules: Sequence[Rule], offer: NodeOffer) -> MethodHere:
    def result(why: str, *, is_here: bool = False) -> MethodHere:
        return MethodHere(name=method.name, is_here=is_here, why=why, request=method.request)

    if offer.driver is None:
        return result(offer.problem or "this host has no GPU")
    gpus = [gpu for gpu in offer.gpus if gpu.problem is None and not gpu.mig_parent]
    if method.name == MIG:
        gpus = [gpu for gpu in offer.gpus if gpu.problem is None and not gpu.uuid.startswith("MIG-")]
    if not gpus:
        return result("no GPU of this host answers, or all are divided by MIG and have no instance")
    whys: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        why = next((found for rule in rules if (found := rule(offer, gpu))), None)
        if why is not None:
            whys.setdefault(why, []).append(gpu)
    missing = sum(map(len, whys.values()))
    if missing == len(gpus):
        return result("; ".join(whys))
    notes = [*_restrictions(method.name, offer), *(f"not {_named(some)}: {why}" for why, some in whys.items())]
    return result("; ".join(notes), is_here=True)


def _restrictions(name: str, offer: NodeOffer) -> Iterable[str]:
    if name == STATIC and not drivers.offers(offer.driver, drivers.PARTITIONED_FAULTS):
        yield f"a fault ends all tasks of the GPU; to end that one only {_needs(offer, drivers.PARTITIONED_FAULTS)}"
    if name in (HARD, ELASTIC):
        yield "the kernel's dmem controller" if "dmem" in offer.controllers else "the driver counts the memory (misc)"
    if name == V3:
        routes = drivers.offers(offer.driver, drivers.ROUTES_BY_CGROUP)
        why = ": the driver routes by cgroup only what reaches the daemon's own control socket" if routes else ""
        yield f"a task without the variables of MPS has no cap{why}"
    if offer.mode != "on":
        yield f'mode = "{offer.mode}" in config.toml: jobs run unshared'


def _named(gpus: Sequence[Gpu]) -> str:
    return f"GPU {','.join(dict.fromkeys(str(gpu.index) for gpu in gpus))}"


def _needs(offer: NodeOffer, since: int) -> str:
    return drivers.needs(offer.driver, since)


def _is_served(offer: NodeOffer, gpu: Gpu) -> str | None:
    if gpu.simulated and not offer.simulated_gpus:
        return "the GPUs are simulated, and simulated_gpus is false in config.toml"
    return None


def _has_mps(offer: NodeOffer, gpu: Gpu) -> str | None:
    if not offer.mps_program:
        return 'mps_control = "" in config.toml: this site shares without MPS'
    return None if offer.has_mps_program else f"there is no {offer.mps_program}, NVIDIA's MPS control program"


def _can_mps(offer: NodeOffer, gpu: Gpu) -> str | None:
    if gpu.uuid.startswith("MIG-"):
        return "tasks of a MIG instance take turns"
    return _capability(gpu, MPS_CAPABILITY, "Volta")


def _can_static(offer: NodeOffer, gpu: Gpu) -> str | None:
    if not drivers.offers(offer.driver, drivers.STATIC_PARTITIONS):
        return _needs(offer, drivers.STATIC_PARTITIONS)
    if gpu.compute_capability is None:
        return "the driver does not tell the GPU's compute capability"
    return _capability(gpu, drivers.STATIC_CAPABILITY, "Ampere")


def _capability(gpu: Gpu, least: tuple[int, int], name: str) -> str | None:
    if gpu.compute_capability is None or gpu.compute_capability >= least:
        return None
    has = ".".join(map(str, gpu.compute_capability))
    return f"needs compute capability {'.'.join(map(str, least))} ({name}) or newer, and {gpu.name} has {has}"


def _can_limit(offer: NodeOffer, gpu: Gpu) -> str | None:
    if not drivers.offers(offer.driver, drivers.MEMORY_LIMITS):
        return _needs(offer, drivers.MEMORY_LIMITS)
    if offer.memory_limits == "off":
        return 'memory_limits = "off" in config.toml'
    if offer.cgroup != 2:
        return f"needs cgroup v2, and this host has {'v1' if offer.cgroup == 1 else 'none'}"
    if gpu.uuid.startswith("MIG-"):
        return "the driver does not limit the memory of MIG instances"
    return f"the driver does not answer for a cgroup's memory ({offer.no_limits})" if offer.no_limits else None


def _can_v3(offer: NodeOffer, gpu: Gpu) -> str | None:
    if not drivers.offers(offer.driver, drivers.MPS_V3):
        return _needs(offer, drivers.MPS_V3)
    return None if offer.mps_protocol == 3 else f"mps_protocol = {offer.mps_protocol} in config.toml, the site's choice"


def _is_divided(offer: NodeOffer, gpu: Gpu) -> str | None:
    if gpu.mig_parent:
        return None
    if any(word in gpu.name for word in MIG_WORDS):
        return "can be divided, and is not: only the administrator does that (nvidia-smi mig)"
    return f"{gpu.name} cannot be divided"
