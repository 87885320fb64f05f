"""The contract of nvidia-cuda-mps-control, as recorded from drivers 535, 550 and 555, and as its manual has it.

The same assertions hold the stand-in of packaging/demo/simgpu here, on every machine, and NVIDIA's own program in
tests/gpu/test_mps_contract_real.py, where there is a GPU. NVIDIA's program is licensed for use with its hardware only.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from simulated_host import HOME, without_driver

NOBODY = 65534
NO_DAEMON = (1, "", "Cannot find MPS control daemon process\n")
ALREADY = (1, "An instance of this daemon is already running\n", "")
DONE = (0, "", "")

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: a second user needs root")

pytestmark = without_driver

EVERY_DRIVER = pytest.mark.parametrize("program", ["535", "550", "590"], indirect=True)
"""For what differs between releases; all else is the same in each."""


@dataclass
class Program:
    """A control program, and how to start a client of it."""

    path: str
    driver: int
    """Major number of the driver release whose behaviour it has."""
    environ: Mapping[str, str]
    client: Sequence[str]
    """A program on the GPU that prints a line when it has memory there, and runs for a minute."""
    gpu: str | None = None
    """UUID to use; None: as the environment has it."""


@dataclass
class Mps:
    """One pair of MPS folders, and whatever was started in them."""

    program: Program
    home: str
    children: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def pipe(self) -> str:
        return f"{self.home}/pipe"

    def environ(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        return {
            "PATH": f"{Path(self.program.path).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
            **self.program.environ,
            **({} if self.program.gpu is None else {"CUDA_VISIBLE_DEVICES": self.program.gpu}),
            "CUDA_MPS_PIPE_DIRECTORY": self.pipe,
            "CUDA_MPS_LOG_DIRECTORY": f"{self.home}/logs",
            **(extra or {}),
        }

    def run(
        self, *arguments: str, text: str = "", uid: int | None = None, environ: Mapping[str, str] | None = None
    ) -> tuple[int, str, str]:
        """Return exit code, standard output and standard error."""
        who = {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}
        done = subprocess.run(
            [self.program.path, *arguments],
            input=text,
            env=self.environ(environ),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            **who,  # type: ignore[call-overload]
        )
        return done.returncode, done.stdout, done.stderr

    def say(self, command: str, **how: object) -> tuple[int, str, str]:
        return self.run(text=f"{command}\n", **how)  # type: ignore[arg-type]

    def answer(self, command: str) -> str:
        return self.say(command)[1]

    def holder(self) -> int | None:
        """Return the holder of the lock from /proc/locks, independent of our F_GETLK."""
        inode = Path(self.pipe, "control_lock").stat().st_ino
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if fields[1] == "POSIX" and fields[5].endswith(f":{inode}"):
                return int(fields[4])
        return None

    def mode(self, name: str) -> str:
        return f"{stat.S_IMODE(os.lstat(f'{self.pipe}/{name}').st_mode):04o}"

    def kind(self, name: str) -> int:
        return stat.S_IFMT(os.lstat(f"{self.pipe}/{name}").st_mode)

    def start_server(self) -> str:
        uid = os.getuid()
        assert self.say(f"start_server -uid {uid}") == DONE
        self.wait(lambda: self.answer("get_server_list") != "")
        server = self.answer("get_server_list").strip()
        if self.program.driver >= 550:
            self.wait(lambda: self.answer(f"get_server_status {server}") == "ACTIVE\n")
        return server

    def gpu(self) -> str:
        """Return the UUID of the GPU: the program's, or the simulated one."""
        if self.program.gpu is not None:
            return self.program.gpu
        text = Path(self.program.environ["SIMGPU_STATE"], "gpu0").read_text()
        return text.partition("uuid=")[2].split()[0]

    def run_client(self, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a client to its end."""
        return subprocess.run(
            self.program.client, env=self.environ(environ), capture_output=True, text=True, timeout=120, check=False
        )

    def start_client(self, **environ: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            self.program.client, env=self.environ(environ), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline(), child.communicate()[1]
        return child

    def wait(self, true: Callable[[], bool], seconds: float = 120.0) -> None:
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, "it did not happen"
            time.sleep(0.02)

    def close(self) -> None:
        """End everything, by force, and only what was started here."""
        for child in self.children:
            child.kill()
            child.communicate()
        left: list[int | None] = []
        with suppress(subprocess.TimeoutExpired, OSError):
            left += [int(pid) for pid in self.answer("get_server_list").split() if pid.isdecimal()]
            self.say("quit")
        with suppress(OSError):
            left.append(self.holder())
        for pid in left:
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.home)


@pytest.fixture(params=["590"])
def program(request: pytest.FixtureRequest) -> Iterator[Program]:
    """Return the stand-in, which behaves as one release; for tests marked EVERY_DRIVER as several."""
    yield from stand_in(request.param)


def stand_in(driver: str, *options: str) -> Iterator[Program]:
    """Yield the stand-in as it behaves with a driver, on one GPU made with these options of simgpu-init."""
    folder = tempfile.mkdtemp(prefix="mps", dir="/tmp")
    Path(folder).chmod(0o755)
    state = f"{folder}/state"
    subprocess.run([HOME / "simgpu-init", "1", "--state", state, "--memory-mib", "8192", *options], check=True)
    yield Program(
        path=str(HOME / "nvidia-cuda-mps-control"),
        driver=int(driver),
        environ={"SIMGPU_STATE": state, "SIMMPS_DRIVER": driver},
        client=[str(HOME / "simgpu-task"), "--memory", "2G", "--seconds", "60"],
    )
    shutil.rmtree(folder)


@pytest.fixture
def mps(program: Program) -> Iterator[Mps]:
    yield from make_mps(program)


def make_mps(program: Program) -> Iterator[Mps]:
    """Yield folders with a short path: a socket's path has at most 87 bytes here."""
    home = tempfile.mkdtemp(prefix="m", dir="/tmp")
    Path(home).chmod(0o755)
    found = Mps(program, home)
    yield found
    found.close()


@pytest.fixture
def running(mps: Mps) -> Mps:
    assert mps.run("-d") == DONE
    return mps


# ---- The daemon ----


def test_a_front_end_without_a_daemon_says_so(mps: Mps) -> None:
    assert mps.say("get_server_list") == NO_DAEMON


def test_a_daemon_starts_once(running: Mps) -> None:
    first = running.holder()
    assert running.run("-d") == ALREADY
    assert first is not None
    assert running.holder() == first


def test_files_and_modes(running: Mps) -> None:
    assert f"{stat.S_IMODE(Path(running.pipe).stat().st_mode):04o}" == "0777"
    names = ("control", "control_lock", "control_privileged", "log")
    assert [running.mode(name) for name in names] == ["0666", "0666", "0755", "0777"]
    kinds = [running.kind(name) for name in names]
    assert kinds == [stat.S_IFSOCK, stat.S_IFREG, stat.S_IFSOCK, stat.S_IFIFO]


@EVERY_DRIVER
def test_the_pid_file_is_of_550(running: Mps) -> None:
    file = Path(running.pipe, "nvidia-cuda-mps-control.pid")
    assert (file.read_text() if file.exists() else None) == (
        str(running.holder()) if running.program.driver >= 550 else None
    )


def test_the_daemon_leaves_its_starter(running: Mps) -> None:
    daemon = running.holder()
    assert daemon is not None
    assert os.getsid(daemon) == daemon
    assert {str(Path(f"/proc/{daemon}/fd/{number}").readlink()) for number in (0, 1, 2)} == {"/dev/null"}


@pytest.mark.parametrize(
    ("dialogue"),
    [
        [("get_server_list", ""), ("get_device_client_list", ""), ("ps", "Server not found\n")],
        [
            ("get_default_active_thread_percentage", "100.0\n"),
            ("set_default_active_thread_percentage 25", "25.0\n"),
            ("get_default_active_thread_percentage", "25.0\n"),
            ("set_default_active_thread_percentage 101", "25.0\n"),
            ("set_default_active_thread_percentage 0", "25.0\n"),
            ("set_default_active_thread_percentage x", "25.0\n"),
            ("set_default_active_thread_percentage 33.33333", "33.3\n"),
        ],
        [
            ("get_default_device_pinned_mem_limit 0", ""),
            ("set_default_device_pinned_mem_limit 0 2G", ""),
            ("get_default_device_pinned_mem_limit 0", "2G\n"),
            ("set_default_device_pinned_mem_limit 0 512M", ""),
            ("get_default_device_pinned_mem_limit 0", "512M\n"),
            ("set_default_device_pinned_mem_limit 0 1.5G", ""),
            ("get_default_device_pinned_mem_limit 0", "1M\n"),
            ("set_default_device_pinned_mem_limit 0 0G", ""),
            ("get_default_device_pinned_mem_limit 0", ""),
        ],
        [
            ("get_client_list 12345", "Server 12345 not found\n"),
            ("shutdown_server 12345", "Server 12345 not found\n"),
            ("get_active_thread_percentage 12345", "Server 12345 not found\n"),
            ("nonsense", 'Unknown command "nonsense"\n'),
            ("start_server", "A user id (UID) is required to start a new server\n"),
            ("set_default_client_priority 5", "Invalid priority value - must be 0 or 1!\n"),
        ],
    ],
    ids=["empty", "percentage", "memory", "mistakes"],
)
def test_answers(running: Mps, dialogue: list[tuple[str, str]]) -> None:
    assert [(command, running.say(command)) for command, _ in dialogue] == [
        (command, (0, answer, "")) for command, answer in dialogue
    ]


@EVERY_DRIVER
def test_the_status_of_a_server_is_asked_from_550_on(running: Mps) -> None:
    new = running.program.driver >= 550
    expected = "Server 12345 not found\n" if new else 'Unknown command "get_server_status"\n'
    answer = running.answer("get_server_status 12345")
    assert answer == expected or (not new and answer.startswith('Unknown command "get_server_status'))


def test_commands_on_one_input_are_answered_in_order(running: Mps) -> None:
    text = "get_default_active_thread_percentage\nbogus\nget_default_active_thread_percentage\n"
    assert running.run(text=text) == (0, '100.0\nUnknown command "bogus"\n100.0\n', "")


@root_only
@EVERY_DRIVER
def test_what_another_user_may_do(running: Mps) -> None:
    assert running.say("get_default_active_thread_percentage", uid=NOBODY) == (0, "100.0\n", "")
    assert running.say("set_default_active_thread_percentage 50", uid=NOBODY)[0] == 0
    new = running.program.driver >= 550
    assert running.answer("get_default_active_thread_percentage") == ("100.0\n" if new else "50.0\n")
    assert running.say("quit", uid=NOBODY) == (0, "Not enough privilege to execute quit command\n", "")
    answer = running.say("start_server -uid 0", uid=NOBODY)
    assert answer[0] == 0
    assert answer[1].startswith(f"Insufficient privileges for UID {NOBODY}")


def test_an_idle_front_end_keeps_all_others_out(running: Mps) -> None:
    for later in range(8):  # one that meets another one, or is met too early, keeps nobody out
        idle = subprocess.Popen([running.program.path], stdin=subprocess.PIPE, env=running.environ())
        time.sleep(0.3 * 2**later)
        answer = running.answer("get_default_active_thread_percentage")
        idle.communicate()
        if answer == "":
            break
    assert answer == ""
    running.wait(lambda: running.say("get_default_active_thread_percentage") == (0, "100.0\n", ""))


def test_quit_leaves_three_files_and_a_free_lock(running: Mps) -> None:
    assert running.say("quit") == DONE
    assert sorted(file.name for file in Path(running.pipe).iterdir()) == [
        "control",
        "control_lock",
        "control_privileged",
    ]
    assert running.holder() is None
    assert running.say("quit") == NO_DAEMON


def test_a_daemon_starts_over_what_a_killed_one_left(running: Mps) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM):
        daemon = running.holder()
        assert daemon is not None
        os.kill(daemon, number)
        running.wait(lambda: running.holder() is None)
        assert Path(running.pipe, "control").exists()
        assert running.say("get_server_list") == NO_DAEMON
        assert running.run("-d") == DONE


