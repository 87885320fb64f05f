"""Start tasks, and signal all processes of a task.

Each task leads a session and process group of its own, so that one signal reaches its children too. It is started with
posix_spawn(3), which for a parent of this size is several times cheaper than fork and exec.

A task inherits the cores of the thread that starts it, so it never runs on other cores. If the launcher's main thread
moved to these cores itself, it would wait for a busy core at each start while other cores are idle, and short tasks
would run at a third of the rate. So a few threads only start tasks.

libc's posix_spawn is called through ctypes. os.posix_spawn builds environment, file actions and attributes for every
task, and an environment of a hundred variables then costs more than the rest of a start.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import queue
import signal
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from ...core import names
from ...core.process import end
from ...node import descendants
from .. import run_folder
from ..rules import deal, outcomes

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
"""O_NONBLOCK has no effect on files. Opening a FIFO in the place of a log fails with it instead of waiting forever."""

_SETSIGDEF, _SETSIGMASK, _SETSID = 0x04, 0x08, 0x80
"""Flags of posix_spawnattr_setflags(3), the same in the headers of glibc and musl."""
THREADS = 4
"""Most threads that start tasks: while one waits for a core, the others go on. Other numbers were not measured
(tests/bench/launch.py)."""
STACK_BYTES = 512 * 1024
PASSING = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT})
"""Errors of a start that its task does not cause and that may pass."""
NO_PROCESSES = "you have reached the limit of processes there (ulimit -u, or pids.max of the job's cgroup)"
HEAD_BYTES = 256
"""Bytes of a script's first line that the kernel reads (BINPRM_BUF_SIZE of linux/binfmts.h)."""
SPARE_BYTES = 24
"""Room for a longer value of a variable that differs between tasks, such as the number of the task."""
_ENV_LIMITS = os.fsencode(names.ENV_LIMITS)
_LIMITED = (names.LIMITS_PROGRAM, "run")
"""The program that is started in place of a task whose memory the driver limits; it becomes the task."""
_OPAQUE_BYTES = 1024
"""Size of a buffer for a sigset_t, posix_spawnattr_t or posix_spawn_file_actions_t: 128, 336 and 80 bytes in glibc, no
more in musl."""


class Environment:
    """The variables of successive tasks in the form of posix_spawn(3).

    The array is made once; only values that differ between tasks are replaced. No value may contain a NUL.
    """

    def __init__(self, variables: Mapping[bytes, bytes]) -> None:
        self._variables = dict(variables)
        self._own: set[bytes] = set()
        """Names of the variables of the present task alone."""
        self._lay_out()

    def _lay_out(self) -> None:
        lines = [name + b"=" + value for name, value in self._variables.items()]
        self._place = {name: place for place, name in enumerate(self._variables)}
        self._room: dict[bytes, ctypes.Array[ctypes.c_char]] = {}
        """Name -> the memory of its line, once its value has changed: a new pointer costs more than new bytes."""
        self.array = (ctypes.c_char_p * (len(lines) + 1))(*lines, None)
        """NAME=VALUE strings and a null pointer."""

    def __setitem__(self, name: bytes, value: bytes) -> None:
        if self._variables.get(name) == value:
            return
        self._variables[name] = value
        line, room = name + b"=" + value, self._room.get(name)
        if room is not None and len(line) < len(room):
            room.value = line
        elif name in self._place:
            room = self._room[name] = ctypes.create_string_buffer(line, len(line) + SPARE_BYTES)
            self.array[self._place[name]] = ctypes.cast(room, ctypes.c_char_p)
        else:
            self._lay_out()

    def update(self, variables: Mapping[bytes, bytes]) -> None:
        for name, value in variables.items():
            self[name] = value

    def set_own(self, variables: Mapping[bytes, bytes]) -> bool:
        """Set the variables that only the next task has, and remove those of the one before.

        Return whether it has others than the one before.
        """
        is_other = self._own != variables.keys()
        gone = self._own - variables.keys()
        if gone:
            for name in gone:
                del self._variables[name]
            self._lay_out()
        self._own = set(variables)
        self.update(variables)
        return is_other

    def get(self, name: bytes) -> bytes:
        """Return the value of a variable; empty: it is not set."""
        return self._variables.get(name, b"")


class StartResult(Struct, eq=False):
    """The result of one start."""

    worker: int
    pid: int = 0
    """0: the task did not start."""
    error: OSError | None = None
    is_on_its_cores: bool = True
    """False: the job has lost all cores of the worker, and the task runs on other cores of the job."""


