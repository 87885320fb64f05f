"""Our own MPS driver against the stand-in, with everything that goes wrong on a node."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec.structs
import pytest
from simulated_host import HOME, without_driver

from slurm_share.core import process
from slurm_share.core.errors import (
    MpsFolderError,
    MpsForeignError,
    MpsGoneError,
    MpsMissingError,
    MpsRefusedError,
    MpsServerError,
    MpsSilentError,
)
from slurm_share.core.paths import Paths
from slurm_share.core.process import Deadline
from slurm_share.core.records import Owner
from slurm_share.mps import control, folders, front_ends
from slurm_share.mps import daemons as actuator
from slurm_share.mps import processes as mp_processes
from slurm_share.mps.records import MpsFailed, MpsPlace, MpsProcess, MpsServer, MpsStarted

ROOT = os.geteuid() == 0
ANNA = Owner(61001, 61001, (61001,)) if ROOT else Owner(os.geteuid(), os.getegid())
BERT = Owner(61002, 61002, (61002,))

PERCENT, PERCENT_IS = "get_default_active_thread_percentage", "set_default_active_thread_percentage"

root_only = pytest.mark.skipif(not ROOT, reason="NOT TESTED: daemons of other users need root")

pytestmark = without_driver


class Node:
    """A node with simulated GPUs and a state folder of its own, with a short path."""

    def __init__(self, gpus: int) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="m", dir="/tmp"))
        self.home.chmod(0o755)
        self.state = self.home / "state"
        subprocess.run([HOME / "simgpu-init", str(gpus), "--state", self.state, "--memory-mib", "8192"], check=True)
        self.state.chmod(0o755)
        self.paths = Paths(self.home / "run", cgroup=self.home / "cgroup")
        self.paths.root.mkdir(mode=0o755)
        self.paths.user.mkdir(mode=0o711)
        lines = [(self.state / f"gpu{index}").read_text().splitlines() for index in range(gpus)]
        self.uuids = [line.removeprefix("uuid=") for text in lines for line in text if line.startswith("uuid=")]
        self.children: list[subprocess.Popen[str]] = []

    def place(self, index: int = 0, owner: Owner = ANNA, **variables: str) -> MpsPlace:
        found = control.node_place(self.paths, str(HOME / "nvidia-cuda-mps-control"), owner, self.uuids[index])
        environ = {"SIMGPU_STATE": str(self.state), **variables}
        return msgspec.structs.replace(found, environment=tuple(environ.items()))

    def served(self) -> MpsPlace:
        """Return the place of the first GPU, with a daemon."""
        place = self.place()
        actuator.start(place, soon())
        return place

    def with_folders(self) -> MpsPlace:
        """Return the place of the first GPU, with its folders and no daemon."""
        place = self.place()
        folders.make_parents(place)
        folders.make(place)
        return place

    def fault(self, name: str, text: str = "") -> Path:
        file = self.state / name
        file.write_text(text)
        return file

    def client(self, place: MpsPlace, *arguments: str, **environ: str) -> subprocess.Popen[str]:
        """Start a task on the GPU as the owner; return it when it has printed its line."""
        child = subprocess.Popen(
            [HOME / "simgpu-task", "--seconds", "60", *arguments],
            env={**control.environment(place), **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **as_user(place.owner),
        )
        self.children.append(child)
        assert child.stdout is not None
        assert "mps server" in child.stdout.readline(), child.communicate()[1]
        return child

    def processes(self) -> list[MpsProcess]:
        """Return the MPS processes with a pipe directory on this node."""
        return [one for one in mp_processes.read_processes() if (one.pipe or "").startswith(str(self.home))]

    def close(self) -> None:
        for child in self.children:
            child.kill()
            child.communicate()
        for one in self.processes():
            process.end(one.identity, signal.SIGKILL)
        shutil.rmtree(self.home)


def as_user(owner: Owner) -> dict[str, object]:
    return {"user": owner.uid, "group": owner.gid, "extra_groups": []} if ROOT else {}


def at_once(work: Callable[[int], None], count: int) -> None:
    """Call `work` with 0, 1, ... in so many threads at the same time."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


