"""When a node that turns jobs away calls itself unwell."""

from __future__ import annotations

import pytest

from slurm_share.decide import refusals
from slurm_share.records import Ledger, LedgerJob, RefusedJob

EMPTY = Ledger("b", (LedgerJob(1, 2001, "4", ("GPU-0",), 4, 0.0),))


def after(*refused):
    """The ledger after these jobs (number, time) were refused, one by one."""
    ledger = EMPTY
    for job_id, at in refused:
        ledger = refusals.note(ledger, job_id, at)
    return ledger


@pytest.mark.parametrize(
    ("refused", "unwell"),
    [
        ([], False),
        ([(7, 0.0), (8, 1.0)], False),
        ([(7, 0.0), (8, 1.0), (9, 2.0)], True),
        ([(7, 0.0), (8, 300.0), (9, 599.9)], True),
        ([(7, 0.0), (8, 300.0), (9, 600.0)], False),
        ([(7, 0.0), (7, 1.0), (7, 2.0), (7, 3.0)], False),
        ([(7, 0.0), (8, 1.0), (7, 2.0)], False),
        ([(7, 0.0), (8, 1.0), (7, 2.0), (9, 3.0)], True),
        ([(7, 5000.0), (8, 10.0), (9, 20.0)], False),
    ],
)
def test_three_jobs_in_ten_minutes_are_too_many(refused, unwell):
    """Two may be an unlucky moment, and one that comes back again and again counts once. Those from before the clock
    was set back do not count."""
    assert refusals.is_unwell(after(*refused)) is unwell


def test_the_ten_minutes_go_on_with_the_clock():
    """One refusal every four minutes is too often; one every five minutes is not, for hours."""
    assert refusals.is_unwell(after(*((number, 240.0 * number) for number in range(3))))
    assert not refusals.is_unwell(after(*((number, 301.0 * number) for number in range(50))))


def test_the_same_job_is_remembered_from_its_last_refusal():
    """It was turned away again just now, so it still counts when its first time is long gone."""
    ledger = after((7, 0.0), (7, 500.0), (8, 700.0))
    assert ledger.refused == (RefusedJob(7, 500.0), RefusedJob(8, 700.0))


def test_no_more_is_remembered_than_the_window_holds():
    """A ledger does not grow with every job that a broken node refuses."""
    assert len(after(*((number, 301.0 * number) for number in range(50))).refused) == 2


def test_a_node_that_has_said_so_begins_anew():
    """After the drain nothing of it is left, and the jobs on the node are what they were."""
    ledger = refusals.forget(after((7, 0.0), (8, 1.0), (9, 2.0)))
    assert ledger == EMPTY
    assert not refusals.is_unwell(refusals.note(ledger, 10, 3.0))
