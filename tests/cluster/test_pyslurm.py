"""Slurm asked through pyslurm, on a real cluster: every record is that of Slurm's commands.

Runs in the full matrix only (tests/releases.sh): building pyslurm for the release takes longer than these tests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from clusters import FULL, WANTED, name_for
from hooked import configured

from localcluster import Cluster, ClusterError

pytestmark = [pytest.mark.cluster, pytest.mark.weekly]

RELEASE = "26.05"
PYTHON = "/opt/slurm-share/bin/python"
BOTH = """
import json, os, sys
from msgspec import to_builtins
from msgspec.structs import replace
from slurm_share.core.errors import CommandError
from slurm_share.slurm import backend, jobs, nodes, remote_hosts
def by_node(kinds):
    return sorted((to_builtins(replace(kind, nodes=(node,))) for kind in kinds for node in kind.nodes), key=str)
def by_number(found):  # of one job by number slurmctld sends the elements in another order than of all jobs
    return found[0], sorted(found[1], key=lambda job: job.job_id)
QUERIES = {
    "queue": jobs.read_queue,
    "mine": lambda: jobs.read_queue(users=[str(os.getuid())]),
    "running": lambda: jobs.read_queue(states=["RUNNING"]),
    "one array": lambda: by_number(jobs.read_queue(jobs=[int(sys.argv[1])])),
    "no such job": lambda: jobs.read_queue(jobs=[4_000_000]),
    "waiting": jobs.read_waiting,
    "places": lambda: sorted(jobs.read_places(["RUNNING"])),
    "on nodes": lambda: [sorted(jobs.read_my_job_ids(node)) for node in ("n1", "n2")],
    "cluster": jobs.read_cluster,
    "nodes": nodes.read_nodes,
    "one node": lambda: nodes.read_nodes("n[2-9]"),
    "kinds": lambda: by_node(jobs.read_node_kinds()),
    "hooks": lambda: sorted(remote_hosts.read_hooks_in_force()),
}
def answers(value):
    backend._setting = lambda: value
    return {name: to_builtins(query()) for name, query in QUERIES.items()}
asked = []
def command(*words, **options):
    asked.append(words)
    raise CommandError(("a command",), None, "was asked")
commands = jobs.run, nodes.finish, remote_hosts.finish
for _ in range(10):  # until slurmctld changes nothing meanwhile, such as when it means to start a job
    told = answers("cli")
    jobs.run = nodes.finish = remote_hosts.finish = command
    by_pyslurm = answers("pyslurm")
    jobs.run, nodes.finish, remote_hosts.finish = commands
    if told == answers("cli"):
        break
different = {name: (told[name], by_pyslurm[name]) for name in QUERIES if told[name] != by_pyslurm[name]}
print(json.dumps({"different": different, "asked": asked, "told": told}))
"""
"""Asks each query through both, and lets pyslurm's half start no command."""


@pytest.fixture(scope="module")
def made(can_make_clusters: None) -> Iterator[Cluster]:
    if not FULL:
        pytest.skip("NOT TESTED with pyslurm here: it has to be built; tests/releases.sh does")
    if WANTED not in ("all", "usual", RELEASE):
        pytest.skip(f"pyslurm is built for {RELEASE} only")
    try:
        cluster = Cluster.up(name_for("pyslurm"), RELEASE, pyslurm=True, accounting=True, nodes=2, shards_per_gpu=0)
    except ClusterError as error:
        pytest.skip(f"NOT TESTED with pyslurm: {error}")
    with cluster:
        if cluster.slurm_release != RELEASE:
            pytest.skip(
                f"NOT TESTED with pyslurm: only Slurm {cluster.slurm_version} can be made on this machine today"
            )
        yield cluster


def test_pyslurm_and_the_commands_give_the_same_records(made: Cluster) -> None:
    """Running, pending, held, array jobs with GPUs in every form, and a drained node."""
    jobs = [
        made.sbatch("alice", "sleep 600", "-wn1,n2", "-N2", "-n2", "-pplain", "--gres=gpu:1"),
        made.sbatch("bob", "sleep 600", "-wn2", "-n1", "-pplain", "--mem=100", "--comment=of bob"),
        made.sbatch("alice", "sleep 600", "-wn1", "-n1", "-pplain", "--array=1-6%2"),
        made.sbatch("bob", "sleep 600", "-wn1", "-n1", "-pplain", "--gpus=simulated:2"),
    ]
    for job in jobs:
        made.wait_running(job)
    made.sbatch("alice", "true", "--share-gpu=2")
    asks = ("--gpus=4", "--gpus-per-node=2 -N2", "--exclusive --gres=gpu:1", "--gpus-per-task=1 -n2 --mem-per-cpu=50")
    for ask in asks:
        made.sbatch("bob", "true", "-H", *ask.split())
    made.exec("ctl", ["scontrol", "update", "nodename=n2", "state=drain", "reason=two words"], check=True)
    try:
        for user in ("alice", "bob"):
            done = made.as_user(user, [PYTHON, "-c", BOTH, str(jobs[2])], check=True)
            found = json.loads(done.stdout)
            assert found["different"] == {}
            assert found["asked"] == []
            assert len(found["told"]["queue"][1]) == 11
            assert [node["gpus_allocated"] for node in found["told"]["nodes"]] == [3, 1]
    finally:
        made.exec("ctl", ["scontrol", "update", "nodename=n2", "state=resume"], check=True)
        made.cancel_all()


def test_config_print_says_what_slurm_is_asked_through(made: Cluster) -> None:
    """pyslurm where wanted; the commands, and why, where the installed one cannot be used."""
    show = ["slurm-share", "config", "print"]
    assert "the pyslurm here is 25.11.2, for another release" in made.as_user("alice", show, check=True).stdout
    with configured(made, '[slurm]\nbackend = "pyslurm"'):
        assert "Slurm is asked through pyslurm " in made.as_user("alice", show, check=True).stdout
        done = made.as_user("alice", show, env={"SLURM_CONF": "/nowhere/slurm.conf"}, check=True)
        assert "pyslurm cannot be used: there is no /nowhere/slurm.conf" in done.stdout
        done = made.as_user("alice", ["llfree"], env={"SLURM_CONF": "/nowhere/slurm.conf"})
        assert 'slurm.backend is "pyslurm" in config.toml, and pyslurm cannot be used' in done.stderr
