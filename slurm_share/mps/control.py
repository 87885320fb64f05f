"""Send commands to one MPS control daemon, under a lock and within a deadline.

This was measured with the control program of drivers 535, 550 and 555. The simulated one in packaging/demo/simgpu
behaves in the same way, and a test in tests/contract/ compares the two:

* It serves one front end at a time. Two callers in parallel lose 12 to 17 % of their calls, and about 1 % of all calls
  end with exit code 0 and no answer. So each of our calls holds a lock next to the pipe directory, is repeated if the
  answer was lost, and is never judged by its exit code.
* An idle front end of any user who can reach the socket blocks all others. So every call has a deadline.
* Many commands have no answer, whether they succeed or not. So each is followed by an unknown command on the same
  connection: when the error about that arrives, the answer to the command before it is complete.
* The daemon holds a POSIX lock on `control_lock` while it runs. The kernel names the holder without a connection, in
  microseconds, with all versions: this proves that the daemon is alive. A pid file would not, and 535 has none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ..core import locks, process
from ..core.errors import (
    CommandError,
    MpsFolderError,
    MpsGoneError,
    MpsMissingError,
    MpsRefusedError,
    MpsSilentError,
    shown,
)
from ..core.paths import Paths
from ..core.patterns import pattern
from ..core.process import Deadline
from ..core.records import DaemonGroup, Owner
from ..core.settings import Settings
from . import processes
from .records import MpsPlace, MpsServer, Namespace

PIPE_MAX_BYTES = 87
"""The longest pipe directory: with 88 bytes `<pipe>/control_privileged` no longer fits sun_path, and the daemon exits
with code 1 and no message (measured)."""
PROTOCOL = "2"
"""The protocol that all supported drivers have (docs.nvidia.com/deploy/mps, release 615, mpsv2-interface).
control_v3.py has the other."""
SEARCH_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
"""The daemon's PATH, in which it searches nvidia-cuda-mps-server. A hook's own PATH may lack /usr/sbin."""
LAST_COMMAND = "slurm_share_end"
"""The unknown command: every version answers `Unknown command "slurm_share_end"`, with and without a server."""
RETRY_S = 0.02
LEAST_S = 0.05
"""Seconds for a command that is sent after the deadline, such as `quit`: an idle node answers in that time."""

GONE = "Cannot find MPS control daemon process"
BUSY = "Cannot send command to MPS control daemon process"
REFUSALS = ("Insufficient privileges", "Not enough privilege", "Invalid", "Only root user")

_PIDS = pattern(r"[0-9]{1,10}")
_NOT_FOUND = pattern(r"Server [0-9]+ not found")


def node_place(
    paths: Paths,
    program: str,
    owner: Owner,
    gpu_uuid: str,
    *,
    pipe: str | None = None,
    minor: int | None = None,
    settings: Settings | None = None,
    namespaces: tuple[Namespace, ...] = (),
) -> MpsPlace:
    """Return the place of the daemon of one user on one GPU of this node.

    pipe: its pipe directory, if that is known. minor, settings: for the limits of a daemon that is to be started.
    namespaces: what it is to have, with protocol 3; without any it has protocol 2.
    """
    pipe = str(paths.mps_pipe(owner.uid, gpu_uuid)) if pipe is None else pipe
    name = pipe.rpartition("/")[2]
    group = DaemonGroup(str(paths.cgroup), owner.uid, name)
    if settings is not None:
        group = DaemonGroup(
            group.root, group.uid, name, minor, settings.mps_daemon_memory_mib, settings.mps_daemon_processes
        )
    return MpsPlace(program, pipe, gpu_uuid, owner, group=group, protocol=3 if namespaces else 2, namespaces=namespaces)


def check_pipe(pipe: str) -> None:
    """Raise MpsFolderError for a pipe directory that the daemon would not accept, or would interpret differently.

    With an empty CUDA_MPS_PIPE_DIRECTORY a daemon of root's puts its files into `/` (measured).
    """
    if not pipe.startswith("/") or os.path.normpath(pipe) != pipe or pipe == "/":
        raise MpsFolderError(shown(pipe), "is not an absolute path in its shortest form")
    size = len(os.fsencode(pipe))
    if size > PIPE_MAX_BYTES:
        raise MpsFolderError(pipe, f"is {size} bytes long; MPS accepts at most {PIPE_MAX_BYTES}: choose a shorter root")
    if any(character < " " for character in pipe):
        raise MpsFolderError(shown(pipe), "has a control character in it")


def environment(place: MpsPlace, protocol: str = PROTOCOL) -> dict[str, str]:
    """Return the complete environment of the daemon and its front ends, without the caller's own variables.

    Drivers from 615 on have two protocols with different answers; older ones ignore the protocol's variable.
    """
    return {
        "PATH": f"{place.program.rpartition('/')[0]}:{SEARCH_PATH}",
        **dict(place.environment),
        "CUDA_MPS_PROTOCOL_VERSION": protocol,
        "CUDA_MPS_PIPE_DIRECTORY": place.pipe,
        "CUDA_MPS_LOG_DIRECTORY": place.logs,
        "CUDA_VISIBLE_DEVICES": place.gpu,
    }


def ask(place: MpsPlace, command: str, deadline: Deadline) -> str:
    """Return the daemon's answer to one command, which may be empty.

    Raises MpsGoneError, MpsSilentError, MpsMissingError; MpsRefusedError if the answer is a refusal.
    """
    if len(command) > 1024 or not command.isprintable():
        raise ValueError(f"not a command of one line: {shown(command)}")
    text = _converse(place, f"{command}\n{LAST_COMMAND}\n", deadline, _answers_before_the_last)
    refuse(place, command, text)
    return text


def ask_for_all(place: MpsPlace, commands: Sequence[str], deadline: Deadline) -> str:
    """Return the daemon's answers to several commands, which may be incomplete: they are sent once, whether or not an
    answer comes, since a command that was carried out must not be sent again. The caller finds out what they did.

    Raises MpsGoneError, MpsSilentError, MpsMissingError.
    """
    return _converse(place, "".join(f"{command}\n" for command in commands), deadline, lambda text: text)


def tell_quit(place: MpsPlace, deadline: Deadline) -> None:
    """Send `quit` and wait until the front end has ended. Whether the daemon has ended, only its lock tells.

    Raises as `ask` does, MpsSilentError also if the daemon waits for clients.
    """
    text = _converse(place, "quit\n", deadline, lambda text: text)
    refuse(place, "quit", text)


def refuse(place: MpsPlace, command: str, answer: str) -> None:
    """Raise MpsRefusedError if the answer is one of the control program's refusals, whose exit code is 0."""
    if answer.startswith(REFUSALS):
        raise MpsRefusedError(place.pipe, f"{command}: {shown(answer, 200)}")


