"""A hundred shares on three nodes beside another user's jobs: never too many on a GPU, never two users on a node."""

from __future__ import annotations

import contextlib
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hooked import Node, until, why_not_idle

from localcluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.weekly]

ELEMENTS = 100
SHARE = 4
EVENTS_S = 40.0
NODES = ("n1", "n2", "n3")
LIST = """echo --
for pid in $(pgrep -x simgpu-task); do
    echo "$(stat -c %U /proc/$pid) $(tr '\\0' '\\n' </proc/$pid/environ \
        | sed -n 's/^SLURM_SHARE_GPU_UUID=//p; s/^SLURM_SHARE_SLOT=//p' | sort | tr '\\n' ' ')"
done 2>/dev/null"""
"""Prints user, slot and GPU of every task on a node, from the kernel."""


@dataclass
class Seen:
    """Tasks and mistakes found on the nodes during a run."""

    most: Counter[str] = field(default_factory=Counter)
    """The most tasks at once, by GPU."""
    wrong: list[str] = field(default_factory=list)
    looks: int = 0

    def take(self, node: str, text: str) -> None:
        self.looks += 1
        rows = [line.split() for line in text.partition("--\n")[2].splitlines()]
        rows = [row for row in rows if len(row) == 3]  # one that has just ended has no environment any more
        users = {row[0] for row in rows}
        if len(users) > 1:
            self.wrong.append(f"{node} has tasks of {users}")
        for gpu, count in Counter(row[2] for row in rows).items():
            self.most[gpu] = max(self.most[gpu], count)
        for place, count in Counter((row[1], row[2]) for row in rows).items():
            if count > 1:
                self.wrong.append(f"slot {place[0]} of {place[1]} on {node} has {count} tasks")


