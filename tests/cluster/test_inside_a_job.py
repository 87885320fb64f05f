"""srun inside an allocation that shares: from a shell outside any step, and on unlike nodes."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from subprocess import CompletedProcess

import pytest
from clusters import by_release, cluster_of
from hooked import configured

from localcluster import Cluster
from slurm_share.core import names

pytestmark = pytest.mark.cluster

TASK = "bash -c 'echo task $SLURM_PROCID $SLURMD_NODENAME ${SLURM_SHARE_SLOT-none} ${CUDA_VISIBLE_DEVICES-none}'"
OPTION = "_SLURM_SPANK_OPTION_share_gpu_share_gpu"
UNLIKE = "one srun cannot give each node its own number of tasks"
GIVEN = ("SLURM_GRES", "SLURM_NTASKS_PER_NODE", "SLURM_OVERCOMMIT", "SLURM_OVERLAP")
"""Variables that a plain srun needs and that the batch or interactive step sets."""


@dataclass(frozen=True)
class Task:
    """A task: one line of the output of `TASK`."""

    node: str
    slot: str
    gpu: str


def tasks(output: str) -> list[Task]:
    return [Task(*words) for words in re.findall(r"^task \d+ (\S+) (\S+) (\S+)$", output, re.MULTILINE)]


def nodes(output: str) -> dict[str, int]:
    """Return how many tasks with a slot ran on each node."""
    return dict(Counter(task.node for task in tasks(output) if task.slot != "none"))


def salloc(cluster: Cluster, command: str, *options: str) -> CompletedProcess[str]:
    """Run a command in salloc, on the login host."""
    return cluster.as_user("alice", ["salloc", *options, "bash", "-c", command])


@contextlib.contextmanager
def allocation(cluster: Cluster, *options: str) -> Iterator[int]:
    done = cluster.as_user("alice", ["salloc", "--no-shell", *options], check=True)
    job = int(re.findall(r"job allocation (\d+)", done.stderr)[-1])
    try:
        yield job
    finally:
        cluster.exec("ctl", ["scancel", str(job)])
        cluster.wait(job)


def srun(cluster: Cluster, job: int, *words: str, count: int = 1, **more: str) -> CompletedProcess[str]:
    """Run srun as the shell of that job's salloc starts it."""
    environ = {"SLURM_JOB_ID": str(job), "SLURM_JOB_NUM_NODES": str(count), "SLURM_NNODES": str(count), OPTION: "2"}
    environ |= {f"SLURM_SPANK_{OPTION}": "2", "SLURM_SPANK_SHARE_GPU": "2", **more}
    return cluster.as_user("alice", ["srun", *words], env=environ)


@pytest.fixture(scope="module", params=by_release("shell-"))
def outside(request: pytest.FixtureRequest, can_make_clusters: None) -> Iterator[Cluster]:
    """Yield a cluster without use_interactive_step: the shell of salloc is on the login host."""
    with cluster_of("shell", request.param, slurm_conf_extra="LaunchParameters=mpir_use_nodeaddr\n") as made:
        yield made


@pytest.mark.release
def test_in_sallocs_shell_on_the_login_host_a_plain_srun_shares(outside: Cluster) -> None:
    """Tasks, slots and GPUs as in a batch script, the node's notes are said, and the shell itself is given nothing."""
    script = f"hostname\nsrun {TASK} </dev/null\nenv\nsrun env </dev/null | sed 's/^/in task: /'\nexit\n"
    done = outside.as_user("alice", "salloc --share-gpu=2 -w n2", input=script, check=True)
    assert done.stdout.startswith("login\n")
    assert sorted(task.slot for task in tasks(done.stdout)) == ["0", "1", "2", "3"]
    assert sorted(Counter(task.gpu for task in tasks(done.stdout)).values()) == [2, 2]
    assert "slurm-share: the GPUs of this node are simulated" in done.stderr
    assert not {*GIVEN, names.ENV_JOB} & set(re.findall(r"^(\w+)=", done.stdout, re.MULTILINE))
    in_task = dict(re.findall(r"^in task: (\w+)=(.*)$", done.stdout, re.MULTILINE))
    assert in_task[names.ENV_JOB] == in_task["SLURM_JOB_ID"]
    assert "SLURM_SHARE_SHELL" not in in_task


