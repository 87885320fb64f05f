"""Find out from the ledger whether a daemon of ours belongs to a job."""

from __future__ import annotations

from ..records import Ledger


def has_job(ledger: Ledger, uid: int, folder: str) -> bool:
    """Return whether a job of the user in the ledger has the GPU whose daemon is in the folder. The folder's name has
    the beginning and the end of the GPU's UUID (see paths.py)."""
    first, _, last = folder.rpartition("/")[2].partition("-")
    jobs = [*ledger.jobs, *(one.job for one in ledger.leaving)]
    gpus = [gpu.partition("-")[2].replace("/", "") for job in jobs if job.uid == uid for gpu in job.gpus]
    return any(gpu.startswith(first) and gpu.endswith(last) for gpu in gpus)
