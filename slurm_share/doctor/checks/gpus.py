"""Checks of a node's GPUs, their driver, and the processes on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...core import numbers
from ...node.records import NodeProcess
from ...share import FIRST_ORDINARY_UID, drivers, registry
from ..facts.records import CheckVerdict, Facts, SeenGpu, UnknownFact
from .base import COMPUTE, Skip, check, configuration, fail, ledger_of, named, ok, seen_or, skip, warn
from .policy import gpus_of

DEFAULT_MODE, PROHIBITED = 0, 2
MODES = {0: "Default", 1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process"}
"""Compute modes: NVML's numbers, and the names of nvidia-smi."""
WAKE_S = 3.0
"""Seconds that each GPU may add to the first start without persistence mode, ECC scrubbing included: 1 to 3
(docs.nvidia.com/deploy/driver-persistence).
"""


def _expected(facts: Facts) -> int | None:
    """Return the number of GPUs that Slurm has for this node; None: unknown."""
    nodes = seen_or(facts.slurm.nodes, ())
    return next((gpus_of(node.gres) for node in nodes if node.name == facts.host), None)


def _gpus(facts: Facts) -> Sequence[SeenGpu]:
    """Return the GPUs with MIG instances. Raises Skip if there are none."""
    if isinstance(facts.gpus.driver, UnknownFact):
        raise Skip("no driver answers")
    if not facts.gpus.gpus:
        raise Skip("the driver has no GPU")
    return facts.gpus.gpus


def _whole(gpus: Sequence[SeenGpu]) -> list[SeenGpu]:
    """Return the GPUs without MIG instances."""
    return [one for one in gpus if not one.gpu.uuid.startswith("MIG-")]


@check(
    "driver",
    COMPUTE,
    asks="NVIDIA's driver answers",
    why="no GPU can be shared, and leftover processes on GPUs are not found",
    fix="nvidia-smi; dmesg | grep -i nvrm; reload the driver, or reboot the node",
)
def driver(facts: Facts) -> Sequence[CheckVerdict]:
    version = facts.gpus.driver
    if not isinstance(version, UnknownFact):
        return ok(f"driver {version}")
    if _expected(facts) == 0:
        return skip("Slurm says that this node has no GPU")
    return fail(version.why)


@check(
    "gpu-count",
    COMPUTE,
    asks="the driver has as many GPUs as slurm.conf",
    why="Slurm allocates a GPU that is lost, or does not use GPUs that it does not know",
    fix="nvidia-smi -L; put Gres= and gres.conf right, or drain the node and have the GPU looked at",
)
def gpu_count(facts: Facts) -> Sequence[CheckVerdict]:
    gpus = _gpus(facts)
    expected = _expected(facts)
    if expected is None:
        return skip("Slurm does not say how many there are")
    found = sum(not one.gpu.mig_parent for one in gpus)
    if expected in (found, len(_whole(gpus))):
        return ok(f"{found}")
    return fail(f"the driver has {found}, Slurm says {expected}")


@check(
    "simulated-gpus",
    COMPUTE,
    asks="the GPUs are real, or config.toml allows simulated ones",
    why="a simulated GPU computes nothing; without simulated_gpus in config.toml it is not shared",
    fix="config.toml: simulated_gpus = true on a test cluster; elsewhere take the simulated libnvidia-ml.so.1 away",
)
def simulated_gpus(facts: Facts) -> Sequence[CheckVerdict]:
    gpus = _gpus(facts)
    wanted = configuration(facts).settings.simulated_gpus
    fake = sum(one.gpu.simulated for one in gpus)
    if fake and not wanted:
        return fail(f"{fake} SIMULATED GPUs, and config.toml does not allow them")
    if fake:
        return ok(f"{fake} SIMULATED GPUs, as config.toml wants: nothing is computed on them")
    if wanted:
        return warn("real GPUs, and simulated_gpus = true", "config.toml: take simulated_gpus out")
    return ok("real ones")


@check(
    "gpu-health",
    COMPUTE,
    asks="no GPU has errors that outlast a job",
    why="job after job fails on the broken GPU",
    fix="drain the node; nvidia-smi -q -d ECC,ROW_REMAPPER; reset or replace the GPU",
)
def gpu_health(facts: Facts) -> Sequence[CheckVerdict]:
    gpus = _gpus(facts)
    found: list[CheckVerdict] = []
    for one in gpus:
        if one.problems:
            found += fail(f"GPU {one.gpu.index} ({one.gpu.uuid}): {named(one.problems)}")
    return found or ok("no errors")


