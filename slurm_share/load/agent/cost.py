"""Measure the CPU time and memory that the agent itself uses."""

from __future__ import annotations

import time
from collections import deque

from ...node import host
from ..metrics import Cost

WINDOW_S = 60.0


class Meter:
    """A meter of this process. Only the sampling thread calls `round`; any thread may call `read`."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, float]] = deque([(time.monotonic(), time.process_time())])
        self._round_s: float | None = None
        self._rounds = self._failed = 0

    def round(self, took_s: float, *, failed: bool) -> None:
        """Record that a sample ended: how long it took, and whether it failed."""
        self._round_s = took_s
        self._rounds += 1
        self._failed += failed
        now = time.monotonic()
        self._marks.append((now, time.process_time()))
        while len(self._marks) > 2 and now - self._marks[1][0] >= WINDOW_S:
            self._marks.popleft()

    def read(self) -> Cost:
        """Return the cost over the last WINDOW_S."""
        (since, cpu_then), (now, cpu_now) = self._marks[0], self._marks[-1]
        ratio = (cpu_now - cpu_then) / (now - since) if now > since else None
        return Cost(
            cpu_ratio=ratio,
            resident_bytes=host.read_resident_bytes(),
            round_s=self._round_s,
            rounds=self._rounds,
            failed=self._failed,
        )


def as_text(cost: Cost) -> str:
    """Return the cost as a line for the log."""
    cpu = "?" if cost.cpu_ratio is None else f"{100 * cost.cpu_ratio:.2f} %"
    memory = "?" if cost.resident_bytes is None else f"{cost.resident_bytes / 2**20:.0f} MiB"
    last = "?" if cost.round_s is None else f"{1000 * cost.round_s:.1f} ms"
    return f"own cost: {cpu} of one core, {memory}, last sample {last}; {cost.rounds} samples, {cost.failed} failed"
