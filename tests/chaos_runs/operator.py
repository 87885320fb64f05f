"""The operator of a chaos run: records which nodes Slurm drains and why, and resumes them."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from localcluster import Cluster, ClusterError

from .records import Drain

_CHECK_S = 1.0
_ANSWER_S = 5.0


class Operator:
    """A thread that resumes drained nodes and releases held jobs, and records both."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.drains: list[Drain] = []
        self.released = 0

    def check(self) -> None:
        """Look at the nodes and the queue once. Does nothing if the controller does not answer."""
        try:
            said = self._cluster.exec("ctl", ["scontrol", "-o", "show", "nodes"], timeout=_ANSWER_S).stdout
            for line in said.splitlines():
                name = re.match(r"NodeName=(\S+)", line)
                state = re.search(r" State=(\S+)", line)
                if name and state and "DRAIN" in state[1]:
                    reason = re.search(r" Reason=(.*?)(?: \[| Comment=|$)", line)
                    self.drains.append(Drain(time.time(), name[1], reason[1] if reason else ""))
                    self._do("scontrol", "update", f"nodename={name[1]}", "state=resume")
            waiting = self._cluster.exec("ctl", ["squeue", "-h", "-tPD", "-o%i %r"], timeout=_ANSWER_S).stdout
            for job, reason in (line.split(" ", 1) for line in waiting.splitlines()):
                if "held" in reason.lower():
                    self.released += 1
                    self._do("scontrol", "release", job)
        except ClusterError:
            return

    def _do(self, *argv: str) -> None:
        self._cluster.exec("ctl", argv, timeout=_ANSWER_S)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Looking every second, for as long as the block lasts."""
        over = threading.Event()

        def work() -> None:
            while not over.wait(_CHECK_S):
                self.check()

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
