"""All paths of slurm-share, below one root. Tests use another root and touch nothing else."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from . import names

CONFIG_FILE = Path(names.CONFIG_FILE)
USAGE_RECORDS = Path("/var/lib/slurm-share/usage")
"""Root's, 0755: the records of ended jobs, `use-JOB.json`, each readable by root and the job's user."""


class Paths(Struct, frozen=True):
    """Paths of a node: the state folder, and folders that all users share."""

    root: Path = Path(names.STATE_ROOT)
    shm: Path = Path("/dev/shm")
    tmp: Path = Path("/tmp")
    cgroup: Path = Path("/sys/fs/cgroup")

    @property
    def ledger(self) -> Path:
        """Jobs and users on the node; root's, 0600 (0640 for the operators' group)."""
        return self.root / "ledger"

    @property
    def ledger_lock(self) -> Path:
        """Lock of the hook that reads and writes the ledger."""
        return self.root / "ledger.lock"

    @property
    def refusals(self) -> Path:
        """Recent refusals; root's, 0600. Not in the state folder, which may be what cannot be written."""
        return self.root.with_name(f"{self.root.name}.refusals")

    @property
    def jobs(self) -> Path:
        """One folder for each job; 0711, so that users cannot list others' jobs."""
        return self.root / names.JOBS_FOLDER

    def job(self, job_id: int) -> Path:
        """Return the folder of a job; root's, 0711."""
        return self.jobs / str(job_id)

    def plan(self, job_id: int) -> Path:
        """Return the plan of a job; root's, readable by the job's user only."""
        return self.job(job_id) / names.PLAN_FILE

    def loaded(self, job_id: int) -> Path:
        """Return the file that is empty until a step of the job loads the plugin; root's, 0600."""
        return self.job(job_id) / names.LOADED_FILE

    def unshared(self, job_id: int) -> Path:
        """Return the plan of a job that asked to share and runs unshared; root's, readable by the job's user only."""
        return self.root / names.UNSHARED_FOLDER / str(job_id)

    @property
    def user(self) -> Path:
        """Folder below which users can write, on its own file system; root's, 0711."""
        return self.root / names.USER_FOLDER

    @property
    def mps(self) -> Path:
        """One folder for each user with shared jobs (`user_of`); root's, 0711."""
        return self.user / names.MPS_FOLDER

    def user_of(self, uid: int) -> Path:
        """Return the folder for a user's files, on a file system of the user's own; root's, 0711."""
        return self.mps / str(uid)

    def mps_pipe(self, uid: int, gpu_uuid: str) -> Path:
        """Return the pipe directory of a user's daemon on a GPU; the user's, 0700, below a folder of root's.

        The name keeps both ends of the UUID: 56 random bits, 15 bytes of the 87 that a pipe directory may have.
        """
        digits = gpu_uuid.partition("-")[2].replace("/", "")
        return self.user_of(uid) / f"{digits[:8]}-{digits[-6:]}"

    def launchers_of(self, uid: int) -> Path:
        """Return the folder of a user's launchers: bookings, rates, progress (own_folders.py); the user's, 0700."""
        return self.user_of(uid) / "launchers"

    @property
    def no_mps(self) -> Path:
        """Pipe directory of tasks without MPS; root's, 0711, and empty."""
        return self.root / names.NO_MPS_FOLDER

    def slots(self, job_id: int) -> Path:
        """Return the folder of a job's leases, one file for each slot: a link to `slot_files`."""
        return self.job(job_id) / names.SLOTS_FOLDER

    def user_job(self, job_id: int, uid: int) -> Path:
        """Return the folder of a job in its user's; root's, 0711."""
        return self.user_of(uid) / names.JOBS_FOLDER / str(job_id)

    def slot_files(self, job_id: int, uid: int) -> Path:
        """Return the folder of a job's leases; root's, 0711, with files of the user's, 0600."""
        return self.user_job(job_id, uid) / names.SLOTS_FOLDER