class _Start(NamedTuple):
    """A request to a thread to start a task."""

    begun: StartResult
    """The result, which the thread fills in."""
    argv: ctypes.Array[ctypes.c_char_p]
    environment: ctypes.Array[ctypes.c_char_p]
    cpus: frozenset[int] | None
    """The cores of the task; None: all."""
    actions: ctypes.Array[ctypes.c_char]


class Starter:
    """Threads that start the tasks of one launcher, each on the cores of its worker."""

    def __init__(self, cpus: Sequence[frozenset[int] | None], pids: Sequence[ctypes.c_int]) -> None:
        """Prepare starts. `cpus`: the cores of each worker; None: all. `pids`: where libc writes each worker's pid."""
        self._cpus = cpus
        self._pids = pids
        self._libc = ctypes.CDLL(None)
        self._attributes = self._make_attributes()
        self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._actions: dict[int, ctypes.Array[ctypes.c_char]] = {}
        """Descriptor of a log -> the file actions of a start."""
        self._argv: tuple[Sequence[str], tuple[str, ...], ctypes.Array[ctypes.c_char_p]] | None = None
        """The arguments of the last start, the program before them, and both for libc."""
        self._begun: queue.SimpleQueue[StartResult] = queue.SimpleQueue()
        self.pending = 0
        """Starts that were requested and that `begun` has not returned."""
        self._assign([queue.SimpleQueue() for _ in range(min(len(set(cpus)), THREADS))])

    def make_threads(self) -> None:
        """Start the threads. Call it once, with all relevant signals blocked, which the threads inherit.

        If only some threads can be started, these do the work. Raises RuntimeError if none can.
        """
        before, made = threading.stack_size(STACK_BYTES), 0
        try:
            for one in self._queues:
                threading.Thread(target=self._work, args=(one,), name="starter", daemon=True).start()
                made += 1
        except RuntimeError:
            if not made:
                raise
        finally:
            threading.stack_size(before)
        self._assign(self._queues[:made])

    def _assign(self, queues: list[queue.SimpleQueue[_Start]]) -> None:
        """Assign a queue to each worker.

        Workers with the same cores share a thread, which then does not change its cores. So tasks for the same cores
        start in the order of their requests (guard._find_unnamed relies on that).
        """
        places = {one: place for place, one in enumerate(dict.fromkeys(self._cpus))}
        self._queues = queues
        self._queue_of = [queues[places[one] % len(queues)] for one in self._cpus]

    def _make_attributes(self) -> ctypes.Array[ctypes.c_char]:
        """Return the attributes of every start: a session of its own, no ignored and no blocked signals.

        Unlike handlers, ignored and blocked signals are inherited through exec. Python ignores SIGPIPE and SIGXFSZ,
        nohup ignores SIGHUP, and the launcher blocks the signals it waits for.
        """
        attributes, none, ignored = (ctypes.create_string_buffer(_OPAQUE_BYTES) for _ in range(3))
        libc = self._libc
        libc.sigemptyset(none)
        libc.sigemptyset(ignored)
        for number in signal.valid_signals():
            if signal.getsignal(number) is signal.SIG_IGN:
                libc.sigaddset(ignored, int(number))
        libc.posix_spawnattr_init(attributes)
        libc.posix_spawnattr_setflags(attributes, ctypes.c_short(_SETSIGDEF | _SETSIGMASK | _SETSID))
        libc.posix_spawnattr_setsigmask(attributes, none)
        libc.posix_spawnattr_setsigdefault(attributes, ignored)
        return attributes

    def _actions_for(self, log: int) -> ctypes.Array[ctypes.c_char]:
        found = self._actions.get(log)
        if found is None:
            found = self._actions[log] = ctypes.create_string_buffer(_OPAQUE_BYTES)
            self._libc.posix_spawn_file_actions_init(found)
            for descriptor, number in ((self._null, 0), (log, 1), (log, 2)):
                self._libc.posix_spawn_file_actions_adddup2(found, descriptor, number)
        return found

    def start(
        self,
        worker: int,
        argv: Sequence[str],
        environment: Environment,
        log: int,
        cpus: frozenset[int] | None = None,
    ) -> None:
        """Request the start of a program; `begun` returns the result. Raises ValueError for a NUL in an argument.

        `log`: descriptor for standard output and error; it has to stay open until then. `cpus`: its cores; None: those
        of the worker.
        """
        before = _LIMITED if environment.get(_ENV_LIMITS) else ()
        if self._argv is None or self._argv[0] is not argv or self._argv[1] != before:
            self._argv = (argv, before, _array([os.fsencode(argument) for argument in (*before, *argv)]))
        actions = self._actions_for(log)
        self._queue_of[worker].put(
            _Start(StartResult(worker), self._argv[2], environment.array, cpus or self._cpus[worker], actions)
        )
        self.pending += 1

    def begun(self, patience_s: float = 0.0) -> StartResult | None:
        """Return the result of one start; None: there is none after `patience_s`."""
        if not self.pending:
            return None
        try:
            found = self._begun.get(timeout=patience_s) if patience_s else self._begun.get_nowait()
        except queue.Empty:
            return None
        self.pending -= 1
        return found

    def _work(self, starts: queue.SimpleQueue[_Start]) -> None:
        while True:
            begun, argv, environment, cpus, actions = starts.get()
            try:
                if cpus is not None:
                    begun.is_on_its_cores = _go_to(cpus)
                pid = self._pids[begun.worker]
                error = self._spawn(pid, argv, environment, actions)
                if error == errno.ENOEXEC:
                    # A script without "#!": run it with /bin/sh, as a shell does.
                    error = self._spawn(pid, _array([b"/bin/sh", *argv[:-1]]), environment, actions)
                if error:
                    raise OSError(error, os.strerror(error), os.fsdecode(argv[0] or b""))
                begun.pid = pid.value
            except OSError as error:
                begun.error = error
            except MemoryError:
                begun.error = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            self._begun.put(begun)
            if begun.error is not None:
                os.kill(os.getpid(), signal.SIGCHLD)  # wake the loop: no child of this start will end

    def _spawn(
        self,
        pid: ctypes.c_int,
        argv: ctypes.Array[ctypes.c_char_p],
        environment: ctypes.Array[ctypes.c_char_p],
        actions: ctypes.Array[ctypes.c_char],
    ) -> int:
        """Return 0, or an errno."""
        found: int = self._libc.posix_spawn(ctypes.byref(pid), argv[0], actions, self._attributes, argv, environment)
        return found


