"""The ledger as jobs come and go."""

from __future__ import annotations

from dataclasses import replace

from .. import share_option
from ..records import Ledger, LedgerJob, Plan


def enter(ledger: Ledger, plan: Plan, now: float) -> Ledger:
    """The ledger with the plan's job in it; an earlier entry of that job (a requeue, a second Prolog) gives way."""
    job = plan.job
    entry = LedgerJob(
        job_id=job.job_id,
        uid=job.uid,
        share=share_option.render(plan.share),
        gpus=tuple(gpu.uuid for gpu in plan.gpus),
        slots=len(plan.slots),
        since=now,
        restart_count=job.restart_count,
        user=job.user,
        partition=job.partition,
        sluid=job.sluid,
    )
    return replace(ledger, jobs=(*leave(ledger, job.job_id).jobs, entry))


def leave(ledger: Ledger, job_id: int) -> Ledger:
    """The ledger without the job; the same ledger where it was not in it."""
    return replace(ledger, jobs=tuple(entry for entry in ledger.jobs if entry.job_id != job_id))