def ui_lock(place: MpsPlace) -> str:
    """Return the path of the lock that allows one front end at a time. It belongs to the daemon's owner, so that his
    own programs can wait for it."""
    return f"{place.pipe}.ui"


def _answers_before_the_last(text: str) -> str | None:
    """Return the answer before the error about LAST_COMMAND; None without that error: the answer was lost."""
    before, _, last = text.strip().rpartition("\n")
    return before.strip() if LAST_COMMAND in last else None


def _converse(place: MpsPlace, text: str, deadline: Deadline, understood: Callable[[str], str | None]) -> str:
    with held(ui_lock(place), place, deadline):
        while True:
            finished = _front_end(place, text, deadline)
            if GONE in finished.stderr:
                raise MpsGoneError(place.pipe, "there is no daemon")
            answer = understood(finished.stdout)
            if answer is not None and finished.code == 0 and BUSY not in finished.stderr:
                return answer.strip()
            if deadline.left() <= RETRY_S:
                raise MpsSilentError(place.pipe, "its daemon is busy with another user's idle front end, or hangs")
            time.sleep(RETRY_S)


def _front_end(place: MpsPlace, text: str, deadline: Deadline) -> process.Finished:
    """Run the control program once, as the daemon's owner: root itself does not use a user's folder."""
    left_s = deadline.left()
    try:
        return process.exchange(
            [place.program],
            text=text,
            timeout_s=max(left_s, LEAST_S),
            env=environment(place),
            owner=place.owner,
            group=place.group,
        )
    except CommandError as error:
        raise no_answer(place, left_s, error) from error


def no_answer(place: MpsPlace, left_s: float, error: CommandError) -> MpsMissingError | MpsSilentError:
    """Return the error for a control program that did not start, or had not ended after the `left_s` that it had."""
    if isinstance(error.__cause__, OSError):
        return missing(place)
    if left_s < LEAST_S:
        why = "what came before took all the time that MPS may take: the node is busy"
        return MpsSilentError(place.pipe, f"there was no time left to ask its daemon; {why}")
    return MpsSilentError(place.pipe, f"its daemon does not answer ({error.stderr})")


def missing(place: MpsPlace) -> MpsMissingError:
    """Return the error for a node without MPS."""
    return MpsMissingError(
        place.pipe, f"{place.program} is missing or cannot be run; it comes with the driver, often as its own package"
    )


