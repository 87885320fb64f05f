"""Estimate a PyTorch training by running its first steps with fake tensors, in a separate process without a GPU.

This runs the user's code a second time, including its file operations, so it is done only with `--estimate=probe`. A
failure gives no estimate, and does not affect the task. The task's environment needs PyTorch 1.13 or newer; this
package does not.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from ..core import numbers, process
from ..core.errors import CommandError
from ..core.records import MOST
from ..packing.rules import fingerprint

LIMIT_S = 20.0
ADDRESS_BYTES = 8 << 30
_GRACE_S = 10.0
"""Time for the watching process to end after the limit of the program."""
_FILES = Path(__file__).parent


class ProbeResult(Struct, frozen=True):
    """The result of a probe."""

    peak_mib: int | None
    """Largest sum of fake tensors, without context and libraries (rules/estimate/conformal.py). None: no result."""
    why: str = ""
    """Why there is no result."""


def probe(argv: Sequence[str], cwd: Path, environment: Mapping[str, str], *, limit_s: float = LIMIT_S) -> ProbeResult:
    """Return the peak of a command's fake tensors over two steps of its optimiser. Raises no error.

    environment: of the task. Takes at most `limit_s`, and some seconds of one core.
    """
    command = python_command(argv)
    if command is None:
        return ProbeResult(None, "not a plain command of Python")
    watcher = [
        sys.executable, "-I", str(_FILES / "probe_child.py"), str(_FILES / "probe_hook.py"), str(limit_s),
        str(ADDRESS_BYTES), str(cwd), "--", *command,
    ]  # fmt: skip
    try:
        done = process.finish(watcher, timeout_s=limit_s + _GRACE_S, env=dict(environment))
    except CommandError as error:
        return ProbeResult(None, str(error))
    return _read(done.stdout, limit_s)


def _read(answer: str, limit_s: float) -> ProbeResult:
    said, _, steps = answer.strip().partition(" ")
    peak = numbers.whole(said, MOST)
    if not peak or numbers.whole(steps) is None:
        return ProbeResult(None, f"no two steps of an optimiser on a GPU within {limit_s:g} s")
    return ProbeResult(-(-peak // (1 << 20)))


def python_command(argv: Sequence[str]) -> list[str] | None:
    """Return the arguments of a command that runs one Python program, also through `sh -c`; None: it does not."""
    words = list(argv)
    if len(words) == 3 and words[0].rpartition("/")[2] in fingerprint.SHELLS and words[1] == "-c":
        inner = fingerprint.split_shell(words[2])
        if inner is None or inner.folder or inner.before:
            return None
        words = inner.words
    if not words:
        return None
    found = fingerprint.take_apart(words)
    is_python = found.program.startswith("python") and bool(found.text or found.script != words[0])
    if not is_python or not words[0].rpartition("/")[2].startswith("python"):
        return None
    return words
