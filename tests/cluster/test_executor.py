"""slurm_share.Executor on a real cluster: calls on two nodes, and what becomes of them when something is lost."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import users_python
from clusters import WITHOUT, name_for
from hooked import PATIENCE_S, requeue

from localcluster import Cluster, process
from localcluster.records import CURRENT
from slurm_share import executor

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("executor")]

CONF = "SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,requeue_delay=1\n"
HEAD = """import os, signal, sys, time
from concurrent.futures import as_completed, wait
from slurm_share import Executor
from slurm_share.executor import RunEnded, SubmissionFailed, TimeLimit, WorkerLost
def effect(name, seconds=0.0):
    time.sleep(seconds)
    with open('effects', 'a') as file:
        file.write(f'{name}\\n')
    return name, os.environ.get('SLURMD_NODENAME')
"""

PAGE = Path(__file__).parents[2] / "packaging/docs/python.md"


@pytest.fixture(scope="module")
def site(can_make_clusters: None) -> Iterator[Cluster]:
    """Yield a cluster of three nodes; its users have our package and cloudpickle in their Python."""
    if "python" in WITHOUT:
        pytest.skip("NOT TESTED: the cluster is to have no Python of ours")
    with Cluster.up(name_for("executor"), CURRENT, slurm_conf_extra=CONF, without=WITHOUT) as made:
        users_python.give_or_skip(made, "alice", "cloudpickle")
        yield made


@pytest.fixture(autouse=True)
def no_jobs_remain(site: Cluster) -> Iterator[None]:
    """Fail a test whose jobs do not end by themselves, and empty the queue for the next one."""
    yield
    try:
        process.wait_until(lambda: site.settle() == [], "the end of the jobs", 60, every_s=0.1)
    finally:
        site.cancel_all()


class Client:
    """Programs of alice's in a folder of their own; each is a client of an executor."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.name = uuid.uuid4().hex[:10]
        self.home = cluster.home / "alice" / self.name
        cluster.as_user("alice", ["mkdir", self.name], check=True)
        self.pids: dict[str, int] = {}

    def _write(self, name: str, program: str) -> None:
        self.cluster.as_user("alice", f"cat >{self.name}/{name}.py", input=HEAD + program, check=True)

    def run(self, program: str, env: dict[str, str] | None = None) -> CompletedProcess[str]:
        """Run a program to its end."""
        name = f"prog{len(list(self.home.glob('prog*.py')))}"
        self._write(name, program)
        return self.cluster.as_user("alice", f"cd {self.name} && exec python3 {name}.py", env=env, timeout=PATIENCE_S)

    def says(self, program: str) -> str:
        """Run a program, which must end with 0, and return what it printed."""
        done = self.run(program)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr == ""
        return done.stdout

    def start(self, name: str, program: str) -> None:
        """Start a program in the background, its output in NAME.out."""
        self._write(name, program)
        run = f"cd {self.name} && exec setsid python3 -u {name}.py"
        line = f"({run}) >{self.name}/{name}.out 2>&1 </dev/null & echo $!"
        self.pids[name] = int(self.cluster.as_user("alice", line, check=True).stdout)

    def kill(self, name: str, signal: str = "KILL") -> None:
        self.cluster.exec("login", ["kill", f"-{signal}", str(self.pids[name])], check=True)

    def output(self, name: str) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self.home / f"{name}.out").read_text()
        return ""

    def effects(self) -> Counter[str]:
        with contextlib.suppress(FileNotFoundError):
            return Counter((self.home / "effects").read_text().split())
        return Counter()

    def until(self, true: object, what: str) -> None:
        def why() -> str:
            said = {file.name: file.read_text()[-2000:] for file in self.home.glob("*.out")}
            logs = {str(file): file.read_text()[-2000:] for file in self.home.glob("LLSUB.*/llsub-*log*")}
            return f"{said}\n{logs}\n{self.cluster.exec('ctl', ['squeue']).stdout}"

        process.wait_until(true, what, PATIENCE_S, every_s=0.1, why=why)  # type: ignore[arg-type]

    def job(self, name: str) -> int:
        """Return the job that a program in the background has printed."""
        self.until(lambda: re.search(r"^job \d+$", self.output(name), re.MULTILINE), "the job")
        found = re.search(r"^job (\d+)$", self.output(name), re.MULTILINE)
        assert found
        return int(found[1])


