"""Runs of several ranks on this machine, without Slurm: `python -m slurm_share.spmd -n 4 PROG`, and pRUN.

The rendezvous runs in the calling thread, which waits until all ranks have ended. The ranks end with that thread, even
if it is killed.
"""

from __future__ import annotations

import os
import select
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TextIO

from . import checks, names, wire
from .errors import SpmdError, UsageError
from .rendezvous import Rendezvous
from .rules import ends
from .system import raise_file_limit

KILL_S = 5.0
"""Seconds between SIGTERM and SIGKILL."""
_PIPES_S = 1.0
"""Seconds for which output of processes that ranks started is awaited after all ranks have ended."""
_POLL_S = 0.1
"""Seconds between two checks for ended ranks if the kernel has no pidfd (before Linux 5.3)."""
_MANY = 64
"""Number of ranks from which on the default limit of open files is too low."""
_SETTINGS = (names.ENV_START_S, names.ENV_SEND_LIMIT, names.ENV_TRANSPORT, names.ENV_CHECK)
"""Variables that a user may set; others that begin with LLSUB_ belong to a run that starts this one."""


@dataclass(frozen=True)
class RankOutcome:
    """Exit code and reason of the end of a run."""

    code: int
    """0: all ranks ended with 0. 75: some have saved their state, and none failed."""
    why: str
    """Sentence without full stop; empty with codes 0 and 75."""


def run_local(
    program: str | os.PathLike[str],
    size: int,
    args: Sequence[str] = (),
    *,
    logs: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    python: str = sys.executable,
    end_grace_s: float = names.END_GRACE_S,
    kill_s: float = KILL_S,
) -> RankOutcome:
    """Run `size` ranks of a program on this machine, wait for all of them, and return the outcome.

    The output of rank 0 goes to this process's output. That of the others goes there too, with "[rank] " before each
    line, or with `logs`, a folder, into `<logs>/<program's name without .py>.<rank>.out`. `env`: additional variables.
    Raises UsageError, SpmdError; KeyboardInterrupt after all ranks have ended.
    """
    check(program, size)
    run = _Run(os.fspath(program), size, end_grace_s, kill_s)
    try:
        try:
            run.start(args, Path(logs) if logs is not None else None, env or {}, python)
        except OSError as error:
            raise UsageError(f"the logs of ranks cannot be written to {error.filename}: {error.strerror}") from error
        run.wait()
        return run.outcome()
    except KeyboardInterrupt:
        run.interrupt(signal.SIGINT)
        raise
    except SystemExit:  # how the command's handler of SIGTERM arrives here
        run.interrupt(signal.SIGTERM)
        raise
    finally:
        run.close()


def check(program: str | os.PathLike[str], size: int) -> None:
    """Raise UsageError for a missing or unreadable program, too many ranks, or a variable with a wrong value."""
    if not 1 <= size <= names.MOST_RANKS_PER_NODE:
        raise UsageError(f"a machine runs 1 to {names.MOST_RANKS_PER_NODE} ranks, not {size}")
    checks.check_program(os.fspath(program))
    checks.check_variables(os.environ)


class _Output:
    """Pipe with a rank's output, of which only whole lines are passed on, so that lines of ranks do not mix."""

    def __init__(self, pipe: IO[bytes], target: TextIO | None, prefix: str) -> None:
        """`target`: None loses the output."""
        os.set_blocking(pipe.fileno(), False)
        self.pipe, self._target, self._prefix = pipe, target, prefix.encode()
        self._fd = _own(target)
        self._rest = b""

    def pump(self) -> bool:
        """Pass on the lines that have arrived. Return whether more may come."""
        try:
            data = os.read(self.pipe.fileno(), 64 << 10)
        except BlockingIOError:
            return True
        *lines, self._rest = (self._rest + data).split(b"\n")
        if not data and self._rest:
            lines, self._rest = [self._rest], b""
        self._write(lines)
        return bool(data)

    def finish(self) -> None:
        """Pass on what has arrived, a last line without its end too, and close the pipe."""
        until = time.monotonic() + _PIPES_S  # a process that ranks have left behind may write for ever
        while select.select([self.pipe], [], [], 0)[0] and self.pump() and time.monotonic() < until:
            pass
        if self._rest:
            self._write([self._rest])
        self.pipe.close()

    def _write(self, lines: Sequence[bytes]) -> None:
        if not lines or self._target is None:
            return
        data = b"".join(b"%b%b\n" % (self._prefix, line) for line in lines)
        try:
            if self._fd == subprocess.PIPE:
                self._target.write(data.decode("utf-8", "replace"))
                self._target.flush()
            while data and self._fd != subprocess.PIPE:
                data = data[os.write(self._fd, data) :]
        except (OSError, ValueError):
            pass  # the reader is gone or the stream is closed, which is no reason to end the ranks


