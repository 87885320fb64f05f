"""Rendering and parsing the ledger."""

from __future__ import annotations

import pytest

from slurm_share.core.errors import StateError
from slurm_share.share import ledger_file
from slurm_share.share.records import Ledger, LedgerJob

LEDGER = Ledger("boot-1", (LedgerJob(7, 2001, "4,mem=8192M", ("GPU-a", "GPU-b"), 8, 1.5, 0, "alice", "gpu", "sX"),))


def test_a_ledger_survives_being_written_and_read():
    assert ledger_file.parse_ledger(ledger_file.render_ledger(LEDGER)) == LEDGER


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b'{"version":1}', b'{"version":2,"ledger":{}}', ledger_file.render_ledger(LEDGER)[:-3], b"\xff"],
)
def test_what_is_no_ledger_is_refused(data):
    with pytest.raises(StateError, match=r"^/x/ledger: "):
        ledger_file.parse_ledger(data, "/x/ledger")


@pytest.mark.parametrize("data", [b'{"version":1,"ledger":{"boot_id":"\xdd"}}', b'{"version":1,"x":' + b"[" * 5000])
def test_what_is_no_text_and_what_has_no_end_are_refused_as_well(data):
    with pytest.raises(StateError):
        ledger_file.parse_ledger(data)