@pytest.mark.weekly
def test_200_calls_survive_a_lost_node_and_a_killed_client(site: Cluster) -> None:
    """Node n2 loses power while calls run on two nodes; the client is killed; another one attaches and has all."""
    client = Client(site)
    client.start(
        "first",
        "executor = Executor(triple=[2, 4, 1], options='--gres=gpu:1 --mem=600 --requeue -w n1,n2')\n"
        "futures = [executor.submit(effect, number, 0.1) for number in range(200)]\n"
        "print('job', executor.job, flush=True)\n"
        "for future in as_completed(futures):\n"
        "    print('on', future.result()[1], flush=True)\n",
    )
    job = client.job("first")
    client.until(lambda: {"on n1", "on n2"} <= set(client.output("first").splitlines()), "results of both nodes")
    site.kill("n2")
    try:
        site.exec("ctl", ["scontrol", "update", "node=n2", "state=down", "reason=power"], check=True)
        client.kill("first")
        known = client.output("first").count("on n")
        site.exec("ctl", ["scontrol", "update", f"jobid={job}", "reqnodelist=n1,n3"])
        requeue(site, job)
        said = client.says(
            "executor = Executor.attach('LLSUB.1')\n"
            "assert len(executor.futures) == 200, len(executor.futures)\n"
            "results = [future.result(timeout=240) for future in executor.futures.values()]\n"
            "assert sorted(number for number, _ in results) == list(range(200))\n"
            "print(sorted({node for _, node in results}))\n"
            "executor.shutdown()\n"
        )
        assert eval(said) == ["n1", "n2", "n3"]
        assert site.wait(job) == "COMPLETED"
    finally:
        site.reboot("n2")
        site.exec("ctl", ["scontrol", "update", "node=n2", "state=resume"])
    assert set(client.effects()) == {str(number) for number in range(200)}
    twice = [name for name, times in client.effects().items() if times > 1]
    assert known < 200
    assert len(twice) <= 8, twice  # those that ran when the job was requeued


def test_workers_have_their_gpu_their_cap_and_are_restarted(site: Cluster) -> None:
    """One job with a share: each of four workers on half a GPU; other caps by call; a killed worker, a time limit."""
    client = Client(site)
    said = client.says(
        "def mine(seconds=0.2):\n"
        "    time.sleep(seconds)\n"
        "    names = 'CUDA_VISIBLE_DEVICES', 'CUDA_MPS_PINNED_DEVICE_MEM_LIMIT', 'LLSUB_RANK'\n"
        "    return tuple(os.environ.get(name) for name in names)\n"
        "def die():\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "with Executor(triple=[1, 4, 1], share=2, options='--gres=gpu:2') as executor:\n"
        "    ranks = {one[2]: one for one in executor.map(mine, [0.2] * 16)}\n"
        "    small = executor.with_options(gpu_mem='1G').submit(mine, 0).result()\n"
        "    lost = executor.submit(die)\n"
        "    late = executor.with_options(timeout=0.3).submit(time.sleep, 60)\n"
        "    others = [executor.submit(pow, 2, number) for number in range(50)]\n"
        "    assert [one.result() for one in others] == [2**number for number in range(50)]\n"
        "    print([type(one.exception()).__name__ for one in (lost, late)])\n"
        "    print(lost.exception()); print(late.exception())\n"
        "    print(ranks); print(small)\n"
    )
    kinds, lost, late, ranks, small = said.splitlines()
    assert eval(kinds) == ["WorkerLost", "TimeLimit"]
    assert "SIGKILL" in lost
    assert "0.3" in late
    shown = eval(ranks)
    assert sorted(shown) == ["0", "1", "2", "3"]
    assert sorted(Counter(gpu for gpu, _, _ in shown.values()).values()) == [2, 2]
    assert all(gpu.startswith("GPU-") for gpu, _, _ in shown.values())
    assert eval(small)[1] == "0=1024M"
    assert all(cap != "0=1024M" for _, cap, _ in shown.values())


def test_two_clients_of_one_run_have_their_own_results(site: Cluster) -> None:
    """The second attaches while the first submits; each key has the result of its call, and none runs twice."""
    client = Client(site)
    client.start(
        "first",
        "executor = Executor(triple=[1, 2, 1], options='--gres=gpu:1 --mem=600')\n"
        "print('job', executor.job, flush=True)\n"
        "futures = [executor.submit(effect, f'a{number}') for number in range(500)]\n"
        "while not os.path.exists('second'): time.sleep(0.05)\n"
        "assert [future.result()[0] for future in futures] == [f'a{number}' for number in range(500)]\n"
        "executor.shutdown()\n"
        "print('through', flush=True)\n",
    )
    job = client.job("first")
    said = client.says(
        "executor = Executor.attach('LLSUB.1')\n"
        "futures = [executor.submit(effect, f'b{number}') for number in range(500)]\n"
        "assert [future.result()[0] for future in futures] == [f'b{number}' for number in range(500)]\n"
        "assert len({future.key for future in futures}) == 500\n"
        "print(len(executor.futures))\n"
        "open('second', 'w').close()\n"
        "executor.shutdown()\n"
    )
    assert int(said) >= 500
    client.until(lambda: "through" in client.output("first"), "the first client's end")
    assert site.wait(job) == "COMPLETED"
    assert set(client.effects().values()) == {1}
    assert len(client.effects()) == 1000


