"""The user who has a node, and when a user has left it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slurm_share.core.records import ProcessIdentity
from slurm_share.node.records import LiveJob
from slurm_share.share.records import Leaving, Ledger, LedgerJob
from slurm_share.share.rules import owners
from slurm_share.slurm.records import JobContext

ALICE, BOB, CAROL = 2001, 2002, 2003
JOB = JobContext(7, ALICE, ALICE, "n1", (), None)
NOW = 1000.0
HOOK = ProcessIdentity(100, 5, 0, "python3")


def entry(job_id, uid, since=0.0):
    return LedgerJob(job_id, uid, "4", ("GPU-0",), 4, since)


def ledger(*entries, leaving=()):
    return Ledger("b", entries, leaving=tuple(Leaving(one, HOOK) for one in leaving))


# --- who else is here ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "live", "others"),
    [
        ((), (LiveJob(8, BOB),), [(8, BOB)]),
        ((entry(8, BOB),), (LiveJob(8, None),), [(8, BOB)]),
        ((entry(8, BOB),), (LiveJob(8, BOB),), [(8, BOB)]),
        ((entry(8, BOB), entry(9, CAROL)), (LiveJob(9, None), LiveJob(8, BOB)), [(8, BOB), (9, CAROL)]),
        ((entry(8, BOB),), (), []),
        ((), (LiveJob(8, None),), []),
        ((), (LiveJob(8, ALICE),), []),
        ((entry(8, ALICE, NOW),), (LiveJob(8, None),), []),
        ((entry(7, BOB, NOW),), (LiveJob(7, BOB),), [(7, BOB)]),
        ((entry(7, ALICE, NOW),), (LiveJob(7, ALICE),), []),
        ((), (LiveJob(8, 0), LiveJob(9, 999)), []),
        ((entry(8, 999, NOW),), (LiveJob(8, None),), []),
        ((), (LiveJob(8, 1000),), [(8, 1000)]),
        ((), (), []),
    ],
)
def test_a_neighbour_is_another_users_job_with_a_step_here(known, live, others):
    """A step's user is known from its tasks, or from the ledger. An entry without a step does not prove that its job is
    alive; steps of an unknown user, of the same user and of system users do not count."""
    found = owners.others(JOB, ledger(*known), live, NOW)
    assert [(one.job_id, one.uid) for one in found] == others


def test_the_task_itself_is_believed_before_the_ledger():
    assert owners.others(JOB, ledger(entry(8, BOB)), (LiveJob(8, ALICE),), NOW) == ()
    assert owners.others(JOB, ledger(entry(8, ALICE)), (LiveJob(8, BOB),), NOW) == (LiveJob(8, BOB),)


def test_a_job_that_is_being_cleared_away_is_nobodys_neighbour():
    assert owners.others(JOB, ledger(leaving=(entry(8, BOB, NOW),)), (), NOW) == ()


@pytest.mark.parametrize("uid", [0, 1, 999])
def test_a_system_users_job_has_no_neighbours(uid):
    live = (LiveJob(8, BOB),)
    assert owners.others(replace(JOB, uid=uid), ledger(), live, NOW) == ()
    assert owners.others(replace(JOB, uid=1000), ledger(), live, NOW) == live


# --- the sentence --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("others", "shown", "there"),
    [
        ([(8, BOB)], {BOB: "bob"}, "job 8 of bob is still on it"),
        ([(8, BOB), (9, CAROL)], {BOB: "bob", CAROL: "carol"}, "job 8 of bob, job 9 of carol is still on it"),
        ([(8, BOB), (9, CAROL)], {CAROL: "carol"}, "job 9 of carol is still on it"),
        ([(8, BOB)], {}, "a job of another user is still on it"),
        ([(8, None)], {BOB: "bob"}, "a job of another user is still on it"),
    ],
)
def test_who_comes_second_is_told_who_is_there_as_far_as_slurm_would(others, shown, there):
    refusal = owners.refuse(JOB, [LiveJob(job_id, uid) for job_id, uid in others], shown)
    assert refusal.sentence.startswith(
        "job 7 cannot run on n1: slurm-share keeps this node to one user at a time, and "
    )
    assert there in refusal.sentence
    assert "--exclude=n1" in refusal.sentence
    assert refusal.cause == "other-user"
    for job_id, uid in others:
        assert (f"job {job_id}" in refusal.sentence) is (uid in shown)


def test_a_crowd_is_told_by_its_first_three():
    refusal = owners.refuse(JOB, [LiveJob(number, BOB) for number in range(10, 50)], {BOB: "bob"})
    assert refusal.sentence.count("of bob") == 3


# --- who has left --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("over", "known", "live", "gone"),
    [
        ([(8, BOB)], (), (), {BOB}),
        ([(8, BOB)], (entry(9, BOB),), (), set()),
        ([(8, BOB)], (entry(9, CAROL),), (), {BOB}),
        ([(8, BOB)], (), (LiveJob(9, BOB),), set()),
        ([(8, BOB)], (), (LiveJob(9, CAROL),), {BOB}),
        ([(8, BOB)], (), (LiveJob(9, None),), set()),
        ([(8, BOB)], (entry(9, CAROL),), (LiveJob(9, None),), {BOB}),
        ([(8, BOB)], (entry(9, BOB),), (LiveJob(9, None),), set()),
        ([(8, BOB)], (), (LiveJob(8, BOB), LiveJob(8, None)), {BOB}),
        ([(8, BOB), (9, BOB)], (), (), {BOB}),
        ([(8, BOB), (9, CAROL)], (), (), {BOB, CAROL}),
        ([(8, BOB), (9, CAROL)], (entry(10, CAROL),), (), {BOB}),
        ([(8, BOB), (9, CAROL)], (), (LiveJob(10, None),), set()),
        ([(8, 0), (9, 999)], (), (), set()),
        ([(8, 1000)], (), (), {1000}),
        ([], (), (), set()),
    ],
)
def test_a_user_has_left_with_the_last_job(over, known, live, gone):
    """The user has left if no other job of his has an entry or a step here. A step of an unknown user can be any
    user's. System users never leave."""
    entries = tuple(entry(job_id, uid) for job_id, uid in over)
    assert owners.departed(entries, ledger(*known), live) == gone


def test_of_two_jobs_that_leave_at_once_the_first_is_not_the_last():
    mine, others = entry(8, BOB), entry(9, BOB)
    assert owners.departed([mine], ledger(leaving=(mine, others)), ()) == frozenset()
    assert owners.departed([others], ledger(leaving=(others,)), ()) == {BOB}
    assert owners.departed([mine], ledger(leaving=(mine, entry(9, CAROL))), ()) == {BOB}
