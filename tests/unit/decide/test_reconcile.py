"""The ledger as jobs come and go."""

from __future__ import annotations

from slurm_share.decide import reconcile
from slurm_share.records import Gpu, JobContext, Ledger, Plan, ShareRequest

GPU = Gpu("GPU-0", 0, 0, "H100", 81920)


def plan(job_id, restart=0):
    """A plan without slots; the ledger counts them only."""
    job = JobContext(job_id, 2001, 2001, "n1", ("0",), ShareRequest(4), restart_count=restart)
    return Plan(job, ShareRequest(4), (GPU,), (), ())


def test_two_jobs_enter_and_one_leaves():
    """The sibling stays as it was."""
    ledger = reconcile.enter(reconcile.enter(Ledger("b"), plan(1), 10.0), plan(2), 20.0)
    assert [job.job_id for job in ledger.jobs] == [1, 2]
    assert reconcile.leave(ledger, 1).jobs == ledger.jobs[1:]


def test_a_second_prolog_and_a_requeue_replace_the_first():
    """One line a job, whatever happened before."""
    ledger = reconcile.enter(reconcile.enter(Ledger("b"), plan(1), 10.0), plan(1, restart=1), 20.0)
    assert [(job.job_id, job.restart_count, job.since) for job in ledger.jobs] == [(1, 1, 20.0)]


def test_leaving_twice_changes_nothing():
    """An Epilog may run twice, and where no Prolog ran."""
    ledger = reconcile.enter(Ledger("b"), plan(1), 10.0)
    assert reconcile.leave(reconcile.leave(ledger, 1), 1) == reconcile.leave(Ledger("b"), 1)
    assert reconcile.leave(ledger, 99) == ledger
