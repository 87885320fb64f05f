"""The helper: has everything loaded that hooks need, and runs one in a new process whenever front.c asks for it.

To start Python and to load the hooks' code takes most of a hook's time. The helper does both once, and forks for each
hook. It is root's, one on a node, with one thread. It reads no ledger, asks no driver and knows no job: a fork begins
as a program of its own would, with the environment and the files of the hook that slurmd started. It ends by itself:
when any file of its code, the Python or the site's configuration is another one than it was; when its socket is gone;
after a while without a hook. The next hook starts another one (helper_start.py). If anything is not as it should be,
it does not take the hook, which then starts as a program: nothing depends on the helper.

The front asks on a socket of root's: what is sent, and answered, stands in front.c and names.py.
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

from slurm_share.core import cgroup_paths, locks, names
from slurm_share.core.process import Deadline
from slurm_share.node import processes
from slurm_share.share import hook, registry

# What a hook imports in the middle of its work: here it is loaded once.
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
"""How often the helper checks whether it should end, seconds; it also checks at each request."""
REQUEST_S = 1.0
"""How long a request may take to arrive whole, seconds; the front waits no longer."""
MOST_HOOKS = 128
"""Hooks that run at once. Slurm starts as many as there are jobs that begin or end on a node at one moment."""
HEAD_BYTES = 64
UNPACKING, UNPACKING_S = "/run/slurm-share.unpacking", 60.0
"""As in packaging/share/hook.in: the mark of an upgrade, and how old it may be."""
NAMESPACES = ("mnt", "pid", "user", "net", "ipc", "uts", "cgroup")
RIGHTS = (b"CapInh", b"CapPrm", b"CapEff", b"CapBnd", b"CapAmb", b"NoNewPrivs", b"Seccomp")
"""Lines of /proc/PID/status (proc_pid_status(5)) that say what a process of root's may do."""
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_LAZY = (
    *("difflib", "encodings.ascii", "grp", "pwd", "subprocess", "threading", "tomllib", "traceback"),
    *("slurm_share.share.refusals", "slurm_share.core.config", "slurm_share.core.log", "slurm_share.share.ledger_file"),
    *(
        "slurm_share.slurm.private_data",
        "slurm_share.share.admission",
        "slurm_share.share.observe",
        "slurm_share.share.plan_v1",
    ),
)
"""Modules that hooks import where they need them."""


def load() -> None:
    """Import all that a hook may need, so that none of its processes has to."""
    import importlib

    for name in (*_LAZY, *(module for backend in registry.every() for module in backend.modules)):
        importlib.import_module(name)


# ---- Whether it is the right one ----

FileStamp = tuple[int, int, int, int, int]


def read_stamp(path: str) -> FileStamp | None:
    """Return what tells a file from another one in its place; None: it is not there."""
    try:
        found = os.stat(path)  # noqa: PTH116  (pathlib costs more than the look)
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def read_code() -> dict[str, FileStamp | None]:
    """Return the files that decide what this process does: of every module, the program, Python, the configuration."""
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return {file: read_stamp(file) for file in (*files, sys.argv[0], sys.executable, names.CONFIG_FILE) if file}


def is_unpacking() -> bool:
    """Return whether an upgrade is replacing our files now. An older mark is from an upgrade that was killed."""
    try:
        return abs(time.time() - os.stat(UNPACKING).st_mtime) < UNPACKING_S  # noqa: PTH116
    except OSError:
        return False


def read_place(pid: int | str) -> tuple[object, ...] | None:
    """Return the namespaces, the root folder and the rights of a process; None: it is gone.

    A slurmd in a container, or in a unit with fewer capabilities, has hooks that may not do more than it.
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
    """A request of the front: what it has sent so far, and the process that runs its hook."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.until = time.monotonic() + REQUEST_S
        self.data = bytearray()
        self.hook = ""
        self.size = -1
        self.pid = 0
        """The pid of the process that runs the hook; 0 before it is forked."""

    def receive(self) -> bool:
        """Take what has come; return False if the front is gone, or does not follow the protocol."""
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
            # int() raises ValueError for more than 4300 digits.
            if name not in MAINS or not size.isdecimal() or len(head) > HEAD_BYTES:
                return False
            if int(size) > names.HELPER_MOST_BYTES:
                return False
            self.hook, self.size, self.data = name, int(size), bytearray(rest)
        return bool(data) and len(self.data) <= (self.size if self.size >= 0 else HEAD_BYTES)

    @property
    def is_whole(self) -> bool:
        return len(self.data) == self.size


