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


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests on releases that are not wanted, and begin with those that take longest."""
    # Two parameters, each a cluster of its own: they are asked together where they are of one release.
    left_out = [item for item in items if len(_releases(item)) > 1]
    if WANTED == "usual":
        left_out += [item for item in items if _releases(item) - {CURRENT} and not item.get_closest_marker("release")]
    elif WANTED in RELEASES:
        left_out += [item for item in items if _releases(item) - {WANTED}]
    elif WANTED != "all":
        raise pytest.UsageError(f"SLURM_SHARE_TEST_RELEASE={WANTED} is not usual, all, {' or '.join(RELEASES)}")
    without = set(left_out)
    items[:] = sorted((item for item in items if item not in without), key=_turn)
    config.hook.pytest_deselected(items=list(without))


def _turn(item: pytest.Item) -> tuple[int, bool]:
    """When a test has its turn. First those that wait for minutes, so that others work meanwhile and no process waits
    for the last of them alone; then what is asked of the shared cluster, release after release, so that each process
    brings up one of each; then what has clusters of its own."""
    if item.get_closest_marker("cluster") is None or item.get_closest_marker("xdist_group"):
        return (0, False)  # not ours to order, or a group: pytest-xdist begins with the largest
    shares = "cluster" in getattr(item, "fixturenames", ())
    turn = 1 + list(RELEASES).index(next(iter(_releases(item)), CURRENT)) if shares else 1 + len(RELEASES)
    return (turn, item.get_closest_marker("slow") is None)


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
