"""The one place a program is started, and the one place a process is told to end."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from . import user_process
from .errors import CommandError
from .records import DaemonGroup, Owner, ProcessIdentity

TYPE_CHECKING = False  # as mypy knows it, without the import of `typing`
if TYPE_CHECKING:
    # Elsewhere it is imported where a program is started: a hook that starts none need not pay for it.
    import subprocess
    from types import FrameType

OUTPUT_LIMIT_BYTES = 256 * 1024
"""More than any answer we ask for; the rest is not read."""
STREAM_SAID_BYTES = 4096
"""What is kept of a stream's standard error: its last lines say why it ended."""


class Finished(Struct, frozen=True):
    """A program that has ended, and what it said."""

    code: int
    """Negative: the signal that ended it."""
    stdout: str
    stderr: str


class Check(Struct, frozen=True):
    """A test whether an answer can be expected at all, for programs that retry for a minute."""

    after_s: float
    is_worth_it: Callable[[], None]
    """Raises CommandError where no answer can be expected."""


class Deadline(Struct, frozen=True):
    """A moment by which a whole piece of work has to be over, handed down through every call of it."""

    at: float
    """On the monotonic clock, seconds: a clock that is set does not move it."""

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return the moment `seconds` from now."""
        return cls(time.monotonic() + seconds)

    def left(self) -> float:
        """Return the seconds until then, 0 when it is past."""
        return max(0.0, self.at - time.monotonic())

    def at_most(self, seconds: float) -> Deadline:
        """Return the earlier of this and `seconds` from now: a part of the work gets a part of the time."""
        return Deadline(min(self.at, time.monotonic() + seconds))

    def part(self, ratio: float) -> Deadline:
        """Return the moment at which this ratio of what is left is used up: what follows has the rest."""
        return self.at_most(ratio * self.left())


def run(
    argv: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    check: Check | None = None,
    errors: str = "replace",
) -> str:
    """Run `argv` without input and return its standard output. `check`, `errors`: as for `finish`.

    Raises CommandError when the program is not there, takes longer than `timeout_s`, or ends with a code other than 0.
    """
    done = finish(argv, timeout_s=timeout_s, env=env, check=check, errors=errors)
    if done.code != 0:
        raise CommandError(tuple(argv), done.code, done.stderr)
    return done.stdout


def finish(
    argv: Sequence[str],
    *,
    timeout_s: float | None,
    env: Mapping[str, str] | None = None,
    check: Check | None = None,
    errors: str = "replace",
) -> Finished:
    """Wait until `argv`, which is given no input, has ended in the caller's folder. Whatever it ends with is an answer.

    Raises CommandError when the program is not there (the cause is the OSError), or takes longer than `timeout_s` and
    was killed. With `check`, a program that is still running after `check.after_s` is only waited for if
    `check.is_worth_it` returns; what that raises ends the program and reaches the caller. `errors`: what becomes of
    bytes of its standard output that are no UTF-8; "surrogateescape" keeps them.
    """
    import subprocess

    command = tuple(argv)
    try:
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
        ) as child:
            try:
                out, err = _communicate(child, timeout_s, check)
            except BaseException:
                child.kill()
                raise
    except subprocess.TimeoutExpired as error:
        raise CommandError(command, None, f"no answer within {timeout_s:g} s") from error
    except OSError as error:
        raise CommandError(command, None, str(error)) from error
    # Not as the locale has it, and never an error: any user can give a job a name that is no UTF-8, and squeue shows it
    # to everybody.
    return Finished(child.returncode, out.decode("utf-8", errors), err.decode("utf-8", "replace"))


def _communicate(child: subprocess.Popen[bytes], timeout_s: float | None, check: Check | None) -> tuple[bytes, bytes]:
    if check is None or (timeout_s is not None and timeout_s <= check.after_s):
        return child.communicate(timeout=timeout_s)
    import subprocess

    began = time.monotonic()
    try:
        return child.communicate(timeout=check.after_s)
    except subprocess.TimeoutExpired:
        check.is_worth_it()
    return child.communicate(timeout=None if timeout_s is None else max(0.0, timeout_s - (time.monotonic() - began)))


def in_time(call: Callable[[], bytes], seconds: float) -> bytes | None:
    """Return what `call` returns, at most 4 KiB, from a child process that is not waited for any longer; None: it did
    not return in time, or failed. For a look at a file system that may hang: a process cannot be ended there, and a
    thread would keep this one. Call it before threads are started."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            null = os.open("/dev/null", os.O_RDWR)
            for file in (0, 1, 2):
                os.dup2(null, file)  # a reader of our output must not wait for this process to end
            os.closerange(3, writing)
            os.closerange(writing + 1, writing + 1024)
            os.write(writing, call()[:4096] + b".")
        finally:
            os._exit(0)
    os.close(writing)
    answer = b""
    try:
        if _is_readable(reading, seconds):
            answer = os.read(reading, 4097)
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        if answer:
            os.waitpid(child, 0)
        else:
            _reap(child)
    return answer[:-1] if answer else None


