"""Packed runs on a real cluster: unlike tasks, their recovery, and what is left after a kill."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import pairwise

import msgspec
import pytest
from hooked import Node, requeue
from msgspec import UNSET
from test_triples_mode import Submitted, guard_and_loop, processes

from localcluster import Cluster
from slurm_share.usage import JobUse

pytestmark = pytest.mark.cluster

PYTHON = "/opt/slurm-share/bin/python"
TASK = "bin/simgpu-task"
"""Part of the command line of a running task, whose interpreter comes first."""
READ_ENERGY = """
import json, time, pynvml as n
n.nvmlInit()
gpus = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
print(json.dumps([time.time(), {n.nvmlDeviceGetUUID(one): n.nvmlDeviceGetTotalEnergyConsumption(one) for one in gpus}]))
"""
USABLE_MIB = int(81920 * 0.98) - 512
"""The part of a simulated GPU of 80 GB that tasks can have."""


def packed(cluster: Cluster, tasks: list[dict], triple: str, *words: str, pack: str = "--pack") -> Submitted:
    """Submit a list of tasks; none of them needs a script."""
    return SubmittedTasks(cluster, "".join(json.dumps(one) + "\n" for one in tasks), triple, pack, *words)


class SubmittedTasks(Submitted):
    """One use of llsub --pack by alice, with a tasks file and no script."""

    program = ""

    def __init__(self, cluster: Cluster, lines: str, *words: str) -> None:
        super().__init__(cluster, "", *words, "--tasks", "mix.jsonl", files={"mix.jsonl": lines})


def task(memory: str, seconds: float, gpu_mem: str | None = None, *options: str, **other: object) -> dict:
    """Return a simulated task: what it takes, and what was written for it."""
    run = " ".join((f"simgpu-task --memory {memory} --load 20 --seconds {seconds}", *options))
    return {"run": run, **({} if gpu_mem is None else {"gpu_mem": gpu_mem}), **other}


def most_booked_mib(made: Submitted) -> dict[str, int]:
    """Return the largest sum of caps in force at one time, by GPU of a node."""
    every = [one for tried in made.attempts().values() for one in tried]
    found: dict[str, int] = {}
    for one in every:
        at = one.started + 0.01  # it is rounded
        there = [other for other in every if (other.node, other.gpu) == (one.node, one.gpu)]
        beside = [other for other in there if other.started <= at < other.started + other.seconds - 0.01]
        key = f"{one.node}:{one.gpu}"
        found[key] = max(found.get(key, 0), sum(other.gpu_cap_mib or 0 for other in beside))
    return found


def energy_counters(cluster: Cluster, node: str) -> tuple[float, dict[str, int]]:
    """Return a moment, and the energy counters of a node's GPUs then, mJ by UUID."""
    said = cluster.exec(node, [PYTHON, "-I", "-c", READ_ENERGY], check=True).stdout
    at, counters = json.loads(said)
    return at, counters


def check_energy(made: Submitted, before: tuple[float, dict[str, int]], after: tuple[float, dict[str, int]]) -> None:
    """Check that the energy of results and nobody's add up to the counters' difference within 1 %.

    Before the launcher's first sample and after its last one the GPUs are idle, which is added.
    """
    use = msgspec.json.decode(made.read(f"p*/use-{made.job}.json"), type=JobUse)
    listed_j = sum(one.energy_j for tried in made.attempts().values() for one in tried if one.energy_j is not UNSET)
    parts_j = listed_j + sum(gpu.unattributed_j + gpu.short_j for gpu in use.others)
    around_j = sum((gpu.idle_w or 0) * (after[0] - before[0] - (gpu.measured_s or 0)) for gpu in use.others)
    counted_j = sum(after[1][gpu.uuid] - before[1][gpu.uuid] for gpu in use.others) / 1000
    assert len(use.others) == 2
    assert listed_j > counted_j / 4
    assert abs(parts_j + around_j - counted_j) <= 0.01 * counted_j, (use, listed_j, counted_j)
    assert "by tasks" in made.log()


