"""The causes that drain a node, that are counted, and that never do."""

from __future__ import annotations

import pytest

from slurm_share.share.rules import drain

BOOT = "0c5b2c1e-1111-4222-8333-944455556666"


def after(*refused, cause=drain.NO_DRIVER):
    """Return the record after these jobs (number, seconds) were refused one by one."""
    found = ()
    for job_id, at_s in refused:
        found = drain.note(found, job_id, cause, at_s)
    return found


VERDICTS = {
    drain.NOW: {"process-outlives-sigkill", "driver-unreadable"},
    drain.COUNTED: {"no-driver", "no-such-gpu", "gpu-lost", "no-mps-program", "state-unwritable"},
}


@pytest.mark.parametrize("cause", drain.CAUSES)
def test_every_cause_has_its_verdict(cause):
    verdict = next((verdict for verdict, causes in VERDICTS.items() if cause in causes), drain.NEVER)
    assert drain.drains([cause]) is (verdict == drain.NOW)
    refused = after(*((number, float(number)) for number in range(50)), cause=cause)
    assert drain.is_too_many(refused) is (verdict == drain.COUNTED)


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
    assert drain.is_too_many(after(*refused)) is unwell


def test_a_refusal_that_a_user_can_bring_about_neither_counts_nor_clears_the_count():
    found = after((1, 0.0), (2, 1.0))
    for job in range(10, 60):
        found = drain.note(found, job, drain.OTHER_USER, 2.0)
    assert not drain.is_too_many(found)
    assert drain.is_too_many(drain.note(found, 3, drain.NO_DRIVER, 3.0))


def test_no_more_is_remembered_than_is_needed():
    assert len(after(*((number, float(number)) for number in range(500)))) == drain.MOST_REFUSALS + 1


@pytest.mark.parametrize(
    ("in_driver", "before_job", "cause"),
    [
        (True, False, drain.DRIVER_UNREADABLE),
        (True, True, drain.NO_DRIVER),
        (False, False, drain.HANGS),
        (False, True, drain.HANGS),
    ],
)
def test_a_hang_has_the_cause_of_what_the_hook_waits_for(in_driver, before_job, cause):
    assert drain.of_hang(in_driver=in_driver, before_job=before_job) == cause


@pytest.mark.parametrize(("has_users_files", "cause"), [(True, drain.STATE_FULL), (False, drain.STATE_UNWRITABLE)])
def test_a_full_state_folder_is_the_nodes_only_without_users_files(has_users_files, cause):
    assert drain.of_unwritable_state(has_users_files=has_users_files) == cause


def test_the_record_is_read_as_it_was_written():
    refused = after((7, 1234567.1234567), (8, 1234567.1234568))
    assert drain.parse(drain.render(BOOT, refused), BOOT) == refused
    assert drain.parse(drain.render(BOOT, refused), BOOT[::-1]) == ()


@pytest.mark.parametrize(
    "text", ["", "\n\n", "nonsense", "1 2", "x y z", "7 1.0 no-such-cause", "7 -1 no-driver", "\0" * 9]
)
def test_what_is_no_line_of_the_record_is_no_refusal(text):
    assert drain.parse(f"{BOOT}\n{text}\n8 2.000 no-driver\n", BOOT) == ((8, 2.0, "no-driver"),)


def test_the_sentence_names_the_causes():
    refused = drain.note(after((7, 1.0), (8, 2.0)), 9, drain.NO_MPS_PROGRAM, 3.0)
    assert drain.sentence(refused) == (
        "3 jobs refused in 10 minutes for a cause of the node's own (no-driver, no-mps-program)"
    )