@check(
    "gpu-memory",
    COMPUTE,
    asks="the driver says how much memory each GPU has",
    why="without a size the tasks of a share have no memory cap, and one that takes all memory makes the others fail",
    fix="nvidia-smi -q -d MEMORY; install another driver; until then users can write --share-gpu=N,mem=SIZE",
)
def gpu_memory(facts: Facts) -> Sequence[CheckVerdict]:
    gpus = [one.gpu for one in _gpus(facts) if not one.problems]
    unified = [gpu.index for gpu in gpus if gpu.is_host_memory]
    unknown = [gpu.index for gpu in gpus if not gpu.memory_total_mib]
    found: list[CheckVerdict] = []
    if unknown:
        found += warn(f"no size of GPU {named(unknown)}: shares there have no memory cap")
    if unified:
        found += warn(
            f"GPU {named(unified)} uses the node's memory (MemTotal): shares there have no memory cap",
            "none is needed: the GPU has no memory of its own; `slurm-share doctor --except gpu-memory`",
        )
    return found or ok("all are known")


@check(
    "gpu-memory-limits",
    COMPUTE,
    asks="a driver that can enforce memory caps does so",
    why="MPS alone enforces the caps, which a task can lift; sharing=time-slicing,mem=SIZE is refused here",
    fix="cgroup v2 and TaskPlugin=task/cgroup in Slurm; RmMemacctMode of the driver not 0; or, where the caps of MPS"
    ' are enough, memory_limits = "off" in config.toml',
)
def gpu_memory_limits(facts: Facts) -> Sequence[CheckVerdict]:
    _gpus(facts)
    version = str(facts.gpus.driver)
    if not drivers.offers(version, drivers.MEMORY_LIMITS):
        return ok(f"a driver before {drivers.MEMORY_LIMITS} has no limits for cgroups: the caps are those of MPS")
    if configuration(facts).settings.memory_limits == "off":
        return skip('memory_limits = "off" in config.toml')
    if facts.gpus.why_no_limits:
        return warn(facts.gpus.why_no_limits)
    if facts.gpus.limit_groups:
        return warn(
            f"empty cgroups with limits of ours: {named(facts.gpus.limit_groups)}",
            "look again in a minute; the next Epilog of their job's user removes them, or: rmdir, from the last on",
        )
    return ok(f"the driver enforces memory caps ({facts.gpus.limits_by})")


@check(
    "mig",
    COMPUTE,
    asks="a GPU in MIG mode has instances",
    why="a shared job that is allocated the GPU itself is refused; each instance is a GPU of its own for shares, whose"
    " tasks take turns there, without MPS and without caps",
    fix="nvidia-smi mig -i GPU -cgi PROFILE,... -C, and the instances in gres.conf, and not the GPU; or nvidia-smi -i"
    " GPU -mig 0 and a reset",
)
def mig(facts: Facts) -> Sequence[CheckVerdict]:
    gpus = [one.gpu for one in _gpus(facts)]
    instances = [gpu for gpu in gpus if gpu.uuid.startswith("MIG-")]
    empty = [gpu.index for gpu in gpus if gpu.mig_parent and all(one.index != gpu.index for one in instances)]
    if empty:
        return warn(f"MIG is on, and there are no instances: GPU {named(empty)}")
    if not instances:
        return ok("none is")
    counts = Counter((one.index, one.name.rpartition(" ")[2]) for one in instances)
    each = (f"GPU {index}: {count} x {profile}" for (index, profile), count in counts.items())
    return ok(named(each))


@check(
    "persistence",
    COMPUTE,
    asks="the driver stays loaded between jobs (persistence mode)",
    why="the driver releases a GPU after its last process, and a Prolog then waits seconds for each GPU",
    fix="systemctl enable --now nvidia-persistenced",
)
def persistence(facts: Facts) -> Sequence[CheckVerdict]:
    gpus = _gpus(facts)
    told = [one for one in _whole(gpus) if one.persistence is not None]
    if not told:
        return skip("the driver does not tell")
    asleep = [one for one in told if not one.persistence]
    if not asleep:
        return ok("on")
    what = f"off on GPU {named(one.gpu.index for one in asleep)}"
    needs = WAKE_S * len(asleep)
    config = seen_or(facts.config, None)
    if config is not None and needs > (most := config.settings.hook_deadline_s):
        what += f"; to wake {len(asleep)} may take {needs:g} s, and hook_deadline_s is {most:g} s"
    return warn(what)


