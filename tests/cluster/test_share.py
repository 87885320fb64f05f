"""`sbatch --share-gpu=N` on real slurmctld, slurmd and slurmstepd: the command and its effect."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator

import pytest
from conftest import name_for
from hooked import completed, rewritten, until

from localcluster import Cluster
from slurm_share.core import names

pytestmark = pytest.mark.cluster

TASK = "srun bash -c 'echo task $SLURM_PROCID $SLURMD_NODENAME $SLURM_SHARE_SLOT $CUDA_VISIBLE_DEVICES'"


@pytest.fixture(autouse=True)
def nodes_stay_well(cluster: Cluster) -> Iterator[None]:
    """Check after each test that no node is drained and no job is left on one."""
    yield
    cluster.settle()  # salloc's job is still completing when salloc has ended
    states = cluster.exec("ctl", ["sinfo", "-h", "-N", "-o", "%N %T"], check=True).stdout
    # Slurm calls an idle node planned for a moment, after a job has waited for it.
    assert set(states.split()[1::2]) <= {"idle", "planned"}
    for node in cluster.compute_nodes:
        assert cluster.exec(node, ["ls", "-A", "/run/slurm-share/jobs"]).stdout == ""


def run(cluster: Cluster, script: str, *options: str, user: str = "alice") -> str:
    """Submit, wait, and return the job's output."""
    job = cluster.sbatch(user, script, *options)
    cluster.wait(job)
    return cluster.output(job)


def start(cluster: Cluster, *options: str, tasks: int = 1) -> int:
    """Start a job of alice's on n2 that runs until it is cancelled; wait until so many tasks run."""
    job = cluster.sbatch("alice", "srun bash -c 'echo up; sleep 60'", "-wn2", *options)
    cluster.wait_running(job)
    output = cluster.home / f"alice/slurm-{job}.out"
    until(lambda: output.exists() and output.read_text().count("up\n") >= tasks, f"{tasks} tasks of job {job}")
    return job


def tasks(output: str) -> list[tuple[str, str, str]]:
    """Return (node, slot, GPU) of each task that ran `TASK`."""
    found = re.findall(r"^task \d+ (\S+) (\S+) (\S+)$", output, re.MULTILINE)
    return [(node, slot, gpu) for node, slot, gpu in found]


def field(record: str, name: str) -> str:
    match = re.search(rf"\b{name}=(\S*)", record)
    return match[1] if match else ""


@pytest.mark.release
def test_sixteen_tasks_of_one_job_sit_four_on_each_of_four_gpus(cluster: Cluster) -> None:
    """Two nodes, two GPUs each; gpustat, which knows nothing of us, counts the same processes on the same UUIDs."""
    program = "exec simgpu-task --memory 1000M --load 10 --seconds 60 >/dev/null"
    job = cluster.sbatch("alice", f"srun bash -c '{TASK[14:-1]}; {program}'", "--share-gpu=4", "-N2", "-w", "n2,n3")
    cluster.wait_running(job)
    seen: dict[str, int] = {}
    output = cluster.home / f"alice/slurm-{job}.out"
    until(lambda: output.exists() and output.read_text().count("task ") == 16, "16 tasks")

    def count(node: str) -> bool:
        answer = json.loads(cluster.exec(node, ["gpustat", "--json"], check=True).stdout)
        commands = {gpu["uuid"]: [" ".join(one["full_command"]) for one in gpu["processes"]] for gpu in answer["gpus"]}
        counts = {gpu: sum("simgpu-task" in command for command in commands[gpu]) for gpu in commands}
        seen.update(counts)
        return set(counts.values()) == {4}

    for node in ("n2", "n3"):
        until(lambda node=node: count(node), f"four tasks on each GPU of {node}")  # type: ignore[misc]
    found = tasks(output.read_text())
    status = {node: json.loads(cluster.exec(node, ["slurm-share", "status", "--json"]).stdout) for node in ("n2", "n3")}
    cluster.cancel_all()
    assert len(found) == 16
    assert sorted(slot for node, slot, _ in found if node == "n2") == [str(slot) for slot in range(8)]
    assert Counter(gpu for _, _, gpu in found) == Counter(seen) == dict.fromkeys(seen, 4)
    assert len(seen) == 4
    for answer in status.values():
        assert [(entry["user"], entry["share"], entry["slots"]) for entry in answer["jobs"]] == [("alice", "4", 8)]
        assert [gpu["slots"] for gpu in answer["gpus"]] == [4, 4]
        assert [{p["user"] for p in gpu["processes"]} for gpu in answer["gpus"]] == [{"alice"}, {"alice"}]
        assert answer["simulated"] is True


