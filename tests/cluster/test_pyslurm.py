"""Slurm asked through pyslurm, on a real cluster: the records are those of its commands, or the commands are asked.

In the full matrix only (tests/releases.sh): pyslurm has to be built for the release, and that takes longer than these.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conftest import FULL, WANTED, name_for

from localcluster import Cluster, ClusterError
from slurm_share.slurm import pyslurm_jobs

pytestmark = pytest.mark.cluster

RELEASE = "26.05"
PLACES = """
import os, sys
from slurm_share.slurm import jobs as slurm
from slurm_share.slurm import pyslurm_jobs as slurm_pyslurm
states = sys.argv[1].split(",")
os.environ[slurm_pyslurm.WISH] = "0"
told = slurm.read_places(states)
answer = slurm_pyslurm.read_answer()
print(sorted(told), told == slurm_pyslurm.places(answer, states))
"""
MINE = """
import os
from slurm_share.slurm import jobs as slurm
from slurm_share.slurm import pyslurm_jobs as slurm_pyslurm
os.environ[slurm_pyslurm.WISH] = "0"
answer = slurm_pyslurm.read_answer()
for node in ("n1", "n2"):
    told = sorted(slurm.read_my_job_ids(node))
    print(*told, tuple(told) == slurm_pyslurm.job_ids(answer, os.getuid(), node, slurm.ON_A_NODE))
"""


@pytest.fixture(scope="module")
def made(can_make_clusters: None) -> Iterator[Cluster]:
    """A cluster whose commands find pyslurm."""
    if not FULL:
        pytest.skip("NOT TESTED with pyslurm here: it has to be built; tests/releases.sh does")
    if WANTED not in ("all", "usual", RELEASE):
        pytest.skip(f"pyslurm is built for {RELEASE} only")
    try:
        cluster = Cluster.up(name_for("pyslurm"), RELEASE, pyslurm=True, nodes=2)
    except ClusterError as error:
        pytest.skip(f"NOT TESTED with pyslurm: {error}")
    with cluster:
        if cluster.slurm_release != RELEASE:
            pytest.skip(
                f"NOT TESTED with pyslurm: only Slurm {cluster.slurm_version} can be made on this machine today"
            )
        yield cluster


def test_pyslurm_and_the_commands_tell_the_same_places_and_owners(made: Cluster) -> None:
    """Of jobs of two users: on one node, on two, waiting, held, elements of an array; and each user's own, node by
    node."""
    jobs = [
        made.sbatch("alice", "sleep 600", "-wn1,n2", "-N2", "-n2", "-pplain"),
        made.sbatch("bob", "sleep 600", "-wn2", "-n1", "-pplain"),
        made.sbatch("alice", "sleep 600", "-wn1", "-n1", "-pplain", "--array=1-4%2"),
    ]
    for job in jobs:
        made.wait_running(job)
    made.sbatch("bob", "true", "-H")
    for states in ("RUNNING,COMPLETING,CONFIGURING,SUSPENDED", "RUNNING", "PENDING"):
        done = made.as_user("alice", ["/opt/slurm-share/bin/python", "-c", PLACES, states], check=True)
        expected = "[]" if states == "PENDING" else "['n1', 'n2', 'n[1-2]']"
        assert done.stdout.strip() == f"{expected} True"
    array = sorted(map(int, made.exec("ctl", ["squeue", "-h", "-tR", "-j", str(jobs[2]), "-o", "%A"]).stdout.split()))
    assert len(array) == 2
    for user, n1, n2 in (("alice", [jobs[0], *array], [jobs[0]]), ("bob", [], [jobs[1]])):
        said = made.as_user(user, ["/opt/slurm-share/bin/python", "-c", MINE], check=True).stdout
        assert said.splitlines() == [" ".join([*map(str, sorted(each)), "True"]) for each in (n1, n2)]
    made.cancel_all()


def test_config_print_says_what_slurm_is_asked_through(made: Cluster) -> None:
    """pyslurm where that is wanted; and why not, where its import finds no slurm.conf."""
    wish = {pyslurm_jobs.WISH: "1"}
    said = made.as_user("alice", ["slurm-share", "config", "print"], env=wish, check=True).stdout
    assert "Slurm is asked through pyslurm " in said
    lost = {**wish, "SLURM_CONF": "/nowhere/slurm.conf"}
    done = made.as_user("alice", ["slurm-share", "config", "print"], env=lost)
    assert done.returncode == 0, done.stderr
    assert "through its commands; pyslurm cannot be used: " in done.stdout