class _Run:
    """The ranks of one run, with their processes and output."""

    def __init__(self, program: str, size: int, end_grace_s: float, kill_s: float) -> None:
        self._program, self._size, self._end_grace_s, self._kill_s = program, size, end_grace_s, kill_s
        self._node = os.uname().nodename
        self._ending: wire.RunEnding | None = None
        self._has_saved = False
        """A rank has saved its state, so that the run is not done."""
        self._term_at = self._kill_at = float("inf")
        if size > _MANY:
            raise_file_limit()
        setup = wire.Setup(f"local-{os.getpid()}", 0, ((self._node, size),), start_s=checks.start_s(os.environ))
        try:
            self._rendezvous = Rendezvous(setup, self._hear)
        except OSError as error:
            raise SpmdError(f"the rendezvous of the ranks cannot be opened: {error.strerror}") from error
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._rendezvous, selectors.EVENT_READ)
        self._ranks: dict[int, subprocess.Popen[bytes]] = {}
        """Processes that have not ended, by rank."""
        self._pidfds: dict[int, int] = {}
        self._outputs: set[_Output] = set()
        self._polls = False
        self._memory_kills = _memory_kills()
        self._is_interrupted = False

    def start(self, args: Sequence[str], logs: Path | None, env: Mapping[str, str], python: str) -> None:
        """Start a process for each rank."""
        command = [python, "-u", "-m", "slurm_share.spmd", "--", self._program, *args]
        if logs is not None:
            logs.mkdir(parents=True, exist_ok=True)
        for rank in range(self._size):
            self._start_rank(rank, command, logs, {**_environment(self._size), **env})

    def _start_rank(self, rank: int, command: Sequence[str], logs: Path | None, env: dict[str, str]) -> None:
        env[names.ENV_RENDEZVOUS] = self._rendezvous.ready.name
        env[names.ENV_RANK] = env[names.ENV_LOCAL_RANK] = str(rank)
        log: int | IO[bytes]
        targets: list[tuple[int | IO[bytes], TextIO | None]]
        if rank and logs is not None:
            log = open(logs / f"{Path(self._program).name.removesuffix('.py')}.{rank}.out", "wb")  # noqa: SIM115
            targets = [(log, sys.stdout), (log, sys.stderr)]
        else:
            log = subprocess.PIPE
            targets = [(_own(stream) if rank == 0 else log, stream) for stream in (sys.stdout, sys.stderr)]
        try:
            process = subprocess.Popen(
                command,
                env=env,
                stdin=None if rank == 0 and _has_input() else subprocess.DEVNULL,
                stdout=targets[0][0],
                stderr=targets[1][0],
            )
        except OSError as error:
            raise SpmdError(f"rank {rank} cannot be started: {error}") from error
        finally:
            if not isinstance(log, int):
                log.close()
        self._ranks[rank] = process
        try:
            self._pidfds[rank] = os.pidfd_open(process.pid)
            self._selector.register(self._pidfds[rank], selectors.EVENT_READ, rank)
        except OSError:
            self._polls = True
        for pipe, (_file, stream) in zip((process.stdout, process.stderr), targets, strict=True):
            if pipe is not None:
                output = _Output(pipe, stream, f"[{rank}] " if rank else "")
                self._outputs.add(output)
                self._selector.register(pipe, selectors.EVENT_READ, output)

    def wait(self) -> None:
        """Wait until all ranks have ended and their output is passed on. End them if the run must end."""
        while self._ranks:
            due_s = min(self._rendezvous.due_s(), min(self._term_at, self._kill_at) - time.monotonic())
            self._step(max(0.0, min(due_s, _POLL_S) if self._polls else due_s))
            now = time.monotonic()
            if now >= self._kill_at:
                self._kill_at = float("inf")
                self._signal(signal.SIGKILL)
            elif now >= self._term_at:
                self._term_at, self._kill_at = float("inf"), now + self._kill_s
                self._signal(signal.SIGTERM)
        until = time.monotonic() + _PIPES_S
        while self._outputs and (left := until - time.monotonic()) > 0:
            self._step(left)

    def outcome(self) -> RankOutcome:
        """Return the outcome after `wait`."""
        if self._ending is not None:
            return RankOutcome(self._ending.code, self._ending.why)
        return RankOutcome(names.EXIT_SAVED if self._has_saved else 0, "")

    def interrupt(self, number: signal.Signals) -> None:
        """Send the ranks a signal and wait for them; slow ones get SIGTERM, then SIGKILL."""
        self._is_interrupted = True
        if number != signal.SIGINT or not _is_in_foreground():  # Ctrl-C at a terminal reaches the ranks too
            self._signal(number)
        self._term_at = min(self._term_at, time.monotonic() + self._end_grace_s)
        try:
            self.wait()
        except KeyboardInterrupt:
            pass  # a second Ctrl-C: `close` kills the ranks at once

    def close(self) -> None:
        """Kill the remaining processes, and close all files."""
        is_in_order = not self._ranks and self._ending is None and not self._is_interrupted
        self._signal(signal.SIGKILL)
        for process in self._ranks.values():
            process.wait()
        if not is_in_order:
            _kill_rest(self._rendezvous.ready.name)
        for output in self._outputs:
            output.finish()
        for pidfd in self._pidfds.values():
            os.close(pidfd)
        self._selector.close()
        self._rendezvous.close()

    def _step(self, timeout_s: float) -> None:
        """Wait for events, at most `timeout_s`, and handle them."""
        maybe_ended = list(self._ranks) if self._polls else []
        for key, _events in self._selector.select(timeout_s):
            if isinstance(key.data, int):
                maybe_ended.append(key.data)
            elif isinstance(key.data, _Output) and not key.data.pump():
                self._selector.unregister(key.data.pipe)
                self._outputs.discard(key.data)
                key.data.pipe.close()
        self._rendezvous.step(0.0)
        for rank in maybe_ended:
            if rank in self._ranks and (code := self._ranks[rank].poll()) is not None:
                self._ended(rank, code)

    def _ended(self, rank: int, returncode: int) -> None:
        del self._ranks[rank]
        if (pidfd := self._pidfds.pop(rank, None)) is not None:
            self._selector.unregister(pidfd)
            os.close(pidfd)
        code, number = (returncode, None) if returncode >= 0 else (None, -returncode)
        self._has_saved = self._has_saved or code == names.EXIT_SAVED
        cause = ""
        if number == signal.SIGKILL and (kills := _memory_kills()) > self._memory_kills:
            cause, self._memory_kills = "out of host memory", kills
        self._rendezvous.ended(wire.RankEnded(rank, self._node, code, number, ends.reason(code, number, cause)))
        self._rendezvous.step(0.0)

    def _hear(self, message: wire.Record) -> None:
        if isinstance(message, wire.RunEnding):
            self._ending = message
            self._term_at = time.monotonic() + self._end_grace_s
        elif isinstance(message, wire.Note):
            sys.stderr.write(f"slurm_share.spmd: {message.text}\n")

    def _signal(self, number: signal.Signals) -> None:
        for process in self._ranks.values():
            process.send_signal(number)


