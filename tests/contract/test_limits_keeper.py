"""The keeper of memory limits (prolog/limits.c) in real cgroups of v2, with the simulated driver 615: who gets which
limit, and that nothing stays reserved, whoever is killed.

The folders stand for Slurm's: a job's, its step's, one for slurmstepd and one for each task.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from simulated_host import Host, until, without_driver
from test_memory_limits import removed

from localcluster import namespaces
from slurm_share.core import names
from slurm_share.core.records import ShareRequest
from slurm_share.node.records import Gpu
from slurm_share.share import memory_limits
from slurm_share.share import plan as plan_text
from slurm_share.share.records import Plan, Slot

pytestmark = [without_driver, pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: cgroups need root")]
ALICE, BOB, JOB = 2001, 2002, 4711
MIB = 1024 * 1024
MOST_GROUPS = 2048  # GROUPS_MAX of limits_groups.h


class Job:
    """A job with four slots on two GPUs, its keeper, and a step with so many tasks."""

    def __init__(self, host: Host, tree: Path, program: Path, least_mib: int | None) -> None:
        self.host, self.program, self.state = host, program, host.state.parent / "shares"
        self.step = tree / "slurmstepd.scope" / f"job_{JOB}" / "step_0"
        for name in ("slurm", "user"):
            (self.step / name).mkdir(parents=True)
        self.folder = self.state / names.JOBS_FOLDER / str(JOB)
        self.folder.mkdir(parents=True)
        for one in (*self.folder.parents, self.folder):
            if one.is_relative_to(host.state.parent):
                one.chmod(0o755)
        gpus = tuple(Gpu(gpu["uuid"], index, index, "H100", 81920) for index, gpu in enumerate(host.gpus()))
        slots = tuple(
            Slot(n, gpus[n % 2], n, 8192, memory_least_mib=least_mib, is_cap_of_driver=True) for n in range(4)
        )
        plan = Plan(JOB, ALICE, "n1", ShareRequest(2, mem_mib=8192), gpus, slots, ((0,),))
        (self.folder / names.PLAN_FILE).write_text(plan_text.render(plan))
        self.socket = str(self.folder / names.LIMITS_SOCKET)
        # A keeper ends with its plan: one whose tests were killed as well, since this sees the end of its input then.
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", 'read -r _; rm -f "$1"', "sh", str(self.folder / names.PLAN_FILE)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def close(self) -> None:
        self._guard.communicate(timeout=300)

    def keep(self) -> int:
        """Start the keeper as slurmstepd does; return the exit code of the program that it starts."""
        inside = ["/bin/sh", "-c", 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"', "sh", str(self.step / "slurm")]
        keep = [str(self.program), "keep", str(self.state), str(JOB), str(ALICE), "n1"]
        return subprocess.run([*inside, *keep], env=self.host.environ(), timeout=60, check=False).returncode

    def task(self, number: int) -> Path:
        folder = self.step / f"user/task_{number}"
        folder.mkdir(exist_ok=True)
        return folder

    def ask(self, request: str, folder: Path, uid: int = ALICE) -> str:
        """Ask from a process of the user in that cgroup; return the reason, empty: it was done."""
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                (folder / "cgroup.procs").write_text(str(os.getpid()))
                if uid:
                    os.setgroups([])
                    os.setgid(uid)
                    os.setuid(uid)
                os.write(write, memory_limits.ask(self.socket, request).encode())
            finally:
                os._exit(0)
        os.close(write)
        with open(read, "rb") as file:
            said = file.read().decode()
        os.waitpid(pid, 0)
        return said

    def limits(self) -> dict[str, tuple[int, int]]:
        """Return the limits that the driver has, in MiB, by GPU and cgroup."""
        found = {}
        for file in (self.host.state / "memory_limits").glob("*"):
            match = re.match(r"soft=(\d+) hard=(\d+) path=(\S+)", file.read_text())
            if match and Path(match[3]).exists():
                found[f"{file.name[0]} {Path(match[3]).name}"] = (int(match[1]) // MIB, int(match[2]) // MIB)
        return found

    def reserved(self) -> list[str]:
        """Return all that is reserved, of cgroups that are gone as well."""
        texts = [file.read_text() for file in (self.host.state / "memory_limits").glob("*")]
        return [text for text in texts if text and not text.startswith("soft=0 ")]

    def keepers(self) -> list[int]:
        found = subprocess.run(["pgrep", "-f", f"^{self.program} keep"], capture_output=True, text=True, check=False)
        return [int(pid) for pid in found.stdout.split()]

    def end(self) -> subprocess.CompletedProcess[str]:
        argv = [str(self.program), "end", str(self.folder)]
        return subprocess.run(argv, env=self.host.environ(), capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("limits")
    source = Path(__file__).parents[2] / "prolog"
    subprocess.run(["make", "-s", "-C", source, f"BUILD={folder}", folder / "slurm-share-limits"], check=True)
    return folder / "slurm-share-limits"


@pytest.fixture
def tree() -> Iterator[Path]:
    mounted = namespaces.v2_tree()
    if mounted is None or not os.access(mounted / "cgroup.procs", os.W_OK):
        pytest.skip("NOT TESTED: no writable tree of cgroup v2 here")
    top = mounted / f"limits-{os.getpid()}"
    top.mkdir()
    yield top
    for group in sorted((Path(folder) for folder, _, _ in os.walk(top)), reverse=True):
        assert until(lambda group=group: removed(group))  # type: ignore[misc]


@pytest.fixture(params=[None, 4096], ids=["hard", "elastic"])
def job(request: pytest.FixtureRequest, host: Host, tree: Path, program: Path) -> Iterator[Job]:
    assert host.init("2", "--driver", "615", "--memory-limits", "misc").returncode == 0
    host.state.parent.chmod(0o755)
    made = Job(host, tree, program, request.param)
    assert made.keep() == 0
    try:
        yield made
        assert made.end().returncode == 0
        assert made.keepers() == []
        assert made.reserved() == []
    finally:
        made.close()


def test_a_task_gets_the_cap_of_a_slot_on_each_gpu_and_its_own_reserved_part(job: Job) -> None:
    least = 4096 if "4096" in (job.folder / names.PLAN_FILE).read_text() else 0
    assert job.ask("task 1", job.task(0)) == ""
    assert job.limits() == {"0 task_0": (0, 8192), "1 task_0": (least, 8192)}
    assert job.ask("over last", job.step / "slurm", uid=0) == ""
    assert job.reserved() == []


def test_only_the_first_request_of_a_task_counts(job: Job) -> None:
    assert job.ask("task 0", job.task(0)) == ""
    before = job.limits()
    for request in ("task 0", "task 1", "enter free", "check", "over", "end", "", "x" * 1500, "task -1", "task 99"):
        assert job.ask(request or " ", job.task(0)) != "", request
    assert job.limits() == before
    assert len(job.keepers()) == 1


@pytest.mark.parametrize(
    "request_", ["task 4", "task", "task 0 ", "enter", "enter ../x", "enter a GPU-x=0:1", "enter A"]
)
def test_a_request_that_the_plan_does_not_have_is_refused(job: Job, request_: str) -> None:
    assert job.ask(request_, job.task(0)) != ""
    assert job.limits() == {}


def test_another_user_and_a_process_outside_the_job_get_nothing(job: Job, tree: Path) -> None:
    Path(job.socket).chmod(0o666)  # the keeper itself refuses as well
    assert job.ask("task 0", job.task(0), uid=BOB) == "the job is another user's"
    for name in ("other", "slurmstepd.scope/job_4712/step_0/user/task_0", f"slurmstepd.scope/job_{JOB}/step_0/user"):
        (tree / name).mkdir(parents=True, exist_ok=True)
        assert "no cgroup of a task of this job" in job.ask("task 0", tree / name)
    assert job.limits() == {}


def test_a_launchers_child_enters_a_group_and_becomes_its_program(job: Job) -> None:
    leaf, uuid = job.task(0), job.host.gpus()[1]["uuid"]
    assert job.ask("check", leaf) == ""
    wanted = {names.ENV_LIMITS: f"{job.socket} w3 {uuid}=1024:2048"}
    shell = 'echo $$ >"$1/cgroup.procs"; exec setpriv --reuid=2001 --regid=2001 --clear-groups "$2" run /bin/sh -c "$3"'
    what = 'echo "$$ ${_SLURM_SHARE_LIMITS-unset}"; grep 0:: /proc/self/cgroup'
    argv = ["/bin/sh", "-c", shell, "sh", str(leaf), str(job.program), what]
    done = subprocess.run(argv, env=job.host.environ(wanted), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].endswith(" unset")
    assert done.stdout.endswith("/user/task_0/slurm-share_0_w3\n")
    assert job.limits() == {"0 slurm-share_0_w3": (0, 8192), "1 slurm-share_0_w3": (1024, 2048)}
    assert "no cgroup of a task" in job.ask("task 0", leaf / "slurm-share_0_w3")
    assert job.ask("over", job.step / "slurm", uid=0) == ""
    assert list(leaf.glob("slurm-share_*")) == []


def test_another_keeper_ends_what_a_killed_one_has_recorded(job: Job) -> None:
    """As slurmstepd asks for at the end of a task."""
    leaf, uuid = job.task(0), job.host.gpus()[0]["uuid"]
    assert job.ask(f"enter w0 {uuid}=1024:2048", leaf) == ""
    assert job.ask("task 0", job.task(1)) == ""
    for pid in job.keepers():
        os.kill(pid, signal.SIGKILL)
    assert until(lambda: job.keepers() == [])
    assert job.keep() == 0
    assert job.ask("over last", job.step / "slurm", uid=0) == ""
    assert (list(leaf.glob("slurm-share_*")), job.reserved()) == ([], [])


def test_a_child_that_gets_no_limit_does_not_run(job: Job) -> None:
    assert job.end().returncode == 0
    wanted = {names.ENV_LIMITS: f"{job.socket} w3 {job.host.gpus()[1]['uuid']}=0:2048"}
    argv = [str(job.program), "run", "/bin/echo", "ran"]
    done = subprocess.run(argv, env=job.host.environ(wanted), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (names.EXIT_REFUSED, "")
    assert "the task is not started: the driver does not limit its memory" in done.stderr


def test_one_keeper_runs_however_often_it_is_started_and_ends_with_the_plan(job: Job) -> None:
    assert [job.keep() for _ in range(3)] == [0, 0, 0]
    assert len(job.keepers()) == 1
    (job.folder / names.PLAN_FILE).rename(job.folder / "gone")
    assert until(lambda: job.keepers() == [], 10)


def test_a_keeper_ends_when_the_tests_that_started_it_are_killed(job: Job) -> None:
    job.close()  # as the kernel does for a killed process
    assert until(lambda: job.keepers() == [], 10)


def test_a_step_that_starts_beside_another_one_waits_until_the_keeper_listens(job: Job) -> None:
    assert job.end().returncode == 0
    file = (job.folder / names.LIMITS_LOCK).open("r+b")
    fcntl.lockf(file, fcntl.LOCK_EX)  # as a keeper that reads the plan
    release = threading.Timer(0.5, file.close)
    release.start()
    assert job.keep() == 0
    release.join()
    assert job.ask("check", job.task(0)) == ""


def test_a_request_that_is_too_long_is_not_taken_for_its_beginning(job: Job) -> None:
    assert job.ask("enter w0" + " " * 3000, job.task(0)) == "the request is too long"
    assert job.limits() == {}


def test_what_an_empty_cgroup_reserves_goes_back_before_another_is_entered(job: Job) -> None:
    leaf, uuid = job.task(0), job.host.gpus()[0]["uuid"]
    assert job.ask(f"enter w0 {uuid}=1024:2048", leaf) == ""
    assert job.ask(f"enter w1 {uuid}=512:2048", leaf) == ""
    assert job.limits()["0 slurm-share_0_w0"] == (0, 2048)
    assert until(lambda: job.reserved() == [], 10), "also where no other task comes"
    assert job.ask(f"enter w0 {uuid}=1024:2048", leaf) == ""
    assert job.limits()["0 slurm-share_0_w0"] == (1024, 2048)


def test_a_line_that_did_not_fit_into_the_record_spoils_no_other(job: Job) -> None:
    (keeper,) = job.keepers()
    size = (job.folder / names.LIMITS_RECORD).stat().st_size
    none = resource.RLIM_INFINITY
    resource.prlimit(keeper, resource.RLIMIT_FSIZE, (size + 10, none))
    assert "no space" in job.ask("task 0", job.task(0))
    resource.prlimit(keeper, resource.RLIMIT_FSIZE, (none, none))
    assert job.ask("task 0", job.task(1)) == ""
    assert (job.folder / names.LIMITS_RECORD).read_text().splitlines()[-1].startswith("task /")
    os.kill(keeper, signal.SIGKILL)


def test_a_user_can_have_so_many_cgroups_and_no_more(job: Job) -> None:
    leaf = job.task(0)
    root = next(one for one in leaf.parents if not (one / "cgroup.type").exists())
    made = [leaf / f"slurm-share_0_x{number}" for number in range(MOST_GROUPS)]
    for folder in made:
        folder.mkdir()
    for pid in job.keepers():
        os.kill(pid, signal.SIGKILL)
    assert until(lambda: job.keepers() == [])
    with (job.folder / names.LIMITS_RECORD).open("a") as file:
        file.writelines(f"made /{folder.relative_to(root)}\nmade /gone/{folder.name}\n" for folder in made)
    assert job.keep() == 0
    assert job.ask("enter w0", leaf) == f"the job has {MOST_GROUPS} cgroups with limits already"
    for folder in made:
        folder.rmdir()
    assert job.ask("over", job.step / "slurm", uid=0) == ""
    assert job.ask("enter w0", leaf) == ""


def test_clients_that_say_nothing_hold_a_task_up_for_a_few_seconds_at_most(job: Job) -> None:
    silent = []
    with contextlib.suppress(BlockingIOError):
        for _ in range(10_000):
            one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            silent.append(one)
            one.setblocking(False)
            one.connect(job.socket)
    try:
        assert len(silent) > 64
        assert job.ask("task 0", job.task(0)) == ""
    finally:
        for one in silent:
            one.close()


def test_a_process_with_the_number_of_one_that_asked_is_not_moved(job: Job) -> None:
    (keeper,) = job.keepers()
    for _ in range(20):
        os.kill(keeper, signal.SIGSTOP)
        try:
            gone = asking(job, "enter w0", job.task(0))
            stranger = process_with(gone, job.task(1))
        finally:
            os.kill(keeper, signal.SIGCONT)
        if stranger:
            break
    else:
        pytest.skip("NOT TESTED: other processes took the number each time")
    try:
        assert job.ask("check", job.task(2)) == "", "the request before it is answered"
        assert Path(f"/proc/{stranger}/cgroup").read_text().rstrip().endswith("/user/task_1")
    finally:
        os.kill(stranger, signal.SIGKILL)
        os.waitpid(stranger, 0)


def asking(job: Job, request: str, folder: Path) -> int:
    """Ask from a process that ends at once; return its number."""
    pid = os.fork()
    if pid == 0:
        try:
            (folder / "cgroup.procs").write_text(str(os.getpid()))
            os.setgid(ALICE)
            os.setuid(ALICE)
            one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            one.connect(job.socket)
            one.send(request.encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    return pid


def process_with(number: int, folder: Path) -> int:
    """Return a process with that number in a cgroup; 0: another one has it."""
    for _ in range(20):
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(number - 1))
        pid = os.fork()
        if pid == 0:
            signal.pause()
        if pid == number:
            (folder / "cgroup.procs").write_text(str(pid))
            return pid
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return 0


@pytest.mark.parametrize("tasks", [300, pytest.param(10_000, marks=pytest.mark.weekly)])
def test_tasks_that_crash_with_their_keeper_leave_nothing_reserved(
    host: Host, tree: Path, program: Path, tasks: int
) -> None:
    """Tasks end, are killed, lose their keeper or their cgroup's step; the Epilog finds what is left."""
    assert host.init("2", "--driver", "615", "--memory-limits", "misc").returncode == 0
    host.state.parent.chmod(0o755)
    dice = random.Random(615)
    job = Job(host, tree, program, 4096)
    at_a_time, done = 25, 0
    try:
        while done < tasks:
            assert job.keep() == 0
            for number in range(at_a_time):
                why = job.ask(f"task {dice.randrange(4)}", job.task(number))
                assert why == "" or "keeper" in why, why
                if dice.random() < 0.05:
                    for pid in job.keepers():
                        os.kill(pid, signal.SIGKILL)
                    assert until(lambda: job.keepers() == [])
                    assert job.keep() == 0
            done += at_a_time
            if dice.random() < 0.5:
                assert job.ask("over last", job.step / "slurm", uid=0) == ""
            else:  # slurmstepd was killed
                with contextlib.suppress(ProcessLookupError):
                    for pid in job.keepers():
                        os.kill(pid, signal.SIGKILL)
            assert job.end().returncode == 0
            assert job.reserved() == []
            (job.folder / names.LIMITS_RECORD).unlink()
            for number in range(at_a_time):
                job.task(number).rmdir()
    finally:
        job.end()
        job.close()
        shutil.rmtree(job.folder)
