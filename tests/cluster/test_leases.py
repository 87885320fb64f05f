"""Slots on real slurmstepds: who gets which, what happens when a process dies, and what the job's output reports."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest
from clusters import cluster_of
from hooked import until

from localcluster import Cluster
from slurm_share.core import names

pytestmark = pytest.mark.cluster

TASK = "echo task $SLURM_PROCID $SLURM_SHARE_SLOT ${CUDA_VISIBLE_DEVICES:-none} $SLURM_STEP_GPUS"
STEP = f"srun -Q bash -c '{TASK}'"
UNTIL_GO, GO = "until [ -e go.$SLURM_JOB_ID ]; do sleep .05; done", "touch go.$SLURM_JOB_ID"
UNTIL_HELD = "until [ -e $HOME/held.$SLURM_JOB_ID ]; do sleep .02; done"
OTHERS = "held by other steps of the job"


@pytest.fixture(autouse=True)
def nodes_stay_well(cluster: Cluster) -> Iterator[None]:
    """Check after each test that no node is drained."""
    yield
    cluster.cancel_all()
    until(lambda: set(cluster.status().nodes.values()) == {"idle"}, "idle nodes")


def run(cluster: Cluster, script: str, *options: str) -> str:
    """Run a job of alice's on n2 and return its output; four tasks on each of two GPUs unless `options` differ."""
    job = cluster.sbatch("alice", script, "-wn2", *(options or ("--share-gpu=4",)))
    cluster.wait(job)
    return cluster.output(job)


def start(cluster: Cluster, script: str, *, tasks: int) -> int:
    """Start a job of alice's on n2 and wait until so many of its tasks have printed `task`."""
    job = cluster.sbatch("alice", script, "-wn2", "--share-gpu=4")
    out = ["cat", f"/home/alice/slurm-{job}.out"]
    until(lambda: len(slots(cluster.exec("login", out).stdout)) >= tasks, f"{tasks} tasks of job {job}")
    return job


def step(cluster: Cluster, job: int, tasks: int, command: str = TASK) -> tuple[list[int], str]:
    """Run a further step of a running job from the login host, without a wait; return its slots and all output."""
    argv = ["srun", "-Q", "-I", f"--jobid={job}", "--overlap", "--overcommit", "--gres=gpu:2", f"-n{tasks}"]
    done = cluster.as_user("alice", [*argv, "bash", "-c", command])
    return slots(done.stdout), done.stdout + done.stderr


def tasks(output: str) -> list[tuple[int, int, str]]:
    """Return (rank, slot, GPU) of each task that ran `TASK`, by rank."""
    found = re.findall(r"^task (\d+) (\d+) (\S+)", output, re.MULTILINE)
    return sorted((int(rank), int(slot), gpu) for rank, slot, gpu in found)


def slots(output: str) -> list[int]:
    return sorted(slot for _, slot, _ in tasks(output))


def slot_file(cluster: Cluster, job: int, slot: int) -> str:
    path = f"{names.STATE_ROOT}/{names.JOBS_FOLDER}/{job}/{names.SLOTS_FOLDER}/{slot}"
    return cluster.exec("n2", ["cat", path], check=True).stdout


@pytest.mark.release
def test_a_step_of_all_slots_counts_them_through(cluster: Cluster) -> None:
    output = run(cluster, f"{STEP}; {STEP}; {STEP}")
    for rank in range(8):
        assert [(r, slot) for r, slot, _ in tasks(output)].count((rank, rank)) == 3
    assert set(Counter(gpu for _, _, gpu in tasks(output)).values()) == {12}
    assert "slots used" not in output


@pytest.mark.release
def test_eight_steps_at_once_get_eight_slots_over_all_gpus(cluster: Cluster) -> None:
    """A ninth step that will not wait is refused; a task's program has no file of ours open."""
    one = f"srun -Q -n1 bash -c '{TASK}; ls -l /proc/self/fd >&2; {UNTIL_GO}' &"
    wait = "until [ $(grep -c ^task slurm-$SLURM_JOB_ID.out) = 8 ]; do sleep .05; done"
    script = f"{one * 8}\n{wait}\nsrun -Q -I -n1 true; echo ninth=$?; {GO}; wait"
    output = run(cluster, script)
    assert slots(output) == list(range(8))
    assert set(Counter(gpu for _, _, gpu in tasks(output)).values()) == {4}
    assert "it wants 1 of the 8 slots that job" in output
    assert "0 are free, and --immediate does not wait" in output
    assert f"ninth={names.EXIT_REFUSED}" in output
    assert "/slots/" not in output


