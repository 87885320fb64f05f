"""Records of a local cluster: frozen values."""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from dataclasses import dataclass

from .paths import CHECKOUT

PARTS = ("python", "plugin", "simgpu")
"""Parts of our software that a site installs: Python library with hooks, SPANK plugin, simulated GPU."""


@dataclass(frozen=True)
class Release:
    """A Slurm release that clusters can run, and the Debian suite that has it."""

    name: str
    suite: str
    at_least: tuple[int, int]
    """Lowest major.minor accepted; Debian testing moves to newer ones."""
    below: tuple[int, int] | None
    """First major.minor not accepted; None: any newer one is accepted."""


def releases(suites: Mapping[str, str]) -> dict[str, Release]:
    """Return the releases of `slurm_share.slurm.releases.SUITES`, the newest first."""
    found: dict[str, Release] = {}
    newer: tuple[int, int] | None = None
    for name, suite in suites.items():
        major, minor = map(int, name.split("."))
        # a stable suite keeps its release; newer ones belong to another entry or to none
        below = None if newer is None else min(newer, (major + 1, 0))
        found[name] = Release(name, suite, (major, minor), below)
        newer = (major, minor)
    return found


RELEASES = releases(runpy.run_path(str(CHECKOUT / "slurm_share/slurm/releases.py"))["SUITES"])
"""Read as a file, because local clusters run where slurm_share is not installed."""
CURRENT, STABLE, *_ = RELEASES


_SIMULATED_DRIVER = runpy.run_path(str(CHECKOUT / "packaging/demo/simgpu/simdriver.py"))
DRIVERS: tuple[int, ...] = tuple(_SIMULATED_DRIVER["PROFILES"])
"""Releases of the driver that the simulated GPUs can pretend to have."""


def driver_file(release: int, back_end: str = "off") -> str:
    """Return the content of the file that gives simulated GPUs the driver of a release (simdriver.py)."""
    return str(_SIMULATED_DRIVER["PROFILES"][release].text(back_end))


MEMORY_LIMITS: tuple[str, ...] = _SIMULATED_DRIVER["BACK_ENDS"]
"""How that driver can limit the memory of a cgroup."""


@dataclass(frozen=True)
class Root:
    """A complete root file system with Slurm; read-only."""

    release: str
    """Key of RELEASES. It may differ from the requested one: see rootfs.root_for."""
    slurm_version: str
    """The version that `slurmctld -V` prints, for example 26.05.5."""
    python_version: str
    """Major and minor version of its python3, for example 3.13."""
    path: str


@dataclass(frozen=True)
class Host:
    """One host of the cluster. `gpus`, `cpus` and `memory_mb` are configured values (config_overrides), not the
    machine's."""

    name: str
    address: str
    gpus: int = 0
    cpus: int = 0
    memory_mb: int = 0
    driver: int = 0
    """The simulated driver's release; 0: simgpu-init's default."""
    memory_limits: str = ""
    """How the simulated driver limits the memory of a cgroup; empty: what the kernel has."""

    @property
    def is_compute(self) -> bool:
        return self.cpus > 0


@dataclass(frozen=True)
class User:
    """A user account of the cluster."""

    name: str
    uid: int


USERS = (User("alice", 2001), User("bob", 2002))


@dataclass(frozen=True)
class Identity:
    """A process, identified beyond reuse of its PID."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat: clock ticks between the machine's boot and the process's start."""


def make_hosts(
    compute_nodes: int, *, alike: bool = False, driver: int = 0, memory_limits: str = ""
) -> tuple[Host, ...]:
    """Return the hosts of a cluster: ctl, login, n1 (4 GPUs, 16 CPUs, 16000 MB), other nodes (2 GPUs, 8 CPUs, 8000 MB).

    `alike`: all nodes are like n1.
    """
    claims = [(4, 16, 16000) if alike or number == 1 else (2, 8, 8000) for number in range(1, compute_nodes + 1)]
    named = [("ctl", (0, 0, 0)), ("login", (0, 0, 0)), *((f"n{i}", claim) for i, claim in enumerate(claims, 1))]
    return tuple(
        Host(name, f"10.77.{number // 250}.{number % 250 + 1}", *claim, driver=driver, memory_limits=memory_limits)
        for number, (name, claim) in enumerate(named)
    )
