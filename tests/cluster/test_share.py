"""`sbatch --share-gpu=N` on real slurmctld, slurmd and slurmstepd: the command and its effect."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator

import pytest
from hooked import Node, configured, forging_conf, rewritten, until

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
    program = "exec simgpu-task --memory 1000M --load 10 --seconds 600 >/dev/null"
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
    ask = ["slurm-share", "status", "--json"]
    said = (cluster.exec("n2", ask, check=True), cluster.as_user("alice", ask, node="n3", check=True))
    status = [json.loads(done.stdout) for done in said]
    cluster.cancel_all()
    assert len(found) == 16
    assert sorted(slot for node, slot, _ in found if node == "n2") == [str(slot) for slot in range(8)]
    assert Counter(gpu for _, _, gpu in found) == Counter(seen) == dict.fromkeys(seen, 4)
    assert len(seen) == 4
    for answer in status:
        assert [(entry["user"], entry["share"], entry["slots"]) for entry in answer["jobs"]] == [("alice", "4", 8)]
        assert [gpu["slots"] for gpu in answer["gpus"]] == [4, 4]
        assert [{p["user"] for p in gpu["processes"]} for gpu in answer["gpus"]] == [{"alice"}, {"alice"}]
        assert answer["simulated"] is True


@pytest.mark.release
def test_the_option_works_as_a_script_line_and_the_command_line_wins(cluster: Cluster) -> None:
    script = f"#!/bin/bash\n#SBATCH --share-gpu=4\n{TASK}"
    assert len(tasks(run(cluster, script, "-w", "n2"))) == 8
    assert len(tasks(run(cluster, script, "-w", "n2", "--share-gpu=1"))) == 2
    off = run(cluster, script, "-w", "n2", "--gres=gpu:1", "--share-gpu=off")
    assert off.startswith("task 0 n2")
    assert names.ENV_SLOT not in off


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
def test_a_plain_job_from_inside_a_shared_one_is_plain(cluster: Cluster) -> None:
    run(cluster, "sbatch -W -o inner.out -p plain --wrap 'env; srun env'", "--share-gpu=4", "-wn2")
    inner = cluster.as_user("alice", ["cat", "inner.out"], check=True).stdout
    assert "SHARE" not in inner
    assert "SLURM_GRES" not in inner


SUBMITTING = """srun -n1 --gres=gpu:1 bash -c '
env >outer.env; srun -n1 --gres=gpu:1 env >nested.env
TF_FORCE_GPU_ALLOW_GROWTH=false sbatch -W -w n3 --share-gpu=4 -o inner.out inner.sh &
unset "${!SLURM_@}" # as people write it before an sbatch; a tmux server may lack them, too
export OMP_NUM_THREADS=17
sbatch -W -w n1 -p plain -o plain.out --wrap "env >plain.env" &
srun -w n1 -p plain -n1 env >srun.env
wait'
"""
INNER = """#!/bin/bash
env >batch.env
srun -w n3 bash -c 'env >task.env.$SLURM_PROCID'
srun -n1 bash -c 'exec sbatch -W -w n1 -p plain -o deep.out --wrap "env >deep.env"'
"""
GIVEN = ("XLA_PYTHON_CLIENT_MEM_FRACTION", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PIPE_DIRECTORY",
         "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_VISIBLE_DEVICES", "SLURM_OVERLAP", "SLURM_SHARE_SLOT")  # fmt: skip


@pytest.mark.release
def test_a_job_from_a_task_inherits_the_users_variables_and_none_of_the_shares(cluster: Cluster) -> None:
    """Three deep, with and without Slurm's variables, by sbatch and by srun; a step in the task has them all."""
    cluster.as_user("alice", "cat >inner.sh", input=INNER, check=True)
    run(cluster, SUBMITTING, "--share-gpu=2,sm=even", "-w", "n2")

    def environment(name: str) -> dict[str, str]:
        text = cluster.as_user("alice", ["cat", f"{name}.env"], check=True).stdout
        return dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))

    outer, nested = environment("outer"), environment("nested")
    assert set(GIVEN) <= set(outer)
    assert {name: nested[name] for name in GIVEN[:2]} == {name: outer[name] for name in GIVEN[:2]}
    for name in ("plain", "srun", "deep"):
        found = environment(name)
        assert not {*GIVEN, names.ENV_GIVEN} & set(found)
        assert found.get("OMP_NUM_THREADS") == (None if name == "deep" else "17")
    text = cluster.as_user("alice", "cat task.env.*", check=True).stdout
    assert text.count("\nXLA_PYTHON_CLIENT_MEM_FRACTION=0.243\n") == 8
    assert text.count("\nTF_FORCE_GPU_ALLOW_GROWTH=false\n") == 8
    assert text.count("\nOMP_NUM_THREADS=1\n") == 8
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in text


