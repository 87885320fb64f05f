"""Real clusters for system tests: one per Slurm release and test process, made once."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

import pytest
from clusters import WANTED, cluster_of

from localcluster import RELEASES, Cluster, ClusterError, running, take_down
from localcluster.records import CURRENT


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests on releases that are not wanted, and begin with those that take longest."""
    # Two parameters, each a cluster of its own: they are asked together where they are of one release.
    left_out = [item for item in items if len(_releases(item)) > 1]
    if WANTED == "usual":
        left_out += [item for item in items if _releases(item) - {CURRENT}]
    elif WANTED in RELEASES:
        left_out += [item for item in items if _releases(item) - {WANTED}]
    elif WANTED != "all":
        raise pytest.UsageError(f"SLURM_SHARE_TEST_RELEASE={WANTED} is not usual, all, {' or '.join(RELEASES)}")
    without = set(left_out)
    items[:] = sorted((item for item in items if item not in without), key=_turn)
    config.hook.pytest_deselected(items=list(without))


def _turn(item: pytest.Item) -> tuple[int, bool]:
    """Return the sort key of a test. Tests that wait for minutes come first, so that other processes work meanwhile.
    Then come tests on the shared cluster, one release after the other, so that each process brings up one cluster per
    release; then tests with their own clusters."""
    if item.get_closest_marker("cluster") is None or item.get_closest_marker("xdist_group"):
        return (0, False)  # not ours to order, or a group: pytest-xdist begins with the largest
    shares = "cluster" in getattr(item, "fixturenames", ())
    turn = 1 + list(RELEASES).index(next(iter(_releases(item)), CURRENT)) if shares else 1 + len(RELEASES)
    return (turn, item.get_closest_marker("slow") is None)


def _releases(item: pytest.Item) -> set[str]:
    """Return the releases among the parameters of a cluster test."""
    if item.get_closest_marker("cluster") is None or not isinstance(item, pytest.Function):
        return set()
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return {word for value in values if isinstance(value, str) for word in value.split("-") if word in RELEASES}


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
    """Yield a cluster of the parameter's release, shared by all tests of this process."""
    with cluster_of("", request.param) as made:
        yield made


@pytest.fixture(scope="session")
def capped(can_make_clusters: None) -> Iterator[Cluster]:
    """Yield a cluster of one node with a driver that limits the memory of cgroups. Files that use it are of one
    xdist_group, so that it is made once."""
    with cluster_of("caps", CURRENT, cgroup_v2=True, nodes=1, driver=615, memory_limits="dmem") as made:
        yield made


@pytest.fixture(autouse=True)
def no_jobs_remain(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a job in the shared cluster, and empty the queue for the next one."""
    yield
    if "cluster" not in request.fixturenames:
        return
    shared: Cluster = request.getfixturevalue("cluster")
    left = shared.settle()
    if left:
        shared.cancel_all()
        pytest.fail(f"the test left jobs behind: {', '.join(left)}")