@pytest.mark.release
def test_a_job_submitted_from_that_shell_is_a_plain_job(outside: Cluster) -> None:
    script = "sbatch -W -p plain -w n3 -o one.out --wrap env; srun -n1 sbatch -W -p plain -w n3 -o two.out --wrap env"
    done = salloc(outside, script, "--share-gpu=2", "-w", "n2")
    assert done.returncode == 0, done.stderr
    for name in ("one.out", "two.out"):
        output = (outside.home / "alice" / name).read_text()
        assert "SHARE" not in output
        assert not set(GIVEN) & set(re.findall(r"^(\w+)=", output, re.MULTILINE))


@pytest.mark.release
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-w", "n2"], {"n2": 4}),
        (["-N2", "-w", "n2,n3"], {"n2": 4, "n3": 4}),
        pytest.param(["--gres=gpu:simulated:2", "-w", "n1"], {"n1": 4}, marks=pytest.mark.weekly),
        pytest.param(["--gpus-per-node=1", "-N2", "-w", "n2,n3"], {"n2": 2, "n3": 2}, marks=pytest.mark.weekly),
        pytest.param(["--gpus=2", "-w", "n2"], {"n2": 4}, marks=pytest.mark.weekly),
        pytest.param(["-n3", "-w", "n2"], {"n2": 3}, marks=pytest.mark.weekly),
        pytest.param(["--ntasks-per-node=3", "-w", "n2"], {"n2": 3}, marks=pytest.mark.weekly),
        (["-c2", "-w", "n2"], {"n2": 4}),
        (["--gres=gpu:1", "-n1", "-w", "n2"], {"n2": 1}),  # a part of a GPU
    ],
)
def test_the_command_of_salloc_shares_as_a_batch_script_does(
    cluster: Cluster, options: list[str], expected: dict[str, int]
) -> None:
    """The forms of the request; the command runs on the login host wherever the shell would."""
    done = salloc(cluster, f"srun {TASK}", "--share-gpu=2", *options)
    assert done.returncode == 0, done.stderr
    assert nodes(done.stdout) == expected
    slots = [(task.node, task.slot) for task in tasks(done.stdout)]
    assert len(set(slots)) == len(slots)


@pytest.mark.release
def test_what_is_said_to_srun_wins(cluster: Cluster) -> None:
    both = "touch both.$SLURM_STEP_ID; until [ $(ls both.* | wc -l) = 2 ]; do sleep .1; done"
    said = [
        f"srun -n1 {TASK}",
        f"SLURM_NTASKS_PER_NODE=3 srun {TASK}",
        f"srun --gres=none -n1 {TASK}",
        f"srun --share-gpu=off -n1 {TASK}",
        f"SLURM_SHARE_SLOT=none srun -n1 {TASK}",
        f"rm -f both.*; srun -n1 {TASK[:-1]}; {both}' & srun -n1 {TASK[:-1]}; {both}'; wait",
    ]
    done = salloc(cluster, "; echo; ".join(said), "--share-gpu=2", "-w", "n2")
    one, three, without, off, none, two = (tasks(part) for part in done.stdout.split("\n\n"))
    assert [task.slot for task in one] == ["0"]
    assert sorted(task.slot for task in three) == ["0", "1", "2"]
    assert [(task.slot, task.gpu) for task in without] == [("none", "none")]
    assert [(task.slot, task.gpu) for task in off + none] == [("none", "0,1")] * 2
    assert sorted(task.slot for task in two) == ["0", "1"]


@pytest.mark.release
@pytest.mark.parametrize("mode", ["observe", "off"])
def test_where_nothing_is_shared_srun_runs_as_if_nothing_was_there(cluster: Cluster, mode: str) -> None:
    """One task with what Slurm gives it, in the environment that a job without --share-gpu finds; and a sentence."""

    def environment(*options: str) -> tuple[set[str], str]:
        done = salloc(cluster, "srun env", *options, "--gres=gpu:1", "-w", "n2")
        assert done.returncode == 0, done.stderr
        odd = r"SLUID|JOB_?ID|_TIME|_PID|PORT|_HOST|ADDR|KEY|_SPANK_|^_"
        lines = done.stdout.splitlines()
        return {line for line in lines if not re.search(odd, line.split("=")[0])}, done.stderr

    with configured(cluster, f'mode = "{mode}"'):
        expected, _ = environment()
        found, said = environment("--share-gpu=2")
    assert found == expected
    assert "does not share its GPUs: this runs unshared" in said


