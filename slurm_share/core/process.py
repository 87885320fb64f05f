"""Start programs and signal processes. No other module does either."""

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
    # Functions import it when they start a program, so that hooks that start none do not pay for the import.
    import subprocess
    from types import FrameType

OUTPUT_LIMIT_BYTES = 256 * 1024
"""Most bytes read of a program's output; no expected answer is longer."""
REAP_S = 0.1
"""How long to wait for a child after SIGKILL."""
STREAM_SAID_BYTES = 4096
"""Bytes kept of the end of a stream's standard error, which says why the program ended."""


class Finished(Struct, frozen=True):
    """Exit code and output of a program that has ended."""

    code: int
    """Negative: the signal that ended it."""
    stdout: str
    stderr: str


class RetryCheck(Struct, frozen=True):
    """A test whether waiting for a slow program makes sense, such as one that retries for a minute."""

    after_s: float
    is_worth_it: Callable[[], None]
    """Raises CommandError if no answer can be expected."""


class Deadline(Struct, frozen=True):
    """The time at which a whole piece of work must be done, passed to all calls of it."""

    at: float
    """Seconds on the monotonic clock, which does not change when the system time is set."""

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return the deadline `seconds` from now."""
        return cls(time.monotonic() + seconds)

    def left(self) -> float:
        """Return the seconds until the deadline, 0 after it."""
        return max(0.0, self.at - time.monotonic())

    def at_most(self, seconds: float) -> Deadline:
        """Return the earlier of this deadline and `seconds` from now, for a part of the work."""
        return Deadline(min(self.at, time.monotonic() + seconds))

    def part(self, ratio: float) -> Deadline:
        """Return the deadline after `ratio` of the time that is left."""
        return self.at_most(ratio * self.left())


def run(
    argv: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    check: RetryCheck | None = None,
    errors: str = "replace",
) -> str:
    """Run `argv` without input and return its standard output. `check`, `errors`: as for `finish`.

    Raises CommandError if the program is missing, takes longer than `timeout_s`, or exits with a code other than 0.
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
    check: RetryCheck | None = None,
    errors: str = "replace",
) -> Finished:
    """Run `argv` without input in the caller's folder; return its exit code, whatever it is, and its output.

    Raises CommandError if the program is missing (the cause is the OSError), or takes longer than `timeout_s` and was
    killed. `check`: called when the program still runs after `check.after_s`; if `check.is_worth_it` raises, the
    program is killed and the caller gets the error. `errors`: how to decode standard output that is not UTF-8;
    "surrogateescape" keeps its bytes.
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
    # UTF-8 whatever the locale is, and never an error: a job's name may be any bytes, and squeue shows it to everybody.
    return Finished(child.returncode, out.decode("utf-8", errors), err.decode("utf-8", "replace"))


def _communicate(
    child: subprocess.Popen[bytes], timeout_s: float | None, check: RetryCheck | None
) -> tuple[bytes, bytes]:
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
    """Run `call` in a child process; return its result, at most 4 KiB, or None after `seconds` or a failure.

    For file systems that may hang: a process that waits there cannot be killed, and a thread would keep this process
    from ending. Call it before threads are started.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            null = os.open("/dev/null", os.O_RDWR)
            for file in (0, 1, 2):
                os.dup2(null, file)  # so that readers of our output do not wait for this process
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
    """Reap a killed child, but wait at most REAP_S: it may hang in the kernel."""
    deadline = Deadline.after(REAP_S)
    while not os.waitpid(child, os.WNOHANG)[0] and deadline.left() > 0:
        time.sleep(0.01)


def _is_readable(file: int, seconds: float) -> bool:
    waiting = select.poll()
    waiting.register(file, select.POLLIN)
    return bool(waiting.poll(seconds * 1000))


