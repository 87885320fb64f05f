"""Prove on one GPU which promises hold: read the node, run the probes, judge what they measured."""

from __future__ import annotations

import pwd
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ..core.errors import DriverError, SlurmShareError, UsageError, quoted
from ..core.settings import Settings
from ..mps import daemons
from ..node import processes
from ..node.gpus import driver as nvml
from ..node.records import Gpu
from ..share import drivers, methods, node_offer
from ..slurm import node_name, nodes
from . import stage as stages
from .probes import TASK, Probes
from .rules import promises
from .rules.promises import PROMISES, Promise, Verdict

SCHEMA = 1
"""The version of the JSON that `slurm-share prove --json` writes (packaging/docs/security.md)."""
MOST_CAP_MIB, LEAST_CAP_MIB = 4096, 1024
"""The cap of the probes: large beside a context (some hundred MiB), and small beside the GPU."""
FREE_RATIO = 5
"""The GPU's memory must have room for this many caps: two tasks that get more than theirs."""


class Proof(Struct, frozen=True, kw_only=True):
    """The verdicts on one GPU."""

    schema: int = SCHEMA
    node: str
    driver: str
    gpu: str
    gpu_name: str
    gpu_index: int
    simulated: bool
    """True: the GPU is simulated, and nothing here says anything about a real driver."""
    cgroup: int | None
    user: str
    cap_mib: int
    verdicts: tuple[Verdict, ...] = ()

    @property
    def broken(self) -> tuple[Verdict, ...]:
        """Return the promises of this node that do not hold."""
        return tuple(one for one in self.verdicts if promises.is_broken(one))


def prove(
    settings: Settings,
    index: int | None,
    user: str,
    begin: Callable[[Proof], None],
    say: Callable[[Verdict], None],
    only: Sequence[str] = (),
) -> Proof:
    """Run the probes on a GPU as the user, and return all verdicts. `begin` is told before the first
    one where it is, and `say` each of them as soon as it is there.

    index: NVML's; None: the first GPU. only: names of promises; empty: all. Raises UsageError where the node may not be
    used now, or the user, the GPU or a promise is not known; StateError if another proof runs.
    """
    wanted = _wanted(only)
    offer = node_offer.read_offer(settings)
    gpu = _gpu(offer, index)
    node = node_name.read_node_name()
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        raise UsageError(f"there is no user {quoted(user)}") from None
    if account.pw_uid == 0:
        raise UsageError("the probes run as an ordinary user: root is bound by nothing that they test (--user NAME)")
    with stages.alone(settings.mps_control):
        _check_idle(node, gpu)
        cap, free = _cap(gpu)
        stage = stages.Stage(gpu, daemons.owner(account.pw_uid, account.pw_gid), settings.mps_control, cap, free)
        offer = _with_limits(offer, stage)
        here = {one.name: one.is_here for one in methods.judge(offer)}
        probes = Probes(stage, has_limits=here[methods.HARD], has_mps=here[methods.MPS])
        proof = Proof(
            node=node,
            driver=offer.driver or "",
            gpu=gpu.uuid,
            gpu_name=gpu.name,
            gpu_index=gpu.index,
            simulated=gpu.simulated,
            cgroup=offer.cgroup,
            user=user,
            cap_mib=cap,
        )
        begin(proof)
        verdicts = []
        for promise in wanted:
            _check_no_job(node)
            verdicts.append(_verdict(promise, offer, stage, probes))
            say(verdicts[-1])
    return replace(proof, verdicts=tuple(verdicts))


def _with_limits(offer: methods.NodeOffer, stage: stages.Stage) -> methods.NodeOffer:
    """Find out, by setting one, whether the driver limits the memory of a cgroup here, if its release can."""
    if not drivers.offers(offer.driver, drivers.MEMORY_LIMITS) or offer.cgroup != 2 or offer.memory_limits == "off":
        return offer
    try:
        try:
            stage.limit(TASK, stage.cap_mib)
        finally:
            stage.reset()
    except (SlurmShareError, OSError) as error:
        return replace(offer, no_limits=error.reason if isinstance(error, DriverError) else str(error))
    return replace(offer, no_limits="")


def _verdict(promise: Promise, offer: methods.NodeOffer, stage: stages.Stage, probes: Probes) -> Verdict:
    """Run one probe, whatever becomes of it, and judge it."""
    if promises.needs_of_probe(promise, offer):
        return promises.judge(promise, offer, None)
    try:
        try:
            found = probes.run(promise.probe)
        finally:
            stage.reset()
    except (SlurmShareError, OSError) as error:
        found = {"error": str(error)}
    return promises.judge(promise, offer, found)


def _wanted(only: Sequence[str]) -> tuple[Promise, ...]:
    known = {one.name: one for one in PROMISES}
    for name in only:
        if name not in known:
            raise UsageError(f"there is no promise {quoted(name)}; they are {', '.join(known)}")
    return tuple(one for one in PROMISES if not only or one.name in only)


def _gpu(offer: methods.NodeOffer, index: int | None) -> Gpu:
    if offer.driver is None:
        raise UsageError(offer.problem or "this host has no GPU")
    found = [gpu for gpu in offer.gpus if gpu.problem is None and not gpu.mig_parent]
    if index is not None:
        found = [gpu for gpu in found if gpu.index == index and not gpu.uuid.startswith("MIG-")]
    if not found:
        which = "no GPU" if index is None else f"no GPU {index} without MIG"
        raise UsageError(f"this host has {which} that answers")
    if found[0].simulated and not offer.simulated_gpus:
        raise UsageError("the GPUs are simulated, and simulated_gpus is false in config.toml")
    return found[0]


def _cap(gpu: Gpu) -> tuple[int, int]:
    """Return the cap of the probes and the free memory of the GPU, in MiB."""
    reading = next((one for one in nvml.read_gpu_readings() if one.gpu.uuid == gpu.uuid), None)
    total, used = gpu.memory_total_mib, None if reading is None else reading.memory_used_mib
    if total is None or gpu.is_host_memory:
        raise UsageError(f"the driver does not tell the memory of GPU {gpu.index}")
    free = total - (used or 0)
    cap = min(MOST_CAP_MIB, free // FREE_RATIO)
    if cap < LEAST_CAP_MIB:
        raise UsageError(f"GPU {gpu.index} has {free} MiB free, and the probes need {FREE_RATIO * LEAST_CAP_MIB}")
    return cap, free


def _check_idle(node: str, gpu: Gpu) -> None:
    """Raise UsageError if anything runs on the node or the GPU."""
    states = None
    if node_name.is_node():
        found = nodes.read_nodes(node, timeout_s=20)
        states = next((one.states for one in found if one.name == node), None)
    reading = next((one for one in nvml.read_gpu_readings() if one.gpu.uuid == gpu.uuid), None)
    pids = () if reading is None else tuple(one.pid for one in reading.processes)
    jobs = tuple(one.job_id for one in processes.read_live_jobs())
    if why := promises.why_not_now(states, jobs, pids):
        raise UsageError(f"{why}; a proof needs an idle node, best a drained one: scontrol update nodename={node} "
                         "state=drain reason=prove")  # fmt: skip


def _check_no_job(node: str) -> None:
    """Raise UsageError if a job has begun: Slurm may give an idle node to one, whose tasks the probes would disturb."""
    if jobs := tuple(one.job_id for one in processes.read_live_jobs()):
        raise UsageError(
            f"{promises.why_not_now(None, jobs, ())} now, so the proof has ended early; drain the node first: scontrol "
            f"update nodename={node} state=drain reason=prove"
        )
