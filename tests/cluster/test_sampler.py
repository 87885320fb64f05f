"""The sampler on a real cluster against gpustat, nvitop, squeue, /proc and the cgroups."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from clusters import cluster_of
from hooked import until

from localcluster import Cluster

pytestmark = pytest.mark.cluster

CORES_TOLERANCE = 0.4
"""The tolerated difference between two readings of one CPU counter at slightly different times."""
MEMORY_TOLERANCE_MIB = 20


def sample(cluster: Cluster, node: str, *words: str) -> Any:
    """Return the load of all users on a node, as root sees it."""
    return json.loads(cluster.exec(node, ["slurm-share", "sample", "--all", *words], check=True).stdout)


def gpustat(cluster: Cluster, node: str) -> Any:
    return json.loads(cluster.exec(node, ["gpustat", "--json"], check=True).stdout)["gpus"]


def shell(cluster: Cluster, node: str, script: str) -> str:
    return cluster.exec(node, ["bash", "-c", script], check=True).stdout


def on(snapshot: Any, uuid: str) -> dict[int, dict[str, Any]]:
    return {p["pid"]: on for p in snapshot["processes"] for on in p["gpus"] if on["uuid"] == uuid}


def test_the_sampler_agrees_with_every_other_witness(cluster: Cluster) -> None:
    """The figures of gpustat, nvitop, squeue and /proc: memory to the MiB, CPU as it moves."""
    program = "srun simgpu-task --memory 1000M --load 10 --seconds 600 >/dev/null"
    jobs = {
        "n2": cluster.sbatch("alice", program, "--share-gpu=4", "-w", "n2"),
        "n3": cluster.sbatch("bob", program, "--share-gpu=2", "-w", "n3"),
    }
    want = {"n2": (8, "alice", 4), "n3": (4, "bob", 2)}
    try:
        for node, (count, _, _) in want.items():
            cluster.wait_running(jobs[node])
            until(lambda n=node, c=count: sum(len(gpu["processes"]) for gpu in gpustat(cluster, n)) >= c, "all tasks")
        _compare(cluster, jobs, want)
        _read_as_users(cluster, jobs)
    finally:
        shell(cluster, "n2", "pkill -u bob simgpu-task; true")
        cluster.cancel_all()


def _compare(cluster: Cluster, jobs: dict[str, int], want: dict[str, tuple[int, str, int]]) -> None:
    for node, (count, user, share) in want.items():
        seen, witness = sample(cluster, node), gpustat(cluster, node)
        assert (seen["node"], seen["view"], seen["driver"], seen["problems"]) == (node, "", "550.0-simulated", [])
        for gpu, other in zip(seen["gpus"], witness, strict=True):
            assert (gpu["uuid"], gpu["index"]) == (other["uuid"], other["index"])
            assert gpu["memory_used_mib"] == other["memory.used"]
            assert gpu["utilization_percent"] == other["utilization.gpu"] == gpu["sm"]["m1"] == 10 * share
            processes = on(seen, gpu["uuid"])
            assert {pid: one["memory_mib"] for pid, one in processes.items()} == {
                one["pid"]: one["gpu_memory_usage"] for one in other["processes"]
            }
            assert gpu["clients"] == len(processes) == share + 1  # the MPS server is one
            assert sum(one["sm_time_percent"] for one in processes.values()) == gpu["utilization_percent"]
        nvitop = cluster.exec(node, ["nvitop", "-1", "--ascii"], env={"COLUMNS": "200", "TERM": "dumb"}).stdout
        tasks = [process for process in seen["processes"] if process["name"] == "simgpu-task"]
        for process in tasks:
            assert re.search(rf"\b{process['pid']}\b", nvitop), nvitop
            assert (process["user"], process["job"], process["step"]) == (user, jobs[node], "0")
            environ = shell(cluster, node, f"tr '\\0' '\\n' </proc/{process['pid']}/environ")
            assert f"SLURM_SHARE_SLOT={process['slot']}\n" in environ
            assert f"SLURM_PROCID={process['task']}\n" in environ
            assert f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={process['cap_mib']}M\n" in environ
            resident = int(shell(cluster, node, f"cat /proc/{process['pid']}/statm").split()[1]) // 256
            assert process["memory_mib"] == pytest.approx(resident, abs=MEMORY_TOLERANCE_MIB)
        servers = [process for process in seen["processes"] if process not in tasks]
        held = sum(one["memory_mib"] for process in servers for one in process["gpus"])
        assert {(process["user"], process["name"]) for process in servers} == {(user, "nvidia-cuda-mps")}
        assert sorted(process["slot"] for process in tasks) == list(range(count))
        squeue = cluster.exec("ctl", ["squeue", "-h", "-t", "R", "-w", node, "-o", "%i %u"], check=True).stdout
        assert [f"{job['job']} {job['user']}" for job in seen["jobs"]] == squeue.splitlines()
        (job,) = seen["jobs"]
        assert (job["share"], job["slots"], job["tasks"], job["tasks_at_once"]) == (share, count, count, count)
        assert (job["task_peak_mib"], job["tasks_measured"]) == (1000, count)
        assert job["gpu_load"] == pytest.approx(2 * share / 10)
        assert job["cpu_cores"] is not None
        assert 0 < job["memory_mib"] < 100 * count
        assert [(one["user"], one["jobs"], one["gpu_memory_mib"]) for one in seen["users"]] == [
            (user, [jobs[node]], 1000 * count + held)
        ]
        assert (seen["cpus"], seen["memory_total_mib"]) == (
            int(shell(cluster, node, "nproc --all")),
            int(shell(cluster, node, "grep MemTotal /proc/meminfo").split()[1]) // 1024,
        )


def _read_as_users(cluster: Cluster, jobs: dict[str, int]) -> None:
    """Check that alice, with a job on n2, and bob, on her first GPU without one, each see only their own."""
    shell(cluster, "n2", "runuser -u bob -- simgpu-task --memory 500M --load 5 --seconds 600 >/dev/null 2>&1 &")
    until(lambda: len(sample(cluster, "n2")["users"]) == 2, "bob on n2")
    everything = sample(cluster, "n2")
    bobs = next(one for one in everything["processes"] if one["user"] == "bob")
    assert (bobs["job"], bobs["gpus"][0]["memory_mib"]) == (None, 500)
    first, second = (gpu["uuid"] for gpu in everything["gpus"])
    text = cluster.as_user("alice", ["slurm-share", "sample"], node="n2", check=True).stdout
    alice = json.loads(text)
    assert "bob" not in text
    assert not re.search(rf"\b{bobs['pid']}\b", text)
    assert [(gpu["clients"], gpu["others_mib"]) for gpu in alice["gpus"]] == [(5, 500), (5, 0)]
    assert sum(one["name"] == "simgpu-task" for one in alice["processes"]) == 8
    text = cluster.as_user("bob", ["slurm-share", "sample"], node="n2", check=True).stdout
    bob = json.loads(text)
    assert "alice" not in text
    assert second not in text
    assert [(gpu["uuid"], gpu["clients"], gpu["others_mib"]) for gpu in bob["gpus"]] == [
        (first, 1, everything["gpus"][0]["memory_used_mib"] - 500)
    ]
    assert ([one["pid"] for one in bob["processes"]], bob["jobs"], bob["hidden_gpus"]) == ([bobs["pid"]], [], 1)
    assert str(jobs["n2"]) not in {str(one["job"]) for one in bob["processes"]}
    refused = cluster.as_user("bob", ["slurm-share", "sample", "--all"], node="n2")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "is for root" in refused.stderr


def test_trouble_is_shown_and_nothing_crashes(cluster: Cluster) -> None:
    """A lost GPU, no driver, 60 clients on one GPU, half of them killed between two samples."""
    before = sample(cluster, "n3")
    shell(cluster, "n3", "echo lost=1 >>/run/simgpu/gpu0")
    seen = sample(cluster, "n3")
    lost, well = seen["gpus"]
    assert (lost["problem"], lost["memory_used_mib"], lost["clients"]) == ("GPU is lost", None, None)
    assert (well["problem"], well["memory_used_mib"], well["uuid"]) == (None, 0, before["gpus"][1]["uuid"])
    assert "GPU 0 does not answer" in seen["problems"][0]
    shell(cluster, "n3", "sed -i /lost/d /run/simgpu/gpu0; mv /run/simgpu /run/gone")
    seen = sample(cluster, "n3")
    shell(cluster, "n3", "mv /run/gone /run/simgpu")
    assert (seen["driver"], seen["gpus"], len(seen["problems"])) == (None, [], 1)
    assert seen["cpu_cores"] is not None
    script = """
        for n in $(seq 60); do simgpu-task --memory 100M --load 1 --seconds 600 >/dev/null & pids="$pids $!"; done
        until [ "$(ls /run/simgpu/clients | wc -l)" = 60 ]; do sleep 0.1; done
        seen() { until [ "$(wc -l </tmp/stream)" -ge "$1" ]; do sleep 0.1; done; }
        : >/tmp/stream
        (seen 2; kill -9 $(echo $pids | cut -d' ' -f1-30); seen $(($(wc -l </tmp/stream) + 3))) |
            slurm-share sample --all --stream --interval 0.3 >/tmp/stream
        kill $pids 2>/dev/null; wait
        cat /tmp/stream
    """
    done = cluster.exec("n3", ["bash", "-c", script])
    stream = [json.loads(line) for line in done.stdout.splitlines()]
    assert "Traceback" not in done.stderr
    for seen in stream:
        gpu = seen["gpus"][0]
        # Between the question for the list and that for the memory some may have gone.
        assert gpu["clients"] == len(on(seen, gpu["uuid"]))
    assert (stream[0]["gpus"][0]["clients"], stream[0]["gpus"][0]["memory_used_mib"]) == (60, 6000)
    assert (stream[-1]["gpus"][0]["clients"], stream[-1]["gpus"][0]["memory_used_mib"]) == (30, 3000)
    assert stream[-1]["measured_s"] > 0.3


@pytest.fixture
def cgroup_cluster(cluster: Cluster) -> Any:
    """Yield a cluster like `cluster` whose jobs are in cgroups."""
    with cluster_of("cg", cluster.slurm_release, cgroup=True, nodes=1) as made:
        yield made


def test_a_node_whose_name_in_slurm_has_dots_is_named_as_in_slurm(cluster: Cluster) -> None:
    script = r"""
        export SLURM_CONF=/tmp/dotted.conf
        printf 'ClusterName=demo\nNodeName=n2.site NodeHostname=n2\nNodeName=n3.site NodeHostname=n3\n' >$SLURM_CONF
        slurm-share sample | head -c 60; echo
        slurm-share status
    """
    said = cluster.exec("n3", ["bash", "-c", script]).stdout
    assert '"node":"n3.site"' in said
    assert "n3.site: no shared job" in said


def in_job_group(cluster: Cluster, job: int) -> tuple[str, str, tuple[str, ...]]:
    """Return what prints a job's CPU time in ns, the file with its memory, and the lines there that make it up."""
    if cluster.cgroup:
        usage, memory = (f"/sys/fs/cgroup/{one}/slurm*/uid_2001/job_{job}" for one in ("cpuacct", "memory"))
        return f"cat {usage}/cpuacct.usage", f"{memory}/memory.stat", ("total_rss", "total_shmem", "total_swap")
    place = shell(cluster, "n1", "cat /proc/$(pgrep -nx simgpu-task)/cgroup").strip().removeprefix("0::")
    folder = "/sys/fs/cgroup" + place.partition("/step_")[0]
    return f"awk '/^usage_usec/ {{ print $2 * 1000 }}' {folder}/cpu.stat", f"{folder}/memory.stat", ("anon", "shmem")