def test_two_steps_of_four_are_spread_evenly(cluster: Cluster) -> None:
    half = f"srun -Q -n4 bash -c '{TASK} $SLURM_STEP_ID; {UNTIL_GO}' &"
    wait = "until [ $(grep -c ^task slurm-$SLURM_JOB_ID.out) = 8 ]; do sleep .05; done"
    output = run(cluster, f"{half * 2} {wait}; {GO}; wait")
    found = re.findall(r"^task \d+ (\d+) (\S+) \S+ (\d+)$", output, re.MULTILINE)
    assert sorted(int(slot) for slot, _, _ in found) == list(range(8))
    assert set(Counter((gpu, step_id) for _, gpu, step_id in found).values()) == {2}


@pytest.mark.release
def test_the_ninth_task_ends_alone(cluster: Cluster) -> None:
    output = run(cluster, f"{STEP.replace('srun', 'srun -n9')}; echo code=$?")
    assert slots(output) == list(range(8))
    assert "task 9 of 9 on n2 has no slot: --share-gpu=4 on 2 GPUs makes 8; start at most 8" in output
    assert f"code={names.EXIT_REFUSED}" in output
    job = start(cluster, f"srun -Q -n6 bash -c '{TASK}; sleep 600'", tasks=6)
    got, said = step(cluster, job, 3)
    assert got == [6, 7]
    assert (
        f"task 3 of 3 on n2 has no slot: --share-gpu=4 on 2 GPUs makes 8 slots, 6 {OTHERS}; wait for them to end"
        in said
    )
    assert "start at most 2 now" in said


@pytest.mark.release
def test_a_step_that_wants_no_slot_takes_none(cluster: Cluster) -> None:
    """`--gres=none`, `--share-gpu=off` and the mark of a monitor leave all eight to the next step."""
    quiet = f"bash -c 'echo free ${{CUDA_VISIBLE_DEVICES:-none}}; {UNTIL_GO}' &"
    wait = "until [ $(grep -c ^free slurm-$SLURM_JOB_ID.out) = 3 ]; do sleep .05; done"
    script = f"""srun -Q -n1 --gres=none {quiet} srun -Q -n1 --share-gpu=off {quiet}
        {names.ENV_SLOT}={names.SLOT_NONE} srun -Q -n1 {quiet} {wait}; {STEP}; {GO}; wait"""
    output = run(cluster, script)
    assert slots(output) == list(range(8))
    assert sorted(re.findall(r"^free (\S+)", output, re.MULTILINE)) == ["0,1", "0,1", "none"]


BINDINGS = [
    ("--gpu-bind=single:2", 4, [2, 2]), ("--gpu-bind=map_gpu:1", 3, [0, 3]), ("--gpu-bind=map_gpu:1,0", 2, [1, 1]),
    ("--gpus-per-task=1", 2, [1, 1]), ("--tres-bind=gres/gpu:map:1", 2, [0, 2]), ("--gres=gpu:1", 3, [3, 0]),
    ("--gpu-bind=none", 2, [1, 1]), ("--gpu-bind=map_gpu:1", 5, [0, 4]), ("--gres=gpu:1", 5, [4, 0]),
]  # fmt: skip


