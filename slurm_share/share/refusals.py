"""Keep the record of the jobs that this node had to refuse for a cause of its own: a small file of root's.

It lies beside the state folder and not in it: the cause may be that the state folder cannot be written.
"""

from __future__ import annotations

import os
import stat
import time

from ..core import locks
from ..core.errors import StateError
from .rules import drain

TYPE_CHECKING = False  # as mypy knows it; hooks load this module
if TYPE_CHECKING:
    from ..core.process import Deadline

LIMIT_BYTES = 4096
LOCK_PAUSE_S = 0.002


def count(file: str, boot_id: str, job_id: int, cause: str, deadline: Deadline) -> str | None:
    """Note the refusal; return the sentence for the log if it is one too many, None if not.

    After one too many the record is empty: an administrator who takes the node back into service gives it a new start.
    Raises StateError where another hook holds the record until the deadline or it is not root's, OSError where it
    cannot be written.
    """
    if not drain.is_counted(cause):
        return None
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        seen = os.fstat(fd)
        if not stat.S_ISREG(seen.st_mode) or seen.st_uid != os.geteuid():
            raise StateError(file, "is not a file of root's: remove it")
        if not locks.take(fd, deadline, LOCK_PAUSE_S):
            raise StateError(file, "another hook has held it all the time")
        text = os.pread(fd, LIMIT_BYTES, 0).decode("ascii", "replace")
        noted = drain.note(drain.parse(text, boot_id), job_id, cause, time.clock_gettime(time.CLOCK_BOOTTIME))
        too_many = drain.is_too_many(noted)
        data = drain.render(boot_id, () if too_many else noted).encode("ascii")
        os.pwrite(fd, data, 0)
        os.ftruncate(fd, len(data))
        return drain.sentence(noted) if too_many else None
    finally:
        os.close(fd)
