"""llload on a real cluster against squeue, gpustat and `slurm-share status`, and with a lost node."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hooked import until

from localcluster import Cluster

pytestmark = pytest.mark.cluster

TASK = "srun simgpu-task --memory 2000M --load 20 --seconds 900 >/dev/null"
STEPS = ["squeue", "-h", "-s", "-o", "%i %j"]


@pytest.fixture(autouse=True)
def empty_queue(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.cancel_all()


def steps(cluster: Cluster) -> list[str]:
    """Return the steps that llload has in alice's jobs now."""
    said = cluster.as_user("alice", STEPS, check=True).stdout
    return [line.split()[0] for line in said.splitlines() if line.endswith(" llload")]


def survey(cluster: Cluster, *words: str) -> Any:
    """Return what llload knows. Its exit code is 1 while a node does not answer, such as at the end of a job."""
    done = cluster.as_user("alice", ["llload", "--json", *words])
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


def gpustat(cluster: Cluster, node: str) -> Any:
    """Return (memory used, processes) by UUID from gpustat, without MPS servers."""
    answer = json.loads(cluster.exec(node, ["gpustat", "--json"], check=True).stdout)
    return {
        gpu["uuid"]: (
            gpu["memory.used"],
            sorted(one["pid"] for one in gpu["processes"] if "simgpu-task" in " ".join(one["full_command"])),
        )
        for gpu in answer["gpus"]
    }


def test_llload_says_what_slurm_and_the_driver_say(cluster: Cluster) -> None:
    """A share with eight tasks on two GPUs: memory, processes, jobs and users; nothing of it for anybody else."""
    until(lambda: not survey(cluster)["jobs"], "the end of other tests' jobs", lambda: str(survey(cluster)["jobs"]))
    job = cluster.sbatch("alice", TASK, "--share-gpu=4", "-wn2")
    cluster.wait_running(job)
    until(lambda: [len(pids) for _, pids in gpustat(cluster, "n2").values()] == [4, 4], "8 processes on n2's GPUs")
    seen = survey(cluster, "-g")
    (node,) = seen["nodes"]
    snapshot = node["snapshot"]
    assert (seen["cluster"], seen["slurm_version"], seen["user"]) == ("demo", cluster.slurm_version, "alice")
    assert [one["job_id"] for one in seen["jobs"]] == [job]
    assert (node["name"], node["slurm"]["gpus_allocated"], node["slurm"]["cpus_allocated"]) == ("n2", 2, 8)
    driver = gpustat(cluster, "n2")
    assert {gpu["uuid"]: gpu["memory_used_mib"] for gpu in snapshot["gpus"]} == {
        uuid: used for uuid, (used, _) in driver.items()
    }
    tasks = [one for one in snapshot["processes"] if one["name"] == "simgpu-task"]
    assert sorted(one["pid"] for one in tasks) == sorted(pid for _, pids in driver.values() for pid in pids)
    assert {(one["user"], one["job"]) for one in tasks} == {("alice", job)}
    status = json.loads(cluster.exec("n2", ["slurm-share", "status", "--json"], check=True).stdout)
    assert {gpu["uuid"]: len(gpu["processes"]) for gpu in status["gpus"]} == {
        uuid: len(pids) for uuid, (_, pids) in driver.items()
    }

    lines = cluster.as_user("alice", ["llload", "-g"], check=True).stdout.splitlines()
    assert lines[0] == "SIMULATED GPUs: nothing is computed on them"
    assert lines[1] == f"LLGrid: demo (running slurm {cluster.slurm_version})"
    assert lines[2].startswith("Username: alice, Nodes used: 1, Time: ")
    used = sum(used for used, _ in driver.values())
    fields = lines[4].split()
    assert fields[:6] == ["n2", "8", "-", "8", "=", "0"]
    assert fields[12:17] == ["2", "-", "2", "=", "0"]
    assert float(fields[17]) == pytest.approx(2 * 4 * 0.20, abs=0.05)
    assert fields[18:23] == ["160GB", "-", f"{round(used / 1024)}GB", "=", f"{160 - round(used / 1024)}GB"]
    assert any(line.startswith(f"advice for job {job}: ") for line in lines)
    assert steps(cluster) == []

    # Nobody else sees anything of it, whichever way he asks.
    for words in (["-g"], ["-g", "--detail", "--processes"], ["--json"]):
        said = cluster.as_user("bob", ["llload", *words], check=True).stdout
        assert "alice" not in said
        assert "n2" not in said
    for words in (["-j", str(job)], ["-n", "n2"], ["-u", "alice"], ["--all"]):
        refused = cluster.as_user("bob", ["llload", *words])
        assert (refused.returncode, refused.stdout) == (2, "")
    local = cluster.as_user("bob", ["llload", "--source", "local", "--json"], node="n2", check=True).stdout
    assert "simgpu-task" not in local
    assert json.loads(local)["nodes"][0]["snapshot"]["hidden_gpus"] == 2

    # On a terminal of 80 columns every line fits, and what is left out is named.
    typed = "stty cols 80 rows 24; llload -g"
    screen = cluster.as_user("alice", ["script", "-qec", typed, "/dev/null"], check=True, env={"TERM": "xterm"}).stdout
    plain = re.sub(r"\x1b\[[0-9;]*m", "", screen.replace("\r", "")).splitlines()
    assert max(map(len, plain)) <= 80
    assert len(plain) <= 24
    assert "with --tsv or --json)" in " ".join(plain)

    # Watching is one step, however often it looks; kill -9 leaves none; the recording holds every look.
    watching = "llload -g -q --watch 0.5 --record looks.jsonl > shown 2> /dev/null < /dev/null & echo $!"
    cluster.as_user("alice", "rm -f looks.jsonl", check=True)
    pid = cluster.as_user("alice", watching, check=True).stdout.strip()
    until(lambda: len(cluster.as_user("alice", "cat shown").stdout.splitlines()) >= 5, "five lines")
    assert len(steps(cluster)) == 1
    cluster.exec("login", ["kill", "-9", pid], check=True)
    until(lambda: steps(cluster) == [], "the end of the step")
    shown = cluster.as_user("alice", "cat shown", check=True).stdout.splitlines()
    assert {line.split()[1] for line in shown} == {"n2"}  # behind the time of the look
    replayed = cluster.as_user("alice", "llload -g -q --replay looks.jsonl --watch 0.5 | head -3", check=True).stdout
    assert replayed.splitlines() == shown[:3]