def attend(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> int:
    """Run a program in the foreground with the caller's terminal, files and folder, and wait for it.

    Returns its exit code, as shells do: 128 + N after signal N. The terminal sends Ctrl-C to the program, too; SIGTERM
    is passed on. Raises CommandError if the program is missing.
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
    """Run a program with `text` as its input and wait until it has ended; as `owner` if the caller is root.

    Input and output are files in memory, not pipes: a daemon that the program leaves behind with all its descriptors,
    or a program that reads nothing or writes without end, blocks nobody. The program has its own session, the folder
    `/` and no other open file. If root starts it for a user, it is in the cgroup `group`, and the user cannot trace it.

    Any exit code is returned. Raises CommandError if the program did not start (the cause is the OSError), or took
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
            os.killpg(child.pid, signal.SIGKILL)  # not reaped yet, so no other process has its pid
            # A process that SIGKILL does not end hangs in the kernel, usually in the driver: do not wait longer.
            _wait(child, 1.0)
            raise CommandError(command, None, f"no answer within {timeout_s:.3g} s")
        stdout, stderr = (os.pread(fd, OUTPUT_LIMIT_BYTES, 0).decode(errors="replace") for fd in files[1:])
        return Finished(child.returncode, stdout, stderr)
    finally:
        for fd in files:
            os.close(fd)


class Stream:
    """A program that runs in the background and whose output is read as it is written. Made by `stream`.

    Only this process holds the other end of its standard input. If this process ends, even by kill -9, the program
    reads the end of its input and can end, too."""

    def __init__(self, child: subprocess.Popen[bytes], line_most: int = OUTPUT_LIMIT_BYTES) -> None:
        """line_most: most bytes of a line; longer lines are dropped."""
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
        """Parts of a line without its end yet."""
        self._rest_size = 0
        self._said = b""

    @property
    def pid(self) -> int:
        """Process id of the program, which is also its process group."""
        return self._child.pid

    @property
    def code(self) -> int | None:
        """Exit code, as in Finished; None while it runs."""
        return self._child.poll()

    @property
    def files(self) -> frozenset[int]:
        """Open descriptors of its two outputs, for poll(2). Empty: both are closed."""
        return frozenset(self._open)

    @property
    def said(self) -> str:
        """The last STREAM_SAID_BYTES of its standard error."""
        return self._said.decode("utf-8", "replace")

    def lines(self) -> list[str]:
        """Return the complete lines that it has written since the last call. Never waits."""
        return [line.decode("utf-8", "replace") for line in self.take_lines()]

    def take_lines(self, most_bytes: int | None = None) -> list[bytes]:
        """Return these lines as bytes. most_bytes: about how much to read, for programs that write without end."""
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
        """Write an empty line to its input as a sign of life. Never waits and never fails."""
        self.say(b"\n")

    def say(self, data: bytes) -> bool:
        """Write to its input; return whether all was written. Never waits and never fails.

        False: the program has ended, or its pipe (64 KiB) is full; then a part of the data may have been written.
        """
        if self._stdin.closed:
            return False
        try:
            return os.write(self._stdin.fileno(), data) == len(data)
        except OSError:
            return False

    def kill(self) -> None:
        """Send SIGKILL to its process group. Never waits; call `stop` afterwards."""
        if self._child.poll() is None:
            self._signal(signal.SIGKILL)

    def hang_up(self) -> None:
        """Close its input, so that it ends by itself. Can be repeated."""
        self._stdin.close()

    def stop(self, deadline: Deadline) -> None:
        """Close its input; send SIGTERM after half the time, SIGKILL at the deadline. Close its outputs."""
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
        """Wait at most `timeout_s` seconds; return its exit code, None if it still runs."""
        return self._child.returncode if _wait(self._child, timeout_s) else None

    def _drain(self, deadline: Deadline) -> int | None:
        """Wait for its end; read and discard what it writes meanwhile, so that it is never blocked."""
        while (code := self.wait(min(0.05, deadline.left()))) is None and deadline.left() > 0:
            self.lines()
        return code

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._child.pid, number)
        except ProcessLookupError:
            pass  # the group has just ended


def stream(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    line_most: int = OUTPUT_LIMIT_BYTES,
    owner: Owner | None = None,
    group: DaemonGroup | None = None,
) -> Stream:
    """Start a program that runs until it is stopped, in its own session: Ctrl-C at the terminal does not reach it.

    line_most: most bytes of an output line. owner, group: the user and the cgroup in which root starts it. Raises
    CommandError if it cannot be started.
    """
    import subprocess

    command = tuple(argv)
    prepare: Callable[[], None] | None = None
    groups: tuple[int, ...] = ()
    try:
        if owner is not None:
            prepare, groups = user_process.preparation(owner, group)
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            cwd=None if owner is None else "/",
            start_new_session=True,
            preexec_fn=prepare,  # makes system calls only
        )
    except OSError as error:
        raise CommandError(command, None, str(error)) from error
    finally:
        for fd in groups:
            os.close(fd)
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
            preexec_fn=prepare,  # makes system calls only
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
            _is_readable(fd, timeout_s)
            return child.poll() is not None
        child.wait(timeout_s)
        return True
    except subprocess.TimeoutExpired:
        return False
    finally:
        if fd >= 0:
            os.close(fd)


def identify(pid: int, proc: str = "/proc") -> ProcessIdentity | None:
    """Return the identity of a pid; None: it has ended, is a zombie (without files and locks), or is hidden by hidepid.

    A process whose main thread has ended runs as long as another thread does. The kernel shows it as a zombie with
    several threads. Not with psutil, whose import takes 23 ms; those of an ordinary Prolog take 3 ms
    (tests/bench/hook_imports.py).
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
    name = head.partition(b"(")[2].decode(errors="replace")  # a name may contain blanks and brackets
    # Not the owner of the folder: that is root for a process without core dumps.
    uid = next((int(line.split()[2]) for line in status.splitlines() if line.startswith(b"Uid:")), None)
    return ProcessIdentity(pid, int(fields[19]), uid, name)


def is_gone(fields: Sequence[bytes]) -> bool:
    """Return whether no thread of a process runs. fields: those after its name in /proc/PID/stat."""
    return fields[0] in (b"Z", b"X") and int(fields[17]) < 2


def is_same(known: ProcessIdentity, proc: str = "/proc") -> bool:
    """Return whether the process still runs: the same pid, start time and user."""
    now = identify(known.pid, proc) if known.pid > 0 else None
    return now is not None and (now.start_ticks, now.uid) == (known.start_ticks, known.uid)


def end(known: ProcessIdentity, number: signal.Signals, proc: str = "/proc") -> bool:
    """Signal a process; return False if it has ended, its pid is reused, or the caller may not signal it.

    The pidfd is opened before the identity is checked, so that the pid cannot be reused in between.
    """
    if known.pid <= 1 or known.start_ticks is None:
        return False
    try:
        fd = os.pidfd_open(known.pid)
    except ProcessLookupError:
        return False
    except OSError:
        fd = -1  # as in _wait: then a few microseconds lie between the check and the signal
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
    """Wait until the processes have ended; return those that still run at the deadline."""
    living = tuple(one for one in known if is_same(one, proc))
    pause = 0.001
    while living and deadline.left() > 0:
        time.sleep(min(pause, deadline.left()))
        pause = min(0.02, pause * 2)
        living = tuple(one for one in living if is_same(one, proc))
    return living
