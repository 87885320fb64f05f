"""llstat, llkill and llfree on a real cluster against squeue and sinfo."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hooked import slurm_conf, until

from localcluster import Cluster

pytestmark = pytest.mark.cluster

HOLD = "sleep 600"
SQUEUE = ["squeue", "-h", "-o", "%i|%F|%u|%S|%P|%C|%m|%t|%R"]


@pytest.fixture(autouse=True)
def empty_queue(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.cancel_all()


def start(cluster: Cluster, *options: str, user: str = "alice") -> int:
    job = cluster.sbatch(user, HOLD, *options)
    cluster.wait_running(job)
    return job


def queue_of(cluster: Cluster, user: str, *words: str) -> dict[str, dict]:  # type: ignore[type-arg]
    """Return what llstat --json shows a user, by job."""
    said = cluster.as_user(user, ["llstat", "--json", *words], check=True).stdout
    return {job["id"]: job for job in json.loads(said)["jobs"]}


def ids(cluster: Cluster) -> list[str]:
    """Return the jobs in squeue that are not completing."""
    return sorted(cluster.exec("ctl", ["squeue", "-h", "-r", "-t", "PD,R", "-o", "%i"], check=True).stdout.split())


def wait_for(cluster: Cluster, wanted: list[str]) -> None:
    until(lambda: ids(cluster) == sorted(wanted), f"a queue of {wanted}")


def test_llstat_says_what_squeue_says(cluster: Cluster) -> None:
    """Running, waiting, an array, a share, several nodes: every column that squeue has too."""
    start(cluster, "--share-gpu=4", "-wn2")
    start(cluster, "-pplain", "-wn1", "-a1-4%2", "-c2", "--mem=100M")
    start(cluster, "-pplain", "-wn1,n3", "-N2")
    cluster.sbatch("alice", HOLD, "--begin=now+1hour", "--mem=4G")
    cluster.sbatch("alice", HOLD, "--share-gpu=2", "-wn2")
    before, shown, after = "", [""], "-"

    def stands_still() -> bool:  # the scheduler may give a job another reason or start between two questions
        nonlocal before, shown, after
        before = cluster.as_user("alice", SQUEUE, check=True).stdout
        shown = cluster.as_user("alice", ["llstat", "--hide-header"], check=True).stdout.splitlines()
        return before == cluster.as_user("alice", SQUEUE, check=True).stdout

    until(stands_still, "a queue in which nothing changes")
    said = {line.split("|")[0]: line.split("|") for line in before.splitlines()}
    assert shown[0] == f"LLGrid: demo (running slurm {cluster.slurm_version})"
    rows = {line.split()[0]: line.split() for line in shown[1:]}
    assert set(rows) == set(said)
    assert len(rows) == 7
    for job, (_, array, user, begin, partition, cpus, memory, state, place) in said.items():
        row = rows[job]
        assert [row[1], *row[3:7], *row[8:11]] == [array, user, begin, partition, cpus, memory, state, place]


def test_a_share_shows_its_gpus_and_slots(cluster: Cluster) -> None:
    whole = start(cluster, "--share-gpu=4,mem=2G", "-wn2")
    quarter = start(cluster, "--share-gpu=4", "--gres=gpu:1", "-n1", "-wn3")
    plain = start(cluster, "-pplain", "--gres=gpu:2", "-wn1", "--comment=llsub [1,8,2] LLSUB.3")
    jobs = queue_of(cluster, "alice")
    assert [jobs[str(whole)][key] for key in ("gpus", "share", "slots", "triple")] == [2, "4,mem=2048M", 8, None]
    assert [jobs[str(quarter)][key] for key in ("part_of_a_gpu", "share", "slots")] == [True, "4", 1]
    assert [jobs[str(plain)][key] for key in ("gpus", "share", "slots", "triple")] == [2, None, None, "[1,8,2]"]


def test_everybody_sees_what_slurm_lets_him(cluster: Cluster) -> None:
    hers, his = start(cluster, "-pplain"), start(cluster, "-pplain", user="bob")
    assert set(queue_of(cluster, "bob")) == {str(his)}
    assert set(queue_of(cluster, "bob", "-a")) == {str(hers), str(his)}
    assert set(queue_of(cluster, "bob", "-u", "alice")) == {str(hers)}
    with slurm_conf(cluster, "PrivateData=jobs"):
        assert set(queue_of(cluster, "bob", "-a")) == {str(his)}
        assert queue_of(cluster, "bob", "-u", "alice") == {}
        done = cluster.as_user("bob", ["llkill", str(hers)])
        assert done.returncode == 1
        assert f"job {hers} is not in Slurm's queue" in done.stderr


def test_a_strange_name_and_a_narrow_terminal(cluster: Cluster) -> None:
    """Colour, markup and a newline in a name stay text; at a terminal of 80 columns every line fits."""
    start(cluster, "-pplain", "-J", "\x1b[31mred[bold]\nx")
    assert r"\x1b[31mred[bold]\nx" in cluster.as_user("alice", ["llstat", "-h"], check=True).stdout.splitlines()[1]
    typed = "stty cols 80; llstat"
    screen = cluster.as_user("alice", ["script", "-qec", typed, "/dev/null"], check=True, env={"TERM": "xterm"}).stdout
    lines = screen.replace("\r", "").splitlines()
    assert max(len(line) for line in lines[1:3]) <= 80
    assert "\x1b[31m" not in screen
    assert lines[-1].endswith("with --json)")


def test_llfree_at_a_terminal_of_80_columns(cluster: Cluster) -> None:
    typed = "stty cols 80; llfree"
    screen = cluster.as_user("alice", ["script", "-qec", typed, "/dev/null"], check=True, env={"TERM": "xterm"}).stdout
    lines = screen.replace("\r", "").splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].split()[0] == "PARTITION"
    assert "GPUS: shown in a wider terminal" in lines[-1]


def test_a_runs_folder_names_its_jobs(cluster: Cluster) -> None:
    cluster.as_user("alice", "rm -rf llstat; mkdir llstat; cd llstat; llsub /bin/sleep [1,1] -- 600", check=True)
    (job,) = queue_of(cluster, "alice")
    folder = "llstat/LLSUB.1"
    assert list(queue_of(cluster, "alice", "-j", folder)) == [job]
    cluster.as_user("alice", ["llkill", folder], check=True)
    wait_for(cluster, [])
    until(lambda: cluster.as_user("alice", ["llstat", "-j", folder]).returncode, "the end of the run's jobs")
    done = cluster.as_user("alice", ["llstat", "-j", folder])
    assert (done.returncode, done.stderr) == (1, f"llstat: no job of {folder} is in the queue\n")


def test_llkill_ends_what_was_named_and_nothing_else(cluster: Cluster) -> None:
    """A job, elements of an array that run and that wait, an unknown one, another user's."""
    one, other = start(cluster, "-pplain", "-wn2"), start(cluster, "-pplain", "-wn2")
    array = start(cluster, "-pplain", "-wn1", "-a1-6%2", "-c1")
    his = start(cluster, "-pplain", "-wn2", user="bob")
    cluster.wait_running(array)
    done = cluster.as_user("alice", ["llkill", f"{one},4711", f"{array}_[1,4-5]", str(his)])
    assert done.returncode == 1
    assert f"job {his} (sbatch) of bob was not ended" in done.stderr
    assert "job 4711 is not in Slurm's queue" in done.stderr
    assert sorted(line.split()[1] for line in done.stdout.splitlines()) == sorted(
        [str(one), f"{array}_1", f"{array}_[4-5]"]
    )
    wait_for(cluster, [str(other), str(his), f"{array}_2", f"{array}_3", f"{array}_6"])
    assert cluster.as_user("alice", ["llkill", str(array)], check=True).stderr == ""
    wait_for(cluster, [str(other), str(his)])
    assert cluster.as_user("alice", ["llkill", "x"]).returncode == 2
    assert cluster.as_user("alice", ["llkill", "--all"], check=True).stdout.startswith(f"ended {other} (")
    wait_for(cluster, [str(his)])


