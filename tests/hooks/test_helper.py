"""The program that slurmd starts as a hook, and the helper that it asks."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from slurm_share_hooks import epilog, helper, helper_start, prolog

from slurm_share.core import names
from slurm_share.share import hook

CHECKOUT = Path(__file__).parents[2]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root has a helper")
PATIENCE_S = 300.0
PYTHON = 42
"""What the hook in Python ends with here."""


def until(true: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, f"it did not come to {what}"
        time.sleep(0.01)


def caught(pid: int) -> set[int]:
    """Return the signals that a process has handlers for."""
    (mask,) = re.findall(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return {number for number in range(1, signal.NSIG) if int(mask, 16) >> (number - 1) & 1}


class Site:
    """The two programs with paths of their own, and a hook in Python that exits with PYTHON."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state, self.config, self.run = folder / "state", folder / "config.toml", folder / "run"
        places = {"STATE_ROOT": self.state, "CONFIG_FILE": self.config, "HELPER_FOLDER": self.run}
        flags = " ".join(f"-D{name}='\"{place}\"'" for name, place in places.items())
        build = ["make", "-s", "-C", CHECKOUT / "prolog", f"BUILD={folder}/bin", f"HOME_FOLDER={folder}"]
        subprocess.run([*build, f"CPPFLAGS={flags}"], check=True)
        (folder / "libexec").mkdir()
        for name in ("prolog", "epilog"):
            script = folder / f"libexec/slurm-share-{name}"
            script.write_text(f"#!/bin/sh\necho in Python\nexit {PYTHON}\n")
            script.chmod(0o755)

    def start(self, which: str, environ: dict[str, str], *before: str) -> subprocess.Popen[str]:
        argv = [*before, str(self.folder / f"bin/slurm-share-{which}")]
        pipe = subprocess.PIPE
        return subprocess.Popen(argv, env=environ, stdout=pipe, stderr=pipe, text=True, errors="surrogateescape")

    def hook(self, environ: dict[str, str], *before: str, which: str = "prolog") -> tuple[int, str]:
        with self.start(which, {names.HOOK_VARIABLE: "1", **environ}, *before) as one:
            said, wrong = one.communicate(timeout=PATIENCE_S)
        assert wrong == ""
        return one.returncode, said


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("h"))


# ---- The quick look ----

LOOKS = {
    "nothing": ("", {}),
    "a shared job": ("", {names.HOOK_VARIABLE: "4"}),
    "an empty word": ("", {names.HOOK_VARIABLE: ""}),
    "another word": ("", {f"{names.HOOK_VARIABLE}_SRUN": "1"}),
    "no job on the node": ("mkdir -p state/jobs", {}),
    "another job": ("mkdir -p state/jobs/8", {}),
    "a hidden file": ("mkdir -p state/jobs; touch state/jobs/.x", {}),
    "jobs is a file": ("mkdir state; touch state/jobs", {}),
    "its own folder": ("mkdir -p state/jobs/7", {}),
    "a link that leads nowhere": ("mkdir -p state/jobs; ln -s nowhere state/jobs/7", {}),
    "a job without a number": ("mkdir -p state/jobs/none", {"SLURM_JOB_ID": None}),
    "an empty number": ("mkdir -p state/jobs", {"SLURM_JOB_ID": ""}),
    "a number that is a path": ("mkdir -p state/jobs", {"SLURM_JOB_ID": "../jobs"}),
    "a number without end": ("mkdir -p state/jobs", {"SLURM_JOB_ID": "7" * 5000}),
    "a site that lists nodes": ("echo 'exclusive_user_nodes = []' >config.toml", {}),
    "a comment that does": ("echo '#exclusive_user_nodesx' >config.toml", {}),
    "a site that lists none": ("echo 'mode = \"on\"' >config.toml", {}),
    "an empty configuration": (": >config.toml", {}),
    "a folder in its place": ("mkdir config.toml", {}),
    "far down": ("head -c 1048570 /dev/zero >config.toml; echo exclusive_user_nodes >>config.toml", {}),
    "just in reach": ("head -c 1048556 /dev/zero >config.toml; echo exclusive_user_nodes >>config.toml", {}),
}
"""What is on the node, and what is in the environment of job 7."""


