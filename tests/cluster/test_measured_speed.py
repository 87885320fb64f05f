"""Measured speed on a real cluster: levels by trial, harmful pairs, ways of sharing, and what is left after a kill.

All runs are begun at once, each on a node of its own, and ordered by Slurm's dependencies. SIMULATED: GPUs, and the
reasons why tasks slow each other down, are those of the simulated GPU.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest
from clusters import name_for
from test_packing import SubmittedTasks
from test_triples_mode import Submitted, processes

from localcluster import Cluster, process

sys.path.insert(0, str(Path(__file__).parents[2] / "packaging/demo/simgpu"))
import simwork

pytestmark = [pytest.mark.cluster, pytest.mark.weekly, pytest.mark.slow, pytest.mark.xdist_group("measured-speed")]
"""A group, or each of four processes would make the cluster and all runs for one or two tests."""

LOAD = 80
TRAIN = f"""#!/bin/bash
exec simgpu-task --load {LOAD} --util 100 --memory 1G --work 1.0 --progress 0.1
"""
"""A task such as LeNet, many of which saturate a GPU: four do 1.47 times the work of one."""
TASKS = 160
COMPARED_TASKS = 1200
"""Trials take a part of them. A busy machine needs more than a hundred: windows in which places stay empty
do not count."""
COMPARED = TRAIN.replace("--work 1.0", "--work 3.0").replace(
    "exec", 'grep -qs "from now on" "$LLSUB_DIR"/*launch.log-* && exit 0\nexec'
)
"""A longer task, so that few windows have empty places; those after the trials are done at once."""
SLEEP = "#!/bin/bash\nsleep 3\n"
"""A task that takes the same time beside any number of others, with and without load of the machine."""
FEW_TASKS, MORE_TASKS = 5, 11
"""With two GPUs, a search has the tasks for 2 at once, and then none; then for 4 at once, and for a few more."""
CLASH = "simgpu-task --load 10 --util 30 --progress 0.1 --work {} --memory 1G --clash cache:8"
"""A task whose measured load does not show that two of them take eight times as long."""
HARMED_S, PAUSED_S, LIMITED_S = 10, 30, 70
"""Seconds of work alone. After a minute their memory counts as flat: two are still together then. Slurm ends a job up
to half a minute after its limit, and the task beside the paused one must not be done by then.
"""
LAUNCHER = "slurm_share.cli.main launch"
LEFT = "find /dev/shm /tmp -mindepth 1 ! -type d ! -name lock ! -name '*.lock' 2>/dev/null | grep -v /hsperf"
PAUSE_WAIT_S = 150.0
"""The time limit until a task is paused: first alone, then a minute beside another one."""


def equal(
    cluster: Cluster,
    node: str,
    triple: str,
    *words: str,
    text: str = TRAIN,
    tasks: int = TASKS,
    window_s: int = 1,
    then: str = "",
) -> Submitted:
    lines = "".join(f"{number}\n" for number in range(tasks))
    options = (f"--window={window_s}", "--gpu-mem=1500M", f"--options=-w {node} {then}")
    return Submitted(cluster, text, triple, "--tasks", "files.txt", *options, *words, files={"files.txt": lines})


def clashing(cluster: Cluster, node: str, kinds: dict[str, tuple[int, int]], *words: str, then: str = "") -> Submitted:
    """Submit tasks that harm each other. `kinds`: name -> (how many, seconds of work); pairs are of names."""
    lines = "".join(
        json.dumps({"run": CLASH.format(work), "gpu_mem": "2G", "name": name}) + "\n"
        for name, (count, work) in kinds.items()
        for _ in range(count)
    )
    options = ("--window=2", "--max-per-gpu=2", f"--options=-w {node} {then}")
    return SubmittedTasks(cluster, lines, "[1,4,1]", "--pack", *options, *words)


class Runs:
    """The packed runs of this file."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        kinds = {"harmed": (2, HARMED_S), "paused": (2, PAUSED_S)}
        self.alone = clashing(cluster, "n1", kinds)
        after = f"--dependency=afterok:{self.alone.job}"
        pausing = {"paused": (4, PAUSED_S)}
        self.killed = clashing(cluster, "n4", pausing, "--undo=pause", then=after)
        self.cancelled = clashing(cluster, "n5", pausing, "--undo=pause", then=after)
        self.paused = clashing(cluster, "n3", pausing, "--undo=pause", then=after)
        self.harmed = clashing(cluster, "n2", {"harmed": (8, HARMED_S)})  # at once, and nothing is known of them
        self.later = clashing(
            cluster, "n2", {"harmed": (4, HARMED_S)}, then=f"--dependency=afterany:{self.harmed.job}"
        )  # fmt: skip
        self.tuned = equal(cluster, "n6", "[1,auto]")
        self.again = equal(cluster, "n6", "[1,auto]", tasks=60, then=f"--dependency=afterok:{self.tuned.job}")
        self.cut_off = equal(cluster, "n8", "[1,auto]", text=SLEEP, tasks=FEW_TASKS, window_s=30)
        self.went_on = equal(
            cluster, "n8", "[1,auto]", text=SLEEP, tasks=MORE_TASKS, window_s=30,
            then=f"--dependency=afterok:{self.cut_off.job}",
        )  # fmt: skip
        after_tuned = f"--dependency=afterany:{self.tuned.job}"
        self.compared = equal(
            cluster, "n8", "[1,4]", "--compare-sharing", text=COMPARED, tasks=COMPARED_TASKS, then=after_tuned
        )
        limited_alone = clashing(cluster, "n7", {"limited": (2, LIMITED_S)})
        self.limited = clashing(
            cluster, "n7", {"limited": (4, LIMITED_S)}, "--undo=pause", then=f"--dependency=afterok:{limited_alone.job}"
        )
        self._at_pauses()

    def _at_pauses(self) -> None:
        """Wait until tasks of three runs are paused; kill the launcher of one, cancel one, and look at the third."""
        for made, node in ((self.killed, "n4"), (self.cancelled, "n5"), (self.paused, "n3")):
            made.wait_for(lambda node=node: stopped(self.cluster, node), PAUSE_WAIT_S)
        self.victims = loop_and_guard(self.cluster, "n4")
        self.cluster.exec("n4", ["kill", "-KILL", *map(str, self.victims)])
        self.cluster.as_user("alice", f"scancel {self.cancelled.job}", check=True)
        # Rates are written every five seconds.
        llload = f"srun --overlap --jobid {self.paused.job} -w n3 llload --processes | grep '^n3 .* simgpu-task'"
        self.shown = ""

        def is_shown() -> object:
            self.shown = self.cluster.as_user("alice", llload).stdout
            return "paused" in self.shown and re.search("/(s|min) progress", self.shown)

        process.wait_until(is_shown, "paused tasks and rates of the others", 120, why=lambda: self.shown)
        watch = self.cluster.as_user("alice", f"cd {self.paused.home} && timeout 20 llsub --watch LLSUB.1")
        self.watched = watch.stdout + watch.stderr
        self.still_stopped = stopped(self.cluster, "n3")


