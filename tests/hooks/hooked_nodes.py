"""A node under test whose hooks are called in this process, and processes of users without a name for them to find."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from slurm_share.core.paths import Paths
from slurm_share.core.settings import Settings
from slurm_share.node import processes
from slurm_share.share import admission, hook, ledger_file, release
from slurm_share.share.records import Plan
from slurm_share.testing import FakeNvml

NOTHING = ["jobs", "ledger", "ledger.lock"]
"""What stays in the state folder when nobody is here."""


class HookedNode:
    """A node with two GPUs, and its own state folder, /dev/shm and /tmp; `live` has its live jobs."""

    def __init__(self, root: Path, monkeypatch):
        self.root = root
        self.paths = Paths(root / "state", shm=root / "shm", tmp=root / "tmp", cgroup=root / "cgroup")
        self.settings = Settings(mode="on", log_file="", mps_control="")
        self.live = []
        self.log = []
        self.gpus(FakeNvml().gpu().gpu(), monkeypatch)
        monkeypatch.setattr(processes, "read_live_jobs", lambda: tuple(self.live))
        monkeypatch.setattr(hook, "report", lambda who, text: self.log.append(f"{who}: {text}"))

    def gpus(self, driver, monkeypatch):
        for room in (admission, release):
            monkeypatch.setattr(room, "nvml", driver)

    def admit(self, environ, now=1000.0):
        return admission.admit_job(environ, self.paths, self.settings, now)

    def release(self, environ):
        return release.release_job(environ, self.paths, self.settings, time.time())

    def plan(self, job_id=4711):
        return ledger_file.read_plan(self.paths, job_id)

    def refused(self, job_id=4711):
        """Return the sentence for the job's user; None: the job has its plan."""
        plan = self.plan(job_id)
        return None if isinstance(plan, Plan) else plan.sentence

    def ledger(self):
        return ledger_file.read_ledger(self.paths, ledger_file.read_boot_id())

    def jobs(self):
        return [entry.job_id for entry in self.ledger().jobs]

    def files(self):
        """Return all files but the folders that are always there."""
        found = (str(p.relative_to(self.paths.root)) for p in self.paths.root.rglob("*"))
        return sorted(one for one in found if one not in ("user", "user/jobs", "no-mps"))

    def said(self, *words):
        """Return how many lines of the log have all of these texts."""
        return sum(all(word in line for word in words) for line in self.log)


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
