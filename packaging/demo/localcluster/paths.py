"""Every path of a local cluster: one root for the cache, one for what runs."""

from __future__ import annotations

import os
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[2]
RUN_ROOT = Path("/run/slurm-share-cluster")
CGROUP_ROOT = Path("/sys/fs/cgroup")


def cache() -> Path:
    """Return the folder in which root file systems and layers are kept; any of it may be deleted while no cluster is
    up."""
    return Path(os.environ.get("SLURM_SHARE_CACHE") or "/var/cache/slurm-share")


def run_dir(name: str) -> Path:
    """Return the run directory of one cluster, which exists as long as the cluster is up."""
    return RUN_ROOT / name


def lock_file(name: str) -> Path:
    """Return the file locked while a cluster is brought up or down. Cluster names have no dot, so it is no run
    directory."""
    return RUN_ROOT / f"{name}.lock"


def cgroup_name(name: str) -> str:
    """Return the cgroup, below each v1 controller or in the v2 tree, that has one group per host."""
    return f"slurm-share-cluster.{name}"
