"""Every path a local cluster uses: one root for what lasts, one for what runs."""

from __future__ import annotations

import os
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[2]
RUN_ROOT = Path("/run/slurm-share-cluster")
CGROUP_ROOT = Path("/sys/fs/cgroup")


def cache() -> Path:
    """Where root file systems and layers are kept between clusters; any of it may be deleted while none is up."""
    return Path(os.environ.get("SLURM_SHARE_CACHE") or "/var/cache/slurm-share")


def run_dir(name: str) -> Path:
    """The run directory of one cluster; gone once the cluster is down."""
    return RUN_ROOT / name


def lock_file(name: str) -> Path:
    """Held while a cluster is brought up or down. A name has no dot, so this is no cluster's run directory."""
    return RUN_ROOT / f"{name}.lock"


def cgroup_name(name: str) -> str:
    """The group below each cgroup v1 controller, or in the tree of v2, that holds one group per host."""
    return f"slurm-share-cluster.{name}"