def _go_to(cpus: frozenset[int]) -> bool:
    """Move this thread to the cores; if the job has none of them any more (EINVAL), to all cores, and return False.

    Called at every start, because an administrator may change the cores of the job, and so of this thread.
    """
    try:
        os.sched_setaffinity(0, cpus)
    except OSError:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, range(os.sysconf("SC_NPROCESSORS_CONF")))
        return False
    return True


def _array(argv: Sequence[bytes | None]) -> ctypes.Array[ctypes.c_char_p]:
    if any(b"\0" in argument for argument in argv if argument is not None):
        raise ValueError("embedded null byte")
    return (ctypes.c_char_p * (len(argv) + 1))(*argv, None)


def find_shell() -> str:
    """Return the shell of this node for the commands of a tasks file: people write them for bash."""
    return "/bin/bash" if os.access("/bin/bash", os.X_OK) else deal.SHELL


def why_not_started(program: str, log: str, error: OSError | ValueError) -> str:
    """Return the reason, for a person, why a program did not start. `log`: the file for its output."""
    if not isinstance(error, OSError):
        return f"its line in the tasks file cannot be used: {error}"
    if error.filename == log:
        return f"{log}: {error.strerror}"
    head = b""
    with contextlib.suppress(OSError):  # a folder, for example
        head = run_folder.read_part(program, HEAD_BYTES)
    return outcomes.why_not_started(program, error, head)


def become_subreaper() -> None:
    """Become the parent of descendants when their parents end (prctl(2), PR_SET_CHILD_SUBREAPER)."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent(number: signal.Signals) -> None:
    """Request a signal from the kernel for when the parent ends (prctl(2), PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def signal_group(leader: int, number: int) -> bool:
    """Signal the process group of a task; return False if no process is left. 0: no signal, only the answer.

    Use signals only for a leader that was not waited for, or for a group that still exists: until then its pid is not
    reused.
    """
    if leader <= 1:
        return False  # no task: killpg(2) signals our own group for 0, and every process for 1
    try:
        os.killpg(leader, number)
        return True
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # the group contains a set-user-id program


def tell_to_end(leader: int, number: int = signal.SIGTERM) -> None:
    """Signal the process group of a task to end."""
    signal_group(leader, number)
    signal_group(leader, signal.SIGCONT)  # a stopped process handles the signal only when it continues


def kill(leader: int) -> None:
    """Send SIGKILL to all processes of a task's session."""
    signal_group(leader, signal.SIGKILL)
    for known in descendants.read_session(leader):
        end(known, signal.SIGKILL)