def test_parts_of_a_gpu_are_parts_of_what_a_task_can_have_there(cluster: Cluster) -> None:
    """Of five tasks with half a GPU at most two are on one of the two GPUs, also with a size of their own."""
    runs = "echo $LLSUB_GPU_MEM_MIB; sleep 0.5"
    tasks = [{"run": runs, "gpus": 0.5}] * 3 + [{"run": runs, "gpus": 0.5, "gpu_mem": "25%"}] * 2
    made = packed(cluster, tasks, "[1,5]", "--options=-w n2", "--wait")
    assert made.said.returncode == 0, made.log()
    assert [int(made.read(f"p*/mix.jsonl.log.{task}")) for task in (0, 3)] == [USABLE_MIB // 2, USABLE_MIB // 4]
    every = [tried[0] for _, tried in sorted(made.attempts().items())]
    for one in every:
        at = one.started + 0.01  # it is rounded
        there = [
            other for other in every if other.gpu == one.gpu and other.started <= at < other.started + other.seconds
        ]
        assert len(there) <= 2, there


@pytest.mark.release
def test_unlike_tasks_fill_the_gpus_by_need(cluster: Cluster) -> None:
    """4 to 35 GiB on two GPUs: all done at the first attempt, and no sum of caps exceeds a GPU."""
    sizes = [4, 35, 8, 20, 30, 5, 12, 25] * 2
    tasks = [task(f"{size}000M", 3, f"{size + 1}000M") for size in sizes]
    before = energy_counters(cluster, "n2")
    made = packed(cluster, tasks, "[1,auto,1]", "--memory-guard=hard", "--options=-w n2")
    assert made.wait() == "COMPLETED", made.log()
    check_energy(made, before, energy_counters(cluster, "n2"))
    attempts = made.attempts()
    assert {task: [one.outcome for one in tried] for task, tried in attempts.items()} == {
        number: ["done"] for number in range(16)
    }, made.log()
    assert all(tried[0].gpu_cap_mib == (sizes[number] + 1) * 1000 for number, tried in attempts.items())
    booked = most_booked_mib(made)
    assert len(booked) == 2
    assert all(1.5 * 36000 < most <= USABLE_MIB for most in booked.values()), booked
    assert processes(cluster, "n2", TASK) == []


def test_who_understated_dies_alone_and_runs_again_with_more(cluster: Cluster) -> None:
    """Task 0 takes twice what was written for it: it alone runs out of memory, and is done with 2.1 times as much."""
    tasks = [task("20000M", 2, "10000M"), *(task("9000M", 6, "10000M") for _ in range(5))]
    made = packed(cluster, tasks, "[1,auto,1]", "--memory-guard=hard", "--options=-w n2")
    assert made.wait() == "COMPLETED", made.log()
    attempts = made.attempts()
    assert attempts[0][0].outcome == "gpu memory"
    assert attempts[0][-1].outcome == "done"
    assert len(attempts[0]) == 2
    assert re.search(r"a task ran out of its --gpu-mem=9\.8G: try --gpu-mem=(2[0-9]|3[0-9])", made.log()), made.log()
    assert all([one.outcome for one in attempts[number]] == ["done"] for number in range(1, 6)), made.log()
    caps = [one.gpu_cap_mib for one in attempts[0]]
    assert all(later is None or later > earlier for earlier, later in pairwise(caps)), caps


def test_two_nodes_share_one_list(cluster: Cluster) -> None:
    tasks = [task("6000M", 1, "7G") for _ in range(40)]
    made = packed(cluster, tasks, "[2,auto,1]", "--options=-w n2,n3")
    assert made.wait() == "COMPLETED", made.log()
    nodes = Counter(tried[0].node for tried in made.attempts().values())
    assert set(nodes) == {"n2", "n3"}
    assert sum(nodes.values()) == 40


def test_two_nodes_that_share_a_list_learn_how_many_tasks_have_room(cluster: Cluster) -> None:
    """No task waits on a node of several, and short ones are never flat: the size of ended ones is the bound."""
    text = "#!/bin/bash\nexec simgpu-task --memory 6000M --load 20 --seconds 2\n"
    lines = "".join(f"{number}\n" for number in range(32))
    made = Submitted(
        cluster, text, "[2,auto]", "--tasks", "files.txt", "--options=-w n2,n3", files={"files.txt": lines}
    )
    assert made.wait() == "COMPLETED", made.log()
    # on a busy machine one node may take nearly all tasks
    assert made.log().count("no number of tasks at once was measured") < 2, made.log()
    more = r"^slurm-share launch: +[48] +[24] |goes on with [48],"  # tried, or known to have room
    assert re.search(more, made.log(), re.MULTILINE), made.log()


@pytest.mark.weekly
def test_a_small_task_that_ends_first_does_not_size_larger_ones_of_its_script(cluster: Cluster) -> None:
    """They are known by the last command of their lines; the third is sized by the second's numbers."""
    line = 'cd "$LLSUB_DIR" && FIRST=small simgpu-task --seconds {} --memory {}M >/dev/null'
    tasks = [{"run": line.format(seconds, memory)} for seconds, memory in ((2, 500), (2, 9000), (1, 12_000))]
    made = packed(cluster, tasks, "[1,1]", "--options=-w n3")
    assert made.wait() == "COMPLETED", made.log()
    assert [[one.outcome for one in tried] for _, tried in sorted(made.attempts().items())] == [["done"]] * 3, (
        made.log()
    )


def test_only_tasks_like_dead_ones_are_given_up(cluster: Cluster) -> None:
    """Three tasks fit on no GPU; then smaller ones of their script are done, and the first command is given up."""
    tasks = [task(memory, 0.1) for memory in ("90000M", "91000M", "92000M", "6000M", "12000M", "90000M")]
    made = packed(cluster, tasks, "[1,1]", "--options=-w n3")
    made.wait()
    last = {task: tried[-1].outcome for task, tried in made.attempts().items()}
    assert last == {**dict.fromkeys(range(3), "gpu memory"), 3: "done", 4: "done", 5: "given up"}, made.log()
    assert "given up: 5" in made.log()


ALL_AT_ONCE = """touch "$LLSUB_DIR/../begun.$LLSUB_TASK"
for _ in $(seq 6000); do [ "$(ls "$LLSUB_DIR"/../begun.* | wc -l)" = 8 ] && exit; sleep 0.1; done; exit 1"""
"""A task that ends when all eight have begun."""


@pytest.mark.weekly
def test_two_nodes_share_a_list_that_one_could_hold(cluster: Cluster) -> None:
    """Eight tasks for four places on each node: none of them waits behind another."""
    tasks = [{"run": ALL_AT_ONCE.replace("\n", "; "), "gpu_mem": "31G"} for _ in range(8)]
    made = packed(cluster, tasks, "[2,4]", "--options=-w n2,n3")
    assert made.wait() == "COMPLETED", made.log()
    assert Counter(tried[0].node for tried in made.attempts().values()) == {"n2": 4, "n3": 4}


COMMAND = 'simgpu-task --memory 9000M --load 20 --seconds 2 >/dev/null && echo {} >>"$LLSUB_DIR/../effects"'
"""A script that records its end as its last action."""


def two_dozen(cluster: Cluster, *words: str) -> Submitted:
    """Start 24 tasks of 10 GiB; wait until some have ended and others run."""
    tasks = [{"run": COMMAND.format(number), "gpu_mem": "10G"} for number in range(24)]
    made = packed(cluster, tasks, "[1,auto,1]", *words)
    made.wait_for(lambda: len(made.attempts()) >= 3)
    return made


def check_all_ended_once(made: Submitted, node: str) -> None:
    """Resume what is left; then every task has ended once, and nothing is booked or running."""
    done = {task for task, tried in made.attempts().items() if tried[-1].outcome == "done"}
    if len(done) < 24:
        made.resume()
        assert made.wait() == "COMPLETED", made.log()
    effects = made.effects()
    assert sorted(effects) == list(range(24))
    assert {task: effects[task] for task in done if effects[task] != 1} == {}
    find = "find /tmp/slurm-share-2001 /run/slurm-share/user/mps -path '*/live/*' -name bookings.json 2>/dev/null"
    assert made.cluster.exec(node, ["sh", "-c", find]).stdout == ""
    assert processes(made.cluster, node, TASK) == []


@pytest.mark.parametrize(
    "victim", [*(pytest.param(one, marks=pytest.mark.weekly) for one in ("loop", "supervisor")), "both"]
)
def test_a_launcher_that_is_killed_leaves_no_booking_and_every_task_ends_once(cluster: Cluster, victim: str) -> None:
    made = two_dozen(cluster, "--options=-w n2")
    supervisor, loop = guard_and_loop(cluster, "n2")
    pids = {"loop": [loop], "supervisor": [supervisor], "both": [supervisor, loop]}[victim]
    cluster.exec("n2", ["kill", "-KILL", *map(str, pids)], check=True)
    made.wait()
    check_all_ended_once(made, "n2")


def test_tasks_of_a_gpu_whose_mps_daemon_dies_go_elsewhere_free_of_charge(cluster: Cluster) -> None:
    """kill -9 of the daemon and server of one GPU: nothing starts there any more, and all tasks end on the other."""
    made = two_dozen(cluster, "--options=-w n2")
    kill = "daemon=$(pgrep -f nvidia-cuda-mps-control | head -1); kill -KILL $daemon $(pgrep -P $daemon)"
    cluster.exec("n2", ["sh", "-c", kill], check=True)
    assert made.wait() == "COMPLETED", made.log()
    assert len(re.findall("no further task starts on GPU", made.log())) == 1, made.log()
    check_all_ended_once(made, "n2")


HOLDS = """echo 5 >"$LLSUB_PROGRESS"; echo "progress=$LLSUB_PROGRESS"
until [ -e "$LLSUB_DIR/go" ]; do sleep 0.1; done"""
READ = """import os
from pathlib import Path
from slurm_share.core.paths import Paths
from slurm_share.node.gpus import driver
from slurm_share.packing import read_bookings
gpus = [gpu.uuid for gpu in driver.read_driver().gpus]
for uid in (2001, 2002):
    found = read_bookings(Path("/tmp"), uid, gpus, Paths().launchers_of(uid))
    print(uid, sum(one.booked_mib for of_gpu in found.values() for one in of_gpu))"""


@pytest.mark.weekly_on_v2
def test_a_folder_of_another_user_in_tmp_hides_no_bookings_and_no_progress(cluster: Cluster) -> None:
    """bob makes alice's folders first, with what would be bookings in them. Her job is shared, then it is not."""
    plant = "mkdir -p /tmp/slurm-share-2001{,.0123456789abcdef}/live"
    cluster.as_user("bob", plant, node="n2", check=True)
    try:
        for words, place in (
            ((), r"/run/slurm-share/user/mps/2001/launchers"),
            (("--share-gpu=off",), r"/tmp/slurm-share-2001\.[0-9a-f]{16}"),
        ):
            tasks = [{"run": HOLDS.replace("\n", "; "), "gpu_mem": "1000M"} for _ in range(2)]
            made = packed(cluster, tasks, "[1,auto,1]", "--options=-w n2", *words)
            made.wait_for(lambda made=made: made.read("p*/*.log.*").count("progress=") == 2)
            for line in made.read("p*/*.log.*").split():
                assert re.fullmatch(rf"progress={place}/live/[^/]+/progress/\d", line), made.log()
            assert cluster.exec("n2", [PYTHON, "-c", READ]).stdout == "2001 2000\n2002 0\n"
            cluster.as_user("alice", f"touch {made.folder}/go", check=True)
            assert made.wait() == "COMPLETED", made.log()
            assert "slurm-share-2001" not in made.log()
            assert {one[-1].rate_source for one in made.attempts().values()} == {"progress"}
        assert Node(cluster, "n2").remains() == []
        bobs = cluster.sbatch("bob", "srun simgpu-task --seconds 0.1", "-wn2", "--share-gpu=2")
        assert cluster.wait(bobs) == "COMPLETED"
        assert "mps server" in cluster.output(bobs)
    finally:
        cluster.exec("n2", ["sh", "-c", "rm -rf /tmp/slurm-share-2001*"])


def test_a_node_that_loses_its_power_packs_what_is_left_when_it_is_back(cluster: Cluster) -> None:
    made = two_dozen(cluster, "--options=-w n3 --requeue")
    cluster.kill("n3")
    cluster.reboot("n3")
    requeue(cluster, made.job)
    assert made.wait() == "COMPLETED", made.log()
    assert {one.job for tried in made.attempts().values() for one in tried} == {str(made.job), f"{made.job}.1"}
    check_all_ended_once(made, "n3")


def test_what_was_decided_is_explained(cluster: Cluster) -> None:
    """Each task's GPU and the refusals of the others, in sentences; the log has a line for each start."""
    tasks = [task(f"{size}000M", 2, f"{size}500M") for size in (30, 40, 50, 5)]
    made = packed(cluster, tasks, "[1,auto,1]", "--options=-w n2")
    assert made.wait() == "COMPLETED", made.log()
    said = cluster.as_user("alice", f"slurm-share pack explain {made.folder} 2", check=True)
    assert "GPU" in said.stdout
    assert made.log().count("-> GPU") >= 3
    again = cluster.as_user("alice", f"slurm-share lab simulate {made.folder} --policy exclusive --json", check=True)
    assert "make_span_s" in again.stdout