def _reap(child: int) -> None:
    """Take the end of a killed child, if it comes within 0.1 s: one that hangs in the kernel is not waited for."""
    for _ in range(10):
        if os.waitpid(child, os.WNOHANG)[0]:
            return
        time.sleep(0.01)


def _is_readable(file: int, seconds: float) -> bool:
    waiting = select.poll()
    waiting.register(file, select.POLLIN)
    return bool(waiting.poll(seconds * 1000))


def attend(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> int:
    """Run a program in the foreground, with the caller's terminal, files and folder; its exit code, 128 + N where
    signal N ended it, as shells have it.

    Ctrl-C reaches it by itself and is its own to answer; SIGTERM is passed on. The caller lives as long as it does.
    Raises CommandError when the program is not there.
    """
    import subprocess

    command = tuple(argv)
    child: subprocess.Popen[bytes] | None = None
    asked: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        asked.append(number)
        if child is not None and number != signal.SIGINT:
            child.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        child = subprocess.Popen(command, env=env)
        for number in asked:  # while it was being started
            if number != signal.SIGINT:
                child.send_signal(number)
        code = child.wait()
    except OSError as error:
        raise CommandError(command, None, str(error)) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if asked:
        return 128 + asked[-1]
    return code if code >= 0 else 128 - code


def exchange(
    argv: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str],
    text: str = "",
    owner: Owner | None = None,
    group: DaemonGroup | None = None,
    umask: int = 0o077,
) -> Finished:
    """Give a program `text` to read and wait until it has ended, as `owner` where the caller may become that.

    Input and output lie in memory and not in pipes: a daemon that the program leaves behind, with every descriptor it
    was given, keeps nobody waiting, and a program that reads nothing or writes without end blocks nobody. It gets a
    session of its own, `/` as its folder and no other open file. What root starts as somebody else is in the cgroup
    `group`, and its user cannot trace it.

    Whatever it ends with is an answer. Raises CommandError when it did not start (the cause is the OSError), or took
    longer than `timeout_s` and was killed.
    """
    command = tuple(argv)
    files = [os.memfd_create(name, os.MFD_CLOEXEC) for name in ("in", "out", "err")]
    try:
        os.write(files[0], text.encode())
        os.lseek(files[0], 0, os.SEEK_SET)
        try:
            child = _start(command, files, env, owner, group, umask)
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


class Stream:
    """A program that runs beside us and is read as it writes. Made by `stream`.

    Its standard input is a pipe that only we hold: whatever ends us, kill -9 included, the program reads the end of its
    input. So one that ends with its input leaves nothing behind on this host.
    """

    def __init__(self, child: subprocess.Popen[bytes], line_most: int = OUTPUT_LIMIT_BYTES) -> None:
        """`line_most`: longer lines are dropped."""
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        self._child = child
        self._stdin = child.stdin
        self._out = child.stdout
        self._err = child.stderr
        self._open = {child.stdout.fileno(), child.stderr.fileno()}
        self._line_most = line_most
        self._rest: list[bytes] = []
        """The parts of a line whose end has not come."""
        self._rest_size = 0
        self._said = b""

    @property
    def pid(self) -> int:
        """Process id of the program and id of its process group."""
        return self._child.pid

    @property
    def code(self) -> int | None:
        """Exit code, as in Finished; None: it runs."""
        return self._child.poll()

    @property
    def files(self) -> frozenset[int]:
        """Descriptors to wait for (poll): its two outputs, as long as they are open. Empty: it has closed both."""
        return frozenset(self._open)

    @property
    def said(self) -> str:
        """The end of what it wrote to standard error."""
        return self._said.decode("utf-8", "replace")

    def lines(self) -> list[str]:
        """Return the whole lines that it has written since the last call; never waits."""
        return [line.decode("utf-8", "replace") for line in self.take_lines()]

    def take_lines(self, most_bytes: int | None = None) -> list[bytes]:
        """Return those lines as bytes. `most_bytes`: about how much to read at a time from a program that writes
        without end."""
        found: list[bytes] = []
        taken = 0
        while (most_bytes is None or taken < most_bytes) and (data := self._take(self._out.fileno())):
            taken += len(data)
            *whole, rest = data.split(b"\n")
            if whole:
                whole[0] = b"".join((*self._rest, whole[0]))
                found += whole
                self._rest, self._rest_size = [], 0
            self._rest.append(rest)
            self._rest_size += len(rest)
            if self._rest_size > self._line_most:
                self._rest, self._rest_size = [], 0
        while data := self._take(self._err.fileno()):
            self._said = (self._said + data)[-STREAM_SAID_BYTES:]
        return found

    def _take(self, file: int) -> bytes:
        if file not in self._open:
            return b""
        try:
            data = os.read(file, 65536)
        except BlockingIOError:
            return b""
        if not data:
            self._open.discard(file)
        return data

    def beat(self) -> None:
        """Write an empty line to its input: that we live. Never waits, and never fails: one that does not read, or has
        ended, is found out otherwise."""
        self.say(b"\n")

    def say(self, data: bytes) -> bool:
        """Write to its input. Never waits, and never fails. False: it has ended, or does not read: its pipe, 64 KiB, is
        full, and of this it may get a part; who needs its ear has to kill it."""
        if self._stdin.closed:
            return False
        try:
            return os.write(self._stdin.fileno(), data) == len(data)
        except OSError:
            return False

    def kill(self) -> None:
        """End it at once (SIGKILL), with what it started; `stop` it all the same. Never waits."""
        if self._child.poll() is None:
            self._signal(signal.SIGKILL)

    def hang_up(self) -> None:
        """End its input: it should end by itself. Doing so twice is fine."""
        self._stdin.close()

    def stop(self, deadline: Deadline) -> None:
        """End its input; what is still there after half the time gets SIGTERM, and at the deadline SIGKILL. Nothing can
        be read from it afterwards."""
        self.hang_up()
        try:
            if self._drain(deadline.at_most(deadline.left() / 2)) is None:
                self._signal(signal.SIGTERM)
                if self._drain(deadline) is None:
                    self._signal(signal.SIGKILL)
                    _wait(self._child, 1.0)
        finally:
            self._open.clear()
            self._out.close()
            self._err.close()

    def wait(self, timeout_s: float) -> int | None:
        """Wait at most this long; return its exit code, None if it still runs."""
        return self._child.returncode if _wait(self._child, timeout_s) else None

    def _drain(self, deadline: Deadline) -> int | None:
        """Wait for its end. It must not have to wait for us: what it still writes is read, and forgotten."""
        while (code := self.wait(min(0.05, deadline.left()))) is None and deadline.left() > 0:
            self.lines()
        return code

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._child.pid, number)
        except ProcessLookupError:
            pass  # it ended at this moment, and was not waited for yet: then there is no group, or we were not quick


