"""A job that ends at its time limit while one of its tasks is paused, on a real cluster. For one that is cancelled, and
for launchers that are killed, see test_measured_speed.py."""

from __future__ import annotations

import json

import pytest
from test_packing import SubmittedTasks
from test_triples_mode import processes

from localcluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

WORK = "simgpu-task --load 10 --util 30 --progress 0.1 --work {} --memory 1G --clash cache:6"
"""A task that takes six times as long beside another one of its kind. SIMULATED interference."""
WORK_S = 70
"""Seconds alone. Slurm ends a job up to half a minute after its limit, and the task beside the paused one must not be
done by then: a minute of its work is left.
"""


def submit(cluster: Cluster, count: int, name: str, *words: str) -> SubmittedTasks:
    """Submit so many of them on n2's two GPUs. A ban also applies to tasks of that name in later runs."""
    lines = "".join(
        json.dumps({"run": WORK.format(WORK_S), "gpu_mem": "2G", "name": name}) + "\n" for _ in range(count)
    )
    return SubmittedTasks(cluster, lines, "[1,4,1]", "--pack=gain", "--window=10", "--options=-w n2", *words)


def stopped(cluster: Cluster) -> list[str]:
    found = cluster.exec("n2", ["ps", "-eo", "stat,args"]).stdout.splitlines()
    return [line for line in found if line.startswith("T") and "simgpu-task" in line]


def test_a_job_at_its_time_limit_while_a_task_is_paused_leaves_nothing_behind(cluster: Cluster) -> None:
    """Alone first, so that the rate alone is known; then two on each GPU, of which one is paused."""
    name = "time limit"
    alone = submit(cluster, 2, name)
    assert alone.wait(120) == "COMPLETED", alone.log()
    made = submit(cluster, 4, name, "--undo=pause")
    made.wait_for(lambda: stopped(cluster), 110)
    assert "is paused, since" in made.log() or "together do" in made.log()
    cluster.exec("ctl", ["scontrol", "update", f"jobid={made.job}", "endtime=now"], check=True)
    assert made.wait(100) == "TIMEOUT", made.log()
    assert processes(cluster, "n2", "^simgpu-task") == []
    assert stopped(cluster) == []
    outcomes = {task: [one.outcome for one in tried] for task, tried in made.attempts().items()}
    # Beside a paused neighbour one may have been done before the limit.
    assert set(outcomes) == set(range(4)), made.log()
    assert all(tried in (["unfinished"], ["done"]) for tried in outcomes.values()), made.log()
    assert ["unfinished"] in outcomes.values(), made.log()
