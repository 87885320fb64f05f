"""Memory caps that the driver enforces on the tasks' cgroups: real Slurm in cgroup v2, simulated driver 615.

Needs a kernel whose cgroup v2 has controllers (tests/kernel.sh).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import cluster_of
from hooked import Node, completed, until

from localcluster import Cluster
from localcluster.records import CURRENT

pytestmark = [pytest.mark.cluster, pytest.mark.release, pytest.mark.on_v2, pytest.mark.xdist_group("driver-caps")]

SHARE = "--share-gpu=4,mem=8G"
TURNS = f"{SHARE},sharing=time-slicing"
ONE = ("--gres=gpu:1", "--mem=2000")
OVER = "CUDA_ERROR_OUT_OF_MEMORY"
KEEPER = "pgrep -x slurm-share-lim"
GROUPS = "find /sys/fs/cgroup -type d \\( -name 'slurm-share_*' -o -path '*/slurm-share/limits' \\)"
RESERVED = "cat /run/simgpu/memory_limits/* 2>/dev/null | grep -v 'soft=0 '"
PARTS = """#!/bin/bash
# a task of llsub: some want more than their cap
grep 0:: /proc/self/cgroup
[ "$LLSUB_TASK" != 1 ] || exec simgpu-task --memory 9G --seconds 1
exec simgpu-task --memory 7G --seconds ${SECS:-1}
"""


@pytest.fixture(scope="module")
def made(capped: Cluster) -> Cluster:
    return capped


@pytest.fixture(scope="module", params=["dmem", pytest.param("misc", marks=pytest.mark.weekly)])
def either(request: pytest.FixtureRequest, can_make_clusters: None) -> Iterator[Cluster]:
    """A cluster for each back end of the driver; one test has both for every change."""
    if request.param == "dmem":
        yield request.getfixturevalue("capped")
        return
    with cluster_of("caps-misc", CURRENT, cgroup_v2=True, nodes=1, driver=615, memory_limits="misc") as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def clean(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test nothing of a limit is left: no keeper, no cgroup of ours, no reserved memory."""
    yield
    for name in ("made", "either"):
        if name in request.fixturenames:
            cluster = request.getfixturevalue(name)
            cluster.cancel_all()
            until(lambda one=cluster: left(one) == "", "a clean node", lambda one=cluster: left(one))


def left(cluster: Cluster) -> str:
    return cluster.exec("n1", ["sh", "-c", f"{KEEPER}; {GROUPS}; {RESERVED}; ls /run/slurm-share/jobs"]).stdout


def script(cluster: Cluster, name: str, text: str) -> None:
    cluster.as_user("alice", f"cat > ~/{name}; chmod +x ~/{name}", input=text, check=True)


def run_of(cluster: Cluster, arguments: str, folder: str, seconds: int = 1) -> tuple[int, Path]:
    """Submit a run of llsub; return its job and its folder."""
    said = cluster.as_user(
        "alice", f"mkdir -p {folder}; cd {folder}; SECS={seconds} llsub {arguments}", check=True
    ).stdout
    match = re.search(r"^job (\d+): .*logs will be in (\S+?/LLSUB\.\d+)/", said, re.MULTILINE)
    assert match, said
    return int(match[1]), cluster.home / "alice" / folder / Path(match[2]).name


def logs(folder: Path) -> dict[int, str]:
    return {int(file.name.rpartition(".")[2]): file.read_text() for file in folder.glob("p*/*.log.*")}


@pytest.mark.parametrize("share", [SHARE, TURNS], ids=["mps", "time-slicing"])
def test_a_task_above_its_cap_dies_alone_and_each_sees_its_cap_as_the_gpus_size(made: Cluster, share: str) -> None:
    task = (
        '[ $SLURM_PROCID != 1 ] || ask=9G; echo "cap by $SLURM_SHARE_MEM_LIMIT $XLA_PYTHON_CLIENT_MEM_FRACTION";'
        "exec simgpu-task --memory ${ask:-7G} --seconds 1 --mem-info before"
    )
    job = made.sbatch("alice", f"srun -n3 bash -c '{task}'", share, *ONE)
    made.wait(job)
    said = made.output(job)
    assert said.count(OVER) == 1
    assert said.count("memory 7168 MiB") == 2
    assert said.count("cap by driver \n") == 3
    assert said.count("total 8192 MiB") == 3, said
    assert said.count("the driver limits each task to 8192 MiB of GPU memory") == 1


