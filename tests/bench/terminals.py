"""Runs a program in a terminal of its own, and counts what it costs there: CPU time of it and of what it started, bytes
that it wrote, how soon something was to be read."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SIZE = (50, 160)
"""Lines and columns."""
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_ESCAPE = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|P[^\x1b]*\x1b\\|[ -/]*[0-~])")


@dataclass
class Program:
    """One that runs. Its output is read whenever it is waited for; nobody answers what it asks the terminal."""

    pid: int
    file: int
    begun: float
    written: int = 0
    """Bytes so far."""
    text: bytearray = field(default_factory=bytearray)
    """Without escape sequences."""

    def wait(self, seconds: float, until: Callable[[], bool] = lambda: False) -> float:
        """Read for so long, or until it is so; seconds since it was started."""
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
        """Until it has written this; seconds since it was started."""
        found = self.wait(seconds, lambda: words.encode() in self.text)
        if words.encode() not in self.text:
            raise SystemExit(f"no {words!r} within {seconds:g} s: {bytes(self.text[-2000:]).decode(errors='replace')}")
        return found

    def press(self, keys: str) -> None:
        """As somebody who types."""
        os.write(self.file, keys.encode())

    def spent(self) -> tuple[float, float]:
        """CPU seconds so far, user and kernel, of all threads: (its own, of the programs that it started)."""
        own, below, parents = 0.0, 0.0, {}
        for entry in Path("/proc").glob("[0-9]*/stat"):
            try:
                words = entry.read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            parents[int(entry.parent.name)] = (int(words[1]), sum(map(int, words[11:15])) * TICK_S)
        for pid, (_, seconds) in parents.items():
            if pid == self.pid:
                own += seconds
            elif self._is_below(pid, parents):
                below += seconds
        return own, below

    def _is_below(self, pid: int, parents: Mapping[int, tuple[int, float]]) -> bool:
        while pid in parents:
            pid = parents[pid][0]
            if pid == self.pid:
                return True
        return False

    def close(self) -> None:
        """End it, politely first."""
        os.kill(self.pid, signal.SIGTERM)
        self.wait(5.0, lambda: self._is_over())
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
    """`environ`: as it is, but for what the terminal says of itself."""
    begun = time.perf_counter()
    pid, file = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
        told = {**environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8"}
        os.execvpe(argv[0], list(map(str, argv)), told)
    return Program(pid, file, begun)
