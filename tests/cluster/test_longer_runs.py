"""Runs longer than their job: the next job of --until-done, and tasks that are told in time."""

from __future__ import annotations

import re

import pytest
from hooked import slurm_conf
from test_triples_mode import Submitted

from localcluster import Cluster

pytestmark = pytest.mark.cluster

COUNTS = """#!/bin/bash
n=$(cat state.$LLSUB_TASK 2>/dev/null || echo 0)
trap 'until [ -e go.$n ]; do sleep 0.1; done; echo $n >state.$LLSUB_TASK; exit 75' USR1
echo ready
[ $n -lt 4 ] || exit 0
n=$((n + 2))
seq $((n - 1)) $n >>counted.$LLSUB_TASK
while :; do sleep 0.1; done
"""
"""Counts two further numbers in each job, and saves when it is told to and the test lets it."""


class Longer(Submitted):
    """A run that submits its next jobs."""

    @property
    def jobs(self) -> list[int]:
        return [int(line.split()[0]) for line in self.read("jobs").splitlines()]

    def tell(self, job: int) -> None:
        self.cluster.as_user("alice", ["scancel", "-s", "USR1", str(job)], check=True)

    def ready(self, times: int) -> bool:
        return self.read("p*/task.sh.log.*").count("ready") == times

    def queue(self) -> dict[int, str]:
        """Return job -> name, dependency and comment, in Slurm's queue."""
        said = self.cluster.as_user("alice", ["squeue", "-h", "-o", "%i|%j %E %k"]).stdout
        return {int(line.partition("|")[0]): line.partition("|")[2] for line in said.splitlines()}


def test_tasks_count_through_three_jobs_without_a_gap(cluster: Cluster) -> None:
    """The second job is submitted once, also if what submitted it is killed before it notes the id."""
    words = ("[1,2,1]", "--checkpoint-signal", "USR1@60", "--until-done=5", "--options=-w n2")
    made = Longer(cluster, COUNTS, *words)
    first = made.job
    watcher = f"(cd {made.home} && exec llsub --watch LLSUB.1) >{made.home}/watched 2>&1 </dev/null & echo $!"
    made.wait_for(lambda: made.ready(2))
    cluster.as_user("alice", watcher, check=True)
    made.tell(first)
    made.wait_for(lambda: len(made.jobs) == 2)
    second = made.jobs[1]
    assert f"task.sh.2 afterany:{first}" in made.queue()[second]
    assert "llsub [1,2,1], job 2 of at most 5 of LLSUB.1" in made.queue()[second]
    refused = cluster.as_user("alice", f"cd {made.home} && llsub --resume LLSUB.1")
    assert (refused.returncode, "is still in the queue" in refused.stderr) == (2, True)
    cluster.as_user("alice", f"cd {made.folder} && sed -i 2d jobs && touch ../go.2", check=True)
    made.wait_for(lambda: made.ready(4))
    assert made.jobs == [first, second]
    made.tell(second)
    cluster.as_user("alice", f"touch {made.home}/go.4", check=True)
    made.wait_for(lambda: len(made.jobs) == 3)
    assert cluster.wait(made.jobs[2]) == "COMPLETED", made.log()
    for task in (0, 1):
        assert cluster.as_user("alice", f"cat {made.home}/counted.{task}").stdout.split() == ["1", "2", "3", "4"]
    assert [(one["job"], one["attempts"]) for one in made.summary()["jobs"]] == [
        (str(first), {"saved": 2}), (str(second), {"saved": 2}), (str(made.jobs[2]), {"done": 2}),
    ]  # fmt: skip
    assert made.queue() == {}
    made.wait_for(lambda: "all 2 tasks are done" in cluster.as_user("alice", f"cat {made.home}/watched").stdout)


