"""One line to the hooks' log. Not the logging package: importing it costs a Prolog more than all the rest it does."""

from __future__ import annotations

import os
import sys
import time

LINE_LIMIT = 2000


def line(file: str, who: str, text: str) -> None:
    """Append `text` to `file` and to stderr, which slurmd keeps when a hook fails.

    A log that cannot be written is said on stderr and is no reason to fail a job.
    """
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)[:LINE_LIMIT]
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    print(f"slurm-share {who}: {safe}", file=sys.stderr)  # noqa: T201  (slurmd's copy)
    if not file:
        return
    try:
        # One write of one line: lines of two hooks at once do not mix (O_APPEND).
        fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
        try:
            os.write(fd, f"{stamp} {who}: {safe}\n".encode())
        finally:
            os.close(fd)
    except OSError as error:
        print(f"slurm-share {who}: cannot write {file}: {error}", file=sys.stderr)  # noqa: T201