def test_the_environment_gives_the_default_percentage(mps: Mps) -> None:
    assert mps.run("-d", environ={"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40"}) == DONE
    assert mps.answer("get_default_active_thread_percentage") == "40.0\n"


def test_a_folder_that_cannot_be_made(mps: Mps) -> None:
    missing = f"{mps.home}/x/y"
    answer = mps.run("-d", environ={"CUDA_MPS_PIPE_DIRECTORY": missing})
    assert answer == (1, f"Cannot access CUDA_MPS_PIPE_DIRECTORY={missing}\n", "")


def test_a_log_folder_that_cannot_be_made_is_a_warning(mps: Mps) -> None:
    missing = f"{mps.home}/x/y"
    code, said, _ = mps.run("-d", environ={"CUDA_MPS_LOG_DIRECTORY": missing})
    assert (code, said) == (
        0,
        f"Warning: Failed writing log files to directory [{missing}]. No logs will be available.\n",
    )
    assert not Path(mps.pipe, "log").exists()


@pytest.mark.parametrize(("size", "code"), [(87, 0), (88, 1)])
def test_a_pipe_directory_has_at_most_87_bytes(mps: Mps, size: int, code: int) -> None:
    long = f"{mps.home}/" + "p" * (size - len(mps.home) - 1)
    environ = {"CUDA_MPS_PIPE_DIRECTORY": long}
    assert mps.run("-d", environ=environ) == (code, "", "")
    if code == 0:
        assert mps.say("quit", environ=environ) == DONE


