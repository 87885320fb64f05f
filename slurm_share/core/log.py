"""Write one line to the hooks' log, without the logging package: its import takes longer than a Prolog's work."""

from __future__ import annotations

import os
import stat
import time

LINE_LIMIT = 2000


def line(file: str, who: str, text: str) -> None:
    """Append `text` to `file` and to stderr, which slurmd keeps when a hook fails.

    Never raises: a log or stderr that cannot be written must not fail a job.
    """
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)[:LINE_LIMIT]
    _to_stderr(f"slurm-share {who}: {safe}\n")
    if not file:
        return
    try:
        _append(file, f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {who}: {safe}\n")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        _to_stderr(f"slurm-share {who}: cannot write {file!r}: {error}\n")


def _append(file: str, text: str) -> None:
    """Append a line in one write, so that lines of two hooks do not mix.

    O_NOFOLLOW: follow no link. O_NONBLOCK: do not wait if the log is a fifo without a reader.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(file, flags, 0o640)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError("it is not a file")
        os.write(fd, text.encode("utf-8", "backslashreplace"))
    finally:
        os.close(fd)


def _to_stderr(text: str) -> None:
    try:
        os.write(2, text.encode("utf-8", "backslashreplace"))
    except OSError:
        pass  # closed, full, or its reader is gone
