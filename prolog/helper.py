"""The helper: a process with the hooks' code loaded, which forks a process for each hook that front.c requests.

Starting Python and loading the hooks' code takes most of a hook's time. The helper does both once. It runs as root,
once on a node, and has one thread. It does not read the ledger, the driver or jobs: a forked process begins as a new
program would, with the environment and the files of the hook that slurmd started. The helper ends if a file of
its code, Python or the site's configuration changes, if its socket is removed, and after IDLE_S without a hook. The
next hook starts another one (helper_start.py). In any unusual situation it rejects the hook, which then starts as a
program: nothing depends on the helper.

The front connects to a socket that belongs to root; front.c and names.py document the protocol.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import resource
import select
import signal
import socket
import struct
import sys
import time

from slurm_share.core import cgroup_paths, locks, names, numbers
from slurm_share.core.process import Deadline
from slurm_share.node import processes
from slurm_share.node.cgroups import slurp
from slurm_share.share import hook, registry

from . import epilog, helper_start, prolog

TYPE_CHECKING = False  # as in hook.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

MAINS: dict[str, Callable[[], int]] = {"prolog": prolog.main, "epilog": epilog.main}
IDLE_S = 900.0
"""Seconds without a hook after which a helper ends, to free its memory."""
LOCK_S = 1.0
CHECK_S = 5.0
"""Seconds between two checks whether the helper should end; it also checks at each request."""
REQUEST_S = 1.0
"""Seconds in which a request must arrive completely; the front waits no longer."""
MOST_HOOKS = 128
"""The most hooks at a time. Slurm starts one for each job that begins or ends on the node."""
HEAD_BYTES = 64
UNPACKING, UNPACKING_S = "/run/slurm-share.unpacking", 60.0
"""The file that marks an upgrade in progress, and its greatest age, as in packaging/share/hook.in."""
NAMESPACES = ("mnt", "pid", "user", "net", "ipc", "uts", "cgroup")
RIGHTS = (b"CapInh", b"CapPrm", b"CapEff", b"CapBnd", b"CapAmb", b"NoNewPrivs", b"Seccomp")
"""The lines of /proc/PID/status (proc_pid_status(5)) that describe the rights of a process of root."""
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_LAZY = (
    *("difflib", "encodings.ascii", "grp", "pwd", "subprocess", "threading", "tomllib", "traceback"),
    *("slurm_share.share.refusals", "slurm_share.core.config", "slurm_share.core.log", "slurm_share.share.ledger_file"),
    *("slurm_share.slurm.job_gpus", "slurm_share.share.admission"),
    *("slurm_share.share.job_note", "slurm_share.share.observe", "slurm_share.share.plugin_use"),
    *("slurm_share.node.fuse", "slurm_share.slurm.hook_conf"),
)
"""The modules that hooks import when they need them."""


def load() -> None:
    """Import all modules that a hook can need, so that the forked processes do not have to."""
    import importlib

    for name in (*_LAZY, *(module for backend in registry.every() for module in backend.modules)):
        importlib.import_module(name)


# ---- Checks whether the helper is up to date ----

FileStamp = tuple[int, int, int, int, int]


def read_stamp(path: str) -> FileStamp | None:
    """Return the values of stat(2) that change if a file is replaced or written; None: there is no file."""
    try:
        found = os.stat(path)  # noqa: PTH116  (pathlib takes longer than the call)
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def read_code() -> dict[str, FileStamp | None]:
    """Return the stamps of the files that this process depends on: modules, program, Python, configuration."""
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return {file: read_stamp(file) for file in (*files, sys.argv[0], sys.executable, names.CONFIG_FILE) if file}


def is_unpacking() -> bool:
    """Return whether an upgrade is replacing our files. A mark older than UNPACKING_S is left from a killed upgrade."""
    try:
        return abs(time.time() - os.stat(UNPACKING).st_mtime) < UNPACKING_S  # noqa: PTH116
    except OSError:
        return False


def read_confinement(pid: int | str) -> tuple[object, ...] | None:
    """Return the namespaces, the root folder and the rights of a process; None: it has ended.

    A slurmd may run in a container or with fewer capabilities. Its hooks must not have more rights than it has.
    """
    try:
        root = os.stat(f"/proc/{pid}/root")  # noqa: PTH116
        spaces = [os.readlink(f"/proc/{pid}/ns/{name}") for name in NAMESPACES]  # noqa: PTH115
        with open(f"/proc/{pid}/status", "rb") as file:
            rights = [line for line in file if line.partition(b":")[0] in RIGHTS]
    except OSError:
        return None
    return (root.st_dev, root.st_ino, *spaces, *rights)


class _Request:
    """A front's request: the data received so far, and the process that runs its hook."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.until = time.monotonic() + REQUEST_S
        self.data = bytearray()
        self.hook = ""
        self.size = -1
        self.pid = 0
        """The pid of the process that runs the hook; 0 before it is forked."""

    def receive(self) -> bool:
        """Read the available data; return False if the front has closed the connection or violates the protocol."""
        try:
            data = self.connection.recv(1 << 16)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.data += data
        if self.size < 0 and b"\n" in self.data:
            head, _, rest = bytes(self.data).partition(b"\n")
            name, _, size = head.decode("ascii", "replace").partition(" ")
            number = numbers.whole(size, names.HELPER_MOST_BYTES)
            if name not in MAINS or number is None or len(head) > HEAD_BYTES:
                return False
            self.hook, self.size, self.data = name, number, bytearray(rest)
        return bool(data) and len(self.data) <= (self.size if self.size >= 0 else HEAD_BYTES)

    @property
    def is_whole(self) -> bool:
        return len(self.data) == self.size