def test_what_the_task_does_to_its_environment_and_allocation_does_not_lift_the_cap(made: Cluster) -> None:
    """Each of these escapes the limit of MPS (security.md)."""
    tries = (
        "env -u CUDA_MPS_PINNED_DEVICE_MEM_LIMIT simgpu-task --memory 9G --seconds 1",
        "CUDA_MPS_PIPE_DIRECTORY=/nowhere simgpu-task --memory 9G --seconds 1",
        "simgpu-task --memory 9G --kind vmm --seconds 1",
        "simgpu-task --memory 5G --second-context 5G --seconds 1",
        "env -i PATH=$PATH simgpu-task --memory 9G --seconds 1",
    )
    said = completed(made, f"srun -n1 bash -c '{'; '.join(tries)}; true' 2>&1", SHARE, *ONE)
    assert said.count("CUDA_ERROR_OUT_OF_MEMORY") == len(tries), said


def test_a_task_cannot_ask_for_another_limit_or_another_cgroup(made: Cluster) -> None:
    asks = "\n".join((
        "import os, socket",
        "for text in ('task 0', 'task 1', 'enter free', 'check', 'over', 'end', 'x' * 3000):",
        "    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)",
        "    one.connect('/run/slurm-share/jobs/' + os.environ['SLURM_JOB_ID'] + '/limits.socket')",
        "    one.send(text.encode()); print(text[:10], '->', one.recv(2000).decode())",
    ))  # fmt: skip
    script(made, "asks.py", asks)
    said = completed(
        made, "srun -n1 python3 asks.py; srun -n1 simgpu-task --memory 9G --seconds 1 2>&1; true", SHARE, *ONE
    )
    assert re.findall(r"-> (\w+)", said) == ["no"] * 7, said
    assert OVER in said
    job = made.sbatch("alice", "srun -n1 sleep 30", SHARE, *ONE)
    made.wait_running(job)
    until(lambda: made.exec("n1", ["sh", "-c", KEEPER]).stdout, "the keeper")
    bob = f"import socket; socket.socket(1, 5).connect('/run/slurm-share/jobs/{job}/limits.socket')"
    assert (
        "PermissionError"
        in made.exec("n1", ["setpriv", "--reuid=2002", "--regid=2002", "--clear-groups", "python3", "-c", bob]).stderr
    )


@pytest.mark.parametrize("either", ["dmem", "misc"], indirect=True)
def test_each_slot_of_a_run_has_a_cgroup_and_a_task_above_its_cap_fails_alone(either: Cluster) -> None:
    script(either, "parts.sh", PARTS)
    job, folder = run_of(either, "~/parts.sh '[1,4]' --share-gpu=mem=8G -g 1 --ntasks 6", "parts")
    either.wait(job)
    found = logs(folder)
    assert OVER in found[1]
    assert sorted(number for number, text in found.items() if "memory 7168 MiB" in text) == [0, 2, 3, 4, 5]
    assert all(
        re.search(r"/step_0/user/(task_0/)?slurm-share_0_w[0-3]$", text, re.MULTILINE) for text in found.values()
    )


@pytest.mark.parametrize(
    "end",
    ["scancel", "keeper", "slurmstepd", *(pytest.param(one, marks=pytest.mark.weekly) for one in ("launcher", "time"))],
)
def test_whatever_ends_a_run_ends_its_tasks_and_leaves_no_cgroup(either: Cluster, end: str) -> None:
    script(either, "parts.sh", PARTS)
    limit = "-T 1" if end == "time" else ""
    job, _ = run_of(either, f"~/parts.sh '[1,2]' --share-gpu=mem=8G -g 1 {limit}", end, 600)
    tasks = "pgrep -f '[s]imgpu-task --memory 7G'"
    until(lambda: either.exec("n1", ["sh", "-c", tasks]).stdout.count("\n") >= 1, "a task")
    if end == "scancel":
        either.exec("ctl", ["scancel", str(job)], check=True)
    elif end != "time":
        name = {"launcher": "-f '[s]lurm_share.cli.main launch'", "keeper": "-x slurm-share-lim"}.get(end)
        kill = f"pkill -9 {name}" if name else f"pkill -9 -f '[s]lurmstepd: .{job}.0'"
        either.exec("n1", ["sh", "-c", kill])
        if end in ("keeper", "slurmstepd"):
            either.exec("ctl", ["scancel", str(job)], check=True)
    either.wait(job, 180)
    until(lambda: either.exec("n1", ["sh", "-c", tasks]).stdout == "", "the end of all tasks")


