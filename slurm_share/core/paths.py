"""Every path of slurm-share, grown from one root: a test gives another root and touches nothing else."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from . import names

CONFIG_FILE = Path(names.CONFIG_FILE)


class Paths(Struct, frozen=True):
    """The state folder of one node, and the folders on it that are everybody's."""

    root: Path = Path(names.STATE_ROOT)
    shm: Path = Path("/dev/shm")
    tmp: Path = Path("/tmp")
    cgroup: Path = Path("/sys/fs/cgroup")

    @property
    def ledger(self) -> Path:
        """Who is on the node; root's, 0600 (0640 for the operators' group)."""
        return self.root / "ledger"

    @property
    def ledger_lock(self) -> Path:
        """Held by the hook that reads, decides and writes the ledger."""
        return self.root / "ledger.lock"

    @property
    def refusals(self) -> Path:
        """Refusals of the last minutes; root's, 0600. Beside the state folder, which may be what cannot be written."""
        return self.root.with_name(f"{self.root.name}.refusals")

    @property
    def jobs(self) -> Path:
        """One folder a job; 0711, so that nobody lists others' jobs."""
        return self.root / names.JOBS_FOLDER

    def job(self, job_id: int) -> Path:
        """Return a job's folder; root's, 0711."""
        return self.jobs / str(job_id)

    def plan(self, job_id: int) -> Path:
        """Return the job's plan; root's, readable by its user alone."""
        return self.job(job_id) / names.PLAN_FILE

    def unshared(self, job_id: int) -> Path:
        """Return the note that a job which asked to share runs unshared here; root's, readable by its user alone."""
        return self.root / names.UNSHARED_FOLDER / str(job_id)

    @property
    def user(self) -> Path:
        """What users can write to, on a file system of its own; root's, 0711."""
        return self.root / names.USER_FOLDER

    @property
    def mps(self) -> Path:
        """One folder a user with MPS daemons; root's, 0711."""
        return self.user / names.MPS_FOLDER

    @property
    def earlier_mps(self) -> Path:
        """Where earlier releases kept `mps`: the daemons of their jobs stay there until these end."""
        return self.root / names.MPS_FOLDER

    def mps_pipe(self, uid: int, gpu_uuid: str) -> Path:
        """Return the pipe directory of the daemon of one user on one GPU; the user's, 0700, under a folder of
        root's.

        The name keeps both ends of the UUID: 56 random bits, 15 bytes of the 87 that a pipe directory may have.
        """
        return self.mps / str(uid) / _leaf(gpu_uuid)

    def earlier_mps_pipe(self, uid: int, gpu_uuid: str) -> Path:
        """Return the pipe directory of a daemon that an earlier release started."""
        return self.earlier_mps / str(uid) / _leaf(gpu_uuid)

    @property
    def no_mps(self) -> Path:
        """Pipe directory of tasks that are to have no MPS; root's, 0711, and empty."""
        return self.root / names.NO_MPS_FOLDER

    def slots(self, job_id: int) -> Path:
        """Return the folder of the job's leases, one file a slot: a link to `slot_files`. For a job that an earlier
        release admitted it is the folder itself."""
        return self.job(job_id) / names.SLOTS_FOLDER

    def user_job(self, job_id: int) -> Path:
        """Return the folder of the job in `user`; root's, 0711."""
        return self.user / names.JOBS_FOLDER / str(job_id)

    def slot_files(self, job_id: int) -> Path:
        """Return the folder of the job's leases; root's, 0711, the user's files in it, 0600."""
        return self.user_job(job_id) / names.SLOTS_FOLDER


def _leaf(gpu_uuid: str) -> str:
    digits = gpu_uuid.partition("-")[2].replace("/", "")
    return f"{digits[:8]}-{digits[-6:]}"
