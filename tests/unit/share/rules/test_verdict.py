"""The controller's verdict on a job, and the mode that follows from it."""

from __future__ import annotations

import itertools

import pytest

from slurm_share.share.rules import verdict
from slurm_share.share.rules.verdict import MODES, JobVerdict


@pytest.mark.parametrize(
    ("extra", "comment", "expected"),
    [
        (None, None, None),
        ("", "", None),
        ("mine", "slurm-shared=on", None),
        ("a slurm-share=on", None, None),
        ("slurm-share=on", None, JobVerdict("on")),
        ("mine;too;slurm-share=on", "text", JobVerdict("on")),
        (None, "mine;slurm-share=observe,whole", JobVerdict("observe", whole=True)),
        ("slurm-share=observe,tasks=4", None, JobVerdict("observe", tasks=4)),
        ("slurm-share=observe,part", None, JobVerdict("observe", part=True)),
        ("slurm-share=observe,refused", None, JobVerdict("observe", refused=True)),
        ("slurm-share=on,runs=2", None, JobVerdict("on", runs=2)),
        ("slurm-share=on,runs=2,share-gpu=4,mem=8192M", None, JobVerdict("on", runs=2, share="4,mem=8192M")),
        # a share is no other field, whatever it contains
        ("slurm-share=on,share-gpu=4,runs=1,refused", None, JobVerdict("on", share="4,runs=1,refused")),
        # of a later release, and not to be understood
        ("slurm-share=on,later=7", None, JobVerdict("on")),
        ("slurm-share=on,runs=x", None, JobVerdict("on")),
        ("slurm-share=On", None, JobVerdict("off")),
        ("slurm-share=", None, JobVerdict("off")),
        ("slurm-share=on ", None, JobVerdict("off")),
        ("slurm-share=" + "o" * 9999, None, JobVerdict("off")),
        # the least of several
        ("slurm-share=on;slurm-share=off", None, JobVerdict("off")),
        ("slurm-share=off;slurm-share=on", None, JobVerdict("off")),
        ("slurm-share=on", "slurm-share=observe", JobVerdict("observe")),
    ],
)
def test_a_verdict_is_read_as_the_least_that_stands_there(extra, comment, expected):
    assert verdict.read(extra, comment) == expected


@pytest.mark.parametrize(("restarts", "mode"), [(None, "on"), (0, "on"), (1, "on"), (2, "off"), (9, "off")])
def test_a_verdict_for_some_runs_is_off_for_the_next(restarts, mode):
    assert JobVerdict("on", runs=2).at(restarts) == mode


def in_force(own, said, everywhere=None, *, shares=True, uses_job_submit=True):
    given = None if said is None else JobVerdict(said)
    return verdict.in_force(
        own, given, everywhere, restart_count=0, shares=shares, uses_job_submit=uses_job_submit
    ).mode


@pytest.mark.parametrize(("own", "said", "everywhere"), itertools.product(MODES, MODES, (*MODES, None)))
def test_the_least_of_node_controller_and_mode_file_is_in_force(own, said, everywhere):
    expected = min(one for one in map(MODES.index, filter(None, (own, said, everywhere))))
    assert in_force(own, said, everywhere) == MODES[expected]


@pytest.mark.parametrize("own", MODES)
def test_a_job_without_a_verdict_is_off_where_all_get_one(own):
    assert in_force(own, None) == "off"
    assert in_force(own, None, uses_job_submit=False) == own
    assert in_force(own, "off", uses_job_submit=False) == own


@pytest.mark.parametrize("own", MODES)
def test_an_ordinary_job_has_the_nodes_rule_unless_the_controller_is_off(own):
    assert in_force(own, None, shares=False) == own
    assert in_force(own, "on", shares=False) == own
    assert in_force(own, "observe", shares=False) == own
    assert in_force(own, "off", shares=False) == "off"
    assert in_force(own, "off", shares=False, uses_job_submit=False) == own
    assert in_force(own, None, "off", shares=False) == "off"


@pytest.mark.parametrize(
    ("text", "item", "expected"),
    [
        (None, "slurm-share=on", "slurm-share=on"),
        ("", "slurm-share=on", "slurm-share=on"),
        ("mine;too", "slurm-share=on", "mine;too;slurm-share=on"),
        ("mine;slurm-share=off", "slurm-share=on", "mine;slurm-share=on"),
        ("slurm-share=off;mine", None, "mine"),
        ("slurm-share=off", None, ""),
    ],
)
def test_a_new_verdict_stands_behind_the_users_own_text(text, item, expected):
    assert verdict.replaced(text, item) == expected


@pytest.mark.parametrize(
    ("text", "mode"),
    [("on", "on"), (" observe\n", "observe"), ("off\n", "off"), ("", "off"), ("On", "off"), ("x", "off")],
)
def test_a_mode_file_that_is_not_understood_is_off(text, mode):
    assert verdict.mode_of_file(text) == mode