PATIENCE_S = 120.0
"""For what takes a moment on an idle machine, and what would last for ever if it went wrong."""


def soon(seconds: float = PATIENCE_S) -> Deadline:
    return Deadline.after(seconds)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(actuator, "UNDO_S", PATIENCE_S)
    monkeypatch.setattr(actuator, "KILL_S", PATIENCE_S)
    found = Node(2)
    yield found
    found.close()


def modes(folder: Path) -> dict[str, tuple[str, int]]:
    infos = {file.name: file.lstat() for file in folder.iterdir()}
    return {name: (f"{stat.S_IMODE(info.st_mode):04o}", info.st_uid) for name, info in infos.items()}


# ---- Start and stop ----


def test_a_daemon_starts_as_its_user_and_goes_without_a_trace(node: Node) -> None:
    """Folders of root's above, the user's below; the daemon, its server and every file are gone after `stop`."""
    place = node.place()
    started = actuator.start(place, soon())
    assert not started.joined
    assert [one.status for one in started.servers] == ["ACTIVE"]
    assert (started.daemon.uid, started.daemon.name) == (ANNA.uid, "nvidia-cuda-mps")
    assert modes(node.paths.user) == {"mps": ("0711", os.geteuid())}
    assert modes(node.paths.mps) == {str(ANNA.uid): ("0711", os.geteuid())}
    leaf = Path(place.pipe)
    assert modes(leaf.parent)[leaf.name] == ("0700", ANNA.uid)
    assert modes(leaf)["logs"] == ("0700", ANNA.uid)
    assert "SIMULATED" in (leaf / "logs" / "control.log").read_text()
    assert front_ends.examine(place, soon()).condition == "fine"

    stopped = actuator.stop(place, soon())
    assert (stopped.how, stopped.left, stopped.clients, stopped.notes) == ("quit", (), (), ())
    assert list(node.paths.mps.iterdir()) == []
    assert node.processes() == []
    assert actuator.stop(place, soon()).how == "was not there"


@root_only
def test_the_daemon_holds_nothing_of_ours(node: Node) -> None:
    """Own session, root folder, its user's groups, nothing on its streams, no descriptor and no variable of ours."""
    place = node.place()
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    os.environ["SECRET_OF_THE_HOOK"] = "1"
    try:
        daemon = actuator.start(place, soon()).daemon.pid
    finally:
        del os.environ["SECRET_OF_THE_HOOK"]
        os.close(writing)
    assert os.read(reading, 1) == b"", "the daemon kept the hook's pipe open"
    os.close(reading)
    proc = Path(f"/proc/{daemon}")
    assert os.getsid(daemon) == daemon
    assert str((proc / "cwd").readlink()) == "/"
    assert {str((proc / "fd" / number).readlink()) for number in "012"} == {"/dev/null"}
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
    assert status["Uid"].split() == [str(ANNA.uid)] * 4
    assert status["Gid"].split() == [str(ANNA.gid)] * 4
    assert status["Groups"].split() == [str(group) for group in ANNA.groups]
    environ = (proc / "environ").read_bytes()
    assert f"CUDA_VISIBLE_DEVICES={place.gpu}".encode() in environ
    assert b"SECRET_OF_THE_HOOK" not in environ


def test_a_healthy_daemon_is_joined_as_it_is(node: Node) -> None:
    place = node.place()
    first = actuator.start(place, soon())
    assert control.ask(place, f"{PERCENT_IS} 50", soon()) == "50.0"
    again = actuator.start(place, soon())
    assert again.joined
    assert again.daemon == first.daemon
    assert control.ask(place, PERCENT, soon()) == "50.0"


