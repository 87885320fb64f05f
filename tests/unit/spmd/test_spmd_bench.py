"""The bench of messages: remains of a peer that stops, and bars of the table."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch):
    """Return the modules of the bench."""
    monkeypatch.syspath_prepend(str(BENCH))
    import spmd_peers
    import spmd_rows

    return spmd_peers, spmd_rows


def test_what_a_peer_measured_before_it_failed_is_kept_and_the_rest_is_named(bench, tmp_path):
    peers, _ = bench
    ours = peers.Peer("ours", "ours", [sys.executable, "-m", "slurm_share.spmd", "-n", "{ranks}", "{program}"])
    ran = peers.run(ours, 2, [("barrier", 0, 3), ("bcast", "no size", 1), ("barrier", 0, 3)], tmp_path)
    assert [len(values) for values in ran.samples] == [3]
    assert ran.error.startswith("it ended with ")
    assert len(ours.versions) == 1


def test_a_peer_that_did_not_run_with_all_its_ranks_has_no_samples(bench, tmp_path):
    peers, _ = bench
    alone = peers.Peer("ours", "ours", [sys.executable, "-m", "slurm_share.spmd", "-n", "1", "{program}"])
    ran = peers.run(alone, 2, [("barrier", 0, 3)], tmp_path)
    assert (ran.samples, ran.error[:32]) == ([], "it was to run on 2 ranks, and th")
    assert not alone.versions


@pytest.mark.parametrize(("is_quick", "bars"), [(False, [25.0, None, 50.0]), (True, [None, None, 50.0])])
def test_the_quick_form_has_bars_for_ratios_only(bench, monkeypatch, is_quick, bars):
    _, rows = bench
    monkeypatch.setattr(rows, "CORES", 2)
    figures = rows.Figures()
    figures.samples[rows.way(8), 2, "ours"] = [1e-5]
    figures.samples[rows.way(8), 2, "pPython"] = [1e-3]
    found = rows.table(figures, [], [], is_quick)
    assert [row.bar for row in found[:3]] == bars
    assert found[2].value == pytest.approx(100)
