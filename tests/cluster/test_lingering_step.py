"""A slurmstepd whose task has ended stays while slurmctld does not answer it."""

from __future__ import annotations

import pytest
from chaos_runs import hosts
from hooked import BOB, Node, until

from localcluster import Cluster
from slurm_share.share.rules import reconcile

pytestmark = [pytest.mark.cluster, pytest.mark.release, pytest.mark.weekly_on_v2]

BOBS = 900001


@pytest.mark.slow
def test_a_slurmstepd_whose_task_is_over_keeps_nobody_away(cluster: Cluster) -> None:
    """alice's job ends while its node has no network: bob is let in, and her job ends when it is back."""
    node = Node(cluster, "n2")
    job = cluster.sbatch("alice", "exec sleep 600", "--share-gpu=2", "-wn2")
    cluster.wait_running(job)
    of_its_batch = f"$(pgrep -of 'slurmstepd: .{job}.batch')"

    def is_old() -> bool:
        age = node.run("bash", "-c", f"ps -o etimes= -p {of_its_batch}").stdout.strip()
        return age.isdecimal() and int(age) > reconcile.STARTING_S

    until(is_old, "a slurmstepd that has long begun")
    assert node.jobs() == [job]
    node.forget_log()
    try:
        node.run("ip", "link", "set", "eth0", "down")
        node.run("bash", "-c", f"pkill -9 -P {of_its_batch} sleep")
        until(lambda: node.run("pgrep", "-x", "sleep", "-u", "alice").returncode != 0, "the end of alice's task")
        with node.job(BOBS, uid=BOB, SLURM_JOB_EXCLUSIVE="USER"):
            assert node.run("bash", "-c", f"ps -o etimes= -p {of_its_batch}").stdout.strip()
            assert f"job {job} has a slurmstepd here" in node.log()
            assert "slot 0 " in node.plan(BOBS)
            assert node.jobs() == [BOBS]
    finally:
        hosts.plug_in(cluster, "n2")
    assert cluster.wait(job) == "FAILED"
    until(lambda: node.remains() == [], "a node on which nothing is left")
