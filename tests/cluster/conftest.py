"""Real clusters for real-system tests: one per Slurm release and test process, brought up once."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

import pytest

from localcluster import RELEASES, Cluster, ClusterError, running, take_down

WITHOUT = tuple(part for part in os.environ.get("SLURM_SHARE_CLUSTER_WITHOUT", "").split(",") if part)
"""Parts of our software to leave out (python, plugin, simgpu), for whoever works on one while another is in pieces."""


def name_for(purpose: str) -> str:
    """A cluster name no other test process uses; it carries our pid, so that a dead run's clusters can be told."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    return f"t{os.getpid()}-{worker}-{purpose.replace('.', '')}"


@pytest.fixture(scope="session")
def can_make_clusters() -> None:
    """Skip, aloud, where there is no root; clear what test runs that were killed left behind."""
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED on a real Slurm: a local cluster needs root")
    for name in running():
        owner = re.match(r"t(\d+)-", name)
        if owner and not os.path.exists(f"/proc/{owner[1]}"):  # noqa: PTH110
            with contextlib.suppress(ClusterError):  # another test process is clearing it at this moment
                take_down(name)


@pytest.fixture(scope="session", params=list(RELEASES))
def cluster(request: pytest.FixtureRequest, can_make_clusters: None) -> Iterator[Cluster]:
    """A cluster that runs the release of the parameter, shared by all tests of this process."""
    release = request.param
    with Cluster.up(name_for(release), release, without=WITHOUT) as made:
        if made.slurm_release != release:
            pytest.skip(f"NOT TESTED on Slurm {release}: only {made.slurm_version} can be made on this machine today")
        yield made


@pytest.fixture(autouse=True)
def no_jobs_remain(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that leaves a job in the shared cluster fails; the next one starts with an empty queue all the same."""
    yield
    if "cluster" not in request.fixturenames:
        return
    shared: Cluster = request.getfixturevalue("cluster")
    left = shared.settle()
    if left:
        shared.cancel_all()
        pytest.fail(f"the test left jobs behind: {', '.join(left)}")