@contextlib.contextmanager
def running(*works: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run these, each in a thread, while the block runs."""
    over = threading.Event()
    threads = [threading.Thread(target=work, args=(over,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def watch(cluster: Cluster, seen: Seen) -> Callable[[threading.Event], None]:
    def work(over: threading.Event) -> None:
        while not over.wait(0.2):
            for name in NODES:
                seen.take(name, cluster.exec(name, ["bash", "-c", LIST]).stdout)

    return work


def submit(cluster: Cluster, user: str, elements: int) -> int:
    """Submit an array of shares; each element runs for a second or two."""
    script = "srun simgpu-task --memory 500M --seconds $((1 + SLURM_ARRAY_TASK_ID % 2)) || exit $?"
    options = [f"--array=1-{elements}", f"--share-gpu={SHARE}", "--gres=gpu:1", "-n1", "--mem=200", "-o", "part-%a.out"]
    options.append("--no-requeue")  # a second run of what was killed would begin two minutes later
    return cluster.sbatch(user, script, *options)


def states(cluster: Cluster, job: int) -> Counter[str]:
    return Counter(re.findall(r"JobState=(\w+)", cluster.job(job)))


def assert_nothing_is_left(cluster: Cluster, *, next_job: bool = False) -> None:
    """Check that no share left anything and all nodes serve. `next_job`: after one more job, which has the whole node:
    a part of a GPU would leave room for an earlier job of the same user, and prove nothing about it for 30 s."""
    cluster.settle(120)
    try:
        until(lambda: set(cluster.status().nodes.values()) == {"idle"}, "idle nodes")
    except AssertionError as error:
        why = why_not_idle(cluster)
        for name in NODES:  # for the tests that come after this one
            cluster.exec("ctl", ["scontrol", "update", f"nodename={name}", "state=resume"])
        raise AssertionError(f"{error}: {why}") from error
    if next_job:
        for name in NODES:
            further = cluster.sbatch("alice", "srun true", "--share-gpu=2", "-w", name)
            assert cluster.wait(further) == "COMPLETED"
        cluster.settle(120)
    left = {name: Node(cluster, name).remains() for name in NODES}
    logs = [Node(cluster, name).run("tail", "-n40", "/var/log/slurm-share.log").stdout for name in NODES if left[name]]
    assert left == {name: [] for name in NODES}, "\n".join(logs)


@pytest.mark.slow
def test_a_hundred_parts_never_crowd_a_gpu_nor_mix_two_users(cluster: Cluster) -> None:
    """alice's hundred and bob's twenty, all done, nothing left; the GPUs were full at times."""
    seen = Seen()
    with running(watch(cluster, seen)):
        jobs = [submit(cluster, "alice", ELEMENTS), submit(cluster, "bob", 20)]
        for job in jobs:
            assert cluster.wait(job, 300) == "COMPLETED"
    assert seen.wrong == []
    assert max(seen.most.values()) == SHARE
    assert [states(cluster, job) for job in jobs] == [Counter(COMPLETED=ELEMENTS), Counter(COMPLETED=20)]
    assert "no slot" not in cluster.as_user("alice", "cat part-*.out", check=True).stdout
    assert_nothing_is_left(cluster)


def has_ended(cluster: Cluster, job: int) -> bool:
    return set(states(cluster, job)) <= {"COMPLETED", "FAILED", "NODE_FAIL"}


def disturb(cluster: Cluster, dice: random.Random, done: Counter[str]) -> Callable[[threading.Event], None]:
    """Kill a task, an MPS process or slurmd on some node, again and again; start slurmd again, as systemd would."""
    victims = {
        "task": "pgrep -x simgpu-task | shuf -n1",
        "mps": "pgrep -x nvidia-cuda-mps | shuf -n1",
        # slurmd itself: a child of it is about to become a Prolog, and the node of a Prolog that is killed is drained.
        "slurmd": "pgrep -F /run/slurmd.pid 'slurmd(-wlm)?'",
    }

    def work(over: threading.Event) -> None:
        while not over.wait(dice.uniform(0.2, 0.8)):
            # What was hit least, wherever it is: a task is not always there to be hit, and a slurmd always is.
            kind = min(victims, key=lambda kind: (done[kind], dice.random()))
            line = f"kill -9 $({victims[kind]}) 2>/dev/null && echo yes"
            shuffled = dice.sample(NODES, len(NODES))
            name = next((one for one in shuffled if "yes" in cluster.exec(one, ["bash", "-c", line]).stdout), None)
            done[kind] += name is not None
            if kind == "slurmd" and name is not None:
                time.sleep(0.3)
                cluster.exec(name, ["slurmd"])

    return work


@pytest.mark.slow
def test_a_hundred_parts_survive_what_is_killed_at_random(cluster: Cluster) -> None:
    """Tasks, MPS daemons and servers, slurmd: some elements fail, none hangs, none is doubled, nothing is left."""
    seen, done = Seen(), Counter(task=0, mps=0, slurmd=0)
    dice = random.Random(time.time_ns())
    with running(watch(cluster, seen)):
        job = submit(cluster, "alice", ELEMENTS)
        with running(disturb(cluster, dice, done)):
            end = time.monotonic() + EVENTS_S
            while not has_ended(cluster, job) and (time.monotonic() < end or not all(done.values())):
                time.sleep(0.5)
        for name in NODES:
            if cluster.exec(name, ["pgrep", "-x", "slurmd(-wlm)?"]).returncode != 0:
                cluster.exec(name, ["slurmd"])
        cluster.wait(job, 400)
    ends = states(cluster, job)
    assert seen.wrong == []
    assert max(seen.most.values()) <= SHARE
    assert ends.total() == ELEMENTS
    assert ends["COMPLETED"] > ELEMENTS / 4
    assert min(done.values()) > 0, done
    # A slurmd that is killed between the Prolog of a job's first step and the step does not know that job afterwards,
    # and may run no Epilog for it: what its Prolog made goes with the Prolog of the next job.
    assert_nothing_is_left(cluster, next_job=True)