def test_a_visit_to_a_healthy_daemon_is_one_call(node: Node) -> None:
    place = node.place()
    started = actuator.start(place, soon())
    log = Path(place.logs, "control.log")
    for likely, calls in ((started.servers[0].pid, 1), (None, 2), (1, 3)):
        with pytest.MonkeyPatch.context() as patch:
            if likely != started.servers[0].pid:
                patch.setattr(mp_processes, "likely_server", lambda daemon, likely=likely: likely)
            before = log.read_text().count("NEW UI")
            assert control.read_servers(place, soon()) == started.servers
            assert log.read_text().count("NEW UI") - before == calls


def test_several_gpus_start_at_once_each_with_its_own_outcome() -> None:
    node = Node(4)
    try:
        with (node.state / "gpu2").open("a") as file:
            file.write("lost=1\n")
        places = [node.place(index) for index in range(4)]
        outcomes = actuator.start_many(places, soon())
        assert [type(one) for one in outcomes] == [MpsStarted, MpsStarted, MpsFailed, MpsStarted]
        failed = outcomes[2]
        assert isinstance(failed, MpsFailed)
        assert failed.kind == "MpsServerError"
        assert "GPU 2 is lost" in failed.why
        assert len({one.daemon.pid for one in outcomes if isinstance(one, MpsStarted)}) == 3
        assert not Path(places[2].pipe).exists(), "what was begun was undone"
        stopped = actuator.stop_many(places, soon())
        ways = [one.how for one in stopped if not isinstance(one, MpsFailed)]
        assert ways == ["quit", "quit", "was not there", "quit"]
        assert node.processes() == []
    finally:
        node.close()


def test_two_starts_at_the_same_time_make_one_daemon(node: Node) -> None:
    outcomes = actuator.start_many([node.place()] * 6, soon())
    assert {type(one) for one in outcomes} == {MpsStarted}
    assert len({one.daemon.pid for one in outcomes if isinstance(one, MpsStarted)}) == 1
    assert sorted(one.joined for one in outcomes if isinstance(one, MpsStarted)) == [False] + [True] * 5


def test_starts_and_stops_in_any_order_leave_nothing_half(node: Node) -> None:
    place = node.place()
    problems: list[BaseException] = []

    def hook(number: int) -> None:
        try:
            for turn in range(4):
                if (number + turn) % 2:
                    actuator.start(place, soon())
                else:
                    actuator.stop(place, soon())
        except BaseException as error:  # noqa: BLE001
            problems.append(error)

    at_once(hook, 3)
    assert problems == []
    actuator.stop(place, soon())
    assert list(node.paths.mps.iterdir()) == []
    assert node.processes() == []


@root_only
def test_two_users_have_two_daemons(node: Node) -> None:
    anna, bert = node.place(0, ANNA), node.place(0, BERT)
    actuator.start_many([anna, bert], soon())
    thief = msgspec.structs.replace(anna, owner=BERT)
    with pytest.raises(MpsGoneError):
        control.ask(thief, "get_server_list", soon())
    actuator.stop(anna, soon())
    assert front_ends.examine(bert, soon()).condition == "fine"


# ---- Calls ----


def test_eight_callers_at_once_all_get_their_answer(node: Node) -> None:
    place = node.served()
    answers: list[str] = []

    def call(_: int) -> None:
        for _ in range(5):
            answers.append(control.ask(place, PERCENT, soon()))

    at_once(call, 8)
    assert answers == ["100.0"] * 40


def test_lost_answers_are_asked_for_again(node: Node) -> None:
    place = node.served()
    node.fault("mps_lose", "5")
    control.ask(place, f"{PERCENT_IS} 25", soon())
    for _ in range(5):
        assert len(control.read_servers(place, soon())) == 1
    assert control.ask(place, PERCENT, soon()) == "25.0"


def test_a_command_of_two_lines_is_not_sent(node: Node) -> None:
    with pytest.raises(ValueError, match="one line"):
        control.ask(node.served(), "get_server_list\nquit", soon())