class Helper:
    """The loop that accepts requests of fronts and runs their hooks."""

    def __init__(self, listener: socket.socket, code: dict[str, FileStamp | None]) -> None:
        self._listener: socket.socket | None = listener
        self._name = helper_start.path_of(names.HELPER_SOCKET)
        self._socket = self._read_socket_inode()
        self._code = code
        self._confinement = read_confinement("self")
        self._pid = os.getpid()
        self._prctl = ctypes.CDLL(None).prctl
        self._requests: dict[int, _Request] = {}
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._last_hook = time.monotonic()
        self._woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll.register(self._woken, select.POLLIN)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)

    def serve(self) -> None:
        """Run hooks until the helper should end and no hook runs any more."""
        checked = 0.0
        while self._listener is not None or self._requests:
            waits = [one.until for one in self._requests.values() if not one.pid]
            wait = CHECK_S if not waits else max(0.0, min(waits) - time.monotonic())
            for fd, _ in self._poll.poll(1000 * min(CHECK_S, wait)):
                if fd == self._woken:
                    self._reap()
                elif fd in self._requests:
                    self._on_event(self._requests[fd])
                elif self._listener is not None and fd == self._listener.fileno():
                    self._accept(self._listener)
            now = time.monotonic()
            for one in [one for one in self._requests.values() if not one.pid and one.until <= now]:
                self._drop(one)
            if now - checked >= CHECK_S and self._listener is not None:
                checked = now
                is_idle = not self._requests and now - self._last_hook >= IDLE_S
                if is_idle or self._read_socket_inode() != self._socket or not self._is_current():
                    self._close()

    def _is_current(self) -> bool:
        return not is_unpacking() and all(read_stamp(file) == before for file, before in self._code.items())

    def _read_socket_inode(self) -> tuple[int, int] | None:
        found = read_stamp(self._name)
        return found and found[:2]

    def _close(self) -> None:
        """Stop accepting hooks, and remove the socket if it is this helper's."""
        if self._listener is not None:
            self._poll.unregister(self._listener)
            self._listener.close()
            self._listener = None
            if self._read_socket_inode() == self._socket:
                os.unlink(self._name)  # noqa: PTH108

    def _accept(self, listener: socket.socket) -> None:
        """Accept all waiting connections, because a front waits for one second only."""
        is_current = self._is_current()
        while True:
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                break
            except ConnectionAbortedError:
                continue
            except OSError:
                break  # no descriptor or memory is available until a hook has ended
            if is_current and self._accept_hook(connection):
                self._last_hook = time.monotonic()
                self._requests[connection.fileno()] = _Request(connection)
                self._poll.register(connection, select.POLLIN | select.POLLRDHUP)
            else:
                connection.close()
        if not is_current:
            self._close()

    def _accept_hook(self, connection: socket.socket) -> bool:
        """Check the process of a front and tell it that the helper accepts its hook. Return False if it does not."""
        connection.setblocking(False)
        pid, uid = peer(connection)
        if uid != 0 or pid <= 0 or self._confinement is None or read_confinement(pid) != self._confinement:
            return False
        # A hook inside a job's step (RunInJob) finds the step by its ancestors, and a child of the helper has others.
        if len(self._requests) >= MOST_HOOKS or processes.read_runs_in_job(pid=pid):
            return False
        try:
            return connection.send(names.HELPER_TAKES.encode()) == 1
        except OSError:
            return False

    def _on_event(self, one: _Request) -> None:
        if one.pid:
            # A front sends nothing after its request: slurmd has ended it. End its hook as well.
            self._poll.unregister(one.connection)
            _kill_group(one.pid)
        elif not one.receive():
            self._drop(one)
        elif one.is_whole:
            self._begin(one)

    def _begin(self, one: _Request) -> None:
        try:
            one.pid = os.fork()
        except OSError:
            self._drop(one)
            return
        if one.pid == 0:
            self._run_as_hook(one)
        one.data = bytearray()
        # From now on the hook's process reads what the front sends.
        self._poll.modify(one.connection, select.POLLRDHUP)

    def _drop(self, one: _Request) -> None:
        """Close the connection. If the front has no exit code yet, it runs the hook itself."""
        del self._requests[one.connection.fileno()]
        try:
            self._poll.unregister(one.connection)
        except KeyError:
            pass  # `_on_event` unregistered it when the front closed the connection
        one.connection.close()

    def _reap(self) -> None:
        os.read(self._woken, 4096)
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for one in [one for one in self._requests.values() if one.pid == pid]:
                # The process has sent its exit code, or it was killed earlier and the front runs the hook again.
                self._drop(one)

    def _run_as_hook(self, one: _Request) -> NoReturn:
        """Run the hook in the forked process, as if slurmd had started it."""
        try:
            os.setsid()
            self._prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != self._pid:
                os._exit(1)  # the helper was killed; the front notices that by itself
            self._prctl(_PR_SET_NAME, f"slurm-share-{one.hook}".encode()[:15], 0, 0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            answer = one.connection.fileno()
            close_all_but(answer)
            front, *_ = peer(one.connection)
            receive_files(one.connection)
            copy_limits(front)
            set_environment(bytes(one.data))
            time.tzset()

            def tell(code: int) -> None:
                os.write(answer, names.HELPER_ENDED.encode() + bytes([code & 0xFF]))

            run_hook(MAINS[one.hook], tell)
        finally:
            os._exit(1)  # without an answer: the front runs the hook again, which shows what is wrong


def run_hook(main: Callable[[], int], answer: Callable[[int], None]) -> NoReturn:
    """Run a hook in this process, and end it. `answer` sends the exit code to the front."""
    hook.begin(answer)
    hook.leave(main())


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return pid and uid of the process that connected; pid 0: it is in another pid namespace."""
    pid, uid, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def receive_files(connection: socket.socket) -> None:
    """Request the hook's three standard files from the front and install them in this process.

    Raises OSError if the front has given up and runs the hook itself.
    """
    connection.settimeout(REQUEST_S)
    connection.send(names.HELPER_BEGINS.encode())
    _, files, _, _ = socket.recv_fds(connection, 1, 3, socket.MSG_CMSG_CLOEXEC)
    if len(files) != 3:
        raise ConnectionError("the front has ended")
    for number, fd in enumerate(files):
        os.dup2(fd, number)
        os.close(fd)


def copy_limits(pid: int) -> None:
    """Copy the resource limits, CPUs, nice value and OOM score of the front, which are slurmd's, to this process.

    The helper's own values may come from an earlier slurmd, and an MPS daemon that a hook starts inherits them. A
    value that cannot be set is left unchanged.
    """

    def copy_limit(limit: int) -> None:
        resource.setrlimit(limit, resource.prlimit(pid, limit))

    numbers = {value for name, value in vars(resource).items() if name.startswith("RLIMIT_")}
    copies: list[Callable[[], None]] = [functools.partial(copy_limit, number) for number in numbers]
    copies += [
        lambda: os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, pid)),
        lambda: os.sched_setaffinity(0, os.sched_getaffinity(pid)),
        lambda: cgroup_paths.write("/proc/self/oom_score_adj", slurp(f"/proc/{pid}/oom_score_adj").decode()),
    ]
    for copy in copies:
        try:
            copy()
        except (OSError, ValueError):
            pass


def set_environment(data: bytes) -> None:
    """Replace the environment of this process with variables that each end with NUL. Of variables with the same name
    the first counts, as for getenv(3)."""
    found: dict[bytes, bytes] = {}
    for variable in data.split(b"\0"):
        name, equals, value = variable.partition(b"=")
        if name and equals:
            found.setdefault(name, value)
    os.environ.clear()
    os.environb.update(found)


def close_all_but(*kept: int) -> None:
    """Close all files except the three standard ones and `kept`."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        if int(name) > 2 and int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                pass  # the descriptor of the listing itself


def _kill_group(pid: int) -> None:
    """Kill a hook's process and its process group.

    The pid cannot belong to another process, because the hook has not been reaped. Kill the process itself too: it may
    not lead a group yet.
    """
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


# ---- The start of the helper ----


def leave_slurmds_cgroup(root: str = "/sys/fs/cgroup") -> None:
    """Move to a cgroup of our own. In slurmd's cgroup the helper would count against slurmd's limits and
    keep a restarted slurmd from setting up its cgroups."""
    for _, ours in cgroup_paths.trees(root):
        try:
            for folder in (ours, f"{ours}/hooks"):
                if not os.path.isdir(folder):  # noqa: PTH112
                    os.mkdir(folder, 0o755)  # noqa: PTH102
            cgroup_paths.write(f"{ours}/hooks/cgroup.procs", "0")
        except OSError:
            pass  # the helper stays in its cgroup


def listen() -> socket.socket:
    """Return the socket for fronts, in a folder that only root may enter. It gets its final name after listen(2):
    earlier, a front would be refused and start Python."""
    path = helper_start.path_of(names.HELPER_SOCKET)
    new = f"{path}.new"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        os.unlink(new)  # noqa: PTH108
    except FileNotFoundError:
        pass
    listener.bind(new)
    listener.listen(MOST_HOOKS)
    os.rename(new, path)  # noqa: PTH104
    return listener


def program() -> NoReturn:
    """Run as the helper. End at once if there is a helper already, or our files are being replaced."""
    began = time.time_ns()
    close_all_but()
    os.chdir("/")
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # slurmd may have blocked SIGCHLD
    lock = os.open(helper_start.path_of(names.HELPER_LOCK), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    # A hook that checks for a helper holds the lock for a moment.
    if not locks.take(lock, Deadline.after(LOCK_S), LOCK_S / 100):
        os._exit(0)
    leave_slurmds_cgroup()
    load()
    code = read_code()
    # A file that changed after this process began may have been loaded before the change.
    changes = [time_ns for one in code.values() if one is not None for time_ns in one[3:]]
    if is_unpacking() or any(began <= one <= time.time_ns() for one in changes):
        helper_start.forget_start()
        os._exit(0)
    helper = Helper(listen(), code)
    helper_start.forget_start()
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"slurm-share-hoo", 0, 0, 0)
    gc.collect()
    gc.freeze()
    helper.serve()
    os._exit(0)