@pytest.fixture(scope="module")
def runs(can_make_clusters: None) -> Iterator[Runs]:
    """Submit all runs on a cluster of eight nodes."""
    with Cluster.up(name_for("measured"), nodes=8) as cluster:
        yield Runs(cluster)
        cluster.cancel_all()


def stopped(cluster: Cluster, node: str) -> list[str]:
    found = cluster.exec(node, ["ps", "-eo", "stat,args"]).stdout.splitlines()
    return [line for line in found if line.startswith("T") and "simgpu-task" in line]


def loop_and_guard(cluster: Cluster, node: str) -> list[int]:
    """Return the launcher's processes, without the one that waits for their end in its own session. Some, such as the
    sampler, may end at any time."""
    pids = ",".join(map(str, processes(cluster, node, LAUNCHER)))
    found = cluster.exec(node, ["ps", "-o", "pid=,sid=", "-p", pids], check=True).stdout.split()
    return [int(pid) for pid, session in zip(found[::2], found[1::2], strict=True) if pid != session]


def on_one_gpu(made: Submitted) -> list[tuple[int, int]]:
    """Return the pairs of tasks that ran on one GPU at the same time for more than a second."""
    every = [one for tried in made.attempts().values() for one in tried]
    return [
        (one.task, other.task)
        for one, other in combinations(sorted(every, key=lambda one: one.started), 2)
        if one.gpu == other.gpu and one.started + one.seconds > other.started + 1
    ]