@root_only
def test_a_refusal_for_lack_of_privilege_is_an_error(node: Node) -> None:
    place = node.served()
    for folder in (Path(place.pipe), Path(place.pipe).parent):
        folder.chmod(0o755)
    with pytest.raises(MpsRefusedError, match="Insufficient privileges for UID 61002"):
        control.ask(msgspec.structs.replace(place, owner=BERT), f"{PERCENT_IS} 50", soon())


def test_an_idle_front_end_makes_it_silent_and_is_named(node: Node) -> None:
    place = node.served()
    for later in range(8):  # one that is met too early keeps nobody out
        idle = subprocess.Popen(
            [place.program], stdin=subprocess.PIPE, env=control.environment(place), text=True, **as_user(ANNA)
        )
        node.children.append(idle)
        time.sleep(0.3 * 2**later)
        health = front_ends.examine(place, soon(0.5))
        if health.condition == "silent":
            break
        idle.communicate()
    assert f"front end {idle.pid} of uid {ANNA.uid} is connected" in health.why
    stopped = actuator.stop(place, soon(20))
    assert (stopped.how, stopped.left) == ("SIGTERM", ())


# ---- Things that break ----


def test_a_daemon_that_hangs_in_every_call(node: Node) -> None:
    """Every call ends in time; a start does not touch it unless told that nobody uses it."""
    place = node.served()
    node.fault("mps_hang", "get_server_list")
    began = time.monotonic()
    assert front_ends.examine(place, soon(0.5)).condition == "silent"
    with pytest.raises(MpsSilentError):
        actuator.start(place, soon(0.5))
    assert time.monotonic() - began < PATIENCE_S
    old = mp_processes.read_daemon(place)
    (node.state / "mps_hang").unlink()
    assert mp_processes.read_daemon(place) == old
    node.fault("mps_hang", "get_server_list")
    threading.Timer(1.0, (node.state / "mps_hang").unlink).start()
    again = actuator.start(place, soon(), replace=True)
    assert not again.joined or again.daemon == old


def test_a_start_that_hangs_is_over_in_time(node: Node) -> None:
    place = node.place()
    node.fault("mps_hang", "start")
    began = time.monotonic()
    with pytest.raises(MpsSilentError, match="did not start in time"):
        actuator.start(place, soon(0.5))
    assert time.monotonic() - began < PATIENCE_S
    assert not Path(place.pipe).exists()
    assert node.processes() == []


def test_a_quit_that_never_returns(node: Node) -> None:
    place = node.served()
    node.fault("mps_hang", "quit")
    began = time.monotonic()
    stopped = actuator.stop(place, soon(20))  # a part of it is for the daemon's answer, the rest for signals and files
    assert (stopped.how, stopped.left) == ("SIGTERM", ())
    assert "does not answer" in stopped.notes[0]
    assert time.monotonic() - began < PATIENCE_S
    assert node.processes() == []


def test_a_daemon_and_server_that_ignore_sigterm(node: Node) -> None:
    place = node.place()
    node.fault("mps_stubborn")
    actuator.start(place, soon())
    node.fault("mps_hang", "quit")
    stopped = actuator.stop(place, soon(20))  # a part of it is for the daemon's answer, the rest for signals and files
    assert (stopped.how, stopped.left) == ("SIGKILL", ())
    assert node.processes() == []
    assert not Path(place.pipe).exists()


def test_a_killed_daemon_leaves_a_server_behind(node: Node) -> None:
    place = node.place()
    for way in ("stop", "start"):
        started = actuator.start(place, soon())
        assert process.end(started.daemon, signal.SIGKILL)
        process.wait_gone([started.daemon], soon())
        assert front_ends.examine(place, soon()).condition == "dead"
        assert [one.role for one in node.processes()] == ["server"]
        if way == "stop":
            stopped = actuator.stop(place, soon())
            assert (stopped.how, stopped.left) == ("was not there", ())
            assert "outlived its daemon" in stopped.notes[0]
            assert node.processes() == []
        else:
            again = actuator.start(place, soon())
            assert sorted(one.role for one in node.processes()) == ["daemon", "server"]
            assert again.servers[0].pid != started.servers[0].pid


