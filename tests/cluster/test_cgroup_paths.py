"""The job of a process by its place in cgroup v2, on a real cluster: folders of Slurm's, named by SLUID (26.05) or job
number, and folders of the same name that somebody else made.

The processes of these tests have left their job's slurmstepd and have an empty environment. Only the cgroup names the
job.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from clusters import by_release, cluster_of
from hooked import Node, until

from localcluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.release, pytest.mark.on_v2]

LIST = """
import sys
from pathlib import Path
from slurm_share.node import cgroups
from slurm_share.node import processes as proc
seen = proc.read_process(int(sys.argv[1]))
groups = cgroups.JobGroups("n1").read() or ()
print(seen.job_id, seen.is_own_claim, *sorted((group.job, group.uid) for group in groups))
"""
"""Prints what a hook reads of a process, and what the sampler reads of the node's jobs."""
AWAY = "env -i setsid -f /bin/sleep {seconds} </dev/null >/dev/null 2>&1"
JOB = f"srun -n2 bash -c '{AWAY.format(seconds='600$SLURM_PROCID')}; simgpu-task --memory 1G --seconds 600'"
SAYS_USR1 = """#!/bin/bash
left=600
trap 'echo "got USR1"; left=10' USR1
touch up.$LLSUB_RANK
while ((left-- > 0)); do sleep 0.1; done
"""
GIVEN = "/sys/fs/cgroup/given"
"""A cgroup that root has given to alice, as container engines and systemd do."""


@pytest.fixture(scope="module", params=by_release("v2-"))
def made(request: pytest.FixtureRequest, can_make_clusters: None) -> Iterator[Cluster]:
    with cluster_of("v2", request.param, cgroup_v2=True, nodes=1) as cluster:
        yield cluster


@pytest.fixture
def job(made: Cluster) -> Iterator[int]:
    """Start a job of alice's with two tasks on one GPU, and a process of each that leaves the job."""
    number = made.sbatch("alice", JOB, "--gres=gpu:1", "-n2")
    made.wait_running(number)
    until(lambda: len(sleepers(made, "600[01]")) == 2, "two processes that went away")
    until(lambda: len(sample(made)["processes"]) == 2, "two tasks on the GPU")
    yield number
    made.cancel_all()
    assert Node(made, "n1").remains() == []


def sleepers(cluster: Cluster, seconds: str) -> list[int]:
    """Return the processes that sleep for so long, the youngest last."""
    return [int(pid) for pid in cluster.exec("n1", ["pgrep", "-xf", f"/bin/sleep {seconds}"]).stdout.split()]


def sample(cluster: Cluster) -> dict:  # type: ignore[type-arg]
    said = cluster.exec("n1", ["slurm-share", "sample", "--all"], check=True).stdout
    return json.loads(said)  # type: ignore[no-any-return]


def observed(cluster: Cluster, pid: int) -> str:
    """Return what our readers report of a process and of the node's jobs."""
    done = cluster.exec("n1", ["/opt/slurm-share/bin/python", "-c", LIST, str(pid)], check=True)
    return done.stdout.strip()


def sluid(cluster: Cluster, job: int) -> str:
    """Return the job's SLUID; empty: this release has none."""
    said = cluster.exec("ctl", ["scontrol", "show", "job", "-d", str(job)], check=True).stdout
    found = re.search(r"\bSLUID=(\w+)", said)
    return found[1] if found else ""


def test_a_process_is_its_jobs_by_the_folder_that_slurm_made(made: Cluster, job: int) -> None:
    """Job, step and task by the path, and the job's user; on 26.05 the path has the SLUID, and no number at all."""
    name = f"job_{job}" if made.slurm_release == "24.11" else sluid(made, job)
    assert re.fullmatch(r"job_\d+|s[0-9A-Z]{13}", name)
    for task, pid in enumerate(sorted(sleepers(made, "600[01]"))):
        path = made.exec("n1", ["cat", f"/proc/{pid}/cgroup"], check=True).stdout
        assert re.search(rf"^0::/system\.slice/n1_slurmstepd\.scope/{name}/step_0/user/task_[01]$", path, re.MULTILINE)
        assert made.exec("n1", ["cat", f"/proc/{pid}/environ"]).stdout == "", task
        assert observed(made, pid) == f"{job} False ({job}, 2001)"
    seen = sample(made)
    assert sorted((one["job"], one["step"], one["task"]) for one in seen["processes"]) == [(job, "0", 0), (job, "0", 1)]
    assert [(one["job"], one["user"]) for one in seen["jobs"]] == [(job, "alice")]


FORGED = ("slurmstepd.scope/job_999/step_0/user/task_0", "n1_slurmstepd.scope/{name}/step_0/user/task_0")


@pytest.mark.parametrize("path", FORGED)
def test_a_folder_that_a_user_calls_like_a_jobs_is_no_jobs(made: Cluster, job: int, path: str) -> None:
    """alice makes cgroups with other jobs' numbers and names and moves into them: she is in no job."""
    name = f"job_{job}" if made.slurm_release == "24.11" else sluid(made, job)
    folder = f"{GIVEN}.slice/{path.format(name=name)}"
    give = f'mkdir {GIVEN}.slice; chown -R alice {GIVEN}.slice; echo $$ >{GIVEN}.slice/cgroup.procs; exec "$@"'
    move = f"mkdir -p {folder}; echo $$ >{folder}/cgroup.procs; {AWAY.format(seconds=7000)}"
    become = ["setpriv", "--reuid=alice", "--regid=alice", "--init-groups", "bash", "-c", move]
    made.exec("n1", ["bash", "-c", give, "-", *become], check=True)
    until(lambda: sleepers(made, "7000"), "her process")
    (pid,) = sleepers(made, "7000")
    try:
        where = made.exec("n1", ["cat", f"/proc/{pid}/cgroup"], check=True).stdout
        assert folder.removeprefix("/sys/fs/cgroup") in where
        assert observed(made, pid) == f"None False ({job}, 2001)"
    finally:
        made.exec("n1", ["kill", "-9", str(pid)])
        sweep = f"find {GIVEN}.slice -depth -type d -exec rmdir {{}} ';'; [ ! -e {GIVEN}.slice ]"
        until(lambda: made.exec("n1", ["bash", "-c", sweep]).returncode == 0, "the end of her folders")


def test_a_signal_to_the_batch_script_reaches_each_task_once(made: Cluster) -> None:
    """Other tests signal tasks on a cluster where Slurm signals every process of a step itself."""
    made.as_user("alice", "mkdir ~/once; cat > ~/once/task.sh; chmod +x ~/once/task.sh", input=SAYS_USR1, check=True)
    made.as_user("alice", "cd ~/once; llsub ./task.sh '[1,2]'", check=True)
    (job,) = map(int, made.as_user("alice", "cut -d ' ' -f 1 ~/once/LLSUB.1/jobs").stdout.split())
    until(lambda: made.as_user("alice", "ls ~/once/up.*").stdout.count("\n") == 2, "two tasks")
    made.as_user("alice", f"scancel --batch --signal=USR1 {job}", check=True)
    assert made.wait(job) == "COMPLETED"
    assert made.as_user("alice", "cat ~/once/LLSUB.1/p*/*.log.*").stdout.count("got USR1") == 2
