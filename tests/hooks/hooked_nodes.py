"""Nodes under test whose hooks are called in this process."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from slurm_share.core import names
from slurm_share.core.paths import Paths
from slurm_share.core.settings import Settings
from slurm_share.mps import processes as mps_processes
from slurm_share.node import processes
from slurm_share.share import admission, hook, ledger_file, observe, release
from slurm_share.share.records import Plan
from slurm_share.testing import FakeNvml

ALICE = 20000 + os.getpid() % 20000 * 2
BOB = ALICE + 1
"""Two users for this test process alone: other tests run at the same time, and these users' processes are ended."""
NOTHING = ["jobs", "ledger", "ledger.lock"]
"""The files that stay in the state folder of a node without jobs."""
as_root = pytest.mark.skipif(os.getuid() != 0, reason="NOT TESTED: only root may give files and processes away")


class HookedNode:
    """A node with two GPUs, and its own state folder, /dev/shm, /tmp and configuration; `live` has its live jobs."""

    def __init__(self, root: Path, monkeypatch):
        self.root, self.monkeypatch = root, monkeypatch
        self.paths = Paths(root / "state", shm=root / "shm", tmp=root / "tmp", cgroup=root / "cgroup")
        self.settings = Settings(mode="on", log_file="", mps_control="", usage_record="off")
        self.live = []
        self.log = []
        self.paths.shm.mkdir()
        self.paths.tmp.mkdir()
        self.gpus(FakeNvml().gpu().gpu())
        monkeypatch.setattr(processes, "read_live_jobs", lambda: tuple(self.live))
        monkeypatch.setattr(hook, "report", lambda who, text: self.log.append(f"{who}: {text}"))
        monkeypatch.setattr(mps_processes, "read_processes", lambda *_, **__: ())  # no daemons of this machine

    def gpus(self, driver):
        for room in (admission, release, observe):
            self.monkeypatch.setattr(room, "nvml", driver)

    def environ(self, job_id, uid=ALICE, share=None, gpus="0", **others):
        found = {
            "SLURM_JOB_ID": str(job_id),
            "SLURM_JOB_UID": str(uid),
            "SLURM_JOB_GID": str(uid),
            "SLURMD_NODENAME": "n2",
            "CUDA_VISIBLE_DEVICES": gpus,
            names.VERDICT_EXTRA: "slurm-share=on",
            **others,
        }
        return found if share is None else {**found, names.HOOK_VARIABLE: share}

    def configure(self, text=""):
        (self.root / "config.toml").write_text(f'mps_control = ""\nlog_file = ""\nusage_record = "off"\n{text}\n')

    def run(self, which, job_id=4711, **words):
        """Run a hook as slurmd does (the fixture `site`); return its exit code."""
        with self.monkeypatch.context() as environ:
            for name in (names.HOOK_VARIABLE, names.HOOK_DIRECT):
                environ.delenv(name, raising=False)
            for name, value in self.environ(job_id, **words).items():
                environ.setenv(name, value)
            return which.main()

    def put(self, folder, uid, *names):
        """Make files of a user, and the folders that they are in."""
        for name in names:
            file = folder / name
            if not file.parent.exists():
                file.parent.mkdir()
                os.chown(file.parent, uid, uid)
            file.write_text("data")
            os.chown(file, uid, uid)

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
        return sorted(one for one in found if one not in ("user", "user/mps", "no-mps"))

    def said(self, *words):
        """Return how many lines of the log have all of these texts."""
        return sum(all(word in line for word in words) for line in self.log)
