"""Every path of slurm-share, grown from one root: a test gives another root and touches nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from . import names

CONFIG_FILE = Path("/etc/slurm-share/config.toml")


@dataclass(frozen=True, slots=True)
class Paths:
    """The state folder of one node."""

    root: Path = Path(names.STATE_ROOT)

    @property
    def ledger(self) -> Path:
        """Who is on the node; root's, 0600 (0640 for the operators' group)."""
        return self.root / "ledger"

    @property
    def ledger_lock(self) -> Path:
        """Held by the hook that reads, decides and writes the ledger."""
        return self.root / "ledger.lock"

    @property
    def jobs(self) -> Path:
        """One folder a job; 0711, so that nobody lists others' jobs."""
        return self.root / names.JOBS_FOLDER

    def job(self, job_id: int) -> Path:
        """A job's folder; root's, 0711."""
        return self.jobs / str(job_id)

    def plan(self, job_id: int) -> Path:
        """The job's plan; its user's, 0400."""
        return self.job(job_id) / names.PLAN_FILE