@pytest.mark.release
def test_a_share_whose_plan_is_lost_is_not_run_unshared(cluster: Cluster) -> None:
    """The controller and the node share, and there is no plan: all tasks on one GPU is not what was meant."""
    with allocation(cluster, "--share-gpu=2", "--gres=gpu:1", "-w", "n2") as job:
        assert srun(cluster, job, "true").returncode == 0  # the Prolog, which writes the plan, runs with the first step
        cluster.exec("n2", ["rm", f"/run/slurm-share/jobs/{job}/plan"], check=True)
        cluster.exec("n2", ["touch", "-d", "1 minute ago", "/etc/slurm-share/config.toml"], check=True)
        done = srun(cluster, job, "hostname")
        assert (done.returncode, done.stdout) == (names.EXIT_REFUSED, "")
        assert f"job {job} is to share its GPUs, but node n2 has no plan for it" in done.stderr
        way = re.search(r"for example srun (.*)$", done.stderr, re.MULTILINE)
        assert way
        assert "it was to share" not in srun(cluster, job, *way[1].split(), "hostname").stdout


def batch(cluster: Cluster, sruns: list[str], *options: str) -> list[str]:
    """Return what each line of a batch script printed, with its exit code last."""
    script = "\n".join(f"{line} 2>&1; echo rc $?; echo ---" for line in sruns)
    job = cluster.sbatch("alice", script, "--share-gpu=2", *options)
    cluster.wait(job)
    return cluster.output(job).split("---\n")[:-1]


@pytest.mark.release
def test_unlike_nodes_are_refused_at_srun_with_what_works(cluster: Cluster) -> None:
    """No task starts; what srun says after its own options is the program's; the way in the sentence is gone."""
    lines = [f"srun {TASK}", f"srun -l -- {TASK} -N1 --gres=gpu:1", f"srun -N2 {TASK}", f"srun -w n2 {TASK}"]
    job = f"(n1: 4 GPUs, n2: 2), and {UNLIKE}; submit it with the same number on each node "
    for said in batch(cluster, lines, "-N2", "-w", "n1,n2"):
        assert job + "(--share-gpu=2 --gres=gpu:2), or on nodes that are alike" in said
        assert f"rc {names.EXIT_REFUSED}\n" in said
        assert tasks(said) == []
    (said,) = batch(cluster, [f"srun {TASK}"], "-N2", "-w", "n1,n2", "--gres=gpu:2")
    assert nodes(said) == {"n1": 4, "n2": 4}


@pytest.mark.release
def test_srun_on_some_of_unlike_nodes_and_srun_that_says_its_gpus_run(cluster: Cluster) -> None:
    """Where Slurm can do it; and where srun would wait for ever, it says what to add, and that works."""
    lines = [
        f"srun -N1 {TASK}",
        f"srun -n1 {TASK}",
        f"srun -N1 -w n2 --gres=gpu:2 --ntasks-per-node=4 {TASK}",
        f"srun --gres=gpu:1 --ntasks-per-node=2 {TASK}",
        f"SLURM_GRES= SLURM_NTASKS_PER_NODE=2 srun --gpus-per-node=1 {TASK}",
        f"srun --share-gpu=off --gres=none -n2 {TASK}",
        f"SLURM_SHARE_SLOT=none srun --gres=none -n2 {TASK}",
        f"srun -N1 -w n2 {TASK}",
    ]
    *ran, off, none, stuck = batch(cluster, lines, "-N2", "-w", "n1,n2")
    assert [nodes(said) for said in ran] == [{"n1": 8}, {"n1": 1}, {"n2": 4}, *[{"n1": 2, "n2": 2}] * 2]
    for said in (off, none):
        assert sorted((task.node, task.slot) for task in tasks(said)) == [("n1", "none"), ("n2", "none")]
    assert all("rc 0\n" in said for said in (*ran, off, none))
    assert "has 2 GPUs on n2, and this srun asks for the 4 of the job's first node (SLURM_GRES); add " in stuck
    assert stuck.endswith(f"add --gres=gpu:2 --ntasks-per-node=4\nrc {names.EXIT_REFUSED}\n")