@pytest.mark.release
@pytest.mark.parametrize(
    ("options", "cpus", "gpus", "exclusive", "expected"),
    [
        (["--share-gpu=2", "--gres=gpu:simulated:2", "-w", "n1"], "4", 2, "USER", {"n1": 4}),
        (["--share-gpu=4", "--ntasks-per-node=3", "-N2", "-w", "n2,n3"], "16", 2, "NODE", {"n2": 3, "n3": 3}),
    ],
)
def test_what_was_written_is_what_was_allocated_and_started(
    cluster: Cluster, options: list[str], cpus: str, gpus: int, exclusive: str, expected: dict[str, int]
) -> None:
    """Each slot once, and what the accounts are told; all other ways to write it are in test_rows.py."""
    output = run(cluster, f"scontrol -o show job -d $SLURM_JOB_ID; {TASK}", *options)
    found = tasks(output)
    assert Counter(node for node, _, _ in found) == expected
    for node, count in expected.items():
        assert sorted(int(slot) for where, slot, _ in found if where == node) == list(range(count))
        assert len({gpu for where, _, gpu in found if where == node}) == min(gpus, count)
    assert set(re.findall(r"GRES=gpu:simulated:(\d+)\(", output)) == {str(gpus)}  # on each node
    assert f"cpu={cpus}," in field(output, "AllocTRES")
    # 24.11 shows both kinds of exclusive as OverSubscribe: NO for the node, USER for the user
    assert f"Exclusive={exclusive}" in output or f"OverSubscribe={exclusive.replace('NODE', 'NO')}" in output


@pytest.mark.release
def test_more_slots_than_cpus_are_no_reason_to_wait(cluster: Cluster) -> None:
    """Ten tasks on a node of 8 CPUs: the job asks for what the node has, and the tasks take turns on it."""
    extra = ["--share-gpu=10", "--gres=gpu:1", "-p", "small"]
    cluster.exec("ctl", ["scontrol", "create", "partition=small", "nodes=n2,n3"], check=True)
    try:
        assert len(tasks(run(cluster, TASK, *extra))) == 10
    finally:
        cluster.exec("ctl", ["scontrol", "delete", "partition=small"], check=True)


@pytest.mark.release
def test_the_option_works_as_a_script_line_and_the_command_line_wins(cluster: Cluster) -> None:
    script = f"#!/bin/bash\n#SBATCH --share-gpu=4\n{TASK}"
    assert len(tasks(run(cluster, script, "-w", "n2"))) == 8
    assert len(tasks(run(cluster, script, "-w", "n2", "--share-gpu=1"))) == 2
    off = run(cluster, script, "-w", "n2", "--gres=gpu:1", "--share-gpu=off")
    assert off.startswith("task 0 n2")
    assert names.ENV_SLOT not in off


@pytest.mark.release
def test_salloc_gives_a_shell_whose_plain_srun_shares(cluster: Cluster) -> None:
    done = cluster.as_user(
        "alice", "salloc --share-gpu=2 -w n2", input=f"{TASK} </dev/null\nexit\n", timeout=60, check=True
    )
    assert len(tasks(done.stdout)) == 4
    assert "simulated" in done.stderr