@pytest.mark.weekly  # tests/unit/triples/rules/test_until_done.py has the decision
def test_no_job_follows_one_without_progress(cluster: Cluster) -> None:
    """The tasks end by the signal: nothing is done, saved or advanced, and the waiting job is cancelled."""
    words = ("[1,2,1]", "--checkpoint-signal", "USR1", "--until-done", "--options=-w n2")
    made = Longer(cluster, "#!/bin/bash\necho ready\nsleep 600\n", *words)
    made.wait_for(lambda: made.ready(2))
    made.tell(made.job)
    assert made.wait() == "FAILED"
    made.wait_for(lambda: not made.queue())
    assert f"job {made.job} has neither finished nor saved nor advanced a task" in made.log()
    for job in made.jobs[1:]:
        assert "JobState=CANCELLED" in cluster.job(job), made.log()


def test_where_nodes_may_not_submit_all_jobs_wait_beforehand(cluster: Cluster) -> None:
    """Each waits for all before it. They are cancelled with the first one, and when all is done."""
    partition = ["scontrol", "update", "PartitionName=gpu"]
    cluster.exec("ctl", [*partition, "AllocNodes=login"], check=True)
    try:
        text = "#!/bin/bash\n[ -e go ] && exit 0\ntrap 'exit 75' USR1\necho ready\nwhile :; do sleep 0.1; done\n"
        made = Longer(cluster, text, "[1,1,1]", "--checkpoint-signal", "USR1", "--until-done=4", "--options=-w n2")
        assert "nodes of this partition may not submit jobs" in made.said.stderr
        first, second, third, fourth = made.jobs
        assert f"afterany:{first}(unfulfilled),afterany:{second}" in made.queue()[third]
        made.wait_for(lambda: made.ready(1))
        cluster.as_user("alice", f"touch {made.home}/go", check=True)
        made.tell(first)
        assert cluster.wait(second) == "COMPLETED", made.log()
        made.wait_for(lambda: not made.queue())
        assert all("JobState=CANCELLED" in cluster.job(job) for job in (third, fourth)), made.log()
        assert f"job {second} goes on with what is left" in made.log()
    finally:
        cluster.exec("ctl", [*partition, "AllocNodes=ALL"], check=True)


@pytest.mark.weekly  # tests/unit/triples/rules/test_until_done.py has the decision
def test_a_cancelled_job_ends_the_jobs_after_it(cluster: Cluster) -> None:
    text = "#!/bin/bash\ntrap 'until [ -e go ]; do sleep 0.1; done; exit 75' USR1\necho ready\n"
    text += "while :; do sleep 0.1; done\n"
    made = Longer(cluster, text, "[1,1,1]", "--checkpoint-signal", "USR1", "--until-done=4", "--options=-w n2")
    made.wait_for(lambda: made.ready(1))
    made.tell(made.job)
    made.wait_for(lambda: len(made.jobs) == 2)
    cluster.as_user("alice", f"scancel {made.job}; touch {made.home}/go", check=True)
    assert made.wait() == "CANCELLED"
    made.wait_for(lambda: not made.queue())
    assert "JobState=CANCELLED" in cluster.job(made.jobs[1]), made.log()
    assert len(made.jobs) == 2


