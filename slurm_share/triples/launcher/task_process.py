"""Start a task, and end all that it started.

Each task is the leader of a session and process group of its own, so that one signal reaches its children as well. It
is started with posix_spawn(3), which for a parent of this size is several times cheaper than fork and exec.

A task has the cores of the thread that starts it, so that it is on them before its first instruction. A launcher that
went there itself would wait at each start until that core had time for it, while others are idle: a third of the rate
of short tasks. So there are a few threads that do nothing but start tasks, and wait for the cores instead.

The libc function itself is called, through ctypes, and not os.posix_spawn: that makes environment, file actions and
attributes anew for every task, and a job's environment of a hundred variables costs more than the rest of a start.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import queue
import signal
import threading
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import NamedTuple

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
"""O_NONBLOCK: a FIFO in a log's place is an error and not an endless wait. To a file it means nothing."""

_SETSIGDEF, _SETSIGMASK, _SETSID = 0x04, 0x08, 0x80
"""Flags of posix_spawnattr_setflags(3), the same in the headers of glibc and musl."""
THREADS = 4
"""The most threads that start tasks: while one waits for a core, the others go on. Only this number has been measured
(tests/bench/launch.py)."""
STACK_BYTES = 512 * 1024
_OPAQUE_BYTES = 1024
"""Room for a sigset_t, posix_spawnattr_t or posix_spawn_file_actions_t: 128, 336 and 80 bytes in glibc, in musl no
larger."""


class Environment(MutableMapping[bytes, bytes]):
    """The variables of successive tasks, as posix_spawn(3) takes them: made once, and only what
    differs from task to task is changed. No value may hold a NUL."""

    def __init__(self, variables: Mapping[bytes, bytes]) -> None:
        self._variables = dict(variables)
        self._lay_out()

    def _lay_out(self) -> None:
        lines = [name + b"=" + value for name, value in self._variables.items()]
        self._place = {name: place for place, name in enumerate(self._variables)}
        self.array = (ctypes.c_char_p * (len(lines) + 1))(*lines, None)
        """NAME=VALUE strings, with a null pointer at the end."""

    def __getitem__(self, name: bytes) -> bytes:
        return self._variables[name]

    def __setitem__(self, name: bytes, value: bytes) -> None:
        self._variables[name] = value
        place = self._place.get(name)
        if place is None:
            self._lay_out()
        else:
            self.array[place] = name + b"=" + value

    def __delitem__(self, name: bytes) -> None:
        del self._variables[name]
        self._lay_out()

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._variables)

    def __len__(self) -> int:
        return len(self._variables)


class Begun:
    """One start and its result."""

    __slots__ = ("error", "is_on_its_cores", "pid", "worker")

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self.pid = 0
        """0: it did not start."""
        self.error: OSError | None = None
        self.is_on_its_cores = True
        """False: none of the cores of its worker is the job's any more, and it runs on any that are."""


class _Start(NamedTuple):
    """A request to a thread to start a task."""

    begun: Begun
    """Where the thread writes whether it started."""
    argv: ctypes.Array[ctypes.c_char_p]
    environment: ctypes.Array[ctypes.c_char_p]
    cpus: frozenset[int] | None
    """The cores of the task; None: all."""
    actions: ctypes.Array[ctypes.c_char]
    """What posix_spawn(3) does to the task's files."""


class Starter:
    """Start the tasks of one run, each on its cores, in threads of the starter."""

    def __init__(self, cpus: Sequence[frozenset[int] | None], pids: Sequence[ctypes.c_int]) -> None:
        """`cpus` are the cores of each worker, None: all of them. The pid of each worker's task is written to its
        place in `pids` at once, before any of our code runs again.
        """
        self._cpus = cpus
        self._pids = pids
        self._libc = ctypes.CDLL(None)
        self._attributes = self._make_attributes()
        self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._actions: dict[int, ctypes.Array[ctypes.c_char]] = {}
        """Log's descriptor -> the file actions of a start."""
        self._argv: tuple[Sequence[str], ctypes.Array[ctypes.c_char_p]] | None = None
        self._begun: queue.SimpleQueue[Begun] = queue.SimpleQueue()
        self.pending = 0
        """Starts that were asked for and that `begun` has not told of."""
        self._assign([queue.SimpleQueue() for _ in range(min(len(set(cpus)), THREADS))])

    def make_threads(self) -> None:
        """Call it once, where all signals that matter are blocked: the threads leave them to the caller's.

        Where not all threads can be made, those that can do the work. Raises RuntimeError where none can.
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
        """Give each worker one of the queues.

        Workers with the same cores share a thread, which then need not move. Its starts are one after the other: of two
        tasks for the same cores, the one requested first starts first.
        """
        places = {one: place for place, one in enumerate(dict.fromkeys(self._cpus))}
        self._queues = queues
        self._queue_of = [queues[places[one] % len(queues)] for one in self._cpus]

    def _make_attributes(self) -> ctypes.Array[ctypes.c_char]:
        """Return the attributes of every start: a session of its own, and no signal ignored or blocked.

        Python ignores SIGPIPE and SIGXFSZ, nohup ignores SIGHUP, and the launcher blocks the signals that it waits for.
        Ignored and blocked signals are inherited through exec, unlike handlers.
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

    def start(self, worker: int, argv: Sequence[str], environment: Environment, log: int) -> None:
        """Request the start of a program; `begun` returns the result. `log`, which stays open until then, gets
        standard output and error.

        Raises ValueError where an argument holds a NUL.
        """
        if self._argv is None or self._argv[0] is not argv:
            self._argv = (argv, _array([os.fsencode(argument) for argument in argv]))
        actions = self._actions_for(log)
        self._queue_of[worker].put(_Start(Begun(worker), self._argv[1], environment.array, self._cpus[worker], actions))
        self.pending += 1

    def begun(self, patience_s: float = 0.0) -> Begun | None:
        """Return one start that is over; None where there is none, even after that time."""
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
                    # A script without "#!": shells run it themselves, and so do we.
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
                os.kill(os.getpid(), signal.SIGCHLD)  # no child will ever end, and somebody may be waiting for one

    def _spawn(
        self,
        pid: ctypes.c_int,
        argv: ctypes.Array[ctypes.c_char_p],
        environment: ctypes.Array[ctypes.c_char_p],
        actions: ctypes.Array[ctypes.c_char],
    ) -> int:
        """Return 0, or the number of an error."""
        found: int = self._libc.posix_spawn(ctypes.byref(pid), argv[0], actions, self._attributes, argv, environment)
        return found


def _go_to(cpus: frozenset[int]) -> bool:
    """Move this thread to those cores, or to any that are there if the kernel lets it use none of them (EINVAL): return
    False then. Asks each time: an administrator may change the cores of the job, and of this thread, meanwhile."""
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


def become_subreaper() -> None:
    """Adopt descendants whose parents end, from now on (prctl(2), PR_SET_CHILD_SUBREAPER)."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent(number: signal.Signals) -> None:
    """Have the kernel send us that signal when our parent ends (prctl(2), PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def signal_group(leader: int, number: signal.Signals) -> bool:
    """Signal a task and all of its group; return False if no process is left.

    Only for a leader that has not been waited for, or whose group still exists: its number is not reused before.
    """
    if leader <= 1:
        return False  # no task: killpg(2) takes 0 for our own group, and 1 for every process there is
    try:
        os.killpg(leader, number)
        return True
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # a set-user-id program among them


def group_is_there(leader: int) -> bool:
    """Return whether a process is left in that group."""
    try:
        os.killpg(leader, 0)
        return True
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
