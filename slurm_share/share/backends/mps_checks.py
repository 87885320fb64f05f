"""The checks of `slurm-share doctor` about MPS: programs, daemons, and known faults of this driver's MPS."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from ...core import names, numbers
from ...core.records import ShareRequest
from ...core.settings import DEFAULT, Settings
from ...core.verdicts import CheckVerdict, UnknownFact, fail, ok, skip, unsafe, warn
from ..records import Limits
from ..rules import mps as rules
from ..rules import static_partitions
from ..rules.reconcile import has_job
from .base import NOT_ASKED, BackendCheck, BackendFacts, Health
from .mps_health import PROTOCOL_VARIABLE, MpsOnNode

CheckFunction = Callable[[BackendFacts, MpsOnNode], Sequence[CheckVerdict]]


def _check(name: str, *, asks: str, why: str, fix: str) -> Callable[[CheckFunction], BackendCheck]:
    """Turn the decorated function into a check of MPS."""

    def made(run: CheckFunction) -> BackendCheck:
        def of_mps(known: BackendFacts, health: Health) -> Sequence[CheckVerdict]:
            return run(known, health if isinstance(health, MpsOnNode) else MpsOnNode())

        return BackendCheck(name, asks, why, fix, of_mps)

    return made


@_check(
    "mps-program",
    asks="NVIDIA's MPS programs are installed, and only root can change them",
    why="without them tasks take turns on the GPU, and no memory cap is enforced",
    fix="install the driver's compute utilities (nvidia-compute-utils, nvidia-driver-cuda), or set mps_control",
)
def mps_program(known: BackendFacts, health: MpsOnNode) -> Sequence[CheckVerdict]:
    if isinstance(known.config, UnknownFact):
        return skip("config.toml is not understood")
    path = known.config.settings.mps_control
    if not path:
        return ok("config.toml wants none")
    if isinstance(known.driver, UnknownFact):
        return skip("no driver answers")
    if not known.has_gpus:
        return skip("the driver has no GPU")
    control, server = health.control, health.server
    if control is None:
        return warn(f"there is no {path}")
    if not control.is_executable:
        return warn(f"{path} is not executable", f"chmod 755 {path}")
    if why := unsafe(control):
        return fail(why, f"chown root and chmod go-w {path}")
    if server is None:
        return warn(f"{path} is installed, but nvidia-cuda-mps-server is not: no client will be served")
    return ok(path)


@_check(
    "foreign-mps",
    asks="only our own MPS daemons run",
    why="we never stop another one; a GPU that it uses refuses our servers, and shared jobs run without MPS",
    fix="echo quit | CUDA_MPS_PIPE_DIRECTORY=THE_FOLDER nvidia-cuda-mps-control (with protocol 3: the same program with"
    " -q); remove it from the node's start-up",
)
def foreign_mps(known: BackendFacts, health: MpsOnNode) -> Sequence[CheckVerdict]:
    found: list[CheckVerdict] = []
    for one in health.foreign:
        who = one.identity
        where = one.pipe or "an unknown folder"
        ask = f"CUDA_MPS_PIPE_DIRECTORY={where} nvidia-cuda-mps-control"
        fix = "" if one.pipe is None else f"echo quit | {ask}" if one.protocol == 2 else f"{ask} -q"
        what = "MPS daemon" if one.protocol == 2 else f"MPS daemon (protocol {one.protocol})"
        has = "; it has static partitions (-S): programs without one get CUDA error 915" if one.is_static else ""
        found += warn(f"{what} {who.pid} of uid {who.uid} in {where} is not ours{has}", fix)
    return found or ok("no other daemon")


@_check(
    "mps-daemons",
    asks="every MPS daemon of ours is alive and belongs to a job on this node",
    why="tasks that start after their daemon died are refused; a daemon without a job holds GPU memory",
    fix="for a dead one: requeue its job; for one without a job: slurm-share doctor --fix",
)
def mps_daemons(known: BackendFacts, health: MpsOnNode) -> Sequence[CheckVerdict]:
    if isinstance(known.ledger, UnknownFact):
        return skip(known.ledger)
    found: list[CheckVerdict] = []
    daemons = [one for one in health.daemons if one.condition != "hidden"]
    for one in daemons:
        if not has_job(known.ledger, one.uid, one.folder):
            what = "a daemon" if one.lives else "remains of a daemon"
            found += warn(f"{one.folder}: {what} of uid {one.uid}, who has no job on it", "slurm-share doctor --fix")
        elif not one.lives:
            found += warn(f"{one.folder}: the daemon of uid {one.uid} is dead while a job has its GPU", DEAD)
    return found or ok(f"{len(daemons)} daemons")


DEAD = "requeue the job: tasks that start from now on are refused, and those that run continue without MPS"


@_check(
    "mps-health",
    asks="every live MPS daemon of ours answers, and its server accepts clients",
    why="with a server in FAULT every new task gets CUDA error 807; with a daemon that is stopped or hangs, it waits",
    fix="requeue the jobs on that GPU: its daemon ends with the last of them, and the next job gets a new one",
)
def mps_health(known: BackendFacts, health: MpsOnNode) -> Sequence[CheckVerdict]:
    if isinstance(known.ledger, UnknownFact):
        return skip(known.ledger)
    found: list[CheckVerdict] = []
    asked = [one for one in health.daemons if one.lives and one.condition != NOT_ASKED]
    for one in sorted(asked, key=lambda one: one.folder):
        if one.condition not in ("fine", "no server"):  # mps-daemons reports dead ones
            fix = f"kill -CONT {one.pid}" if one.pid and one.condition == "stopped" else ""
            found += fail(f"{one.folder}: {one.why}", fix)
    return found or ok(f"{len(asked)} daemons answered")


class MpsFault(Struct, frozen=True):
    """A fault of MPS in older drivers."""

    below: int
    """The first major version of the driver without the fault."""
    what: str
    is_fatal: bool = False


TRAPS = (  # the most severe first
    # CUDA 11.5, which came with driver 495 (docs.nvidia.com/deploy/mps, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT).
    MpsFault(495, "has no memory cap for clients: one task can take the whole GPU's memory", is_fatal=True),
    # Run on 535.261, 550.163 and 555.58: see mps/control.py.
    MpsFault(550, "cannot report that a server is in FAULT: new tasks get error 807 without a reason"),
)


@_check(
    "mps-driver",
    asks="MPS of this driver has no known fault that affects shares",
    why="caps are not enforced, or faults cannot be detected",
    fix="install a newer driver",
)
def mps_driver(known: BackendFacts, health: MpsOnNode) -> Sequence[CheckVerdict]:
    version, config = known.driver, known.config
    if isinstance(version, UnknownFact):
        return skip("no driver answers")
    if isinstance(config, UnknownFact):
        return skip("config.toml is not understood")
    if not config.settings.mps_control:
        return skip("config.toml wants no MPS")
    major = numbers.whole(version.partition(".")[0])
    found: list[CheckVerdict] = []
    trap = next((one for one in TRAPS if major is not None and major < one.below), None)
    if trap is not None:
        what = f"MPS of driver {version} {trap.what}"
        found += (fail if trap.is_fatal else warn)(what, f"install a driver from {trap.below} on")
    most, clients = config.settings.max_share, rules.clients(version)
    if config.sources.get("max_share", DEFAULT) != DEFAULT and most > clients:
        what = f"max_share is {most}, and MPS of driver {version} supports {clients} clients on a GPU"
        found += warn(f"{what}: larger shares are refused here", f"config.toml: max_share = {clients}")
    return found or ok(f"driver {version}: {clients} clients on a GPU")


@_check(
    "mps-version",
    asks="the MPS programs and the driver are of the same release",
    why="MPS and driver of different releases do not work together: daemons do not start, or programs find no GPU",
    fix="install the MPS programs of the driver's release; after an upgrade of the driver, reboot the node",
)
def mps_version(known: BackendFacts, health: MpsOnNode) -> Sequence[CheckVerdict]:
    driver, control = known.cuda, health.control_cuda
    if driver is None or control is None:
        return skip(
            "the driver or the MPS control program does not report its release; programs before driver 590 do not"
        )
    said = f"the MPS control program is for CUDA {control[0]}.{control[1]}, the driver for CUDA {driver[0]}.{driver[1]}"
    return ok(said) if control == driver else warn(said)


@_check(
    "mps-static",
    asks="tasks can have static partitions of the GPUs (sm=static)",
    why="a job that asks for them is refused where there are none; if the site gives them by default (sm), its tasks"
    " share the GPU evenly. In a job that has them, a process with CUDA error 915 was probably started without"
    " CUDA_MPS_SM_PARTITION, in an environment that sudo, ssh or a container cleared",
    fix="install driver 590 or newer; GPUs before Ampere, or divided by MIG, have none: choose another sm in"
    " config.toml for their partitions",
)
def mps_static(known: BackendFacts, health: MpsOnNode) -> Sequence[CheckVerdict]:
    if isinstance(known.driver, UnknownFact):
        return skip("no driver answers")
    if isinstance(known.config, UnknownFact):
        return skip("config.toml is not understood")
    if not known.config.settings.mps_control:
        return skip("config.toml wants no MPS")
    offer = Limits("", "", why_no_partitions=rules.why_no_partitions(known.driver))
    chunks = {one.gpu: one for one in health.chunks}
    reasons, said = [], []
    for gpu in known.gpus:
        why = static_partitions.why_not([gpu], ShareRequest(2, sm="static"), offer, Settings())
        if why is not None:
            reasons.append(why)
        elif gpu.uuid in chunks:
            said.append(f"GPU {gpu.index}: {static_partitions.describe(chunks[gpu.uuid])}")
        else:
            said.append(f"GPU {gpu.index}: possible; its chunks are known after the first such job since the last boot")
    reasons = list(dict.fromkeys(reasons))
    settings = (known.config.settings, *known.config.partitions.values())
    if reasons and any(one.sm == names.SM_STATIC for one in settings):
        return [verdict for why in reasons for verdict in warn(f"it is a default of config.toml (sm), but {why}")]
    return ok("; ".join([*said, *reasons]) or "the driver has no GPU")


@_check(
    "mps-protocol",
    asks="the node's driver has the protocol of MPS that config.toml wants",
    why="with protocol 2 a task's environment can raise its caps",
    fix="install a driver from 615 on, or set mps_protocol = 2",
)
def mps_protocol(known: BackendFacts, health: MpsOnNode) -> Sequence[CheckVerdict]:
    if isinstance(known.config, UnknownFact):
        return skip("config.toml is not understood")
    settings = known.config.settings
    if not settings.mps_control:
        return skip("config.toml wants no MPS")
    if isinstance(known.driver, UnknownFact):
        return skip("no driver answers")
    protocol, why = rules.protocol(known.driver, settings)
    if why:
        return warn(why)
    others = f"; {PROTOCOL_VARIABLE} in {', '.join(health.protocol_set_in)}: for other daemons than ours"
    return ok(f"protocol {protocol}{others if health.protocol_set_in else ''}")


CHECKS = (mps_program, foreign_mps, mps_daemons, mps_health, mps_driver, mps_version, mps_static, mps_protocol)
