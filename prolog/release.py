"""A shared job has left this node: take it out of the ledger and remove its folder."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_share.actuators import state
from slurm_share.decide import reconcile
from slurm_share.paths import Paths
from slurm_share.readers import hook_env
from slurm_share.settings import Settings

from . import hook

WHO = "epilog"


def release_job(environ: Mapping[str, str], paths: Paths, settings: Settings) -> None:
    """Remove what `admission.admit_job` left. Raises as that does; does nothing the second time.

    The ledger comes first: a folder without a ledger line is found again by the next Epilog, a line without a folder
    would not be.
    """
    job = hook_env.read(environ)
    with state.exclusive(paths):
        ledger = hook.read_ledger(paths, WHO)
        remaining = reconcile.leave(ledger, job.job_id)
        if remaining != ledger:
            state.write_ledger(paths, remaining, settings)
    state.remove_job(paths, job.job_id)
    hook.report(WHO, f"job {job.job_id} of uid {job.uid}: its share is removed")
