"""Keep the record of the jobs that this node refused for a cause of its own.

The file is root's and not in the state folder, since the cause can be that the state folder cannot be written.
"""

from __future__ import annotations

import os
import stat
import time

from ..core import locks
from ..core.errors import StateError
from .rules import drain

TYPE_CHECKING = False  # mypy takes it for True; hooks load this module
if TYPE_CHECKING:
    from ..core.process import Deadline

LIMIT_BYTES = 4096
LOCK_PAUSE_S = 0.002


def count(file: str, boot_id: str, job_id: int, cause: str, deadline: Deadline) -> str | None:
    """Record the refusal; return a sentence for the log if the node is to be drained, else None.

    In that case empty the record, so that the count starts again after an administrator resumes the node. Raises
    StateError if another hook locks the record until the deadline or it is not root's, OSError if it cannot be written.
    """
    if not drain.is_counted(cause):
        return None
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        seen = os.fstat(fd)
        if not stat.S_ISREG(seen.st_mode) or seen.st_uid != os.geteuid():
            raise StateError(file, "is not a regular file of root's: remove it")
        if not locks.take(fd, deadline, LOCK_PAUSE_S):
            raise StateError(file, "another hook held it until the deadline")
        text = os.pread(fd, LIMIT_BYTES, 0).decode("ascii", "replace")
        noted = drain.note(drain.parse(text, boot_id), job_id, cause, time.clock_gettime(time.CLOCK_BOOTTIME))
        too_many = drain.is_too_many(noted)
        data = drain.render(boot_id, () if too_many else noted).encode("ascii")
        os.pwrite(fd, data, 0)
        os.ftruncate(fd, len(data))
        return drain.sentence(noted) if too_many else None
    finally:
        os.close(fd)