def bound(cluster: Cluster) -> None:
    """Run every row of BINDINGS in one job: each task's slot must be on the GPU that Slurm gave it."""
    echo = (
        "echo on $CUDA_VISIBLE_DEVICES $SLURM_SHARE_SLOT; for i in 0 1; do echo x 2>&1 > /dev/nvidia$i; done; sleep .3"
    )
    lines = [
        f"echo == {row}\n{'env -u SLURM_GRES ' * ('per-task' in option)}srun -Q -n{count} {option} bash -c '{echo}'"
        for row, (option, count, _) in enumerate(BINDINGS)
    ]
    uuids = re.findall(r" UUID: (\S+)\)", cluster.exec("n2", ["nvidia-smi", "-L"]).stdout)
    output = run(cluster, f"{STEP}\n" + "\n".join(lines))
    if not uuids:  # no nvidia-smi beside a simulated driver: the plain step has told
        uuids = [next(gpu for _, slot, gpu in tasks(output) if slot == first) for first in (0, 1)]
    parts = re.split(r"^== \d+\n", output, flags=re.MULTILINE)[1:]
    for (option, count, expected), part in zip(BINDINGS, parts, strict=True):
        found = re.findall(r"^on (\S+) (\d+)$", part, re.MULTILINE)
        assert [sum(gpu == uuid for gpu, _ in found) for uuid in uuids] == expected, option
        assert all(int(slot) % 2 == uuids.index(gpu) for gpu, slot in found), option
        assert len({slot for _, slot in found}) == sum(expected), option
        refused = part.count("has no slot on the 1 GPU that Slurm gave it: --share-gpu=4 makes 4 there")
        assert refused == count - sum(expected), option


@pytest.mark.release
def test_a_slot_follows_slurms_binding(cluster: Cluster) -> None:
    """Without confinement every task can open every GPU: Slurm's variable says which one it was given."""
    bound(cluster)


@pytest.mark.release
@pytest.mark.weekly_on_v2
def test_a_slot_follows_what_the_task_can_open(cluster: Cluster) -> None:
    """With ConstrainDevices the variable is renumbered: the task's own device cgroup says it."""
    with cluster_of("cgroup", cluster.slurm_release, cgroup=True) as confined:
        bound(confined)


@pytest.mark.release
def test_a_users_own_cpu_binding_stays(cluster: Cluster) -> None:
    show = "bash -c 'echo cores $(grep -oP \"Cpus_allowed_list:\\\\s*\\\\K.*\" /proc/self/status) = $SLURM_SHARE_CORES'"
    output = run(
        cluster, f"srun -Q -n2 --cpu-bind=none {show}; srun -Q -n2 --cpu-bind=quiet {show}; srun -Q -n2 {show}"
    )
    found = re.findall(r"^cores (\S+) = (\S+)$", output, re.MULTILINE)
    assert all(seen == said for seen, said in found)
    assert len({seen for seen, _ in found[:2]}) == 1
    assert found[0][0] not in {seen for seen, _ in found[2:]}


@pytest.mark.weekly_on_v2
def test_a_killed_tasks_child_does_not_keep_its_slot(cluster: Cluster) -> None:
    # short: what it holds open keeps Slurm's step, without cgroups, from ending
    task = f"{TASK}; if [ $SLURM_SHARE_SLOT = 3 ]; then setsid sleep 6 & fi; exec sleep 600"
    job = start(cluster, f"srun -Q -n8 bash -c '{task}'", tasks=8)
    pid = re.search(r"task (\d+) \d+$", slot_file(cluster, job, 3))
    assert pid
    cluster.exec("n2", ["kill", "-9", pid[1]], check=True)
    until(lambda: slot_file(cluster, job, 3) == f"{names.SLOT_USED}\n", "slot 3 given back")
    got, said = step(cluster, job, 2)
    assert got == [3]
    assert f"7 {OTHERS}" in said


@pytest.mark.release
@pytest.mark.weekly_on_v2
def test_the_slot_of_a_killed_slurmstepd_is_its_tasks_while_it_lives(cluster: Cluster) -> None:
    job = start(cluster, f"srun -Q -n1 bash -c '{TASK}; exec sleep 600'; sleep 600", tasks=1)
    holding = re.fullmatch(r"step 0 holder (\d+) \d+ task (\d+) \d+\n", slot_file(cluster, job, 0))
    assert holding
    slurmstepd, task = holding.groups()
    cluster.exec("n2", ["kill", "-9", slurmstepd], check=True)
    until(lambda: cluster.exec("n2", ["kill", "-0", slurmstepd]).returncode != 0, "the end of slurmstepd")
    got, said = step(cluster, job, 8)
    assert cluster.exec("n2", ["kill", "-0", task]).returncode == 0
    assert got == list(range(1, 8))
    assert f"1 {OTHERS}; wait for it to end" in said
    cluster.exec("n2", ["kill", "-9", task])
    until(lambda: cluster.exec("n2", ["kill", "-0", task]).returncode != 0, "the end of the task")
    assert step(cluster, job, 8)[0] == list(range(8))
    cluster.reboot("n2")  # Slurm would look for the killed slurmstepd for a minute


