"""The consequences when no step of a shared job loaded the plugin: a record of such jobs, and refusals after three."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slurm_share.share.records import Ledger, LedgerJob
from slurm_share.share.rules import without_plugin as rules

BATCH = LedgerJob(4711, 2001, "2", ("GPU-1",), 2, since=100.0, has_step=True)
"""A job of one node with a script, or of an srun alone."""


@pytest.mark.parametrize(
    ("entry", "problem", "age_s", "why"),
    [
        (BATCH, "file too short", 0.1, "file too short"),
        (replace(BATCH, has_step=False), "file too short", 900.0, "file too short"),
        # cancelled before its script; of salloc, which starts none; of several nodes, of which this one may have none
        (BATCH, "", 59.0, ""),
        (replace(BATCH, has_step=False), "", 86_400.0, ""),
        (BATCH, "", 60.0, rules.UNKNOWN),
    ],
)
def test_a_job_counts_if_the_plugin_cannot_be_loaded_or_the_job_surely_had_a_step(entry, problem, age_s, why):
    assert rules.reason(entry, problem, entry.since + age_s) == why


def test_the_third_job_in_a_row_puts_the_node_in_doubt_and_one_with_the_plugin_ends_that():
    ledger = Ledger("b")
    for job in (5, 6, 6):  # an Epilog that was killed runs again
        ledger = rules.note(ledger, job, "file too short")
    assert (rules.is_in_doubt(ledger), ledger.without_plugin) == (False, (5, 6))
    for job in (7, 8):
        ledger = rules.note(ledger, job, "wrong ELF class")
    assert (rules.is_in_doubt(ledger), ledger.without_plugin) == (True, (6, 7, 8))
    assert "jobs 6, 7, 8" in rules.node_sentence(ledger)
    assert rules.node_sentence(ledger).endswith("refused until it can be loaded; the reason: wrong ELF class")
    assert rules.forget(ledger) == Ledger("b")
    assert rules.node_sentence(Ledger("b")) == ""