@pytest.mark.weekly
@pytest.mark.weekly_on_v2
def test_in_cgroups_the_figures_are_the_cgroups(cgroup_cluster: Cluster) -> None:
    """CPU time and memory of a job with a busy program, beside the cgroup's own files; job, step and task by path."""
    script = """srun -n2 bash -c 'simgpu-task --memory 1G --seconds 600 >/dev/null &
        [ $SLURM_PROCID = 0 ] && timeout 600 python3 -c "held = bytearray(150 << 20)\nwhile True: pass"; wait'"""
    job = cgroup_cluster.sbatch("alice", script, "--gres=gpu:1", "-n2")
    try:
        cgroup_cluster.wait_running(job)
        until(lambda: len(sample(cgroup_cluster, "n1")["processes"]) == 2, "both tasks")
        usage, stat_file, parts = in_job_group(cgroup_cluster, job)
        until(lambda: sample(cgroup_cluster, "n1")["jobs"][0]["memory_mib"] > 150, "the memory that is held")
        watch = f"{usage}; sleep 2 | slurm-share sample --all --stream --interval 0.5; {usage}"
        begin = time.monotonic()
        first, *lines, last = shell(cgroup_cluster, "n1", watch).splitlines()
        took = time.monotonic() - begin
        stat = shell(cgroup_cluster, "n1", f"cat {stat_file}").split()
        before = sample(cgroup_cluster, "n1")["jobs"][0]["memory_mib"]
        looked = json.loads(cgroup_cluster.as_user("alice", ["llload", "--json"], check=True).stdout)
    finally:
        cgroup_cluster.cancel_all()
    seen = json.loads(lines[-1])
    (its_job,) = seen["jobs"]
    assert (its_job["job"], its_job["user"], its_job["memory_kills"]) == (job, "alice", 0)
    cores = (int(last) - int(first)) / 1e9 / took
    assert its_job["cpu"]["m1"] == pytest.approx(cores, abs=CORES_TOLERANCE)
    assert its_job["cpu"]["m1"] > cores / 2 > 0
    # The step of llload, of at least 14 MiB, is in the job's cgroup and not among the job's figures.
    assert looked["nodes"][0]["snapshot"]["jobs"][0]["memory_mib"] < before + 8
    told = dict(zip(stat[::2], stat[1::2], strict=True))
    memory = sum(int(told[key]) for key in parts) >> 20
    assert its_job["memory_mib"] == pytest.approx(memory, abs=MEMORY_TOLERANCE_MIB)
    assert sorted((one["job"], one["step"], one["task"]) for one in seen["processes"]) == [(job, "0", 0), (job, "0", 1)]