@pytest.mark.weekly_on_v2
def test_a_task_whose_mps_daemon_is_gone_is_not_started(cluster: Cluster) -> None:
    """CUDA would run it on the whole GPU and say nothing. A step that has room on the other GPU goes there."""
    daemon = "$(cat $CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid)"
    script = f"""srun -Q -n1 bash -c 'kill -9 {daemon}; sleep .2'
        srun -Q -n2 bash -c '{TASK}'; echo ---
        srun -Q -n5 bash -c '{TASK}'; echo code=$?"""
    output = run(cluster, script)
    if "without MPS" in output:
        pytest.skip("NOT TESTED: this cluster has no MPS, not even a simulated one")
    small, _, large = output.partition("---")
    assert slots(small) == [1, 3]
    assert slots(large) == [1, 3, 5, 7]
    assert re.search(
        r"task 5 of 5 on n2 is not started: the MPS daemon of GPU-\S+ is gone \(no process holds /", output
    )
    assert "--share-gpu=4,sharing=time-slicing" in output
    assert f"code={names.EXIT_REFUSED}" in output


def test_what_a_user_does_to_his_slot_files_costs_him_slots_and_nothing_else(cluster: Cluster) -> None:
    folder = f"{names.STATE_ROOT}/{names.JOBS_FOLDER}/$SLURM_JOB_ID/{names.SLOTS_FOLDER}"
    script = f"""cd /; S={folder}
        head -c 100000 /dev/urandom > $S/0; echo 'step 0 holder 1 1 task 1 99999999999999999999' > $S/1
        (flock -x 9; touch $HOME/held.$SLURM_JOB_ID; exec sleep 600) 9<>$S/2 & holder=$!; {UNTIL_HELD}
        srun -Q -n7 bash -c '{TASK}'; srun -Q -I true; kill $holder
        ln -sf /etc/passwd $S/4 2>/dev/null && echo swapped; rm -f $S/4 2>/dev/null; [ -e $S/4 ] && echo there
        ls $S 2>/dev/null && echo listed"""
    output = run(cluster, script)
    assert slots(output) == [0, 1, 3, 4, 5, 6, 7]
    assert "it wants 8 of the 8 slots" in output
    assert "7 are free" in output
    assert "there" in output
    assert "swapped" not in output
    assert "listed" not in output


def test_a_held_lock_is_not_waited_for_for_ever(cluster: Cluster) -> None:
    lock = f"{names.STATE_ROOT}/{names.JOBS_FOLDER}/$SLURM_JOB_ID/{names.SLOTS_FOLDER}/{names.SLOTS_LOCK}"
    script = f"""(flock -x 9; touch $HOME/held.$SLURM_JOB_ID; exec sleep 600) 9<>{lock} & {UNTIL_HELD}
        SECONDS=0; {STEP}; echo took=$SECONDS; kill $!"""
    output = run(cluster, script)
    assert slots(output) == []
    assert "cannot lease its slots on node n2" in output
    assert "is held by another process of the job" in output
    took = re.search(r"took=(\d+)", output)
    assert took
    assert 4 <= int(took[1]) < 300


def test_a_plan_without_slot_files_is_refused(cluster: Cluster) -> None:
    job = start(cluster, f"srun -Q -n1 bash -c '{TASK}'; sleep 600", tasks=1)
    cluster.exec("n2", ["rm", "-r", f"{names.STATE_ROOT}/{names.JOBS_FOLDER}/{job}/{names.SLOTS_FOLDER}"], check=True)
    got, said = step(cluster, job, 2)
    assert got == []
    assert "cannot lease its slots on node n2" in said
    assert "No such file or directory" in said


NONE = "slurm-share: no task took a share; start the program with srun or llsub\n"