def check_no_process_is_left(made: Submitted, node: str) -> None:
    cluster = made.cluster
    process.wait_until(
        lambda: not processes(cluster, node, "simgpu-task --load"), "the end of all tasks", 60, every_s=0.2,
        why=lambda: cluster.exec(node, ["ps", "-ef"]).stdout,
    )  # fmt: skip
    assert stopped(cluster, node) == []
    process.wait_until(lambda: not processes(cluster, node, LAUNCHER), "the end of the launcher", 120)


def test_a_job_at_its_time_limit_while_a_task_is_paused_leaves_nothing_behind(runs: Runs) -> None:
    made = runs.limited
    made.wait_for(lambda: stopped(runs.cluster, "n7"), PAUSE_WAIT_S)
    runs.cluster.exec("ctl", ["scontrol", "update", f"jobid={made.job}", "endtime=now"], check=True)
    assert made.wait() == "TIMEOUT", made.log()
    check_no_process_is_left(made, "n7")
    outcomes = {task: [one.outcome for one in tried] for task, tried in made.attempts().items()}
    # Beside a paused neighbour one may have been done before the limit.
    assert set(outcomes) == set(range(4)), made.log()
    assert all(tried in (["unfinished"], ["done"]) for tried in outcomes.values()), made.log()
    assert ["unfinished"] in outcomes.values(), made.log()


def test_one_of_a_harmful_pair_is_paused_is_shown_as_paused_and_all_are_done(runs: Runs) -> None:
    made = runs.paused
    assert "paused" in runs.shown, runs.shown
    assert re.search(r"\d/(s|min) progress +\d", runs.shown), runs.shown
    assert re.search("units/(s|min)", runs.watched), runs.watched
    assert runs.still_stopped, "they went on before they were shown"
    assert made.wait() == "COMPLETED", made.log()
    said = made.log()
    assert re.search(r"task \d is paused, since \d and \d together do 0\.2\d \+- ", said), said
    assert re.search(r"task \d goes on; no other task runs there", said), said
    outcomes = {task: [one.outcome for one in tried] for task, tried in made.attempts().items()}
    assert outcomes == {task: ["done"] for task in range(4)}
    assert stopped(runs.cluster, "n3") == []


def test_a_killed_launcher_leaves_no_stopped_task(runs: Runs) -> None:
    """kill -9 of the loop and of its guard. Their files are removed by the user's next packed run on the node."""
    assert len(runs.victims) >= 2
    assert runs.killed.wait() != "COMPLETED", runs.killed.log()
    check_no_process_is_left(runs.killed, "n4")
    following = clashing(runs.cluster, "n4", {"harmed": (2, HARMED_S)})
    assert following.wait() == "COMPLETED", following.log()
    assert runs.cluster.exec("n4", ["sh", "-c", LEFT]).stdout == ""


def test_a_cancelled_job_leaves_no_stopped_task(runs: Runs) -> None:
    made = runs.cancelled
    assert made.wait() == "CANCELLED", made.log()
    check_no_process_is_left(made, "n5")
    assert runs.cluster.exec("n5", ["sh", "-c", LEFT]).stdout == ""
    assert all(tried[-1].outcome in ("unfinished", "done") for tried in made.attempts().values()), made.log()


def test_a_harmful_pair_is_not_put_together_again(runs: Runs) -> None:
    made = runs.harmed
    assert made.wait() == "COMPLETED", made.log()
    said = made.log()
    assert re.search(
        r"\d and \d together do 0\.2\d \+- 0\.\d+ of one at a time; --pack places no such pair again", said
    ), said
    assert 1 <= len(on_one_gpu(made)) <= 2, said
    assert set(sum(on_one_gpu(made), ())) <= set(range(4))
    assert re.search(r"took \d\.\d x its time alone \(ANTT\), GPUs did 0\.2 x \(STP\)", said), said
    explained = runs.cluster.as_user("alice", f"slurm-share pack explain {made.folder}")
    assert re.search(r"GPU \d, tasks \d \d: 0\.2\d \+- 0\.\d+ of one at a time", explained.stdout), explained
    assert runs.later.wait() == "COMPLETED", runs.later.log()
    assert on_one_gpu(runs.later) == [], runs.later.log()


