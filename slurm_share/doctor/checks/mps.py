"""MPS on a node: our daemons, how they are, and what this driver's MPS is known to do wrong."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ...core.settings import DEFAULT
from ...share.rules import limits
from ..facts.records import Facts, Unseen, Verdict
from .base import (
    COMPUTE,
    check,
    fail,
    ok,
    skip,
    warn,
)


@check(
    "mps-daemons",
    COMPUTE,
    asks="every MPS daemon of ours belongs to a job that is here, and lives",
    why="tasks that start when theirs is dead are refused; one without a job holds GPU memory",
    fix="of a job that is here: requeue it; of no job: slurm-share doctor --fix",
)
def mps_daemons(facts: Facts) -> Sequence[Verdict]:
    ledger = facts.state.ledger
    if isinstance(ledger, Unseen):
        return skip(ledger)
    found: list[Verdict] = []
    for uid, pipe, lives in facts.state.daemons:
        if not has_job(facts, uid, pipe):
            what = "a daemon" if lives else "remains of a daemon"
            found += warn(f"{pipe}: {what} of uid {uid}, who has no job on it", "slurm-share doctor --fix")
        elif not lives:
            found += warn(f"{pipe}: the daemon of uid {uid} is dead while a job has its GPU", DEAD)
    return found or ok(f"{len(facts.state.daemons)} daemons")


DEAD = "requeue the job: its tasks that are yet to start are refused, those that run go on without MPS"


def has_job(facts: Facts, uid: int, pipe: str) -> bool:
    """Whether a job in the ledger, here or leaving, has the GPU of that pipe folder, whose name keeps both ends of the
    GPU's UUID (see paths.py)."""
    ledger = facts.state.ledger
    if isinstance(ledger, Unseen):
        return True  # it cannot be told: then nobody is to touch it
    first, _, last = pipe.rpartition("/")[2].partition("-")
    jobs = [*ledger.jobs, *(one.job for one in ledger.leaving)]
    gpus = [gpu.partition("-")[2].replace("/", "") for job in jobs if job.uid == uid for gpu in job.gpus]
    return any(gpu.startswith(first) and gpu.endswith(last) for gpu in gpus)


@check(
    "mps-health",
    COMPUTE,
    asks="every MPS daemon of ours that lives answers, and its server takes clients",
    why="a server in FAULT gives every new task CUDA error 807; at a daemon that is stopped or hangs new tasks wait",
    fix="requeue the jobs on that GPU: its daemon ends with the last of them, and the next job has a new one",
)
def mps_health(facts: Facts) -> Sequence[Verdict]:
    if isinstance(facts.state.ledger, Unseen):
        return skip(facts.state.ledger)
    found: list[Verdict] = []
    for pipe, health in sorted(facts.state.health.items()):
        if health.condition not in ("fine", "no server", "dead"):  # of a dead one mps-daemons speaks
            fix = f"kill -CONT {health.daemon.pid}" if health.daemon and health.condition == "stopped" else ""
            found += fail(f"{pipe}: {health.why}", fix)
    return found or ok(f"{len(facts.state.health)} daemons answered")


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


@check(
    "mps-driver",
    COMPUTE,
    asks="MPS of this driver has no fault that shares are known to suffer from",
    why="caps are not held, or what is wrong cannot be seen",
    fix="install a newer driver",
)
def mps_driver(facts: Facts) -> Sequence[Verdict]:
    version = facts.gpus.driver
    if isinstance(version, Unseen):
        return skip("no driver answers")
    config = facts.config
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
    most, clients = config.settings.max_share, limits.mps_clients(version)
    if config.sources.get("max_share", DEFAULT) != DEFAULT and most > clients:
        what = f"max_share is {most}, and MPS of driver {version} takes {clients} clients on a GPU"
        found += warn(f"{what}: larger shares are refused here", f"config.toml: max_share = {clients}")
    return found or ok(f"driver {version}: {clients} clients on a GPU")


@check(
    "cuda",
    COMPUTE,
    asks="the CUDA that programs are built with here is none that is newer than the driver",
    why="a program of a newer CUDA fails on this driver, and under MPS it is known to hang (OLCF user documentation)",
    fix="point /usr/local/cuda to a CUDA that the driver serves, or install a newer driver",
)
def cuda(facts: Facts) -> Sequence[Verdict]:
    served, toolkit = facts.gpus.cuda, facts.gpus.toolkit
    if served is None:
        return skip("the driver does not tell which CUDA it serves")
    said = f"{served[0]}.{served[1]}"
    if not toolkit:
        return ok(f"the driver serves CUDA {said}; there is no /usr/local/cuda")
    words = [int(word) for word in toolkit.split(".")[:2] if word.isdecimal()]
    if len(words) < 2:
        return skip(f"/usr/local/cuda does not say its version: {toolkit}")
    if words[0] > served[0]:
        return warn(f"/usr/local/cuda is {toolkit}, and the driver serves CUDA {said}")
    if words[0] == served[0] and words[1] > served[1]:
        # Within one major version CUDA promises that programs run on older drivers (minor version compatibility).
        return ok(f"/usr/local/cuda is {toolkit}, the driver serves {said}: the same major version")
    return ok(f"/usr/local/cuda is {toolkit}, the driver serves {said}")


@check(
    "mps-version",
    COMPUTE,
    asks="the MPS programs belong to the driver's own release",
    why="MPS and driver of two releases do not work together: daemons do not start, or programs find no GPU",
    fix="install the MPS programs of the driver's release; after an upgrade of the driver, reboot the node",
)
def mps_version(facts: Facts) -> Sequence[Verdict]:
    driver, control = facts.gpus.cuda, facts.gpus.control_cuda
    if driver is None or control is None:
        return skip(
            "the driver, or the MPS control program, does not tell its release; programs before driver 590 do not"
        )
    said = f"the MPS control program is of CUDA {control[0]}.{control[1]}, the driver of CUDA {driver[0]}.{driver[1]}"
    return ok(said) if control == driver else warn(said)


CHECKS = (mps_daemons, mps_health, mps_driver, mps_version, cuda)
