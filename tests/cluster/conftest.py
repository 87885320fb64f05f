"""Real clusters for real-system tests: one per Slurm release and test process, brought up once."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

import pytest

from localcluster import RELEASES, Cluster, ClusterError, running, take_down
from localcluster.records import CURRENT

WANTED = os.environ.get("SLURM_SHARE_TEST_RELEASE") or "all"
"""The one release to test on, `all`, or `usual`: the current release, and on the others the tests that are marked as
depending on the release of Slurm."""
FULL = os.environ.get("SLURM_SHARE_MATRIX") == "full"
"""Whether every release is tested with every way to set Slurm up, and pyslurm is built for it."""
WITHOUT = tuple(part for part in os.environ.get("SLURM_SHARE_CLUSTER_WITHOUT", "").split(",") if part)
"""Parts of our software to leave out (python, plugin, simgpu), for whoever works on one while another is in pieces."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests on releases that are not wanted."""
    if WANTED == "all":
        return
    if WANTED == "usual":
        left_out = [item for item in items if _releases(item) - {CURRENT} and not item.get_closest_marker("release")]
    elif WANTED in RELEASES:
        left_out = [item for item in items if _releases(item) - {WANTED}]
    else:
        raise pytest.UsageError(f"SLURM_SHARE_TEST_RELEASE={WANTED} is not usual, all, {' or '.join(RELEASES)}")
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def _releases(item: pytest.Item) -> set[str]:
    """Releases among the parameters of a test on a cluster."""
    if item.get_closest_marker("cluster") is None or not isinstance(item, pytest.Function):
        return set()
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return {word for value in values if isinstance(value, str) for word in value.split("-") if word in RELEASES}


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