def test_clients_are_told_before_the_daemon_goes(node: Node) -> None:
    place = node.served()
    first, second = node.client(place), node.client(place)
    stopped = actuator.stop(place, soon())
    assert stopped.how == "quit"
    assert sorted(stopped.clients) == sorted([first.pid, second.pid])
    for client in (first, second):
        assert "CUDA_ERROR_MPS_CLIENT_TERMINATED" in client.communicate(timeout=120)[1]


def test_a_server_in_fault(node: Node) -> None:
    place = node.place()
    old = actuator.start(place, soon())
    client = node.client(place)
    fault = node.fault("mps_fault", node.uuids[0])
    assert "CUDA_ERROR_LAUNCH_FAILED" in client.communicate(timeout=120)[1]
    health = front_ends.examine(place, soon())
    assert health.condition == "fault"
    assert "807" in health.why
    refused = subprocess.run(
        [HOME / "simgpu-task"], env=control.environment(place), capture_output=True, text=True, check=False
    )
    assert "CUDA_ERROR_MPS_" in refused.stderr
    with pytest.raises(MpsServerError, match="FAULT"):
        actuator.start(place, soon())  # the new one is in FAULT as well, and is undone
    assert not Path(place.pipe).exists()
    fault.unlink()
    assert actuator.start(place, soon()).daemon != old.daemon


def test_a_server_that_does_not_start_is_known_before_any_task(node: Node) -> None:
    place = node.place()
    node.fault("mps_fail")
    with pytest.raises(MpsServerError, match="no CUDA-capable device is detected"):
        actuator.start(place, soon())
    assert node.processes() == []
    assert list(node.paths.mps.glob("*/*-*[0-9a-f]")) == []


def test_a_slow_server_is_waited_for_until_the_deadline(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actuator, "UNDO_S", 20.0)  # half of it passes before the first signal
    place = node.place()
    node.fault("mps_slow", "0.7")
    assert actuator.start(place, soon()).seconds > 0.7
    actuator.stop(place, soon())
    node.fault("mps_slow", "90")
    began = time.monotonic()
    with pytest.raises((MpsServerError, MpsSilentError)):
        actuator.start(place, soon(1))
    assert time.monotonic() - began < 90
    assert node.processes() == []