def test_calls_left_by_scancel_are_named_and_run_by_a_client_that_attaches(site: Cluster) -> None:
    """The futures of a cancelled job say so; `attach` runs in another job what has no result, and nothing twice."""
    client = Client(site)
    client.start(
        "first",
        "executor = Executor(triple=[1, 2, 1], options='--gres=gpu:1 --mem=600')\n"
        "futures = [executor.submit(effect, number, 0.1) for number in range(60)]\n"
        "print('job', executor.job, flush=True)\n"
        "done, left = wait(futures, return_when='FIRST_EXCEPTION')\n"
        "left = [one for one in futures if one.exception() is not None]\n"
        "print('left', len(left), {type(one.exception()).__name__ for one in left}, flush=True)\n"
        "print(left[0].exception(), flush=True)\n"
        "try:\n"
        "    executor.submit(effect, 'late')\n"
        "except RunEnded as error:\n"
        "    print('refused', error, flush=True)\n",
    )
    job = client.job("first")
    client.until(lambda: len(client.effects()) > 5, "some calls")
    site.as_user("alice", ["scancel", str(job)], check=True)
    client.until(lambda: "refused" in client.output("first"), "what the first client says")
    said = client.output("first")
    assert "{'RunEnded'}" in said
    assert str(job) in said
    assert "attach" in said
    site.wait(job)
    assert (
        client.says(
            "with Executor.attach('LLSUB.1') as executor:\n"
            "    print(sorted(future.result()[0] for future in executor.futures.values()) == list(range(60)))\n"
        )
        == "True\n"
    )
    twice = [name for name, times in client.effects().items() if times > 1]
    assert len(client.effects()) == 60
    assert len(twice) <= 2


@pytest.mark.weekly
def test_a_controller_that_does_not_answer_is_said_by_the_executor(site: Cluster) -> None:
    """No traceback of ours, no wait without an end: the exception says what sbatch said."""
    client = Client(site)
    site.exec(
        "ctl", ["bash", "-c", "kill $(cat /run/slurm/slurmctld.pid); while pgrep -x slurmctld; do sleep 0.02; done"]
    )
    try:
        done = client.run(
            "try:\n"
            "    executor = Executor(triple=[1, 2, 1])\n"
            "    executor.submit(pow, 2, 3).result()\n"
            "except SubmissionFailed as error:\n"
            "    print(error)\n"
        )
    finally:
        up = "slurmctld </dev/null >/dev/null 2>&1; until scontrol ping | grep -q 'is UP'; do sleep 0.05; done"
        site.exec("ctl", ["bash", "-c", up], check=True)
    assert "slurm" in done.stdout.lower(), done.stdout + done.stderr
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.weekly
def test_the_time_limit_of_the_job(site: Cluster) -> None:
    """Its end is set to now (Slurm looks every half minute). What has run stays; the rest names the limit."""
    client = Client(site)
    client.start(
        "first",
        "executor = Executor(triple=[1, 2, 1], time='1', options='--gres=gpu:1 --mem=600')\n"
        "futures = [executor.submit(effect, number, 0.1) for number in range(3000)]\n"
        "print('job', executor.job, flush=True)\n"
        "wait(futures)\n"
        "left = [one for one in futures if one.exception() is not None]\n"
        "print('left', len(left), {type(one.exception()).__name__ for one in left}, left[0].exception(), flush=True)\n",
    )
    job = client.job("first")
    client.until(lambda: len(client.effects()) > 5, "some calls")
    site.exec("ctl", ["scontrol", "update", f"jobid={job}", "endtime=now"], check=True)
    client.until(lambda: "left" in client.output("first"), "what the client says")
    assert site.wait(job) == "TIMEOUT"
    assert "{'RunEnded'}" in client.output("first")
    left = int(client.output("first").partition("left ")[2].split()[0])
    assert set(client.effects().values()) == {1}
    assert 3000 - left <= len(client.effects()) <= 3000 - left + 2


def test_the_programs_of_the_page_work_in_their_order(site: Cluster) -> None:
    """As cells of one session, like a notebook; the loop, the local workers and the job find the same setting."""
    cells = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    program = "".join(f"exec(compile({cell!r}, 'cell {number}', 'exec'))\n" for number, cell in enumerate(cells, 1))
    said = Client(site).says(program).splitlines()
    assert len(cells) == 6
    assert said[:2] == ["best: (0.01, 0)"] * 2
    assert len(said) == 2 + 12 + 1 + 1
    assert said[-1] == "12 results"


def test_every_error_of_the_executor_is_on_the_page() -> None:
    text = PAGE.read_text()
    names = set(executor.__all__) - {"Executor", "ExecutorError", "Future", "RemoteTraceback"}
    assert {name for name in names if f"`{name}`" not in text} == set()