@pytest.mark.release
def test_variables_of_another_job_that_came_by_another_way_are_removed_on_the_node(cluster: Cluster) -> None:
    """Submitted by a client without the plugin; --export does the same. The GPU that Slurm gives stays."""
    record = f"{names.ENV_GIVEN}=999 OMP_NUM_THREADS=3 SLURM_SHARE_SLOT CUDA_VISIBLE_DEVICES=0"
    more = f"OMP_NUM_THREADS=3,SLURM_SHARE_SLOT=7,OMP_PLACES=cores,{record}"
    job = cluster.sbatch("alice", "env", "--gres=gpu:1", "-w", "n2", f"--export=ALL,{more}")
    cluster.wait(job)
    found = dict(re.findall(r"^(\w+)=(.*)$", cluster.output(job), re.MULTILINE))
    assert (found["OMP_PLACES"], found["CUDA_VISIBLE_DEVICES"]) == ("cores", "0")
    assert not {"OMP_NUM_THREADS", "SLURM_SHARE_SLOT", names.ENV_GIVEN} & set(found)


BAD = ["0", "x", "4;rm", "99999", "4,mem=lots", "", "-1", "4,mps=off,sm=50", "4 ", "4,sm=500", "off,4"]


@pytest.mark.release
def test_a_bad_value_is_refused_at_submission_with_the_valid_form(cluster: Cluster) -> None:
    commands = (["sbatch", "--wrap=hostname"], ["salloc", "true"], ["srun", "-n1", "hostname"])
    for value, (program, *words) in itertools.product(BAD, commands):
        done = cluster.as_user("alice", [program, f"--share-gpu={value}", *words])
        assert done.returncode != 0, (program, value)
        assert names.OPTION_FORM in done.stderr, (program, value)
        assert done.stdout == ""
    assert cluster.jobs() == []


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
def test_a_share_of_no_gpu_is_refused_however_that_is_said(cluster: Cluster) -> None:
    """Slurm does not tell the controller of --gres=none: without the refusal the job would have a whole node."""
    share = "--share-gpu=2"
    script = "printf '#!/bin/bash\\n#SBATCH --gres=none\\n' >none.sh; sbatch --share-gpu=2 none.sh"
    commands: list[str | list[str]] = [
        ["sbatch", share, "--gres=none", "--wrap=true"],
        ["sbatch", share, "--gres=", "--wrap=true"],
        ["sbatch", share, "--gpus-per-node=", "--wrap=true"],
        ["sbatch", "-W", "--gres", "none", share, "--wrap", "true"],
        ["sbatch", share, "--gpus-per-task=0", "--wrap=true"],
        ["sbatch", share, "--gpus=none", "--wrap=true"],
        ["salloc", share, "--gres=none"],
        ["srun", share, "--gres=none", "-n2", "true"],
        f"SBATCH_GRES=none sbatch {share} --wrap=true",
        script,
    ]
    for command in commands:
        done = cluster.as_user("alice", command)
        assert done.returncode != 0, command
        assert "--share-gpu=2 with no GPU shares nothing" in done.stderr, command
    assert cluster.jobs() == []
    found = cluster.as_user("alice", f"SBATCH_GRES=none sbatch --hold {share} --gres=gpu:1 --wrap=true")
    assert (found.returncode, found.stderr) == (0, "")
    cluster.cancel_all()
    empty = f"SBATCH_GPUS= sbatch -W --parsable -wn2 {share} --wrap='srun sh -c \"echo slot \\$SLURM_SHARE_SLOT\"'"
    job = int(cluster.as_user("alice", empty, check=True).stdout)
    assert sorted(re.findall(r"^slot (\d)$", cluster.output(job), re.MULTILINE)) == list("0123")


@pytest.mark.release
def test_a_number_of_tasks_that_slurm_computed_is_said(cluster: Cluster) -> None:
    options = ["--hold", "--share-gpu=2", "--gres=gpu:1", "-wn2", "--wrap=true"]
    said = cluster.as_user("alice", ["sbatch", "-B", "1:1:1", *options], check=True).stderr
    assert "starts one task in this job, fewer than it has slots: unless you gave -n1" in said
    assert "from -B; write the number that you want, for example -n2" in said
    assert cluster.as_user("alice", ["sbatch", "-B", "1:1:1", "-n2", *options], check=True).stderr == ""
    cluster.cancel_all()


@pytest.mark.release
def test_listed_partitions_hold_a_node_for_one_user(cluster: Cluster) -> None:
    first = cluster.sbatch("alice", "sleep 600", "-p", "gpu", "-w", "n2")
    cluster.wait_running(first)
    assert cluster.wait(cluster.sbatch("alice", "true", "-p", "gpu", "-w", "n2")) == "COMPLETED"
    other = cluster.sbatch("bob", "true", "-p", "plain", "-w", "n2")
    assert field(cluster.job(other), "JobState") == "PENDING"
    cluster.exec("ctl", ["scancel", str(first)])
    assert cluster.wait(other) == "COMPLETED"


