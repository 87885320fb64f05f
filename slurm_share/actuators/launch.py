"""Starts a task, and ends all that it started.

Each task is the leader of a session and process group of its own, so that one signal reaches its children as well. It
is started with posix_spawn(3), which for a parent of this size is several times cheaper than fork and exec; its cores
are those of the thread that starts it, which therefore goes there first.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Collection, Mapping

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK
"""O_NONBLOCK: a FIFO in a log's place is an error and not an endless wait. To a file it means nothing."""


class Starter:
    """Starts tasks of one run, each on its cores."""

    def __init__(self) -> None:
        self._all = os.sched_getaffinity(0)
        self._now: Collection[int] = self._all
        self._ignored = tuple(n for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN)
        """Python ignores SIGPIPE and SIGXFSZ, nohup SIGHUP; that is inherited through exec, unlike handlers. A task
        starts with every signal as it came into the world."""

    def start(
        self,
        argv: tuple[str, ...],
        environment: Mapping[bytes, bytes],
        cpus: Collection[int] | None,
        log: str | int,
    ) -> int:
        """The pid of the program. `log` is a file to append to, or one that is open; it gets standard output and error.

        Raises OSError where the program cannot be executed or its log not be opened.
        """
        if cpus is not None and cpus is not self._now:
            os.sched_setaffinity(0, cpus)
            self._now = cpus
        out = (os.POSIX_SPAWN_DUP2, log, 1) if isinstance(log, int) else (os.POSIX_SPAWN_OPEN, 1, log, LOG_FLAGS, 0o666)
        return os.posix_spawn(
            argv[0],
            argv,
            environment,
            file_actions=((os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), out, (os.POSIX_SPAWN_DUP2, 1, 2)),
            setsid=True,
            setsigmask=(),
            setsigdef=self._ignored,
        )

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