def test_steps_of_llload_are_not_the_jobs(cluster: Cluster) -> None:
    """Two that watch and one that looks once: a job that sleeps uses no CPU time, and no memory but its script's."""
    job = cluster.sbatch("alice", "sleep 900", "--gres=gpu:1", "-wn2")
    cluster.wait_running(job)
    pids = [
        cluster.as_user("alice", "llload -q --watch 0.5 > /dev/null 2>&1 < /dev/null & echo $!", check=True).stdout
        for _ in range(2)
    ]
    try:
        until(lambda: len(steps(cluster)) == 2, "the steps of two that watch")
        (load,) = survey(cluster, "-j", str(job))["nodes"][0]["snapshot"]["jobs"]
    finally:
        cluster.exec("login", ["kill", *map(str.strip, pids)])
    assert (load["job"], load["cpu_cores"], load["tasks"]) == (job, 0.0, 0)
    assert load["memory_mib"] <= 4
    until(lambda: steps(cluster) == [], "the end of the steps")


def test_a_node_that_is_lost_is_a_line_with_its_reason(cluster: Cluster) -> None:
    """The power of one of two nodes is cut: the other one answers, and nothing hangs or is made up."""
    job = cluster.sbatch("alice", TASK, "--share-gpu=1", "-N2", "-wn2,n3")
    cluster.wait_running(job)
    until(lambda: [one["name"] for one in survey(cluster)["nodes"] if one["snapshot"]] == ["n2", "n3"], "two nodes")
    cluster.kill("n3")
    try:
        done = cluster.as_user("alice", ["llload", "-g"])
        lines = done.stdout.splitlines()
        assert done.returncode == 0
        silent = next(line for line in lines if line.startswith("n3 ")).split()
        assert silent[1] == "8"
        assert silent[9] == "?"
        assert silent[17] == "?"
        assert "n!" in silent
        assert any(line.startswith("1 of 2 nodes answered; n3: ") for line in lines)
        measured = next(line for line in lines if line.startswith("n2 ")).split()
        assert float(measured[17]) == pytest.approx(0.4, abs=0.05)
    finally:
        cluster.reboot("n3")


def test_a_job_that_leaves_its_gpus_idle_is_not_judged_at_once(cluster: Cluster) -> None:
    """A minute is too little to judge by (ten: tests/unit/load/rules/test_idle.py)."""
    idle = cluster.sbatch("alice", "srun -n1 simgpu-task --memory 1000M --load 0 --seconds 900", "--gres=gpu:2", "-wn1")
    busy = cluster.sbatch(
        "alice", "srun -n1 simgpu-task --memory 1000M --load 90 --seconds 900", "--gres=gpu:1", "-wn2"
    )
    cluster.wait_running(idle)
    cluster.wait_running(busy)
    jobs = f"{idle},{busy}"

    def held(look: Any) -> list[tuple[int, str, bool | None]]:
        return [(one["job"], one["user"], one["idle"]) for node in look["nodes"] for one in node["held_gpus"]]

    until(
        lambda: sum(len(node["snapshot"]["processes"]) for node in survey(cluster, "-j", jobs)["nodes"]) == 2,
        "two processes",
    )
    now = survey(cluster, "-j", jobs)
    assert sorted(held(now)) == [(idle, "alice", None), (idle, "alice", None), (busy, "alice", None)]
    whys = {one["why"] for node in now["nodes"] for one in node["held_gpus"]}
    assert whys == {"the job runs for less than 10 min"}
    assert "iL" not in cluster.as_user("alice", ["llload", "-g", "-j", jobs], check=True).stdout


def test_slurm_without_the_usual_layout_of_its_json(cluster: Cluster) -> None:
    """As 26.11, which begins with v0.0.43: llload, the dashboard's logs and the switch of the queue read the next."""
    if cluster.slurm_release == "24.11":
        pytest.skip("NOT TESTED on Slurm 24.11: it has no later layout")
    (usual,) = cluster.root("login").glob("usr/lib/*/slurm-wlm/data_parser_v0_0_42.so")
    hidden = usual.rename(usual.with_suffix(".hidden"))
    try:
        job = cluster.sbatch("alice", TASK, "--share-gpu=4", "-wn2", "-o", "out-%j.log")
        cluster.wait_running(job)
        assert job in [one["job_id"] for one in survey(cluster)["jobs"]]
        script = f"from slurm_share.triples import job_output; print(job_output.read_files({job}).stdout)"
        said = cluster.as_user("alice", ["/opt/slurm-share/bin/python3", "-c", script], check=True).stdout
        assert said == f"/home/alice/out-{job}.log\n"
    finally:
        hidden.rename(usual)