def test_llkill_of_a_user_is_slurms_to_allow(cluster: Cluster) -> None:
    hers, his = start(cluster, "-pplain"), start(cluster, "-pplain", user="bob")
    done = cluster.as_user("bob", ["llkill", "-u", "alice"])
    assert (done.returncode, done.stdout) == (1, "")
    assert f"job {hers} " in done.stderr
    assert ids(cluster) == sorted([str(hers), str(his)])
    assert cluster.exec("ctl", ["llkill", "-u", "alice"], check=True).stdout.startswith(f"ended {hers} (")
    wait_for(cluster, [str(his)])


def free(cluster: Cluster) -> dict[tuple[str, str], list[int]]:
    """Return the numbers of each row by (partition, GPUs of a node)."""
    first, *lines = cluster.as_user("alice", ["llfree", "--hide-header"], check=True).stdout.splitlines()
    assert first == f"LLGrid: demo (running slurm {cluster.slurm_version})"
    rows = [line.split() for line in lines]
    return {(row[0], row[2]): [int(word) for word in row[3:]] for row in rows}


def test_llfree_follows_what_jobs_take(cluster: Cluster) -> None:
    """Cores, nodes and GPUs, beside sinfo's count of CPUs; a drained node has nothing free."""
    cluster.settle()
    small = ("gpu", "simulated:2")
    assert free(cluster)[small] == [16, 16, 2, 2, 4, 4]
    start(cluster, "-pplain", "-wn2", "-c3", "--gres=gpu:1")
    assert free(cluster)[small] == [16, 13, 2, 1, 4, 3]
    start(cluster, "--share-gpu=4", "--gres=gpu:1", "-n1", "-wn3")
    rows = free(cluster)
    assert rows[small] == [16, 12, 2, 0, 4, 2]
    said = cluster.exec("ctl", ["sinfo", "-h", "-pgpu", "-o", "%C"], check=True).stdout.split()
    idle = sum(int(one.split("/")[1]) for one in said)
    assert sum(row[1] for (partition, _), row in rows.items() if partition == "gpu") == idle
    cluster.exec("ctl", ["scontrol", "update", "node=n1", "state=drain", "reason=test"], check=True)
    try:
        assert free(cluster)["gpu", "simulated:4"] == [16, 0, 1, 0, 4, 0]
    finally:
        cluster.exec("ctl", ["scontrol", "update", "node=n1", "state=resume"], check=True)


def test_a_controller_that_is_stopped_is_a_sentence(cluster: Cluster) -> None:
    """It takes connections and answers nothing; squeue by itself would try for more than twenty seconds."""
    controller = cluster.exec("ctl", ["pgrep", "-o", "slurmctld"], check=True).stdout.strip()
    cluster.exec("ctl", ["kill", "-STOP", controller], check=True)
    try:
        together = "for name in llstat llload llfree 'llkill 5'; do $name & done 2>&1; wait"
        said = cluster.as_user("alice", ["bash", "-c", together]).stdout
    finally:
        cluster.exec("ctl", ["kill", "-CONT", controller], check=True)
    for name in ("llstat", "llload", "llfree", "llkill"):
        assert f"{name}: Slurm does not answer: no word from its controller within 10 s" in said