@pytest.fixture
def forger(cluster: Cluster) -> str:
    return forging_conf(cluster)


HOSTILE = ["4;touch /tmp/hacked", "4\nSLURM_JOB_ID=1", "9" * 10_240, "$(touch /tmp/hacked)", "-4"]


@pytest.mark.release
def test_a_forged_value_is_refused_by_the_controller(cluster: Cluster, forger: str) -> None:
    for value in HOSTILE:
        env = {"SLURM_CONF": forger, "FORGED_NAME": "SHARE_GPU", "FORGED_VALUE": value}
        done = cluster.as_user("bob", ["sbatch", "--wrap=true", "-pplain"], env=env)
        assert done.returncode != 0, value[:20]
        assert names.OPTION_FORM in done.stderr, value[:20]
    assert cluster.jobs() == []


@pytest.mark.release
def test_forged_variables_never_become_slurms_own(cluster: Cluster, forger: str) -> None:
    jobs = []
    for name in ("SLURM_JOB_ID", "PATH", "LD_PRELOAD", "SLURM_JOB_UID"):
        env = {"SLURM_CONF": forger, "FORGED_NAME": name, "FORGED_VALUE": "1"}
        argv = ["sbatch", "--parsable", "-pplain", "--wrap=true"]
        jobs.append(int(cluster.as_user("bob", argv, env=env, check=True).stdout))
    assert [cluster.wait(job) for job in jobs] == ["COMPLETED"] * 4


def test_gpus_without_a_size_have_no_cap_and_the_output_the_log_and_doctor_say_so(cluster: Cluster) -> None:
    """GPU 0 of n2 reports 0 bytes, GPU 1 has unified memory: no cap of 1 MiB, and no silence."""
    node = Node(cluster, "n2")
    script = "srun bash -c 'echo cap ${CUDA_MPS_PINNED_DEVICE_MEM_LIMIT-none}'; slurm-share status; llload -g"
    with node.gpu_file(0, "memory_info=zero"), node.gpu_file(1, "memory_info=none"):
        output = run(cluster, script, "--share-gpu=2", "-wn2")
        capped = run(cluster, script, "--share-gpu=2,mem=3000M", "-wn2")
        doctor = node.run("slurm-share", "doctor", "--quiet").stdout
    assert re.findall(r"^cap (\S+)$", output, re.MULTILINE) == ["none"] * 4
    assert re.findall(r"^cap (\S+)$", capped, re.MULTILINE) == ["0=3000M"] * 4
    of_node = int(re.search(r"MemTotal: +(\d+)", node.run("cat", "/proc/meminfo").stdout)[1]) // 1024  # type: ignore[index]
    unknown = "the driver does not say how much memory GPU 0 has: its tasks have no memory cap"
    unified = f"GPU 1 has no memory of its own and uses the node's ({of_node} MiB, MemTotal)"
    for said in (unknown, unified):
        assert said in output
        assert said in node.log()
        assert said not in capped
    assert "? / ?" in output
    assert f"? / {of_node} of the node" in output
    assert "GPU memory on n2: the node's (MemTotal), which its GPUs use" in output
    assert "GPU memory on n2: the driver does not report it" in output
    assert "no size of GPU 0" in doctor
    assert "GPU 1 uses the node's memory (MemTotal)" in doctor


def test_a_number_for_the_gpu_is_the_task_s_own_gpu_under_mps_and_stays_a_uuid_without(cluster: Cluster) -> None:
    """gpu_ids = "index": each GPU of n2 gets its two tasks, by the simulated CUDA and by the driver's lists."""
    script = """srun bash -c 'echo ids $CUDA_VISIBLE_DEVICES $SLURM_SHARE_GPU_UUID
        exec simgpu-task --memory 100M --seconds 600 >/dev/null' &
        until [ "$(slurm-share status --json | grep -c '"pid": [0-9]')" = 4 ]; do sleep 0.2; done
        slurm-share status --json | grep -E '"uuid"|"pid"'; scancel $SLURM_JOB_ID.0; wait"""
    with configured(cluster, 'gpu_ids = "index"'):
        output = run(cluster, script, "--share-gpu=2", "-wn2")
        without = run(cluster, TASK, "--share-gpu=2,mps=off", "-wn2")
    node = Node(cluster, "n2")
    gpus = [node.uuid(0), node.uuid(1)]
    assert sorted(re.findall(r"^ids (\S+) (\S+)$", output, re.MULTILINE)) == [("0", uuid) for uuid in sorted(gpus * 2)]
    listed = re.sub(r"[^up]", "", "".join(re.findall(r'"(uuid|pid)"', output)).replace("uuid", "u").replace("pid", "p"))
    assert listed == "uppupp"
    assert sorted(gpu for _, _, gpu in tasks(without)) == sorted(gpus * 2)
