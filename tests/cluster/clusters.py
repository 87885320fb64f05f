"""Bring up local clusters for tests."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from localcluster import RELEASES, Cluster, Misuse, namespaces, running_kernel
from localcluster.records import CURRENT

WANTED = os.environ.get("SLURM_SHARE_TEST_RELEASE") or "all"
"""The release to test on, `all`, or `usual`: the current one."""
FULL = os.environ.get("SLURM_SHARE_MATRIX") == "full"
"""Whether to test every release with every profile, and to build pyslurm for it."""
WITHOUT = tuple(part for part in os.environ.get("SLURM_SHARE_CLUSTER_WITHOUT", "").split(",") if part)
"""Parts of our software to leave out (python, plugin, simgpu), for work on one while another is broken."""

CONFINED = {"cgroup": True} if namespaces.has_v1() else {"cgroup_v2": True}
"""Options of a cluster whose jobs are in cgroups, of the kind that this kernel has."""
ON_V2 = bool(os.environ.get(running_kernel.ON_V2))
"""Whether this is the kernel of tests/kernel.sh: there every cluster has cgroup v2."""


def name_for(purpose: str) -> str:
    """Return a cluster name that no other test process uses. It contains our PID, so that clusters of killed runs can
    be recognised."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    return f"t{os.getpid()}-{worker}-{purpose.replace('.', '')}"


def by_release(group: str = "") -> list[ParameterSet]:
    """Return the releases as parameters of a fixture that makes a cluster. Tests with one value run in one process, so
    that the cluster is made once."""
    return [pytest.param(name, marks=pytest.mark.xdist_group(group + name)) for name in RELEASES]


@contextlib.contextmanager
def cluster_of(purpose: str, release: str = CURRENT, **options: Any) -> Iterator[Cluster]:
    """Bring up a cluster; skip the test, aloud, where the release or cgroups are not to be had on this machine.

    `cgroup` is v2 on a kernel with cgroup v2 only. In the kernel of tests/kernel.sh every cluster has it, unless
    `cgroup_v2` is False.
    """
    if options.pop("cgroup", False):
        options |= CONFINED
    if ON_V2:
        options.setdefault("cgroup_v2", True)
    try:
        made = Cluster.up(name_for(purpose + release), release, **{"without": WITHOUT, **options})
    except Misuse as error:
        if not (options.get("cgroup") or options.get("cgroup_v2")):
            raise
        pytest.skip(f"NOT TESTED: {error}")
    with made:
        if made.slurm_release != release:
            pytest.skip(f"NOT TESTED on Slurm {release}: only {made.slurm_version} can be made on this machine today")
        yield made
