"""Read what this host has for sharing its GPUs, for the rules in rules/methods.py. Anybody may."""

from __future__ import annotations

import os
from pathlib import Path

from ..core import cgroup_paths
from ..core.errors import DriverError
from ..core.settings import Settings
from ..node.gpus import driver as nvml
from .rules import drivers
from .rules.methods import NodeOffer

CGROUP_ROOT = "/sys/fs/cgroup"
NOT_SUPPORTED = "Not Supported"
NO_DRIVER = "NVML Shared Library Not Found"


def read_offer(settings: Settings, root: str = CGROUP_ROOT) -> NodeOffer:
    """Return what this host has. What does not answer is named in the result."""
    try:
        driver = nvml.read_driver()
    except DriverError as error:
        return NodeOffer(problem="" if error.reason == NO_DRIVER else str(error))
    is_v2 = cgroup_paths.is_v2(root)
    offer = NodeOffer(
        driver=driver.version,
        gpus=driver.gpus,
        mps_program=settings.mps_control,
        has_mps_program=bool(settings.mps_control) and os.access(settings.mps_control, os.X_OK),
        cgroup=2 if is_v2 else 1 if any(Path(root).glob("*/tasks")) else None,
        controllers=cgroup_paths.read_controllers(root) if is_v2 else (),
        mode=settings.mode,
        memory_limits=settings.memory_limits,
        mps_protocol=settings.mps_protocol,
        simulated_gpus=settings.simulated_gpus,
    )
    return offer if not is_v2 else _with_limits(offer, root)


def _with_limits(offer: NodeOffer, root: str) -> NodeOffer:
    """Ask the driver for the memory limits of this process's own cgroup, if its release has such limits.

    "Not Supported" is no proof that it has not: a driver that counts the memory itself (misc) says the same of a cgroup
    without limits. Only root can find out more, by setting one (prove/proof.py).
    """
    from msgspec.structs import replace

    gpu = next((one for one in offer.gpus if one.problem is None and one.uuid.startswith("GPU-")), None)
    if gpu is None or not drivers.offers(offer.driver, drivers.MEMORY_LIMITS):
        return offer
    try:
        nvml.read_memory_limits(gpu.uuid, own_cgroup(root))
    except DriverError as error:
        return offer if error.reason == NOT_SUPPORTED else replace(offer, no_limits=error.reason)
    except OSError as error:
        return replace(offer, no_limits=str(error))
    return offer


def own_cgroup(root: str = CGROUP_ROOT, process: str = "self") -> str:
    """Return the folder of a process's cgroup v2. Raises OSError."""
    text = Path(f"/proc/{process}/cgroup").read_text(encoding="utf-8", errors="surrogateescape")
    path = next((line[3:] for line in text.splitlines() if line.startswith("0::")), "/")
    return os.path.normpath(f"{root}/{path}")