@pytest.mark.weekly
def test_a_suspended_run_stands_still_and_goes_on(either: Cluster) -> None:
    beat = "#!/bin/bash\nfor ((i = 0; i < 600; i++)); do echo $i; sleep 0.1; done\n"
    script(either, "beat.sh", beat)
    job, folder = run_of(either, "~/beat.sh '[1,1]' --share-gpu=mem=8G -g 1", "beat")
    until(lambda: "5" in "".join(logs(folder).values()), "its beats")
    either.exec("ctl", ["scontrol", "suspend", str(job)], check=True)
    either.exec("n1", ["sleep", "5"])  # SIGTSTP comes first, and two seconds later the freezer
    before = logs(folder)
    either.exec("n1", ["sleep", "2"])
    assert logs(folder) == before
    either.exec("ctl", ["scontrol", "resume", str(job)], check=True)
    until(lambda: logs(folder) != before, "its further beats")


def test_a_signal_of_slurm_reaches_the_launcher_which_is_in_its_tasks_own_folder(either: Cluster) -> None:
    says = "#!/bin/bash\ntrap 'echo got USR1; exit 0' USR1\necho up\nfor ((i = 0; i < 600; i++)); do sleep 0.1; done\n"
    script(either, "says.sh", says)
    job, folder = run_of(either, "~/says.sh '[1,2]' --share-gpu=mem=8G -g 1", "says")
    until(lambda: "".join(logs(folder).values()).count("up") == 2, "two tasks")
    either.exec("ctl", ["scancel", "--signal=USR1", f"{job}.0"], check=True)
    assert either.wait(job) == "COMPLETED"
    assert all("got USR1" in text for text in logs(folder).values())


def test_without_a_keeper_mps_has_the_cap_and_a_size_in_turns_is_refused(made: Cluster) -> None:
    program = "/opt/slurm-share/bin/slurm-share-limits"
    made.exec("n1", ["mv", program, f"{program}.away"], check=True)
    try:
        said = completed(
            made, "srun -n2 bash -c 'echo by $SLURM_SHARE_MEM_LIMIT; exec simgpu-task --memory 1G'", SHARE, *ONE
        )
        assert said.count("by mps") == 2
        assert said.count("MPS alone enforces their caps") == 1
        script(made, "parts.sh", PARTS)
        job, folder = run_of(made, "~/parts.sh '[1,2]' --share-gpu=mem=8G -g 1", "nokeeper")
        made.wait(job)
        assert "memory 7168 MiB" in logs(folder)[0]
        job = made.sbatch("alice", "srun -n2 simgpu-task --memory 1G", TURNS, *ONE)
        assert made.wait(job) == "FAILED"
        assert made.output(job).count("the driver does not limit its memory to 8192 MiB") == 2
    finally:
        made.exec("n1", ["mv", f"{program}.away", program], check=True)


def test_memory_limits_off_is_a_node_without_them(made: Cluster) -> None:
    made.write_config(made_config(made) + 'memory_limits = "off"\n')
    try:
        said = completed(made, "srun -n1 bash -c 'echo by $SLURM_SHARE_MEM_LIMIT'", SHARE, *ONE)
        assert "by mps" in said
        job = made.sbatch("alice", "srun -n1 true", TURNS, *ONE)
        assert made.wait(job) == "FAILED"
        assert 'memory_limits is "off" in the configuration' in made.output(job)
    finally:
        made.write_config(made_config(made).replace('memory_limits = "off"\n', ""))


def made_config(cluster: Cluster) -> str:
    return cluster.exec("n1", ["cat", "/etc/slurm-share/config.toml"], check=True).stdout


def test_a_reserved_part_is_given_back_at_each_end_of_a_task(either: Cluster) -> None:
    """Also if the task is killed, or its slurmstepd, and the Epilog has to find it."""
    job = either.sbatch(
        "alice", "srun -n4 bash -c 'simgpu-task --memory 6G --seconds 600'", "--share-gpu=4,mem=4G:8G", *ONE
    )
    either.wait_running(job)
    until(lambda: either.exec("n1", ["sh", "-c", RESERVED]).stdout.count("soft=") >= 1, "what is reserved")
    either.exec("n1", ["sh", "-c", f"pkill -9 -x slurm-share-lim; pkill -9 -f '[s]lurmstepd: .{job}.0'"])
    either.exec("ctl", ["scancel", str(job)])
    either.wait(job)
    for _ in range(3):
        completed(
            either,
            "srun -n4 bash -c 'simgpu-task --memory 6G --seconds 0.1; kill -9 $$'; true",
            "--share-gpu=4,mem=4G:8G",
            *ONE,
        )
    assert Node(either, "n1").remains() == []