class Helper:
    """Takes requests of fronts and runs their hooks, until it should end."""

    def __init__(self, listener: socket.socket, code: dict[str, FileStamp | None]) -> None:
        self._listener: socket.socket | None = listener
        self._name = helper_start.place(names.HELPER_SOCKET)
        self._socket = self._read_socket_inode()
        self._code = code
        self._place = read_place("self")
        self._pid = os.getpid()
        self._prctl = ctypes.CDLL(None).prctl
        self._requests: dict[int, _Request] = {}
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._last = time.monotonic()
        self._woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll.register(self._woken, select.POLLIN)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)

    def serve(self) -> None:
        """Run hooks. Returns when the helper should end and no hook runs any more."""
        checked = 0.0
        while self._listener is not None or self._requests:
            waits = [one.until for one in self._requests.values() if not one.pid]
            wait = CHECK_S if not waits else max(0.0, min(waits) - time.monotonic())
            for fd, _ in self._poll.poll(1000 * min(CHECK_S, wait)):
                if fd == self._woken:
                    self._reap()
                elif fd in self._requests:
                    self._hear(self._requests[fd])
                elif self._listener is not None and fd == self._listener.fileno():
                    self._accept(self._listener)
            now = time.monotonic()
            for one in [one for one in self._requests.values() if not one.pid and one.until <= now]:
                self._drop(one)
            if now - checked >= CHECK_S and self._listener is not None:
                checked = now
                is_idle = not self._requests and now - self._last >= IDLE_S
                if is_idle or self._read_socket_inode() != self._socket or not self._is_fit():
                    self._close()

    def _is_fit(self) -> bool:
        return not is_unpacking() and all(read_stamp(file) == before for file, before in self._code.items())

    def _read_socket_inode(self) -> tuple[int, int] | None:
        found = read_stamp(self._name)
        return found and found[:2]

    def _close(self) -> None:
        """Take no more hooks."""
        if self._listener is not None:
            self._poll.unregister(self._listener)
            self._listener.close()
            self._listener = None
            if self._read_socket_inode() == self._socket:
                os.unlink(self._name)  # noqa: PTH108

    def _accept(self, listener: socket.socket) -> None:
        """Take all that wait at once: each has a second."""
        is_fit = self._is_fit()
        while True:
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                break
            except ConnectionAbortedError:
                continue  # that one is gone
            except OSError:
                break  # no descriptor or memory is left: there will be when a hook has ended
            if is_fit and self._takes(connection):
                self._last = time.monotonic()
                self._requests[connection.fileno()] = _Request(connection)
                self._poll.register(connection, select.POLLIN | select.POLLRDHUP)
            else:
                connection.close()
        if not is_fit:
            self._close()

    def _takes(self, connection: socket.socket) -> bool:
        """Return whether the helper takes the hook of this front; the front is told."""
        connection.setblocking(False)
        pid, uid = peer(connection)
        if uid != 0 or pid <= 0 or self._place is None or read_place(pid) != self._place:
            return False
        # A hook inside a job's own step finds that out by its ancestors; the helper's are others.
        if len(self._requests) >= MOST_HOOKS or processes.read_runs_in_job(pid=pid):
            return False
        try:
            return connection.send(names.HELPER_TAKES.encode()) == 1
        except OSError:
            return False

    def _hear(self, one: _Request) -> None:
        if one.pid:
            # The front has nothing more to say: slurmd has ended it, or it was killed. Its hook ends with it.
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
            self._be_hook(one)
        one.data = bytearray()
        # What the front sends from here on is for the hook's process.
        self._poll.modify(one.connection, select.POLLRDHUP)

    def _drop(self, one: _Request) -> None:
        """Say goodbye: the front runs the hook itself."""
        del self._requests[one.connection.fileno()]
        try:
            self._poll.unregister(one.connection)
        except KeyError:
            pass  # its front is gone
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
                # It has told its exit code itself. Where it was killed before, the front runs the hook again.
                self._drop(one)

    def _be_hook(self, one: _Request) -> NoReturn:
        """Become, in the new process, what slurmd would have started."""
        try:
            os.setsid()
            self._prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != self._pid:
                os._exit(1)  # the helper was killed a moment ago: its front has seen that
            self._prctl(_PR_SET_NAME, f"slurm-share-{one.hook}".encode()[:15], 0, 0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            answer = one.connection.fileno()
            close_all_but(answer)
            front, *_ = peer(one.connection)
            take_files(one.connection)
            take_limits(front)
            set_environment(bytes(one.data))
            time.tzset()

            def tell(code: int) -> None:
                os.write(answer, names.HELPER_ENDED.encode() + bytes([code & 0xFF]))

            run_hook(MAINS[one.hook], tell)
        finally:
            os._exit(1)  # without an answer: the front runs the hook again, and shows what is wrong


def run_hook(main: Callable[[], int], answer: Callable[[int], None]) -> NoReturn:
    """Run a hook in this process, and end it. `answer`: tells the front the exit code."""
    hook.begin(answer)
    hook.leave(main())


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return pid and uid of the process that connected; pid 0: it is in another pid namespace."""
    pid, uid, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def take_files(connection: socket.socket) -> None:
    """Ask the front for the hook's three standard files and make them this process's.

    Raises OSError where the front has given up: it runs the hook itself.
    """
    connection.settimeout(REQUEST_S)
    connection.send(names.HELPER_BEGINS.encode())
    _, files, _, _ = socket.recv_fds(connection, 1, 3, socket.MSG_CMSG_CLOEXEC)
    if len(files) != 3:
        raise ConnectionError("the front is gone")
    for place, fd in enumerate(files):
        os.dup2(fd, place)
        os.close(fd)


def take_limits(pid: int) -> None:
    """Give this process the resource limits, CPUs, nice value and OOM score of the front, which has slurmd's.

    The helper has those of the slurmd that ran when it was started; what a hook starts, such as an MPS daemon, inherits
    them. A value that cannot be set stays as it is.
    """

    def take_limit(limit: int) -> None:
        resource.setrlimit(limit, resource.prlimit(pid, limit))

    numbers = {value for name, value in vars(resource).items() if name.startswith("RLIMIT_")}
    takes: list[Callable[[], None]] = [functools.partial(take_limit, number) for number in numbers]
    takes += [
        lambda: os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, pid)),
        lambda: os.sched_setaffinity(0, os.sched_getaffinity(pid)),
        lambda: _write("/proc/self/oom_score_adj", _read(f"/proc/{pid}/oom_score_adj")),
    ]
    for take in takes:
        try:
            take()
        except (OSError, ValueError):
            pass


def set_environment(data: bytes) -> None:
    """Make these variables, a NUL behind each, this process's environment; of a name that comes twice the first one
    counts, as for getenv(3)."""
    found: dict[bytes, bytes] = {}
    for variable in data.split(b"\0"):
        name, equals, value = variable.partition(b"=")
        if name and equals:
            found.setdefault(name, value)
    os.environ.clear()
    os.environb.update(found)


def close_all_but(*kept: int) -> None:
    """Close every file but the three standard ones and those."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        if int(name) > 2 and int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                pass  # that of the listing itself


def _kill_group(pid: int) -> None:
    """Kill a hook's process and its group. It is not waited for yet, so the number is still its own; it may not lead
    its group yet."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


# ---- Its start ----


def leave_slurmds_cgroup(root: str = "/sys/fs/cgroup") -> None:
    """Go into a cgroup of root's beside those of MPS daemons: in slurmd's own one, the helper would keep a slurmd that
    is restarted from setting up its cgroups, and count for its limits."""
    for _, ours in cgroup_paths.trees(root):
        try:
            for folder in (ours, f"{ours}/hooks"):
                if not os.path.isdir(folder):  # noqa: PTH112
                    os.mkdir(folder, 0o755)  # noqa: PTH102
            _write(f"{ours}/hooks/cgroup.procs", "0")
        except OSError:
            pass  # it stays where it is


def _read(file: str) -> str:
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 64).decode()
    finally:
        os.close(fd)


def _write(file: str, value: str) -> None:
    fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def listen() -> socket.socket:
    """Return the socket on which hooks are taken, in a folder that nobody but root may enter. It gets its name when it
    takes connections: a hook that found it before would be refused, and start Python."""
    place = helper_start.place(names.HELPER_SOCKET)
    new = f"{place}.new"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        os.unlink(new)  # noqa: PTH108
    except FileNotFoundError:
        pass
    listener.bind(new)
    listener.listen(MOST_HOOKS)
    os.rename(new, place)  # noqa: PTH104
    return listener


def program() -> NoReturn:
    """Run as the helper. End at once where there is a helper already, or its files are being replaced."""
    began = time.time_ns()
    close_all_but()
    os.chdir("/")
    os.umask(0o077)
    # It must hear of the end of its processes, whatever slurmd had blocked.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    lock = os.open(helper_start.place(names.HELPER_LOCK), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    # A hook that looks whether there is a helper holds it for a moment.
    if not locks.take(lock, Deadline.after(LOCK_S), LOCK_S / 100):
        os._exit(0)
    leave_slurmds_cgroup()
    load()
    code = read_code()
    # What was changed since this process began may have been loaded before.
    changes = [time_ns for one in code.values() if one is not None for time_ns in one[3:]]
    if is_unpacking() or any(began <= one <= time.time_ns() for one in changes):
        helper_start.forget_start()
        os._exit(0)
    helper = Helper(listen(), code)
    helper_start.forget_start()
    _name_process()
    gc.collect()
    gc.freeze()
    helper.serve()
    os._exit(0)


def _name_process() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"slurm-share-hoo", 0, 0, 0)