@pytest.mark.release
def test_gpus_that_slurm_dealt_unevenly_are_refused_too(cluster: Cluster) -> None:
    """--gpus=3 on two nodes: two and one, and Slurm would start as many tasks for the one as for the two."""
    lines = [f"srun {TASK}", f"srun --gres=gpu:1 --ntasks-per-node=2 {TASK}", f"srun -n3 {TASK}"]
    plain, *ran = batch(cluster, lines, "-N2", "-w", "n1,n2", "--gpus=3")
    assert f"(n1: 2 GPUs, n2: 1), and {UNLIKE}" in plain
    assert "(--share-gpu=2 --gres=gpu:1)" in plain
    assert tasks(plain) == []
    assert [sum(nodes(said).values()) for said in ran] == [4, 3]
    (said,) = batch(cluster, [f"srun {TASK}"], "-N2", "-w", "n2,n3", "--gpus-per-node=1")
    assert nodes(said) == {"n2": 2, "n3": 2}


@pytest.mark.release
def test_in_sallocs_shell_unlike_nodes_are_refused_and_each_alone_runs(cluster: Cluster) -> None:
    script = f"srun {TASK}; echo rc $?; srun -N1 -w n2 {TASK}; srun -N1 -w n1 --gres=gpu:4 --ntasks-per-node=8 {TASK}"
    done = salloc(cluster, script, "--share-gpu=2", "-N2", "-w", "n1,n2")
    assert f"(n1: 4 GPUs, n2: 2), and {UNLIKE}" in done.stderr
    assert done.stdout.startswith(f"rc {names.EXIT_REFUSED}\n")
    assert nodes(done.stdout) == {"n1": 8, "n2": 4}


def questions(cluster: Cluster) -> int:
    """Return how often slurmctld was asked about one job."""
    said = cluster.exec("ctl", ["sdiag"], check=True).stdout
    found = re.search(r"REQUEST_JOB_INFO_SINGLE\s.*?count:(\d+)", said)
    return int(found[1]) if found else 0


@pytest.mark.release
def test_the_controller_is_asked_only_where_it_matters(cluster: Cluster) -> None:
    """srun asks once, but never in a job of one node or none, nor if its options name nodes or resources."""

    def asked(job: int, *words: str, **more: str) -> int:
        before = questions(cluster)
        assert srun(cluster, job, *words, "true", **more).returncode == 0
        return questions(cluster) - before

    with allocation(cluster, "--share-gpu=2", "-w", "n2") as job:
        inside = {names.ENV_JOB: str(job), "SLURM_GRES": "gpu:2", "SLURM_NTASKS_PER_NODE": "4", "SLURM_OVERCOMMIT": "1"}
        assert asked(job, **inside) == 0
        assert asked(job) == 1
        assert asked(job, **{f"SLURM_SPANK_{OPTION}": "off", OPTION: "off"}) == 0
    with allocation(cluster, "--share-gpu=2", "-N2", "-w", "n2,n3") as job:
        inside = {**inside, names.ENV_JOB: str(job), "SLURM_JOB_NUM_NODES": "2", "SLURM_NNODES": "2"}
        assert asked(job, **inside) == 1
        for words in (["-n1"], ["-N1"], ["--gres=gpu:2"], ["--share-gpu=off"]):
            assert asked(job, *words, **inside) == 0
    before = questions(cluster)
    cluster.as_user("alice", ["srun", "-n1", "-w", "n2", "true"], check=True)
    assert questions(cluster) == before


def test_a_controller_that_does_not_answer_is_not_waited_for(cluster: Cluster) -> None:
    """slurmctld stopped: srun ends as Slurm's own does (after MessageTimeout), and names the limit of our question."""
    with allocation(cluster, "--share-gpu=2", "-N2", "-w", "n2,n3") as job, ThreadPoolExecutor() as pool:
        pid = cluster.exec("ctl", ["pgrep", "-o", "slurmctld"], check=True).stdout.split()[0]
        cluster.exec("ctl", ["kill", "-STOP", pid], check=True)
        try:
            inside = {names.ENV_JOB: str(job), "SLURM_GRES": "gpu:2"}
            begun = [pool.submit(srun, cluster, job, "true", count=2, **more) for more in ({}, inside)]
            shell, step = (one.result() for one in begun)
        finally:
            cluster.exec("ctl", ["kill", "-CONT", pid], check=True)
    assert (shell.returncode, step.returncode) == (1, 1)
    assert f"slurm-share: the controller has not answered in 5 s which GPUs job {job} has" in shell.stderr
    assert "slurm-share" not in step.stderr
