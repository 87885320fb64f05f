"""The one place a program is started, and the one place a process is told to end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from .errors import CommandError
from .records import Owner, ProcessIdentity

OUTPUT_LIMIT_BYTES = 256 * 1024
"""More than any answer we ask for; the rest is not read."""


class Finished(Struct, frozen=True):
    """A program that has ended, and what it said."""

    code: int
    """Negative: the signal that ended it."""
    stdout: str
    stderr: str


class Deadline(Struct, frozen=True):
    """A moment by which a whole piece of work has to be over, handed down through every call of it."""

    at: float
    """On the monotonic clock, seconds: a clock that is set does not move it."""

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """The moment `seconds` from now."""
        return cls(time.monotonic() + seconds)

    def left(self) -> float:
        """Seconds until then, 0 when it is past."""
        return max(0.0, self.at - time.monotonic())

    def at_most(self, seconds: float) -> Deadline:
        """The nearer one of this and `seconds` from now: a part of the work gets a part of the time."""
        return Deadline(min(self.at, time.monotonic() + seconds))


def run(argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None) -> str:
    """Standard output of `argv`, which is given no input.

    Raises CommandError when the program is not there, takes longer than `timeout_s`, or ends with a code other than 0.
    """
    command = tuple(argv)
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, env=env, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise CommandError(command, None, f"no answer within {timeout_s:g} s") from error
    except OSError as error:
        raise CommandError(command, None, str(error)) from error
    if done.returncode != 0:
        raise CommandError(command, done.returncode, done.stderr)
    return done.stdout


def exchange(
    argv: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str],
    text: str = "",
    owner: Owner | None = None,
    umask: int = 0o077,
) -> Finished:
    """Give a program `text` to read and wait until it has ended, as `owner` where the caller may become that.

    Input and output lie in memory and not in pipes: a daemon that the program leaves behind, with every descriptor it
    was given, keeps nobody waiting, and a program that reads nothing or writes without end blocks nobody. It gets a
    session of its own, `/` as its folder and no other open file.

    Whatever it ends with is an answer. Raises CommandError when it did not start (the cause is the OSError), or took
    longer than `timeout_s` and was killed.
    """
    command = tuple(argv)
    files = [os.memfd_create(name, os.MFD_CLOEXEC) for name in ("in", "out", "err")]
    try:
        os.write(files[0], text.encode())
        os.lseek(files[0], 0, os.SEEK_SET)
        try:
            child = _start(command, files, env, owner, umask)
        except OSError as error:
            raise CommandError(command, None, str(error)) from error
        if not _wait(child, timeout_s):
            os.killpg(child.pid, signal.SIGKILL)  # not yet waited for, so the number is still its own
            # A process that SIGKILL does not end sits in the kernel; waiting for it would be waiting for the driver.
            _wait(child, 1.0)
            raise CommandError(command, None, f"no answer within {timeout_s:.3g} s")
        stdout, stderr = (os.pread(fd, OUTPUT_LIMIT_BYTES, 0).decode(errors="replace") for fd in files[1:])
        return Finished(child.returncode, stdout, stderr)
    finally:
        for fd in files:
            os.close(fd)


def _start(
    command: Sequence[str], files: Sequence[int], env: Mapping[str, str], owner: Owner | None, umask: int
) -> subprocess.Popen[bytes]:
    become = owner if owner is not None and os.geteuid() == 0 and owner.uid != 0 else None
    return subprocess.Popen(
        command,
        stdin=files[0],
        stdout=files[1],
        stderr=files[2],
        env=env,
        cwd="/",
        close_fds=True,
        start_new_session=True,
        umask=umask,
        user=None if become is None else become.uid,
        group=None if become is None else become.gid,
        extra_groups=None if become is None else become.groups,
    )


def _wait(child: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Whether the child ended in time. A pidfd wakes us at once; Popen.wait would look again every 50 ms."""
    try:
        fd = os.pidfd_open(child.pid)
    except OSError:
        fd = -1  # a kernel before 5.3, or a sandbox without it
    try:
        if fd >= 0:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            poll.poll(timeout_s * 1000)
            return child.poll() is not None
        child.wait(timeout_s)
        return True
    except subprocess.TimeoutExpired:
        return False
    finally:
        if fd >= 0:
            os.close(fd)


def identify(pid: int, proc: str = "/proc") -> ProcessIdentity | None:
    """The process of that number; None: gone, a zombie (its files and locks are gone too), or hidden by hidepid."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            head, _, tail = file.read().rpartition(b")")
        with open(f"{proc}/{pid}/status", "rb") as file:
            status = file.read()
    except OSError:
        return None
    fields = tail.split()
    if len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return None
    name = head.partition(b"(")[2].decode(errors="replace")  # it may hold blanks and brackets itself
    # Not the owner of the folder: the kernel gives that of a process without core dumps to root.
    uid = next((int(line.split()[2]) for line in status.splitlines() if line.startswith(b"Uid:")), None)
    return ProcessIdentity(pid, int(fields[19]), uid, name)


def is_same(known: ProcessIdentity, proc: str = "/proc") -> bool:
    """Whether that very process still lives: same number, same start, same user."""
    now = identify(known.pid, proc) if known.pid > 0 else None
    return now is not None and (now.start_ticks, now.uid) == (known.start_ticks, known.uid)


def end(known: ProcessIdentity, number: signal.Signals, proc: str = "/proc") -> bool:
    """Send a signal to that very process; False where it is gone, another one has its number, or it is not ours to end.

    The pidfd is taken before the look at who it is, so that the number cannot change hands in between.
    """
    if known.pid <= 1 or known.start_ticks is None:
        return False
    try:
        fd = os.pidfd_open(known.pid)
    except ProcessLookupError:
        return False
    except OSError:
        fd = -1  # as in _wait: the look and the signal are then a few microseconds apart
    try:
        if not is_same(known, proc):
            return False
        if fd >= 0:
            signal.pidfd_send_signal(fd, number)
        else:
            os.kill(known.pid, number)
        return True
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if fd >= 0:
            os.close(fd)


def wait_gone(known: Iterable[ProcessIdentity], deadline: Deadline, proc: str = "/proc") -> tuple[ProcessIdentity, ...]:
    """Wait until these very processes are gone; those that are still there at the deadline."""
    living = tuple(one for one in known if is_same(one, proc))
    pause = 0.001
    while living and deadline.left() > 0:
        time.sleep(min(pause, deadline.left()))
        pause = min(0.02, pause * 2)
        living = tuple(one for one in living if is_same(one, proc))
    return living
