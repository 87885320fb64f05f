"""Add the lines of a pipe to a run as they come (`--tasks - --open`).

While the pipe is open, a lease in the folder of added tasks keeps the run alive: the client writes another number into
it every RENEW_S, and launchers see that it changes, by their own clocks. A client that is killed, or whose host dies,
renews it no longer, and the run ends by itself.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

from ..core.errors import UsageError
from . import added_tasks, growing
from .records import Run
from .rules import task_files
from .rules.task_files import Tasks

RENEW_S = 10.0
"""Seconds between two renewals of a lease."""
GATHER_S = 0.2
"""Seconds in which lines that come after the first one are added together with it."""
GATHER_LINES = 10_000
CHECK_S = 30.0
"""Seconds between two queries whether a job of the run is still there, while lines come."""
_READ_BYTES = 1 << 20
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals after which the client adds what it has read, and ends."""


class LineReader:
    """Whole lines of a descriptor, as they come."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._stop, self._stopping = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.is_stopped = False
        """True: `stop` was called before the end of the input."""
        self._rest = b""
        self._lines: list[bytes] = []
        self.is_open = True
        """False: the end of the input was read."""
        self.number = 1
        """Number of the line that `take` returns next, from 1."""

    def stop(self, *_: object) -> None:
        """Read nothing more; may be called from a signal handler, which then is called no more."""
        for number in STOPS:
            signal.signal(number, signal.SIG_DFL)
        self.is_stopped = True
        os.write(self._stopping, b"x")

    def stop_on_signals(self) -> None:
        """Call `stop` on the signals that end a program, which so adds what it has read."""
        for number in STOPS:
            signal.signal(number, self.stop)

    def gather(self, patience_s: float | None, least: Callable[[bytes], bool] = lambda line: True) -> bool:
        """Wait for lines, and then GATHER_S for further ones; return whether there are some.

        `patience_s`: most seconds to wait; None: until there are lines or the end. `least`: of one line it must be
        true.
        """
        until = None if patience_s is None else time.monotonic() + patience_s
        while self.is_open and len(self._lines) < GATHER_LINES:
            left = None if until is None else max(until - time.monotonic(), 0.0)
            ready, _, _ = select.select([self._fd, self._stop], [], [], left)
            if self._stop in ready:
                self.is_open = False
            if not ready or self._stop in ready:
                break
            had = any(map(least, self._lines))
            self._read()
            if not had and any(map(least, self._lines)):
                until = time.monotonic() + GATHER_S
        return bool(self._lines)

    def _read(self) -> None:
        data = os.read(self._fd, _READ_BYTES)
        *lines, rest = (self._rest + data).split(b"\n")
        self.is_open = bool(data)
        self._lines += lines
        self._rest = rest
        if not data and rest:
            self._lines.append(rest)
            self._rest = b""
        elif len(rest) > task_files.LINE_MAX_BYTES:
            self._lines.append(rest)  # which is refused, with its number
            self._rest = b""

    def take(self) -> tuple[int, list[bytes]]:
        """Return the number of the first line, and the lines that have come."""
        first, lines = self.number, self._lines
        self.number, self._lines = first + len(lines), []
        return first, lines


def is_task(line: bytes) -> bool:
    """Return whether a line is a task, and no options of those below it."""
    return not line.startswith(task_files.MAGIC.encode())


class Lease:
    """A file that tells the launchers of a run that further tasks will come."""

    def __init__(self, folder: Path) -> None:
        """Make it. Raises UsageError if it cannot be made."""
        self._file = folder / added_tasks.FOLDER / f"{added_tasks.LEASE}{os.getpid()}-{secrets.token_hex(8)}"
        self._count = 0
        self._due_s = 0.0
        try:
            self._file.parent.mkdir(exist_ok=True)
            self.renew()
        except OSError as error:
            raise UsageError(f"cannot write {self._file} ({error.strerror}); nothing was submitted") from error

    def renew(self) -> None:
        """Write another number, if it is time. Raises OSError."""
        if time.monotonic() < self._due_s:
            return
        self._due_s = time.monotonic() + RENEW_S
        self._count += 1
        self._file.write_text(f"{self._count}\n", encoding="ascii")

    def close(self) -> None:
        """Tell the launchers that no further task comes."""
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)


class TaskStream:
    """Adds the lines of a pipe to a run."""

    def __init__(
        self, folder: Path, run: Run, reader: LineReader, options: list[bytes], place: Callable[[int, int], bool]
    ) -> None:
        """`options`: the lines with options that the run has read already.

        `place(first, count)` returns whether a job takes tasks that were added, or submits one if it may.
        """
        self._folder, self._run, self._reader = folder, run, reader
        self._options = options
        self._place = place
        self._seal: str | None = None
        """The last seal when a job was found; None: none was."""
        self._check_s = 0.0
        self.first: int | None = None
        """Number of the first task that was added; None: none was."""
        self.count = 0

    def add_all(self, lease: Lease) -> bool:
        """Add lines until the end of the input; return False if no job takes them any more.

        Raises UsageError for a line that cannot be added; those before it are.
        """
        while True:
            self._reader.gather(RENEW_S / 2)
            with contextlib.suppress(OSError):
                lease.renew()
            if not self.add_some():
                return False
            if not self._reader.is_open:
                return True

    def add_some(self) -> bool:
        """Add the lines that have come; return False if no job takes them."""
        number, lines = self._reader.take()
        if not lines:
            return True
        try:
            found = self._parse(lines, number)
        except UsageError:
            good = self._find_wrong(lines, number)
            if good:
                self._add(self._parse(lines[:good], number), number)
            raise
        self._options += [line for line in lines if not is_task(line)]
        return not found.lines or self._add(found, number)

    def _parse(self, lines: list[bytes], number: int) -> Tasks:
        return growing.parse_lines(self._folder, self._run, self._options, lines, number)

    def _find_wrong(self, lines: list[bytes], number: int) -> int:
        """Return how many lines are before the first one that is no task."""
        for place in range(len(lines)):
            try:
                self._parse(lines[place : place + 1], number + place)
            except UsageError:
                return place
        return len(lines)

    def _add(self, found: Tasks, number: int) -> bool:
        """Add tasks that begin at a line of the input; return False if no job takes them."""
        if not found.lines:
            return True
        entry = growing.append(self._folder, self._run, found, len(found.lines), "-", number)
        self.first = entry.head.first if self.first is None else self.first
        self.count += entry.head.tasks
        if entry.head.sealed == self._seal and time.monotonic() < self._check_s:
            return True
        self._seal, self._check_s = entry.head.sealed, time.monotonic() + CHECK_S
        return self._place(entry.head.first, entry.head.tasks)
