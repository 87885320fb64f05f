"""The checks of `slurm-share doctor` about MPS: the programs, our daemons, and what this driver's MPS does wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from ...core.settings import DEFAULT
from ...core.verdicts import (
    Unseen,
    Verdict,
    fail,
    ok,
    skip,
    unsafe,
    warn,
)
from ..rules import mps as rules
from ..rules.daemons import has_job
from .base import NOT_ASKED, BackendCheck, Health, Known
from .mps_health import MpsOnNode

CheckFunction = Callable[[Known, MpsOnNode], Sequence[Verdict]]


def _check(name: str, *, asks: str, why: str, fix: str) -> Callable[[CheckFunction], BackendCheck]:
    """Make the function below it a check of MPS."""

    def made(run: CheckFunction) -> BackendCheck:
        def of_mps(known: Known, health: Health) -> Sequence[Verdict]:
            return run(known, health if isinstance(health, MpsOnNode) else MpsOnNode())

        return BackendCheck(name, asks, why, fix, of_mps)

    return made


@_check(
    "mps-program",
    asks="NVIDIA's MPS programs are here, and root's alone",
    why="without them tasks share by taking turns, and no memory cap is enforced",
    fix="install the driver's compute utilities (nvidia-compute-utils, nvidia-driver-cuda), or set mps_control",
)
def mps_program(known: Known, health: MpsOnNode) -> Sequence[Verdict]:
    if isinstance(known.config, Unseen):
        return skip("config.toml is not understood")
    path = known.config.settings.mps_control
    if not path:
        return ok("config.toml wants none")
    if isinstance(known.driver, Unseen):
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
        return warn(f"{path} is here, and nvidia-cuda-mps-server beside it is not: no client will be served")
    return ok(path)


@_check(
    "foreign-mps",
    asks="no MPS daemon runs but ours",
    why="it is never stopped by us; a GPU that it holds refuses our servers, and shared jobs run without MPS",
    fix="echo quit | CUDA_MPS_PIPE_DIRECTORY=THE_FOLDER nvidia-cuda-mps-control (one with protocol 3: the same program"
    " with -q); take it out of the node's start",
)
def foreign_mps(known: Known, health: MpsOnNode) -> Sequence[Verdict]:
    found: list[Verdict] = []
    for one in health.foreign:
        who = one.identity
        where = one.pipe or "a folder that is not told"
        ask = f"CUDA_MPS_PIPE_DIRECTORY={where} nvidia-cuda-mps-control"
        fix = "" if one.pipe is None else f"echo quit | {ask}" if one.protocol == 2 else f"{ask} -q"
        what = "MPS daemon" if one.protocol == 2 else f"MPS daemon (protocol {one.protocol})"
        found += warn(f"{what} {who.pid} of uid {who.uid} in {where} is not ours", fix)
    return found or ok("no daemon but ours")


@_check(
    "mps-daemons",
    asks="every MPS daemon of ours belongs to a job that is here, and lives",
    why="tasks that start when theirs is dead are refused; one without a job holds GPU memory",
    fix="of a job that is here: requeue it; of no job: slurm-share doctor --fix",
)
def mps_daemons(known: Known, health: MpsOnNode) -> Sequence[Verdict]:
    if isinstance(known.ledger, Unseen):
        return skip(known.ledger)
    found: list[Verdict] = []
    daemons = [one for one in health.daemons if one.condition != "hidden"]
    for one in daemons:
        if not has_job(known.ledger, one.uid, one.folder):
            what = "a daemon" if one.lives else "remains of a daemon"
            found += warn(f"{one.folder}: {what} of uid {one.uid}, who has no job on it", "slurm-share doctor --fix")
        elif not one.lives:
            found += warn(f"{one.folder}: the daemon of uid {one.uid} is dead while a job has its GPU", DEAD)
    return found or ok(f"{len(daemons)} daemons")


DEAD = "requeue the job: its tasks that are yet to start are refused, those that run go on without MPS"


@_check(
    "mps-health",
    asks="every MPS daemon of ours that lives answers, and its server takes clients",
    why="a server in FAULT gives every new task CUDA error 807; at a daemon that is stopped or hangs new tasks wait",
    fix="requeue the jobs on that GPU: its daemon ends with the last of them, and the next job has a new one",
)
def mps_health(known: Known, health: MpsOnNode) -> Sequence[Verdict]:
    if isinstance(known.ledger, Unseen):
        return skip(known.ledger)
    found: list[Verdict] = []
    asked = [one for one in health.daemons if one.lives and one.condition != NOT_ASKED]
    for one in sorted(asked, key=lambda one: one.folder):
        if one.condition not in ("fine", "no server"):  # of a dead one mps-daemons speaks
            fix = f"kill -CONT {one.pid}" if one.pid and one.condition == "stopped" else ""
            found += fail(f"{one.folder}: {one.why}", fix)
    return found or ok(f"{len(asked)} daemons answered")


class Trap(Struct, frozen=True):
    """What MPS of some drivers does, other than NVIDIA's manual for the present one says."""

    below: int
    """Drivers of a major version below this one."""
    what: str
    is_fatal: bool = False


TRAPS = (  # the worst first
    # CUDA 11.5, which came with driver 495 (docs.nvidia.com/deploy/mps, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT).
    Trap(495, "knows no memory cap of a client: one task can take the whole GPU from its siblings", is_fatal=True),
    # Run on 535.261, 550.163 and 555.58: see mps_control.py.
    Trap(550, "cannot say that a server is in FAULT: new tasks get error 807, and nobody is told why"),
)


@_check(
    "mps-driver",
    asks="MPS of this driver has no fault that shares are known to suffer from",
    why="caps are not held, or what is wrong cannot be seen",
    fix="install a newer driver",
)
def mps_driver(known: Known, health: MpsOnNode) -> Sequence[Verdict]:
    version, config = known.driver, known.config
    if isinstance(version, Unseen):
        return skip("no driver answers")
    if isinstance(config, Unseen):
        return skip("config.toml is not understood")
    if not config.settings.mps_control:
        return skip("config.toml wants no MPS")
    major = version.partition(".")[0]
    found: list[Verdict] = []
    trap = next((one for one in TRAPS if major.isdecimal() and int(major) < one.below), None)
    if trap is not None:
        what = f"MPS of driver {version} {trap.what}"
        found += (fail if trap.is_fatal else warn)(what, f"install a driver from {trap.below} on")
    most, clients = config.settings.max_share, rules.clients(version)
    if config.sources.get("max_share", DEFAULT) != DEFAULT and most > clients:
        what = f"max_share is {most}, and MPS of driver {version} takes {clients} clients on a GPU"
        found += warn(f"{what}: larger shares are refused here", f"config.toml: max_share = {clients}")
    return found or ok(f"driver {version}: {clients} clients on a GPU")


@_check(
    "mps-version",
    asks="the MPS programs belong to the driver's own release",
    why="MPS and driver of two releases do not work together: daemons do not start, or programs find no GPU",
    fix="install the MPS programs of the driver's release; after an upgrade of the driver, reboot the node",
)
def mps_version(known: Known, health: MpsOnNode) -> Sequence[Verdict]:
    driver, control = known.cuda, health.control_cuda
    if driver is None or control is None:
        return skip(
            "the driver, or the MPS control program, does not tell its release; programs before driver 590 do not"
        )
    said = f"the MPS control program is of CUDA {control[0]}.{control[1]}, the driver of CUDA {driver[0]}.{driver[1]}"
    return ok(said) if control == driver else warn(said)


CHECKS = (mps_program, foreign_mps, mps_daemons, mps_health, mps_driver, mps_version)
