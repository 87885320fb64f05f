"""Explain why a task could not be started, and tell passing errors from lasting ones."""

from __future__ import annotations

import errno
import os

from ..rules import outcomes

PASSING = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT})
"""Errors of a start that its task does not cause and that may pass."""
NO_PROCESSES = "you have reached the limit of processes there (ulimit -u, or pids.max of the job's cgroup)"
HEAD_BYTES = 256
"""Bytes of a script's first line that the kernel reads (BINPRM_BUF_SIZE of linux/binfmts.h)."""


def is_passing(error: OSError | ValueError) -> bool:
    """Return whether the same start may succeed when tried again."""
    return isinstance(error, OSError) and error.errno in PASSING


def why_not_started(program: str, log: str, error: OSError | ValueError) -> str:
    """Return the reason, for a person, why a program did not start. `log`: the file for its output."""
    if not isinstance(error, OSError):
        return f"its line in the tasks file cannot be used: {error}"
    if error.filename == log:
        return f"{log}: {error.strerror}"
    return outcomes.why_not_started(program, error, _head(program))


def _head(program: str) -> bytes:
    """Return the beginning of a program's file; empty if it cannot be read."""
    try:
        file = os.open(program, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(file, HEAD_BYTES)
    except OSError:
        return b""  # a folder, for example
    finally:
        os.close(file)