def test_anybodys_lock_keeps_a_daemon_from_starting(mps: Mps) -> None:
    Path(mps.pipe).mkdir()
    with open(f"{mps.pipe}/control_lock", "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        assert mps.run("-d") == ALREADY


# ---- Servers and clients ----


def test_a_server_serves_and_quit_ends_it(running: Mps) -> None:
    server = running.start_server()
    assert Path(f"/proc/{server}/comm").read_text() == "nvidia-cuda-mps\n"
    assert running.answer(f"get_client_list {server}") == ""
    assert running.say("quit") == DONE
    running.wait(lambda: _is_gone(int(server)))


def test_a_client_is_listed_and_terminated(running: Mps) -> None:
    server = running.start_server()
    client = running.start_client()
    assert running.answer(f"get_client_list {server}").split() == [str(client.pid)]
    assert str(client.pid) in running.answer("ps").split()
    assert running.say(f"terminate_client {server} {client.pid}")[0] == 0
    assert client.wait(timeout=120) != 0
    running.wait(lambda: running.answer(f"get_client_list {server}") == "")
    assert running.answer("get_server_list").strip() == server


def test_a_servers_own_values_are_set_and_read(running: Mps) -> None:
    server = running.start_server()
    running.say(f"set_active_thread_percentage {server} 25")
    assert running.answer(f"get_active_thread_percentage {server}") == "25.0\n"
    running.say(f"set_device_pinned_mem_limit {server} 0 512M")
    assert running.answer(f"get_device_pinned_mem_limit {server} 0") == "512M\n"
    assert running.answer("get_default_active_thread_percentage") == "100.0\n"


def test_a_default_memory_limit_holds_for_the_next_server(running: Mps) -> None:
    running.say("set_default_device_pinned_mem_limit 0 1G")
    running.start_server()
    client = running.run_client()
    assert client.returncode != 0
    assert "out of memory" in client.stderr.lower().replace("_", " ")


def test_quit_waits_for_clients(running: Mps) -> None:
    running.start_server()
    client = running.start_client()
    waiting = subprocess.Popen(
        [running.program.path], stdin=subprocess.PIPE, env=running.environ(), text=True, stdout=subprocess.DEVNULL
    )
    assert waiting.stdin is not None
    waiting.stdin.write("quit\n")
    waiting.stdin.close()
    time.sleep(0.5)
    assert running.holder() is not None
    client.terminate()
    assert waiting.wait(timeout=120) == 0
    running.wait(lambda: running.holder() is None)


def _is_gone(pid: int) -> bool:
    """Return whether the process has ended, reaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