def stream(argv: Sequence[str], *, env: Mapping[str, str] | None = None, line_most: int = OUTPUT_LIMIT_BYTES) -> Stream:
    """Start a program that goes on until it is stopped, in a session of its own: Ctrl-C on the caller's terminal does
    not reach it. A line of its output may have `line_most` bytes. Raises CommandError when it cannot be started."""
    import subprocess

    command = tuple(argv)
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            start_new_session=True,
        )
    except OSError as error:
        raise CommandError(command, None, str(error)) from error
    for pipe in (child.stdin, child.stdout, child.stderr):
        assert pipe is not None
        os.set_blocking(pipe.fileno(), False)
    return Stream(child, line_most)


def _start(
    command: Sequence[str],
    files: Sequence[int],
    env: Mapping[str, str],
    owner: Owner | None,
    group: DaemonGroup | None,
    umask: int,
) -> subprocess.Popen[bytes]:
    import subprocess

    prepare: Callable[[], None] | None = None
    groups: tuple[int, ...] = ()
    if owner is not None and os.geteuid() == 0 and owner.uid != 0:
        prepare, groups = user_process.preparation(owner, group)
    try:
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
            preexec_fn=prepare,  # it calls the kernel, and nothing else
        )
    finally:
        for fd in groups:
            os.close(fd)


def _wait(child: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Return whether the child ended in time. A pidfd reports it at once; Popen.wait checks only every 50 ms."""
    import subprocess

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
    """Return the process of that number; None: gone, a zombie (its files and locks are gone too), or hidden by hidepid.

    A process whose main thread has ended lives as long as another thread does. The kernel shows it as a zombie with
    several threads.
    """
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            head, _, tail = file.read().rpartition(b")")
        with open(f"{proc}/{pid}/status", "rb") as file:
            status = file.read()
    except OSError:
        return None
    fields = tail.split()
    if len(fields) < 20 or is_gone(fields):
        return None
    name = head.partition(b"(")[2].decode(errors="replace")  # it may hold blanks and brackets itself
    # Not the owner of the folder: the kernel gives that of a process without core dumps to root.
    uid = next((int(line.split()[2]) for line in status.splitlines() if line.startswith(b"Uid:")), None)
    return ProcessIdentity(pid, int(fields[19]), uid, name)


def is_gone(fields: Sequence[bytes]) -> bool:
    """Return whether no thread of a process lives; `fields` are those after its name in /proc/PID/stat."""
    return fields[0] in (b"Z", b"X") and int(fields[17]) < 2


def is_same(known: ProcessIdentity, proc: str = "/proc") -> bool:
    """Return whether that very process still lives: same number, same start, same user."""
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
