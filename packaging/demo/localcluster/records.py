"""The nouns of a local cluster: frozen values, no behaviour beyond naming themselves."""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from dataclasses import dataclass

from .paths import CHECKOUT

PARTS = ("python", "plugin", "simgpu")
"""Our software as a site installs it: the Python library with its hooks, the SPANK plugin, the simulated GPU."""


@dataclass(frozen=True)
class Release:
    """A Slurm release we run, and the Debian suite that carries it."""

    name: str
    suite: str
    at_least: tuple[int, int]
    """Lowest major.minor accepted; Debian testing moves on to newer ones by itself."""
    below: tuple[int, int] | None
    """First major.minor not accepted, None: any newer one will do."""


def releases(suites: Mapping[str, str]) -> dict[str, Release]:
    """Return the releases of `slurm_share.slurm.releases.SUITES`, the newest first."""
    found: dict[str, Release] = {}
    newer: tuple[int, int] | None = None
    for name, suite in suites.items():
        major, minor = map(int, name.split("."))
        # A stable suite keeps its release, and what is newer belongs to another entry or to none.
        below = None if newer is None else min(newer, (major + 1, 0))
        found[name] = Release(name, suite, (major, minor), below)
        newer = (major, minor)
    return found


RELEASES = releases(runpy.run_path(str(CHECKOUT / "slurm_share/slurm/releases.py"))["SUITES"])
"""Read as a file: a local cluster is brought up where slurm_share is not installed."""
CURRENT, STABLE, *_ = RELEASES


@dataclass(frozen=True)
class Root:
    """A root file system with Slurm inside, whole and read-only from now on."""

    release: str
    """Key of RELEASES. It may differ from the one asked for: see rootfs.root_for."""
    slurm_version: str
    """What `slurmctld -V` says, for example 26.05.5."""
    python_version: str
    """Major and minor of its python3, for example 3.13."""
    path: str


@dataclass(frozen=True)
class Host:
    """One host of the cluster. `gpus`, `cpus` and `memory_mb` are claims (config_overrides), not the machine's own."""

    name: str
    address: str
    gpus: int = 0
    cpus: int = 0
    memory_mb: int = 0

    @property
    def is_compute(self) -> bool:
        return self.cpus > 0


@dataclass(frozen=True)
class User:
    """A person of the cluster."""

    name: str
    uid: int


USERS = (User("alice", 2001), User("bob", 2002))


@dataclass(frozen=True)
class Identity:
    """A process, and the proof that the number still means the same one."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat: clock ticks between the machine's boot and the process's start."""


def make_hosts(compute_nodes: int, *, alike: bool = False) -> tuple[Host, ...]:
    """The hosts of a cluster: ctl, login, n1 (4 GPUs, 16 CPUs, 16000 MB), other nodes (2 GPUs, 8 CPUs, 8000 MB).

    `alike`: all nodes are as n1.
    """
    claims = [(4, 16, 16000) if alike or number == 1 else (2, 8, 8000) for number in range(1, compute_nodes + 1)]
    named = [("ctl", (0, 0, 0)), ("login", (0, 0, 0)), *((f"n{i}", claim) for i, claim in enumerate(claims, 1))]
    return tuple(
        Host(name, f"10.77.{number // 250}.{number % 250 + 1}", *claim) for number, (name, claim) in enumerate(named)
    )