def _environment(size: int) -> dict[str, str]:
    """Return the variables that all ranks of a run on this machine have in common."""
    found = {name: value for name, value in os.environ.items() if not name.startswith("LLSUB_") or name in _SETTINGS}
    # As torchrun does: otherwise the linear algebra of each rank would start a thread for every core.
    found.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // size)))
    return found | {
        names.ENV_SIZE: str(size),
        names.ENV_LOCAL_SIZE: str(size),
        names.ENV_NODE: "0",
        names.ENV_NODES: "1",
        names.ENV_PARENT: str(os.getpid()),
    }


def _memory_kills() -> int:
    """Return how many processes of this cgroup the kernel has killed for memory; 0 if it does not tell."""
    try:
        group = Path("/proc/self/cgroup").read_text().rpartition("0::")[2].strip()
        events = Path("/sys/fs/cgroup", group.lstrip("/"), "memory.events").read_text()
        return int(dict(line.split() for line in events.splitlines())["oom_kill"])
    except (OSError, ValueError, KeyError):
        return 0


def _own(stream: TextIO | None) -> int:
    """Return the file descriptor of a stream of this process; PIPE if it has none, as in a notebook."""
    if stream is None:  # it was closed before Python started
        return subprocess.PIPE
    try:
        stream.flush()
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return subprocess.PIPE


def _has_input() -> bool:
    try:
        os.fstat(0)
    except OSError:
        return False
    return True


def _is_in_foreground() -> bool:
    """Return whether Ctrl-C at the terminal reaches this process and its ranks."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _kill_rest(name: str) -> None:
    """Kill processes that ranks have left behind: those with this run's name in their environment."""
    mark = f"{names.ENV_RENDEZVOUS}={name}".encode()
    for folder in Path("/proc").iterdir():  # not with psutil: users' Python has only NumPy
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    os.kill(int(folder.name), signal.SIGKILL)
            except OSError:
                continue  # it belongs to another user, or has ended
