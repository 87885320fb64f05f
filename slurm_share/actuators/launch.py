"""Starts a task, and ends all that it started.

Each task is the leader of a session and process group of its own, so that one signal reaches its children as well. It
is started with posix_spawn(3), which for a parent of this size is several times cheaper than fork and exec; its cores
are those of the thread that starts it, which therefore goes there first.

The libc function itself is called, through ctypes, and not os.posix_spawn: that makes environment, file actions and
attributes anew for every task, and a job's environment of a hundred variables costs more than the rest of a start.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
"""O_NONBLOCK: a FIFO in a log's place is an error and not an endless wait. To a file it means nothing."""

_SETSIGDEF, _SETSIGMASK, _SETSID = 0x04, 0x08, 0x80
"""Flags of posix_spawnattr_setflags(3), the same in the headers of glibc and musl."""
_OPAQUE_BYTES = 1024
"""Room for a sigset_t, posix_spawnattr_t or posix_spawn_file_actions_t: 128, 336 and 80 bytes in glibc, in musl no
larger."""


class Environment(MutableMapping[bytes, bytes]):
    """The variables of tasks that start one after the other, as posix_spawn(3) takes them: made once, and only what
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


class Starter:
    """Starts tasks of one run, each on its cores."""

    def __init__(self) -> None:
        self._all = os.sched_getaffinity(0)
        self._now: Collection[int] = self._all
        # Not CDLL: no other thread of ours is to run between vfork and exec.
        self._libc = ctypes.PyDLL(None)
        self._attributes = self._make_attributes()
        self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._actions: dict[int, ctypes.Array[ctypes.c_char]] = {}
        """Log's descriptor -> the file actions of a start."""
        self._argv: tuple[Sequence[str], bytes, ctypes.Array[ctypes.c_char_p]] | None = None
        self._pid = ctypes.c_int()

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
        libc.posix_spawnattr_setflags(attributes, ctypes.c_short(_SETSID | _SETSIGMASK | _SETSIGDEF))
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

    def start(self, argv: Sequence[str], environment: Environment, cpus: Collection[int] | None, log: int) -> int:
        """Start a program and return its pid. `log` is an open file; it gets standard output and error.

        Raises OSError where the program cannot be executed, ValueError where an argument holds a NUL.
        """
        if self._argv is None or self._argv[0] is not argv:
            words = [os.fsencode(word) for word in argv]
            if any(b"\0" in word for word in words):
                raise ValueError("embedded null byte")
            self._argv = (argv, words[0], (ctypes.c_char_p * (len(words) + 1))(*words, None))
        if cpus is not None and cpus is not self._now:
            os.sched_setaffinity(0, cpus)
            self._now = cpus
        _, program, array = self._argv
        error: int = self._libc.posix_spawn(
            ctypes.byref(self._pid), program, self._actions_for(log), self._attributes, array, environment.array
        )
        if error:
            raise OSError(error, os.strerror(error), argv[0])
        return self._pid.value

    def go_home(self) -> None:
        """Back to all the cores: whoever only waits is to sit on nobody's."""
        if self._now is not self._all:
            os.sched_setaffinity(0, self._all)
            self._now = self._all


def become_subreaper() -> None:
    """From now on processes below us whose parents end become ours (prctl(2), PR_SET_CHILD_SUBREAPER)."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent(number: signal.Signals) -> None:
    """The kernel is to send us that signal when our parent ends (prctl(2), PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def signal_group(leader: int, number: signal.Signals) -> bool:
    """Signal a task and all of its group; False where nobody is left. Only for a leader that has not been waited for,
    or whose group was seen to be there: till then its number is nobody else's."""
    try:
        os.killpg(leader, number)
        return True
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # a set-user-id program among them


def group_is_there(leader: int) -> bool:
    """Whether a process is left in that group."""
    try:
        os.killpg(leader, 0)
        return True
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