def test_a_server_that_a_busy_node_lists_late_has_not_ended(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    place, late, read_servers = node.place(), [()] * (actuator.EMPTY_ANSWERS - 1), control.read_servers
    monkeypatch.setattr(actuator, "EMPTY_S", 0.0)  # it is over at the second answer
    monkeypatch.setattr(control, "read_servers", lambda *asked: late.pop() if late else read_servers(*asked))
    assert [one.status for one in actuator.start(place, soon()).servers] == ["ACTIVE"]


def test_a_daemon_that_other_jobs_use_is_waited_for(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy node it answers late. It cannot be replaced, and without it the job would run without MPS."""
    place, lost, ask_once = node.served(), ["", ""], control._front_end
    monkeypatch.setattr(actuator, "HEALTH_S", 0.0)  # it is over when the first answer is lost
    monkeypatch.setattr(
        control, "_front_end", lambda *asked: process.Finished(0, lost.pop(), "") if lost else ask_once(*asked)
    )
    assert actuator.start(place, soon()).joined


def test_a_program_that_is_not_there(node: Node) -> None:
    place = msgspec.structs.replace(node.place(), program="/usr/bin/no-such-mps-control")
    with pytest.raises(MpsMissingError, match="no-such-mps-control is missing"):
        actuator.start(place, soon())
    assert not node.paths.mps.exists()


@pytest.mark.parametrize(
    ("pipe", "why"),
    [
        ("/tmp/" + "p" * 83, "88 bytes"),
        ("relative/path", "absolute"),
        ("", "absolute"),
        ("/", "absolute"),
        ("/tmp/a/../b", "shortest"),
        ("/tmp/a\nb", "control character"),
    ],
)
def test_a_pipe_directory_that_will_not_do_is_refused_before_anything(node: Node, pipe: str, why: str) -> None:
    with pytest.raises(MpsFolderError, match=why):
        actuator.start(msgspec.structs.replace(node.place(), pipe=pipe), soon())


def test_87_bytes_are_enough(node: Node) -> None:
    parent = node.home / "own"
    parent.mkdir()
    place = msgspec.structs.replace(node.place(), pipe=f"{parent}/" + "p" * (86 - len(str(parent))))
    assert len(place.pipe) == control.PIPE_MAX_BYTES
    actuator.start(place, soon())
    assert actuator.stop(place, soon()).how == "quit"


# ---- Locks and traps ----


def hold_lock(place: MpsPlace, owner: Owner) -> subprocess.Popen[str]:
    """Start a process of that user that holds a write lock on control_lock."""
    code = (
        "import fcntl, sys, time; f = open(sys.argv[1], 'a'); fcntl.lockf(f, fcntl.LOCK_EX); "
        "print('held', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen(
        ["/usr/bin/python3", "-I", "-c", code, f"{place.pipe}/control_lock"],
        stdout=subprocess.PIPE,
        text=True,
        **as_user(owner),
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def test_a_lock_of_somebody_else_is_no_daemon(node: Node) -> None:
    place = node.with_folders()
    thief = hold_lock(place, ANNA)
    node.children.append(thief)
    health = front_ends.examine(place, soon())
    assert health.condition == "foreign"
    assert f"process {thief.pid}" in health.why
    assert mp_processes.read_daemon(place) is None
    started = actuator.start(place, soon())
    assert not started.joined
    assert "the folder was replaced" in started.notes[0]
    assert thief.poll() is None
    assert actuator.stop(place, soon()).how == "quit"
    assert thief.poll() is None


@root_only
def test_a_daemon_of_another_user_in_our_place_is_left_alone(node: Node) -> None:
    place = node.place()
    actuator.start(msgspec.structs.replace(place, owner=Owner(0, 0)), soon())
    daemon = mp_processes.lock_holder(place)
    with pytest.raises(MpsForeignError, match="uid 0"):
        actuator.start(place, soon())
    assert mp_processes.lock_holder(place) == daemon


def test_an_operators_own_daemon_is_seen_and_named(node: Node) -> None:
    other = node.home / "operator"
    other.mkdir()
    environ = {
        "PATH": f"{HOME}:/usr/bin:/bin",
        "SIMGPU_STATE": str(node.state),
        "CUDA_MPS_PIPE_DIRECTORY": str(other),
        "CUDA_MPS_LOG_DIRECTORY": str(other / "logs"),
    }
    subprocess.run([HOME / "nvidia-cuda-mps-control", "-d"], env=environ, check=True)
    actuator.start(node.place(), soon())
    foreign = mp_processes.foreign_daemons(tuple(node.processes()), str(node.paths.mps))
    assert [(one.role, one.pipe, one.identity.uid) for one in foreign] == [("daemon", str(other), os.geteuid())]
    actuator.stop(node.place(), soon())
    assert [one.pipe for one in node.processes()] == [str(other)]


@root_only
def test_a_link_in_the_users_folder_is_never_followed(node: Node) -> None:
    place = node.served()
    precious = node.home / "precious"
    precious.mkdir()
    (precious / "control.log").write_text("x" * 10_000)
    leaf = Path(place.pipe)
    shutil.rmtree(leaf / "logs")
    (leaf / "logs").symlink_to(precious)
    (leaf / "deep").symlink_to(precious)
    assert folders.bound_logs(place, limit_bytes=10) == ()
    (leaf / "control_lock").rename(leaf / "moved")
    (leaf / "control_lock").symlink_to("/etc/passwd")
    assert mp_processes.lock_holder(place) is None
    (leaf / "control_lock").unlink()
    os.mkfifo(leaf / "control_lock")
    assert mp_processes.lock_holder(place) is None
    (leaf / "control_lock").unlink()
    (leaf / "moved").rename(leaf / "control_lock")
    assert actuator.stop(place, soon()).how == "quit"
    assert (precious / "control.log").read_text() == "x" * 10_000


@root_only
def test_a_users_maze_of_folders_is_removed(node: Node) -> None:
    place = node.with_folders()
    fd = os.open(place.pipe, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", 0o700, dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    folders.remove(place, soon())
    assert list(Path(place.pipe).parent.iterdir()) == []


@root_only
def test_a_folder_that_others_may_write_is_no_place_for_a_daemon(node: Node) -> None:
    node.paths.mps.mkdir()
    theirs = node.paths.mps / str(ANNA.uid)
    theirs.mkdir()
    os.chown(theirs, ANNA.uid, ANNA.gid)
    with pytest.raises(MpsFolderError, match="it must be the caller's"):
        actuator.start(node.place(), soon())
    theirs.rmdir()
    theirs.symlink_to("/tmp")
    with pytest.raises(MpsFolderError):
        actuator.start(node.place(), soon())


def test_somebody_who_sits_on_a_lock_costs_no_more_than_the_deadline(node: Node) -> None:
    """The lock for calls is the user's to hold: then there are no answers, and `stop` has its signals."""
    place = node.served()
    with open(control.ui_lock(place), "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(MpsSilentError, match="another program holds"):
            control.ask(place, "get_server_list", soon(0.2))
        stopped = actuator.stop(place, soon(20))
    assert (stopped.how, stopped.left) == ("SIGTERM", ())
    assert node.processes() == []


def test_logs_that_have_grown_are_emptied_and_go_on(node: Node) -> None:
    place = node.served()
    log = Path(place.logs, "control.log")
    with log.open("a") as file:
        file.write("x" * 200_000)
    assert folders.bound_logs(place, limit_bytes=100_000) == ("control.log",)
    assert log.stat().st_size == 0
    control.ask(place, "get_server_list", soon())
    assert 0 < log.stat().st_size < 10_000


@root_only
def test_a_log_folder_that_is_not_writable_is_a_note(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    make = folders.make

    def make_without_logs(place: MpsPlace, *files: object) -> None:
        make(place)
        os.chown(place.logs, 0, 0)

    monkeypatch.setattr(folders, "make", make_without_logs)
    started = actuator.start(node.place(), soon())
    assert any("writes no logs" in note for note in started.notes)


def test_open_files_are_raised_where_that_is_allowed_and_noted_where_not(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actuator, "NOFILE", 1 << 30)
    started = actuator.start(node.place(), soon())
    assert any("open files are limited to" in note for note in started.notes)


def test_a_signal_reaches_no_later_process_of_that_number(node: Node) -> None:
    started = actuator.start(node.place(), soon())
    daemon = started.daemon
    assert daemon.start_ticks is not None
    reused = msgspec.structs.replace(daemon, start_ticks=daemon.start_ticks - 1)
    other = msgspec.structs.replace(daemon, uid=daemon.uid and daemon.uid + 1)
    unknown = msgspec.structs.replace(daemon, start_ticks=None)
    for one in (reused, other, unknown):
        assert not process.end(one, signal.SIGKILL) or one.uid == daemon.uid == 0
    assert process.is_same(daemon)
    assert not process.is_same(reused)


def test_a_daemon_that_a_job_has_joined_meanwhile_is_not_stopped(node: Node) -> None:
    """The caller asks under its lock, with its GPU, and is told; nothing of the daemon ends."""
    place = node.place()
    started = actuator.start(place, soon())
    asked: list[str] = []
    stopped = actuator.stop(place, soon(), unless=lambda gpu: not asked.append(gpu))
    assert (stopped.how, asked) == ("in use", [place.gpu])
    assert process.is_same(started.daemon)
    assert front_ends.examine(place, soon()).condition == "fine"


def test_a_process_that_a_daemon_only_calls_its_server_gets_no_signal(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = node.served()
    with subprocess.Popen(["sleep", "60"], **as_user(ANNA)) as other:
        monkeypatch.setattr(control, "read_servers", lambda place, deadline: (MpsServer(other.pid, "ACTIVE"),))
        stopped = actuator.stop(place, soon())
        assert other.poll() is None
        other.kill()
    assert stopped.left == ()


@pytest.mark.parametrize(("before", "after"), [("-1000", ["0"]), ("0", []), ("500", [])])
def test_a_daemon_is_no_better_protected_from_the_kernel_than_its_users_jobs(
    node: Node, monkeypatch: pytest.MonkeyPatch, before: str, after: list[str]
) -> None:
    """slurmd's unit protects slurmd, and so every hook (OOMScoreAdjust): what a hook starts for a user is not to be.
    To lower it for a test wants a capability that containers lack, so the kernel's file is not the real one here."""
    written: list[tuple[str, str]] = []

    class File:
        def __init__(self, name: str) -> None:
            self.name = name

        def read_text(self) -> str:
            return f"{before}\n"

        def write_text(self, text: str) -> None:
            written.append((self.name, text))

    monkeypatch.setattr(actuator, "Path", File)
    started = actuator.start(node.place(), soon())
    assert written == [(f"/proc/{started.daemon.pid}/oom_score_adj", text) for text in after]


# ---- Without root ----


@root_only
def test_an_ordinary_user_runs_a_daemon_of_ones_own(node: Node) -> None:
    """The launcher does so inside a job: no root and its own folder."""
    home = node.home / "anna"
    home.mkdir()
    os.chown(home, ANNA.uid, ANNA.gid)
    code = f"""
import os, subprocess, sys
sys.path.insert(0, {str(HOME.parents[2])!r})
from slurm_share.core.process import Deadline  # before: the interpreter may lie where only root reads
from slurm_share.core.records import Owner
from slurm_share.mps import control, daemons, front_ends
from slurm_share.mps.records import MpsPlace

os.setgroups([]), os.setgid({ANNA.gid}), os.setuid({ANNA.uid})
gpu, state, home, pipe = sys.argv[1:]
owner, soon = Owner({ANNA.uid}, {ANNA.gid}), lambda: Deadline.after(120)
place = MpsPlace(home + "/nvidia-cuda-mps-control", pipe, gpu, owner, (("SIMGPU_STATE", state),))
server = daemons.start(place, soon()).servers[0].pid
assert front_ends.examine(place, soon()).condition == "fine"
environ = {{**control.environment(place), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "10"}}
task = subprocess.Popen(
    [home + "/simgpu-task", "--seconds", "600"],
    env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
)
assert "10% of the SMs" in task.stdout.readline()
assert control.read_clients(place, server, soon()) == (task.pid,)
assert control.terminate_client(place, server, task.pid, soon())
assert not control.terminate_client(place, server, 1, soon())
assert "CLIENT_TERMINATED" in task.communicate(timeout=120)[1]
assert control.ask(place, "lspart", soon()).startswith("Unknown command")
assert daemons.stop(place, soon()).how == "quit"
print("good")
"""
    arguments = [node.uuids[1], str(node.state), str(HOME), str(home / "mps" / "0")]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=600, check=False
    )
    assert (done.stdout, done.stderr) == ("good\n", "")
    assert node.processes() == []
    assert not (home / "mps").exists() or list((home / "mps").iterdir()) == []