@contextmanager
def held(path: str, place: MpsPlace, deadline: Deadline, *, theirs: bool = True) -> Iterator[None]:
    """Hold a lock file, which is made if it is missing. The kernel releases the lock if the holder dies.

    Lock files are next to the pipe directory, which is removed with the daemon. Only the holder of a lock removes its
    file (`forget`), and a process that gets the lock checks that the file still has its name: so no process holds a
    lock that others cannot find.

    theirs: the daemon's owner may hold it, too. No other user can open it and so delay the others.

    Raises MpsSilentError at the deadline, MpsFolderError if the folder is missing or not the caller's.
    """
    while True:
        fd = _open_lock(path, place, theirs)
        try:
            if not locks.take(fd, deadline, RETRY_S / 4):
                raise MpsSilentError(place.pipe, f"another program holds {path}")
            if _is_file_at(fd, path):
                yield
                return
        finally:
            os.close(fd)


def forget(path: str) -> None:
    """Remove a lock file that the caller holds."""
    try:
        os.unlink(path)  # noqa: PTH108
    except OSError:
        pass  # an empty file stays on the tmpfs until the next boot


def _open_lock(path: str, place: MpsPlace, theirs: bool) -> int:
    """Open a daemon's lock, and make it if it is missing; root gives it to the daemon's owner if it is `theirs`."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise MpsFolderError(place.pipe, f"its lock {path} cannot be opened: {error.strerror}") from error
        try:
            fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue  # another process has just made it
        except FileNotFoundError as error:
            raise MpsGoneError(place.pipe, "there is no such folder, and so no daemon") from error
        except OSError as error:
            raise MpsFolderError(place.pipe, f"its lock {path} cannot be made: {error.strerror}") from error
        if theirs and os.geteuid() == 0:
            os.fchown(fd, place.owner.uid, place.owner.gid)
        return fd


def _is_file_at(fd: int, path: str) -> bool:
    mine = os.fstat(fd)
    try:
        there = os.lstat(path)
    except OSError:
        return False
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)


# ---- Questions ----


def read_servers(place: MpsPlace, deadline: Deadline) -> tuple[MpsServer, ...]:
    """Return the daemon's servers, each with its status. Raises as `ask` does.

    There is almost always one, which the kernel names: then ask for list and status in one call, in half the time.
    """
    daemon = processes.read_daemon(place)
    likely = None if daemon is None else processes.likely_server(daemon)
    if likely is not None:
        text = f"get_server_list\nget_server_status {likely}\n{LAST_COMMAND}\n"
        listed, _, status = _converse(place, text, deadline, _answers_before_the_last).rpartition("\n")
        if listed == str(likely):
            return (MpsServer(likely, parse_status(status)),)
    pids = parse_pids(place, ask(place, "get_server_list", deadline))
    return tuple(MpsServer(pid, parse_status(ask(place, f"get_server_status {pid}", deadline))) for pid in pids)


def read_clients(place: MpsPlace, server_pid: int, deadline: Deadline) -> tuple[int, ...]:
    """Return the pids of the clients of a server; empty if the server has ended."""
    return parse_pids(place, ask(place, f"get_client_list {server_pid}", deadline))


def start_server(place: MpsPlace, deadline: Deadline) -> None:
    ask(place, f"start_server -uid {place.owner.uid}", deadline)


def terminate_client(place: MpsPlace, server_pid: int, client_pid: int, deadline: Deadline) -> bool:
    """End one client's work on the GPU; its next CUDA call returns error 810. Return False if there is no such client
    or server.

    Call it before killing the client: SIGKILL during work leaves the server and all its clients in an undefined state
    (docs.nvidia.com/deploy/mps, "Client early termination"). Raises as `ask` does.
    """
    return "not found" not in ask(place, f"terminate_client {server_pid} {client_pid}", deadline)


# ---- Parse the daemon's answers ----


def parse_pids(place: MpsPlace, text: str) -> tuple[int, ...]:
    """Return the pids in an answer, one on each line; empty if the server has ended. Raises MpsRefusedError for any
    other text."""
    if _NOT_FOUND.match(text):
        return ()
    lines = text.split()
    if not all(_PIDS.fullmatch(line) for line in lines):
        raise MpsRefusedError(place.pipe, f"its answer is not a list of processes: {shown(text, 200)}")
    return tuple(int(line) for line in lines)


def parse_status(text: str) -> str | None:
    """Return a server's status in capitals; GONE if the server has ended; None for a release without the command."""
    if text.startswith("Unknown command") or not text.strip():
        return None
    return "GONE" if _NOT_FOUND.match(text) else text.split()[-1].upper()