@check(
    "compute-mode",
    COMPUTE,
    asks="every GPU that no job uses is in compute mode Default",
    why="in Exclusive_Process a second program cannot use the GPU; in Prohibited none can",
    fix="nvidia-smi -i UUID -c 0",
)
def compute_mode(facts: Facts) -> Sequence[CheckVerdict]:
    gpus = _gpus(facts)
    ledger = ledger_of(facts)
    modes = {one.gpu: one.mode for one in ledger.modes}
    used = {gpu for job in ledger.jobs for gpu in job.gpus}
    found: list[CheckVerdict] = []
    for one in _whole(gpus):
        uuid, mode = one.gpu.uuid, one.compute_mode
        if mode in (None, DEFAULT_MODE) or uuid in used:
            continue
        said = f"GPU {one.gpu.index} ({uuid}) is in {MODES.get(mode or 0, mode)}"
        if uuid in modes:
            found += warn(f"{said}, left by a job; it was {MODES.get(modes[uuid])}", "slurm-share doctor --fix")
        elif mode == PROHIBITED:
            found += fail(said, f"nvidia-smi -i {uuid} -c 0")
        else:
            found += warn(f"{said}, and no job has it", f"nvidia-smi -i {uuid} -c 0")
    return found or ok("as it should be")


@check(
    "gpu-processes",
    COMPUTE,
    asks="every program on a GPU belongs to a job",
    why="other programs take memory from the next job's tasks; our Epilog ends those of users, not of system users",
    fix="find out whose it is and end it, or name it in tolerated_processes of config.toml",
)
def gpu_processes(facts: Facts) -> Sequence[CheckVerdict]:
    gpus = _gpus(facts)
    found: list[CheckVerdict] = []
    for one in gpus:
        for who in (process.identity for process in one.processes if not _belongs(process, facts)):
            found += warn(f"process {who.pid} ({who.name}) of uid {who.uid} on GPU {one.gpu.index} is in no job")
    return found or ok("every program is in a job")


def _belongs(process: NodeProcess, facts: Facts) -> bool:
    """Return whether a process may use a GPU: it belongs to a job here or a backend (which has its own checks), or is
    tolerated."""
    who, config = process.identity, seen_or(facts.config, None)
    jobs = facts.state.live_jobs.union(
        (job.job_id for job in ledger_of(facts).jobs), seen_or(facts.slurm.jobs_here, ())
    )
    if process.job_id in jobs or registry.is_own_process(who.name or ""):
        return True
    tolerated = () if config is None else config.settings.tolerated_processes
    return who.uid is not None and who.uid < FIRST_ORDINARY_UID and who.name in tolerated


@check(
    "cuda",
    COMPUTE,
    asks="/usr/local/cuda is not newer than the driver",
    why="programs built with a newer CUDA fail on this driver, or hang under MPS (OLCF user documentation)",
    fix="point /usr/local/cuda to a CUDA that the driver serves, or install a newer driver",
)
def cuda(facts: Facts) -> Sequence[CheckVerdict]:
    served, toolkit = facts.gpus.cuda, facts.gpus.toolkit
    if served is None:
        return skip("the driver does not tell which CUDA it serves")
    said = f"{served[0]}.{served[1]}"
    if not toolkit:
        return ok(f"the driver serves CUDA {said}; there is no /usr/local/cuda")
    versions = [found for part in toolkit.split(".")[:2] if (found := numbers.whole(part)) is not None]
    if len(versions) < 2:
        return skip(f"/usr/local/cuda does not say its version: {toolkit}")
    if versions[0] > served[0]:
        return warn(f"/usr/local/cuda is {toolkit}, and the driver serves CUDA {said}")
    # Within a major version, CUDA programs run on older drivers (minor version compatibility).
    is_newer = versions[0] == served[0] and versions[1] > served[1]
    more = ": the same major version" if is_newer else ""
    return ok(f"/usr/local/cuda is {toolkit}, the driver serves {said}{more}")


@check(
    "gpu-accounting",
    COMPUTE,
    asks="with gpu_accounting = true, the driver's accounting mode is on for every GPU that has it",
    why="reports have no figures of processes that ended before anybody measured them",
    fix="nvidia-smi -i UUID -am 1; the Prolog of the next job that is recorded does it, too",
)
def gpu_accounting(facts: Facts) -> Sequence[CheckVerdict]:
    if not configuration(facts).settings.gpu_accounting:
        return ok("not asked for (gpu_accounting)")
    without = [one for one in _whole(_gpus(facts)) if one.accounting is None]
    off = [one for one in _whole(_gpus(facts)) if one.accounting is False]
    found: list[CheckVerdict] = []
    for one in off:
        said = f"GPU {one.gpu.index} ({one.gpu.uuid}) is not in accounting mode"
        found += warn(said, f"nvidia-smi -i {one.gpu.uuid} -am 1; the Prolog of its next recorded job does it, too")
    if without and not found:
        return ok(f"{len(without)} GPUs do not have it; reports take their figures from the agent")
    return found or ok("on")


CHECKS = (
    *(driver, gpu_count, simulated_gpus, gpu_health, gpu_memory, gpu_memory_limits, mig),
    *(persistence, compute_mode, gpu_accounting),
    gpu_processes,
)
"""All checks except `cuda`, which comes last."""
