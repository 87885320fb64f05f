"""Errors of local clusters.

- ClusterError: base of all; its text is one sentence for the user
- Misuse: the request is impossible (exit code 2)
- CommandFailed: a program ended with a code other than 0 (keeps command, code, output)
- NotDone: a condition was not met in time (keeps what was waited for)
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence


class ClusterError(Exception):
    """Error that stops a local cluster; `str()` of it is the sentence to print."""

    exit_code = 1


class Misuse(ClusterError):
    """Request that is impossible as written: unknown node, cluster not up, part of the checkout missing."""

    exit_code = 2


class CommandFailed(ClusterError):
    """Exit of a program with a code other than 0."""

    def __init__(self, argv: Sequence[str], returncode: int, output: str) -> None:
        self.argv = tuple(argv)
        self.returncode = returncode
        self.output = output
        super().__init__(argv, returncode, output)

    def __str__(self) -> str:
        lines = [line for line in self.output.strip().splitlines() if line.strip()]
        said = "; it said: " + " | ".join(lines[-6:]) if lines else "; it said nothing"
        command = shlex.join(self.argv)
        short = command if len(command) <= 300 else command[:300] + " ..."
        return f"`{short}` ended with code {self.returncode}{said}"


class NotDone(ClusterError):
    """Condition that was not met within its time limit."""

    def __init__(self, what: str, seconds: float, detail: str = "") -> None:
        self.what = what
        self.seconds = seconds
        self.detail = detail
        super().__init__(what, seconds, detail)

    def __str__(self) -> str:
        tail = f": {self.detail}" if self.detail else ""
        return f"{self.what} did not happen within {self.seconds:g} s{tail}"
