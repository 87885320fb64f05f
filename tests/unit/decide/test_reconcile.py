"""The ledger as jobs come and go."""

from __future__ import annotations

import pytest

from slurm_share.decide import reconcile
from slurm_share.records import (
    Assignment,
    Gpu,
    JobContext,
    Ledger,
    LedgerJob,
    Plan,
    PlanFile,
    PlanSlot,
    ProcessIdentity,
    ShareRequest,
)

GPU = Gpu("GPU-0", 0, 0, "H100", 81920)


def context(job_id, uid=2001, restart=0, exclusive=None):
    """A job that arrives."""
    return JobContext(job_id, uid, uid, "n1", ("0",), ShareRequest(4), restart_count=restart, exclusive=exclusive)


def plan(job_id, restart=0):
    """A plan without slots; the ledger counts them only."""
    return Plan(context(job_id, restart=restart), ShareRequest(4), (GPU,), (), ())


def enter(ledger, plan, now):
    """The ledger with the plan's job in it."""
    return reconcile.enter(ledger, plan.job, plan, now)


def held(*entries):
    """A ledger of (job, uid, GPUs)."""
    return Ledger("b", tuple(LedgerJob(job_id, uid, "4", gpus, 4, 0.0, 1) for job_id, uid, gpus in entries))


def test_two_jobs_enter_and_one_leaves():
    """The sibling stays as it was."""
    ledger = enter(enter(Ledger("b"), plan(1), 10.0), plan(2), 20.0)
    assert [job.job_id for job in ledger.jobs] == [1, 2]
    assert reconcile.leave(ledger, 1).jobs == ledger.jobs[1:]


def test_a_second_prolog_and_a_requeue_replace_the_first():
    """One line a job, whatever happened before."""
    ledger = enter(enter(Ledger("b"), plan(1), 10.0), plan(1, restart=1), 20.0)
    assert [(job.job_id, job.restart_count, job.since) for job in ledger.jobs] == [(1, 1, 20.0)]


def test_leaving_twice_changes_nothing():
    """An Epilog may run twice, and where no Prolog ran."""
    ledger = enter(Ledger("b"), plan(1), 10.0)
    assert reconcile.leave(reconcile.leave(ledger, 1), 1) == reconcile.leave(Ledger("b"), 1)
    assert reconcile.leave(ledger, 99) == ledger


@pytest.mark.parametrize(
    ("arrival", "granted", "live", "stale"),
    [
        (context(9, exclusive="node"), (), (), [1, 2, 3]),
        (context(9, exclusive="node"), (), (2,), [1, 3]),
        (context(9, uid=2001, exclusive="user"), (), (), [3]),
        (context(9, uid=2002), ("GPU-1",), (), [2]),
        (context(9, uid=2002), ("GPU-1",), (2,), []),
        (context(9), ("GPU-1",), (), []),
        (context(9), ("GPU-1", "GPU-7"), (), [2]),
        (context(9), (), (), []),
        (context(1, exclusive="node"), (), (2, 3), []),
    ],
)
def test_an_arrival_proves_others_over(arrival, granted, live, stale):
    """A whole node, a user's node or a GPU is given to somebody new only when the one before has ended. A GPU that the
    same user gets once more may be shared with the one before."""
    ledger = held((1, 2001, ("GPU-0",)), (2, 2001, ("GPU-1",)), (3, 2002, ("GPU-2",)))
    assert [entry.job_id for entry in reconcile.stale(ledger, arrival, None, granted, live)] == stale


def test_a_gpu_is_free_when_no_other_job_has_it():
    """Two jobs on GPU 1: it stays the second one's."""
    ledger = held((1, 2001, ("GPU-0", "GPU-1")), (2, 2001, ("GPU-1",)))
    assert reconcile.freed_gpus(ledger.jobs[0], reconcile.leave(ledger, 1)) == ("GPU-0",)
    assert reconcile.is_in_use(reconcile.leave(ledger, 1), "GPU-1")
    assert not reconcile.is_in_use(reconcile.leave(ledger, 1), "GPU-0")


def test_the_epilog_of_an_earlier_run_is_late():
    """The job was requeued and its second run is here; nothing is told where the restart is unknown."""
    entry = held((1, 2001, ("GPU-0",))).jobs[0]
    assert reconcile.is_late(entry, context(1, restart=0))
    assert not reconcile.is_late(entry, context(1, restart=1))
    assert not reconcile.is_late(entry, context(1, restart=None))
    assert not reconcile.is_late(None, context(1))


def test_the_first_compute_mode_is_the_one_to_put_back():
    """A second memory would be of the mode we set ourselves."""
    ledger = reconcile.remember_mode(reconcile.remember_mode(Ledger("b"), "GPU-0", 0), "GPU-0", 3)
    assert [(before.gpu, before.mode) for before in ledger.modes] == [("GPU-0", 0)]
    assert reconcile.forget_mode(ledger, "GPU-0").modes == ()


def test_a_job_that_is_being_cleared_away_is_no_longer_here():
    """Its line says whose hook is at it; a hook that takes it up puts its own name there; then it is forgotten."""
    first, second = ProcessIdentity(100, 5), ProcessIdentity(100, 6)
    ledger = held((1, 2001, ("GPU-0",)), (2, 2001, ("GPU-1",)))
    job = ledger.jobs[0]
    leaving = reconcile.begin_leaving(ledger, [job], first)
    assert leaving.jobs == ledger.jobs[1:]
    assert reconcile.abandoned(leaving, [first]) == ()
    assert reconcile.abandoned(leaving, [second]) == (job,)
    again = reconcile.begin_leaving(leaving, [job], second)
    assert [one.hook for one in again.leaving] == [second]
    assert reconcile.end_leaving(again, [job]) == reconcile.leave(ledger, 1)


def test_a_job_that_is_here_again_is_not_forgotten_with_its_first_run():
    """Requeued under the same number while the first run's Epilog was at work."""
    ledger = reconcile.begin_leaving(
        held((1, 2001, ("GPU-0",))), held((1, 2001, ("GPU-0",))).jobs, ProcessIdentity(9, 9)
    )
    ledger = enter(ledger, plan(1, restart=2), 50.0)
    after = reconcile.end_leaving(ledger, [ledger.leaving[0].job])
    assert [job.restart_count for job in after.jobs] == [2]
    assert after.leaving == ()


def test_plans_tell_who_is_here():
    """Without a ledger: user, share, slots and GPUs of each job that was not refused."""
    slots = tuple(
        PlanSlot(number, number, (Assignment("SLURM_SHARE_GPU_UUID", f"GPU-{number % 2}"),)) for number in range(4)
    )
    plans = [PlanFile(7, 2001, "n1", share=ShareRequest(2), gpus=2, slots=slots), PlanFile(8, 2002, "n1", refused="no")]
    ledger = reconcile.rebuild("b", plans)
    assert ledger.jobs == (LedgerJob(7, 2001, "2", ("GPU-0", "GPU-1"), 4, 0.0),)