def model_per_gpu(tasks: int) -> float:
    """Return the model's speed of so many of TRAIN on a simulated GPU, relative to one."""
    demand = simwork.Demand(LOAD / 100, 0.0, 1.0, 1)
    return tasks / simwork.slowdown(demand, [demand] * (tasks - 1))


def levels(said: str) -> dict[int, float]:
    """Return the rate by level, from the table in a job's log."""
    return {
        int(level): float(rate)
        for level, rate in re.findall(r"^slurm-share launch: +(\d+) +[\d.]+ +([\d.]+) +[\d.]+ +[\d.]+$", said, re.M)
    }


def rate_after_trials(made: Submitted) -> float:
    """Return tasks a second in the second half of a run, without its end, when slots stay free."""
    ends = sorted(one.started + one.seconds for tried in made.attempts().values() for one in tried)
    part = ends[len(ends) // 2 : -10]
    return (len(part) - 1) / (part[-1] - part[0])


def test_a_run_finds_its_level_and_the_next_begins_there(runs: Runs) -> None:
    made = runs.tuned
    assert made.wait() == "COMPLETED", made.log()
    said = made.log()
    assert "tasks at once on n6 (simulated GPUs):" in said
    found = levels(said)
    assert len(found) >= 2, said
    best = re.search(r"(\d+) on a node(?: is best(?: of those tried)?|, the most .*, do most): [\d.]+ x of 2", said)
    assert best, said
    level = int(best[1])
    assert found[level] >= 0.9 * max(found.values()), said
    assert model_per_gpu(level // 2) >= 0.9 * max(model_per_gpu(number) for number in range(1, 5)), said
    assert rate_after_trials(made) >= 0.9 * max(found.values()), said
    assert runs.again.wait() == "COMPLETED", runs.again.log()
    again = runs.again.log()
    if "the search is not finished" in said:
        assert "an earlier run of this script did not finish its search, which goes on with" in again
    else:
        assert f"an earlier run of this script found {level} tasks at once; this run begins with {level}" in again


def test_a_search_that_lacks_tasks_goes_on_upwards_in_the_next_run(runs: Runs) -> None:
    """Windows of 30 s end when each place has finished a task, so each level is measured by its tasks alone."""
    assert runs.cut_off.wait() == "COMPLETED", runs.cut_off.log()
    said = runs.cut_off.log()
    assert list(levels(said)) == [2], said
    assert (
        "2 was the only level tried; the search is not finished (too few tasks are left to try more); next time "
        "[1,auto] goes on with 4"
    ) in said
    assert runs.went_on.wait() == "COMPLETED", runs.went_on.log()
    again = runs.went_on.log()
    assert "an earlier run of this script did not finish its search, which goes on with 4 tasks at once" in again
    rows = re.findall(r"^slurm-share launch: +(\d) .* (earlier|this)$", again, re.MULTILINE)
    assert rows[:2] == [("2", "earlier"), ("4", "this")], again
    assert re.search(
        r"[46] on a node, the most that were tried, do most: \d\.\d x of 2; the search is not finished", again
    ), again
    assert "best" not in said + again


def test_ways_of_sharing_are_compared_and_called_simulated(runs: Runs) -> None:
    assert runs.compared.wait() == "COMPLETED", runs.compared.log()
    said = runs.compared.log()
    assert "ways of sharing on n8 (simulated GPUs):" in said
    rows = re.findall(r"(exclusive|time-slicing|mps) +\d +[\d.]+ +([\d.]+)$", said, re.MULTILINE)
    assert [name for name, _ in rows] == ["exclusive", "time-slicing", "mps"], said
    assert float(rows[2][1]) > 1.1, said