@pytest.mark.release
@pytest.mark.parametrize(
    ("script", "last"),
    [
        ("echo alone", NONE),
        pytest.param("srun -Q -n1 true", "slurm-share: 1 of 8 slots used\n", marks=pytest.mark.weekly),
        ("srun -Q -n1 true; srun -Q -n3 true", "slurm-share: 3 of 8 slots used\n"),
        pytest.param("srun -Q -n1 --share-gpu=off echo none", NONE, marks=pytest.mark.weekly),
        pytest.param("exit 3", NONE, marks=pytest.mark.weekly),
        ("kill -9 $$", NONE),
        ("exec 2>&- 1>&-", NONE),
        pytest.param(
            "exec >/dev/null 2>&1; srun -n1 true", "slurm-share: 1 of 8 slots used\n", marks=pytest.mark.weekly
        ),
        ("srun -Q echo all", "all\n"),
    ],
)
def test_the_output_ends_with_what_the_job_made_of_its_slots(cluster: Cluster, script: str, last: str) -> None:
    """Once, behind all that the job wrote itself, and wherever its shell had sent its own output."""
    output = run(cluster, script)
    assert output.endswith(last)
    assert output.count("slots used") + output.count("took a share") == (0 if last == "all\n" else 1)


@pytest.mark.release
def test_a_job_of_several_nodes_knows_its_first_one(cluster: Cluster) -> None:
    """The others' slots are not known where the shell ran, so the line says which node it means."""
    job = cluster.sbatch("alice", "srun -Q -N2 -n2 true", "-wn2,n3", "--share-gpu=4")
    cluster.wait(job)
    assert cluster.output(job).endswith("slurm-share: 1 of 8 slots used on n2\n")


@pytest.mark.release
def test_an_interactive_shell_ends_with_the_line_too(cluster: Cluster) -> None:
    """On a terminal or none; a shell with nothing to be told, or an output nobody reads, holds nothing up."""
    for typed in ("srun -Q true </dev/null\nexit\n", f"srun -Q --share-gpu={names.OPTION_OFF} -n1 true\n"):
        assert cluster.as_user("alice", "salloc --share-gpu=4 -wn2", input=typed).returncode == 0
    typed = "srun -Q -n2 true </dev/null\nexit\n"
    done = cluster.as_user("alice", "salloc --share-gpu=4 -wn2", input=typed)
    assert "slurm-share: 2 of 8 slots used" in done.stderr
    terminal = "script -qec 'salloc --share-gpu=4 -wn2' /dev/null"
    done = cluster.as_user("alice", terminal, input="srun -Q -n2 true </dev/null; exit\n")
    assert "slurm-share: 2 of 8 slots used" in done.stdout
    fifo = "mkfifo quiet; sleep 4 <quiet & exec sbatch -W -wn2 --share-gpu=4 -o quiet --wrap 'yes | head -c 60000'"
    assert cluster.as_user("alice", f"rm -f quiet; {fifo}").returncode == 0


@pytest.mark.release
@pytest.mark.parametrize(
    ("options", "works"),
    [
        ("", "srun --share-gpu=4 --gres=gpu:1 -n4 PROGRAM"),
        ("-n8", "srun --share-gpu=4 --gres=gpu:2 -n8 PROGRAM"),
        pytest.param("--gres=gpu:2", "srun --share-gpu=4 --gres=gpu:2 -n8 PROGRAM", marks=pytest.mark.weekly),
        pytest.param("--gpus=2", "srun --share-gpu=4 --gpus=2 -n8 PROGRAM", marks=pytest.mark.weekly),
        ("-N2 --gres=gpu:1", "srun --share-gpu=4 -N2 --gres=gpu:1 --ntasks-per-node=4 PROGRAM"),
    ],
)
def test_srun_without_an_allocation_is_told_the_line_that_works(cluster: Cluster, options: str, works: str) -> None:
    done = cluster.as_user("alice", f"srun --share-gpu=4 {options} true")
    assert done.returncode != 0
    assert works in done.stderr
    line = works.replace("PROGRAM", f"bash -c '{TASK}'")
    done = cluster.as_user("alice", line, check=True)
    assert len(tasks(done.stdout)) == (4 if "gpu:1 -n4" in works else 8)
    assert cluster.settle() == []
