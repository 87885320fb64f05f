"""Processes of users without a name, for hooks to find."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def processes_of_users() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Yield a function that starts a process of a user, with a job's number in its environment or none; end all of them
    afterwards."""
    children: list[subprocess.Popen[bytes]] = []

    def of(uid: int, job_id: int | None = None) -> subprocess.Popen[bytes]:
        env = {} if job_id is None else {"SLURM_JOB_ID": str(job_id)}
        children.append(subprocess.Popen(["/bin/sleep", "600"], user=uid, group=uid, env=env, start_new_session=True))
        return children[-1]

    yield of
    for child in children:
        child.kill()
        child.wait()
