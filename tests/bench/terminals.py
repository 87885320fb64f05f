"""Run a program in a terminal of its own, and measure its cost: CPU time of it and of what it started, bytes written,
and the time until something is on the screen."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import tempfile
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

SIZE = (50, 160)
"""Lines and columns."""
_ESCAPE = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|P[^\x1b]*\x1b\\|[ -/]*[0-~])")


@dataclass
class Program:
    """A running program. Its output is read in `wait`; its queries to the terminal get no answer."""

    pid: int
    file: int
    begun: float
    written: int = 0
    """Bytes so far."""
    text: bytearray = field(default_factory=bytearray)
    """Without escape sequences."""

    def wait(self, seconds: float, until: Callable[[], bool] = lambda: False) -> float:
        """Read for this time, or until the condition holds; return the seconds since the start."""
        end = time.perf_counter() + seconds
        while not until() and (left := end - time.perf_counter()) > 0:
            if select.select([self.file], [], [], left)[0]:
                try:
                    data = os.read(self.file, 1 << 16)
                except OSError:
                    break  # it has ended
                self.written += len(data)
                self.text += _ESCAPE.sub(b"", data)
        return time.perf_counter() - self.begun

    def wait_for(self, words: str, seconds: float = 60.0) -> float:
        """Read until the program has written this; return the seconds since the start."""
        found = self.wait(seconds, lambda: words.encode() in self.text)
        if words.encode() not in self.text:
            raise SystemExit(f"no {words!r} within {seconds:g} s: {bytes(self.text[-2000:]).decode(errors='replace')}")
        return found

    def press(self, keys: str) -> None:
        os.write(self.file, keys.encode())

    def spent(self) -> tuple[float, float]:
        """Return the CPU seconds so far, user and kernel, of the program and of the programs that it started."""

        def seconds(process: psutil.Process) -> float:
            with contextlib.suppress(psutil.NoSuchProcess):
                return sum(process.cpu_times()[:4])  # those of children that have ended, too
            return 0.0

        own = psutil.Process(self.pid)
        return seconds(own), sum(map(seconds, own.children(recursive=True)))

    def close(self) -> None:
        """End the program, with SIGKILL if SIGTERM is not enough."""
        os.kill(self.pid, signal.SIGTERM)
        self.wait(5.0, self._is_over)
        if not self._is_over():
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.file)

    def _is_over(self) -> bool:
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] != 0
        except ChildProcessError:
            return True


def started(argv: Sequence[str | Path], environ: Mapping[str, str]) -> Program:
    """Start a program. `environ`: its environment without the terminal's variables."""
    begun = time.perf_counter()
    pid, file = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
        told = {**environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8"}
        os.execvpe(argv[0], list(map(str, argv)), told)
    return Program(pid, file, begun)


def measured_by(argv: Sequence[str | Path], most_s: float, environ: Mapping[str, str]) -> dict[str, float]:
    """Return the figures that a program, run in a terminal, writes as JSON to the file that is its last argument."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        program = started([*argv, file], environ)
        try:
            program.wait(most_s, lambda: file.exists() and file.stat().st_size > 0)
            found: dict[str, float] = json.loads(file.read_text())
        finally:
            program.close()
    return found