@pytest.mark.parametrize("which", ["prolog", "epilog"])
@pytest.mark.parametrize("case", LOOKS)
def test_both_languages_see_the_same_work(built: Site, monkeypatch: pytest.MonkeyPatch, which: str, case: str) -> None:
    """The program in C ends with 0 exactly where the hook in Python would find nothing to do."""
    making, changes = LOOKS[case]
    subprocess.run(["/bin/sh", "-ec", "rm -rf state config.toml run; " + making], cwd=built.folder, check=True)
    environ = {key: value for key, value in {"SLURM_JOB_ID": "7", **changes}.items() if value is not None}
    with built.start(which, environ) as one:
        one.communicate(timeout=PATIENCE_S)
    for name in (names.HOOK_VARIABLE, "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setattr(names, "STATE_ROOT", str(built.state))
    monkeypatch.setattr(names, "CONFIG_FILE", str(built.config))
    monkeypatch.setattr(hook, "run", lambda who, work: PYTHON)
    before = os.umask(0o022)
    try:
        assert one.returncode == {"prolog": prolog, "epilog": epilog}[which].main()
    finally:
        os.umask(before)


# ---- The helper ----

HELPER = """
import os, resource, signal, subprocess, sys, time
sys.path[:0] = {path!r}
from slurm_share.core import names
names.STATE_ROOT, names.CONFIG_FILE, names.HELPER_FOLDER = {places!r}
from slurm_share_hooks import helper
helper.CHECK_S, helper.UNPACKING = {check_s!r}, {unpacking!r}
helper.leave_slurmds_cgroup = lambda: None
def stub():
    environ = dict(os.environ)
    action, _, word = environ.get("ACTION", "").partition(" ")
    if action == "say":
        print(environ.get(word), flush=True)
    elif action == "count":
        print(len(environ), os.getcwd(), os.getsid(0) == os.getpid(), flush=True)
    elif action == "wait":
        open(word, "w").write(str(os.getpid()))
        time.sleep(600)
    elif action == "limits":
        adj = open("/proc/self/oom_score_adj").read().strip()
        print(resource.getrlimit(resource.RLIMIT_NOFILE), os.nice(0), sorted(os.sched_getaffinity(0)), adj, flush=True)
    elif action == "daemon":
        null = subprocess.DEVNULL
        daemon = subprocess.Popen(["sleep", "600"], stdin=null, stdout=null, stderr=null, start_new_session=True)
        print(daemon.pid, flush=True)
    elif action == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "fail":
        raise ValueError(word)
    return int(environ.get("CODE", "0"))
helper.MAINS = {{"prolog": stub, "epilog": stub}}
helper.program()
"""
"""A helper with places of its own, whose hooks do what is in their environment."""


class Running(Site):
    """A site with a helper."""

    def __init__(self, site: Site) -> None:
        self.__dict__.update(site.__dict__)
        self.unpacking = self.folder / "unpacking"
        self.program = self.folder / "helper.py"
        self.begin()

    def begin(self, check_s: float = 0.1) -> None:
        """Start the helper. `check_s`: how often it checks whether it should end."""
        subprocess.run(["/bin/sh", "-ec", "rm -rf state config.toml run unpacking"], cwd=self.folder, check=True)
        self.run.mkdir(mode=0o700)
        (self.run / "lock").touch()
        path = [str(CHECKOUT), *(one for one in sys.path if one.endswith("-packages"))]
        shadow = self.folder / "code"
        shadow.mkdir(exist_ok=True)
        for name, folder in (("slurm_share", "slurm_share"), ("slurm_share_hooks", "prolog")):
            if not (shadow / name).is_symlink():
                (shadow / name).symlink_to(CHECKOUT / folder)
        places = (str(self.state), str(self.config), str(self.run))
        text = HELPER.format(path=[str(shadow), *path], places=places, unpacking=str(self.unpacking), check_s=check_s)
        self.program.write_text(text)
        # What was changed a moment ago might have been changed while it was loaded.
        self.helper = subprocess.Popen([sys.executable, "-ISB", self.program], env={"OF_HELPER": "1"})
        until((self.run / "socket").exists, "a helper")

    def end(self) -> None:
        self.helper.kill()
        self.helper.wait()

    def is_gone(self) -> bool:
        return self.helper.wait(PATIENCE_S) == 0 and not (self.run / "socket").exists()


@pytest.fixture
def site(built: Site) -> Iterator[Running]:
    running = Running(built)
    yield running
    running.end()


@needs_root
def test_a_hook_has_its_own_environment_files_and_code(site: Running) -> None:
    assert site.hook({"ACTION": "say SECRET", "SECRET": "hers", "CODE": "7"}) == (7, "hers\n")
    assert site.hook({"ACTION": "say SECRET", "CODE": "1"}, which="epilog") == (1, "None\n")
    assert site.hook({"ACTION": "say OF_HELPER"}) == (0, "None\n")
    many = {f"NAME_{number}": "x" * 100 for number in range(names.HELPER_MOST_VARIABLES - 2)}
    assert site.hook({"ACTION": "count", **many}) == (0, f"{names.HELPER_MOST_VARIABLES} / True\n")
    odd = "\udcff\n=" * 40_000
    assert site.hook({"ACTION": "say LONG", "LONG": odd}) == (0, f"{odd}\n")


BOUNDARY = """
import os, sys
program, name = sys.argv[1:]
environ = {**os.environ, **{f"SPANK_{number}": "x" * 100_000 for number in range(2)}}
for left in range(256 * 1024 - 200_000, 0, -8):  # until the kernel starts it
    try: os.execve(program, [program], {**environ, name: "x" * left})
    except OSError: pass
"""
"""Starts a program with the largest environment that the kernel takes with a stack of 1 MiB, within 8 bytes."""


@needs_root
def test_what_a_user_put_into_the_environment_does_not_reach_the_hook(site: Running) -> None:
    """Neither by its number nor by its size: the hook runs in the helper, and without one as a program."""
    many = {f"SPANK_{number}": "x" * 100 for number in range(5000)}
    assert site.hook({"ACTION": "count", names.HOOK_DIRECT: "1", **many}) == (0, "3 / True\n")
    largest = ["prlimit", f"--stack={1 << 20}", "--", sys.executable, "-ISc", BOUNDARY]
    program = str(site.folder / "bin/slurm-share-prolog")
    environ = {names.HOOK_VARIABLE: "1", "ACTION": "say SPANK_X"}
    for helper_ends, wanted in ((False, (0, "None\n")), (True, (PYTHON, "in Python\n"))):
        if helper_ends:
            site.end()
        done = subprocess.run([*largest, program, "SPANK_X"], env=environ, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (*wanted, "")


@needs_root
def test_what_cannot_be_handed_over_runs_as_a_program(site: Running) -> None:
    assert site.hook({}) == (0, "")
    large = "{f'NAME_{number}': 'x' * 100_000 for number in range(50)}"
    code = f"import os, sys; os.execve(sys.argv[1], sys.argv[1:], {{**os.environ, **{large}}})"
    wide = ["prlimit", f"--stack={1 << 30}", "--", sys.executable, "-ISc", code]
    assert site.hook({}, *wide) == (PYTHON, "in Python\n")
    assert site.hook({f"NAME_{number}": "" for number in range(names.HELPER_MOST_VARIABLES)})[0] == PYTHON
    assert site.hook({"LD_LIBRARY_PATH": "/tmp"}) == (PYTHON, "in Python\n")
    assert site.hook({}, "unshare", "-m") == (PYTHON, "in Python\n")
    assert site.hook({}, "setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin") == (PYTHON, "in Python\n")
    site.run.chmod(0o777)
    assert site.hook({}) == (PYTHON, "in Python\n")
    site.run.chmod(0o700)
    assert site.hook({}) == (0, "")
    site.end()
    assert site.hook({}) == (PYTHON, "in Python\n")


@needs_root
def test_another_user_cannot_talk_to_it(site: Running) -> None:
    code = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print(s.recv(1))"
    argv = ["setpriv", "--reuid=2001", "--clear-groups", "/usr/bin/python3", "-ISc", code, f"{site.run}/socket"]
    site.folder.chmod(0o755)
    for folder in site.folder.parents:
        if folder.stat().st_mode & 0o011 == 0:
            folder.chmod(folder.stat().st_mode | 0o011)
    denied = subprocess.run(argv, capture_output=True, text=True)
    assert "PermissionError" in denied.stderr
    site.run.chmod(0o755)
    (site.run / "socket").chmod(0o666)
    for uid in ("2001", "65534"):  # the second is the kernel's for users whom a user namespace does not map
        heard = subprocess.run([argv[0], f"--reuid={uid}", *argv[2:]], capture_output=True, text=True)
        assert (heard.stdout, heard.stderr) == ("b''\n", "")
        # Nor one with all of root's capabilities: it keeps them where it becomes another user (SECBIT_NO_SETUID_FIXUP).
        becomes = (
            f"import ctypes, os; ctypes.CDLL(None).prctl(28, 4, 0, 0, 0); os.setresuid({uid}, {uid}, {uid}); {code}"
        )
        able = subprocess.run(
            [sys.executable, "-ISc", becomes, f"{site.run}/socket"], capture_output=True, text=True, timeout=30
        )
        assert (able.stdout, able.stderr) == ("b''\n", "")
    site.run.chmod(0o700)
    assert site.hook({}) == (0, "")


def answer_to(connection: socket.socket, data: bytes) -> bytes:
    try:
        connection.sendall(data)
        return connection.recv(1)
    except (BrokenPipeError, ConnectionResetError):
        return b""


@needs_root
def test_a_helper_of_another_user_is_not_asked(site: Running) -> None:
    site.end()
    for uid in (2001, 65534):
        (site.run / "socket").unlink()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(site.run / "socket"))
            os.seteuid(uid)
            try:
                listener.listen()  # the kernel keeps who did (SO_PEERCRED of unix(7))
            finally:
                os.seteuid(0)
            with site.start("prolog", {names.HOOK_VARIABLE: "1"}) as one:
                connection, _ = listener.accept()
                with connection:
                    assert answer_to(connection, names.HELPER_TAKES.encode()) == b""
                assert one.communicate(timeout=PATIENCE_S) == ("in Python\n", "")


@needs_root
@pytest.mark.parametrize("action", ["die", "fail why"])
def test_a_hook_that_was_begun_and_did_not_end_runs_again_as_a_program(site: Running, action: str) -> None:
    assert site.hook({"ACTION": action})[0] == PYTHON
    assert site.hook({"CODE": "3"}) == (3, "")


@needs_root
def test_a_hook_whose_helper_is_killed_is_killed_with_it_and_runs_again(site: Running, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    with site.start("prolog", {names.HOOK_VARIABLE: "1", "ACTION": f"wait {pid}"}) as one:
        until(lambda: pid.exists() and pid.read_text(), "a hook at work")
        site.end()
        try:
            until(lambda: is_over(int(pid.read_text())), "the end of its process")
        except AssertionError:
            os.kill(int(pid.read_text()), signal.SIGKILL)
            raise
        assert one.communicate(timeout=PATIENCE_S)[0] == "in Python\n"
    assert one.returncode == PYTHON


@needs_root
def test_a_hook_that_slurmd_ends_ends_at_work(site: Running, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    with site.start("epilog", {names.HOOK_VARIABLE: "1", "ACTION": f"wait {pid}"}) as one:
        until(lambda: pid.exists() and pid.read_text(), "a hook at work")
        one.kill()
    try:
        until(lambda: is_over(int(pid.read_text())), "the end of its process")
    except AssertionError:
        os.kill(int(pid.read_text()), signal.SIGKILL)
        raise
    assert site.hook({}) == (0, "")


def is_over(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@needs_root
def test_a_stopped_helper_is_waited_for_once(site: Running) -> None:
    site.helper.send_signal(signal.SIGSTOP)
    assert site.hook({}) == (PYTHON, "in Python\n")
    assert not (site.run / "socket").exists()
    site.helper.send_signal(signal.SIGCONT)
    assert site.is_gone()


@needs_root
@pytest.mark.parametrize("change", ["code", "configuration", "upgrade", "socket"])
def test_a_helper_that_is_no_longer_the_right_one_ends(site: Running, change: str) -> None:
    if change != "socket":
        site.end()
        site.begin(check_s=600.0)
    if change == "code":
        os.utime(site.program, ns=(1, 1))
    elif change == "configuration":
        site.config.write_text('mode = "off"\n')
    elif change == "upgrade":
        site.unpacking.touch()
    else:
        (site.run / "socket").unlink()
    assert site.hook({}) == (PYTHON, "in Python\n")
    assert site.is_gone()


@needs_root
def test_nonsense_is_not_answered(site: Running) -> None:
    letters = (b"x" * 100, b"prolog x\n", b"other 0\n", b"prolog 99999999\n", b"prolog 1\nxx", b"\n")
    for letter in (*letters, b"prolog " + b"9" * 5000 + b"\n"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
            one.settimeout(PATIENCE_S)
            one.connect(f"{site.run}/socket")
            assert one.recv(1) == b"T"
            one.send(letter)
            assert one.recv(1) == b"", letter
    size = names.HELPER_MOST_BYTES + 1
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
        one.settimeout(PATIENCE_S)
        one.connect(f"{site.run}/socket")
        assert one.recv(1) == b"T"
        assert answer_to(one, b"prolog %d\n" % size + b"A=" + b"x" * (size - 3) + b"\0") == b""
    assert site.hook({"CODE": "5"}) == (5, "")


@needs_root
def test_a_helper_that_is_stopped_when_it_has_taken_a_hook_holds_nobody_up(site: Running) -> None:
    site.end()
    (site.run / "socket").unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(site.run / "socket"))
        listener.listen()
        with site.start("prolog", {names.HOOK_VARIABLE: "1"}) as one:
            connection, _ = listener.accept()
            connection.send(names.HELPER_TAKES.encode())
            try:
                assert one.communicate(timeout=PATIENCE_S) == ("in Python\n", "")
            finally:
                one.kill()
    assert one.returncode == PYTHON
    with connection:
        data, files, _, _ = socket.recv_fds(connection, 1 << 16, 3)
    assert (data.partition(b" ")[0], files) == (b"prolog", [])


@needs_root
def test_a_hook_whose_front_has_given_up_is_not_begun(site: Running, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    environ = f"ACTION=wait {file}\0".encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
        one.settimeout(PATIENCE_S)
        one.connect(f"{site.run}/socket")
        assert one.recv(1) == names.HELPER_TAKES.encode()
        one.send(b"prolog %d\n" % len(environ) + environ)
        assert one.recv(1) == names.HELPER_BEGINS.encode()
    until(lambda: children(site.helper.pid) == [], "the end of its process")
    assert not file.exists()


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@needs_root
def test_a_hook_has_the_limits_of_slurmd_and_not_of_the_helper(site: Running) -> None:
    """A slurmd that was started anew with others: what the hook starts inherits them."""
    limited = ["prlimit", "--nofile=300:400", "nice", "-n", "3", "taskset", "-c", "0", "choom", "-n", "77", "--"]
    assert site.hook({"ACTION": "limits"}, *limited) == (0, f"(300, 400) {os.nice(0) + 3} [0] 77\n")


@needs_root
def test_what_a_hook_starts_outlives_hook_and_helper(site: Running) -> None:
    """An MPS daemon serves its job after the Prolog."""
    code, said = site.hook({"ACTION": "daemon"})
    try:
        assert code == 0
        site.end()
        assert Path(f"/proc/{int(said)}/comm").read_text() == "sleep\n"
        assert not is_over(int(said))
    finally:
        os.kill(int(said), signal.SIGKILL)


@needs_root
def test_a_helper_without_a_free_descriptor_goes_on(site: Running) -> None:
    # Its last step before it waits for hooks; some descriptors are opened after the socket has its name.
    until(lambda: signal.SIGCHLD in caught(site.helper.pid), "the helper's loop")
    count = len(list(Path(f"/proc/{site.helper.pid}/fd").iterdir()))
    resource.prlimit(site.helper.pid, resource.RLIMIT_NOFILE, (count, count))
    assert site.hook({}) == (PYTHON, "in Python\n")
    assert site.is_gone()


# ---- Its start ----


def test_a_helper_is_started_once_and_not_again_where_it_does_not_come_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "HELPER_FOLDER", str(tmp_path / "run"))
    started: list[list[str]] = []
    said: list[str] = []
    monkeypatch.setattr(os, "posix_spawn", lambda path, words, environ, **how: started.append(words))
    for _ in range(3):
        helper_start.start(said.append)
    assert [words[-1] for words in started] == ["--helper"]
    assert said == []
    os.utime(tmp_path / "run/started", ns=(1, 1))
    for _ in range(3):
        helper_start.start(said.append)
    assert len(started) == 2
    assert said == ["the hooks' helper that was started before does not run; hooks work without it"]
    helper_start.forget_start()
    with open(tmp_path / "run/lock") as held:
        import fcntl

        fcntl.flock(held, fcntl.LOCK_EX)
        helper_start.start(said.append)
        assert len(started) == 2
    (tmp_path / "run").chmod(0o755)
    helper_start.start(said.append)
    assert (len(started), said[1:]) == (2, [f"no helper for hooks can be started: {tmp_path}/run is not root's alone"])


def test_the_socket_has_its_name_when_it_takes_connections(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(names, "HELPER_FOLDER", ".")
    Path(names.HELPER_SOCKET).touch()
    Path(f"{names.HELPER_SOCKET}.new").touch()

    class Listener(socket.socket):
        def listen(self, backlog: int = 0) -> None:
            assert Path(names.HELPER_SOCKET).is_file()
            super().listen(backlog)

    monkeypatch.setattr(socket, "socket", Listener)
    with helper.listen(), socket.socket(socket.AF_UNIX) as hook_of_slurmd:
        hook_of_slurmd.connect(names.HELPER_SOCKET)
    assert [file.name for file in tmp_path.iterdir()] == [names.HELPER_SOCKET]