TURNS = """#!/bin/bash
n=$(cat state.$LLSUB_TASK 2>/dev/null || echo 0)
trap told=1 USR1
echo $LLSUB_TASK >>starts
while :; do
    n=$((n + 1)); echo $n >>counted.$LLSUB_TASK
    sleep 0.05
    [ "$told" ] && echo $n >state.$LLSUB_TASK && exit 75
    both=$(sort starts | uniq -c | awk '$1 >= 2' | wc -l)
    [ "$told" ] || [ "${both:-0}" -lt 6 ] || exit 0
done
"""
"""Counts until each of six tasks has had two turns."""


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(("[1,2,1]",), id="plain", marks=pytest.mark.weekly),  # tests/unit has it without Slurm
        pytest.param(("[1,6,1]", "--pack", "--max-per-gpu", "1"), id="packed"),
    ],
)
def test_six_tasks_on_two_gpus_take_turns(cluster: Cluster, more: tuple[str, ...]) -> None:
    """Nobody has a third turn before everybody has had the second; the numbers have no gap; no retry pays."""
    words = ("--ntasks", "6", "--checkpoint-signal", "USR1", "--slot", "1s", "-g", "2", "--options=-w n2")
    made = Submitted(cluster, TURNS, *more, *words)
    assert made.wait() == "COMPLETED", made.log()
    said = cluster.as_user("alice", f"cd {made.home} && cat starts && echo - && tail -n +1 counted.*").stdout
    starts, counted = said.split("-\n", 1)
    # Two tasks may end at once; so a task's next turn comes after those of at least four of the five others.
    tasks = [int(word) for word in starts.split()]
    for place, task in enumerate(tasks[:6]):
        later = tasks[place + 1 :]
        assert len(set(later[: later.index(task)])) >= 4, made.log()
    for numbers in re.split("==> .* <==\n", counted)[1:]:
        found = [int(word) for word in numbers.split()]
        assert found == list(range(1, len(found) + 1))
    sums = made.summary()["turns"]
    assert sums["turns"] == len(tasks) - 6
    assert {one.outcome for tried in made.attempts().values() for one in tried[:-1]} == {"saved"}
    assert "turns (--slot): tasks gave way" in made.log()


PREEMPTING = (
    "PreemptType=preempt/partition_prio",
    "PreemptMode=CANCEL",
    "PartitionName=low Nodes=n2 PriorityTier=1 GraceTime=120 PreemptMode=CANCEL",
    "PartitionName=high Nodes=n2 PriorityTier=9 PreemptMode=OFF",
)


def test_a_preempted_job_has_its_grace_and_a_next_job_goes_on(cluster: Cluster) -> None:
    """SIGTERM is the only notice of a preemption. This cluster sends it to tasks too (proctrack/linuxproc)."""
    text = """#!/bin/bash
    [ -e saved ] && exit 0
    trap '' TERM
    trap 'until [ -e go ]; do sleep 0.1; done; touch saved; exit 75' USR1
    echo ready
    while :; do sleep 0.1; done
    """
    with slurm_conf(cluster, *PREEMPTING):
        made = Longer(cluster, text, "[1,1,1]", "-q", "low", "--checkpoint-signal", "USR1@60", "--until-done=3")
        made.wait_for(lambda: made.ready(1))
        other = cluster.sbatch("alice", "#!/bin/bash\ntrue\n", "-p", "high", "--exclusive")
        made.wait_for(lambda: "the job is preempted by another one and ends at" in made.log())
        cluster.as_user("alice", f"touch {made.home}/go", check=True)
        assert cluster.wait(other) == "COMPLETED"
        made.wait_for(lambda: len(made.jobs) == 2)
        assert cluster.wait(made.jobs[1]) == "COMPLETED", made.log()
        assert [one.outcome for one in made.attempts()[0]] == ["saved", "done"]


@pytest.mark.weekly
def test_the_signal_comes_before_the_end_that_the_job_then_has(cluster: Cluster) -> None:
    """The limit of an hour becomes one of a minute while the job runs; the next job has an hour again."""
    text = """#!/bin/bash
    [ -e saved ] && exit 0
    trap 'touch saved; exit 75' USR1
    echo ready
    while :; do sleep 0.1; done
    """
    words = ("[1,1,1]", "-T", "60", "--checkpoint-signal", "USR1@20", "--until-done=3", "--options=-w n2")
    made = Longer(cluster, text, *words)
    made.wait_for(lambda: made.ready(1))
    cluster.as_user("alice", ["scontrol", "update", f"jobid={made.job}", "timelimit=1"], check=True)
    made.wait_for(lambda: len(made.jobs) == 2, timeout=180.0)
    assert cluster.wait(made.jobs[1]) == "COMPLETED", made.log()
    assert [one.outcome for one in made.attempts()[0]] == ["saved", "done"]
    assert re.search(r"the job ends at \d\d:\d\d:\d\d, in \d+(\.\d)? s", made.log())