@pytest.mark.release
def test_a_task_finds_its_gpu_cores_threads_rank_and_frameworks_part(cluster: Cluster) -> None:
    job_env = run(
        cluster, "env; srun -l env; srun -l grep Cpus_allowed_list /proc/self/status", "--share-gpu=4", "-wn2"
    )
    task = [dict(re.findall(rf"^{rank}: (\w+)=(.*)$", job_env, re.MULTILINE)) for rank in range(8)]
    for rank, found in enumerate(task):
        assert found["SLURM_SHARE_SLOT"] == str(rank)
        assert (found["SLURM_SHARE_RANK"], found["SLURM_SHARE_SIZE"]) == (str(rank), "8")
        assert (found["SLURM_SHARE_SLOTS"], found["SLURM_SHARE_PER_GPU"]) == ("8", "4")
        assert found["CUDA_VISIBLE_DEVICES"] == found["SLURM_SHARE_GPU_UUID"]
        assert found["SLURM_SHARE_GPU_INDEX"] == str(rank % 2)
        assert found["SLURM_SHARE_SIMULATED"] == "1"
        assert found["OMP_NUM_THREADS"] == "1"
        assert found["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.243"
        assert found["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
        assert f"{rank}: Cpus_allowed_list:\t{found['SLURM_SHARE_CORES']}\n" in job_env
    batch = dict(re.findall(r"^(\w+)=(.*)$", job_env, re.MULTILINE))
    assert batch["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert "SLURM_SHARE_SLOT" not in batch


def test_what_the_user_set_wins_where_it_is_the_users(cluster: Cluster) -> None:
    script = "export OMP_NUM_THREADS=3 XLA_PYTHON_CLIENT_MEM_FRACTION=.5 CUDA_VISIBLE_DEVICES=9\nsrun -n1 env"
    found = dict(re.findall(r"^(\w+)=(.*)$", run(cluster, script, "--share-gpu=4", "-wn2"), re.MULTILINE))
    assert (found["OMP_NUM_THREADS"], found["XLA_PYTHON_CLIENT_MEM_FRACTION"]) == ("3", ".5")
    assert found["CUDA_VISIBLE_DEVICES"].startswith("GPU-5131")


@pytest.mark.release
def test_a_step_that_wants_no_slot_has_the_jobs_gpus(cluster: Cluster) -> None:
    script = "srun -n1 --share-gpu=off env\nSLURM_SHARE_SLOT=none srun -n1 env"
    output = run(cluster, script, "--share-gpu=4", "-wn2")
    assert re.findall(r"^CUDA_VISIBLE_DEVICES=(.*)$", output, re.MULTILINE) == ["0,1", "0,1"]
    assert names.ENV_GPU_UUID not in output


@pytest.mark.release
def test_a_plain_job_from_inside_a_shared_one_is_plain(cluster: Cluster) -> None:
    run(cluster, "sbatch -W -o inner.out -p plain --wrap 'env; srun env'", "--share-gpu=4", "-wn2")
    inner = cluster.as_user("alice", ["cat", "inner.out"], check=True).stdout
    assert "SHARE" not in inner
    assert "SLURM_GRES" not in inner


BAD = ["0", "x", "4;rm", "99999", "4,mem=lots", "", "-1", "4,mps=off,mem=8G", "4 ", "4,sm=500", "off,4"]


@pytest.mark.release
@pytest.mark.parametrize("value", BAD)
def test_a_bad_value_is_refused_at_submission_with_the_valid_form(cluster: Cluster, value: str) -> None:
    for command in (["sbatch", "--wrap=hostname"], ["salloc", "true"], ["srun", "-n1", "hostname"]):
        argv = [command[0], f"--share-gpu={value}", *command[1:]]
        done = cluster.as_user("alice", argv, timeout=120)
        assert done.returncode != 0
        assert names.OPTION_FORM in done.stderr
        assert done.stdout == ""
    assert cluster.jobs() == []


@pytest.mark.release
def test_a_task_too_many_ends_alone_with_the_arithmetic(cluster: Cluster) -> None:
    output = run(cluster, f"{TASK.replace('srun', 'srun -n9')}; echo srun=$?", "--share-gpu=4", "-wn2")
    assert len(tasks(output)) == 8
    assert "--share-gpu=4 on 2 GPUs makes 8" in output
    assert f"srun={names.EXIT_REFUSED}" in output


@pytest.mark.parametrize(
    ("text", "why"),
    [("max_shares = 3", "did you mean max_share?"), ('log_file = "/var/log/x\\u0000y"', ""), ("x = " + "[" * 3000, "")],
)
def test_no_configuration_file_drains_a_node(cluster: Cluster, text: str, why: str) -> None:
    """Unknown key, a file name that is none, a parser that gives up: the job runs unshared and says so."""
    with rewritten(cluster.site / "config.toml", text + "\n"):
        output = run(cluster, "echo ran", "--share-gpu=4", "-wn2")
    assert "slurm-share: " in output
    assert output.endswith("ran\n")
    assert why in cluster.exec("n2", ["cat", "/var/log/slurm-share.log"]).stdout


@pytest.mark.release
def test_a_job_without_a_share_runs_exactly_as_before(cluster: Cluster) -> None:
    """The same job on the same cluster with and without us: batch and step environments are equal."""
    script = "env -0 | sort -z | tr '\\0\\n' '\\n '; echo; srun -n2 -l env"

    def environment(on: Cluster) -> set[str]:
        output = completed(on, script, "-p", "plain", "--gres=gpu:1", "-n2", "-w", "n2", user="bob")
        # what differs between any two jobs: ids, times, ports, pids, and the two clusters' names
        odd = r"SLUID|JOB_?ID|_TIME|_PID|PORT|CLUSTER|_HOST|ADDR|KEY|HOSTNAME|SLURMD_DEBUG|TMPDIR"
        return {line for line in output.splitlines() if line and not re.search(odd, line.split("=")[0])}

    with Cluster.up(name_for("bare"), cluster.slurm_release, without=("python", "plugin")) as bare:
        assert environment(cluster) == environment(bare)


@pytest.mark.release
def test_listed_partitions_hold_a_node_for_one_user(cluster: Cluster) -> None:
    first = cluster.sbatch("alice", "sleep 60", "-p", "gpu", "-w", "n2")
    cluster.wait_running(first)
    assert cluster.wait(cluster.sbatch("alice", "true", "-p", "gpu", "-w", "n2")) == "COMPLETED"
    other = cluster.sbatch("bob", "true", "-p", "plain", "-w", "n2")
    assert field(cluster.job(other), "JobState") == "PENDING"
    cluster.exec("ctl", ["scancel", str(first)])
    assert cluster.wait(other) == "COMPLETED"


@pytest.mark.release
def test_two_jobs_of_one_user_share_a_node_and_leave_it_one_by_one(cluster: Cluster) -> None:
    """Each has its own GPU and plan; the first one's end touches nothing of the second."""
    jobs = [start(cluster, "--share-gpu=2", "--gres=gpu:1", tasks=2) for _ in range(2)]
    plans = [cluster.exec("n2", ["cat", f"/run/slurm-share/jobs/{job}/plan"], check=True).stdout for job in jobs]
    uuids = [set(re.findall(r"CUDA_VISIBLE_DEVICES=(\S+)", plan)) for plan in plans]
    assert len(uuids[0]) == len(uuids[1]) == 1
    assert uuids[0] != uuids[1]
    cluster.exec("ctl", ["scancel", str(jobs[0])])
    cluster.wait(jobs[0])
    left = json.loads(cluster.exec("n2", ["slurm-share", "status", "--json"]).stdout)
    assert [job["job_id"] for job in left["jobs"]] == [jobs[1]]
    cluster.cancel_all()


def test_what_is_whose(cluster: Cluster) -> None:
    job = start(cluster, "--share-gpu=2", tasks=4)
    plan = f"/run/slurm-share/jobs/{job}/plan"
    assert cluster.as_user("alice", ["cat", plan], node="n2").returncode == 0
    assert cluster.as_user("bob", ["cat", plan], node="n2").returncode != 0
    assert cluster.as_user("bob", ["ls", "/run/slurm-share/jobs"], node="n2").returncode != 0
    assert cluster.as_user("bob", ["cat", "/run/slurm-share/ledger"], node="n2").returncode != 0

    def jobs(done: object) -> list[int]:
        return [entry["job_id"] for entry in json.loads(done.stdout)["jobs"]]  # type: ignore[attr-defined]

    ask = ["slurm-share", "status", "--json"]
    assert jobs(cluster.exec("n2", ask, check=True)) == [job]
    assert jobs(cluster.as_user("alice", ask, node="n2", check=True)) == [job]
    assert jobs(cluster.as_user("bob", ask, node="n2", check=True)) == []
    cluster.cancel_all()


def test_a_power_cut_leaves_no_old_state_behind(cluster: Cluster) -> None:
    start(cluster, "--share-gpu=2", "--no-requeue", tasks=4)
    cluster.kill("n2")
    cluster.reboot("n2")
    cluster.cancel_all()
    assert json.loads(cluster.exec("n2", ["slurm-share", "status", "--json"]).stdout)["jobs"] == []
    assert len(tasks(run(cluster, TASK, "--share-gpu=4", "-wn2"))) == 8


FORGER = r"""
#include <slurm/spank.h>
#include <stdlib.h>
SPANK_PLUGIN(forger, 1);
int slurm_spank_init_post_opt(spank_t sp, int ac, char **av)
{
	(void) ac; (void) av;
	const char *name = getenv("FORGED_NAME"), *value = getenv("FORGED_VALUE");
	if (name && value && spank_context() == S_CTX_ALLOCATOR)
		spank_job_control_setenv(sp, name, value, 1);
	return 0;
}
"""


@pytest.fixture
def forger(cluster: Cluster) -> str:
    """Return bob's own Slurm configuration, whose plugin puts any SPANK_ variable into a job."""
    home = "/home/bob"
    (cluster.home / "bob/forger.c").write_text(FORGER)
    build = f"gcc -shared -fPIC -o {home}/forger.so {home}/forger.c"
    conf = f"""cp /etc/slurm/slurm.conf {home}/slurm.conf
        echo 'PlugStackConfig={home}/plugstack.conf' >> {home}/slurm.conf
        echo 'optional {home}/forger.so' > {home}/plugstack.conf"""
    cluster.as_user("bob", f"{build} && {conf}", check=True)
    return f"{home}/slurm.conf"


@pytest.mark.release
@pytest.mark.parametrize(
    "value", ["4;touch /tmp/hacked", "4\nSLURM_JOB_ID=1", "9" * 10_240, "$(touch /tmp/hacked)", "-4"]
)
def test_a_forged_value_is_refused_by_the_controller(cluster: Cluster, forger: str, value: str) -> None:
    env = {"SLURM_CONF": forger, "FORGED_NAME": "SHARE_GPU", "FORGED_VALUE": value}
    done = cluster.as_user("bob", ["sbatch", "--wrap=true", "-pplain"], env=env, timeout=120)
    assert done.returncode != 0
    assert names.OPTION_FORM in done.stderr
    assert cluster.jobs() == []


@pytest.mark.release
@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "PATH", "LD_PRELOAD", "SLURM_JOB_UID"])
def test_forged_variables_never_become_slurms_own(cluster: Cluster, forger: str, name: str) -> None:
    env = {"SLURM_CONF": forger, "FORGED_NAME": name, "FORGED_VALUE": "1"}
    done = cluster.as_user("bob", ["sbatch", "--parsable", "-pplain", "--wrap=true"], env=env, check=True, timeout=120)
    assert cluster.wait(int(done.stdout)) == "COMPLETED"


@pytest.mark.parametrize("value", ["4;touch /tmp/hacked", "4\nSLURM_JOB_ID=1", "9" * 10_240, "`touch /tmp/hacked`", ""])
def test_a_hostile_value_that_reaches_the_prolog_is_logged_and_does_nothing(cluster: Cluster, value: str) -> None:
    """The hook as slurmd would start it: exit 0, one line in the log, no file anywhere else."""
    environ = {"SLURM_JOB_ID": "777", "SLURM_JOB_UID": "2002", "SLURM_JOB_GID": "2002", "SLURMD_NODENAME": "n2"}
    environ |= {"CUDA_VISIBLE_DEVICES": "0,1", names.HOOK_VARIABLE: value, names.VERDICT_EXTRA: "slurm-share=on"}
    cluster.exec("n2", ["truncate", "-s0", "/var/log/slurm-share.log"])
    argv = ["env", "-i", *(f"{key}={text}" for key, text in environ.items()), "/opt/slurm-share/bin/slurm-share-prolog"]
    assert cluster.exec("n2", argv).returncode == 0
    log = cluster.exec("n2", ["cat", "/var/log/slurm-share.log"]).stdout
    assert log.count("\n") == 1
    assert "job 777 of uid 2002: not shared" in log
    assert len(log) < 600
    assert cluster.exec("n2", ["ls", "/tmp/hacked", "/run/slurm-share/jobs/777"]).returncode != 0
