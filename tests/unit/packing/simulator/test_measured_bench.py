"""Run each part of tests/bench/measured.py with few seeds. The bench checks its bars itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[4] / "tests" / "bench"


@pytest.fixture
def bench(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCH))
    before = set(sys.modules)
    import bench
    import measured

    monkeypatch.setattr(bench, "RESULTS", tmp_path)
    monkeypatch.setattr(measured, "RESULTS", tmp_path)
    yield measured
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(BENCH) in str(sys.modules[name].__file__):
            del sys.modules[name]


def rows(folder: Path) -> dict[str, float]:
    return {row["what"]: row["value"] for row in json.loads((folder / "measured.json").read_text())["rows"]}


def matrix(folder: Path, families: int = 5, sizes: int = 3) -> Path:
    """Write an invented matrix of rates in Gavel's format: who is slowed is a product of two numbers of a job."""
    jobs = [(family, size) for family in range(families) for size in range(sizes)]
    table: dict[str, dict[str, object]] = {}
    for family, size in jobs:
        row: dict[str, object] = {"null": 10.0}
        for other, of_other in jobs:
            slow = (1.1 + 0.1 * family) * (1.0 + 0.15 * other) + 0.01 * (size + of_other)
            back = (1.1 + 0.1 * other) * (1.0 + 0.15 * family) + 0.01 * (size + of_other)
            row[f"('job{other} (batch size {of_other})', 1)"] = [10.0 / slow, 10.0 / back]
        table[f"('job{family} (batch size {size})', 1)"] = row
    file = folder / "rates.json"
    file.write_text(json.dumps(dict.fromkeys(("v100", "p100", "k80"), table)))
    return file


def test_unseen_pairs_are_predicted_better_than_by_a_constant(bench, tmp_path):
    bench.main(["--part", "predict", "--gavel", str(matrix(tmp_path)), "--seeds", "3", "--seed", "1"])
    found = rows(tmp_path)
    for gpu in ("v100", "p100", "k80"):
        error = found[f"predict, {gpu}: mean error of a speed"]
        assert error < 0.5 * found[f"predict, {gpu}: constant, mean error of a speed"]
        assert error < 0.5 * found[f"predict, {gpu}: model alone, mean error of a speed"]


def test_parts_that_are_not_run_stay_as_they_were(bench, tmp_path, capsys):
    bench.main(["--part", "predict", "--part", "training", "--seed", "1"])
    assert "left out" in capsys.readouterr().out
    bench.main(["--part", "shares", "--part", "tuner", "--seeds", "2", "--seed", "1"])
    found = rows(tmp_path)
    assert not any(what.startswith("predict") for what in found)
    assert found["no training: published slowdowns, mean error"] < 5.0
    assert found["tuner, Pan 2021, Table 4: without noise, level 7, of the best rate"] == 1.0
    assert found["shares: Pan's 90-10, starts until it is found, at most"] <= 20.0
    even = found["shares: an even part for each, worse than no limit at most"]
    assert found["shares: worse than no limit at most, 36 pairs of Pan's programs"] < even
    assert json.loads((tmp_path / "measured.json").read_text())["seeds"] == {"shares": 2, "tuner": 2}


def test_undoing_takes_time_out_of_harmful_pairs(bench, tmp_path, monkeypatch):
    import measured_undo

    monkeypatch.setattr(measured_undo, "TASKS", 60)
    monkeypatch.setattr(measured_undo, "SPAN_S", 2 * 3600.0)
    every = [measured_undo.one_seed(5)]
    found = {row.what: row.value for row in measured_undo.undo(every)}
    assert 0.0 < found["undo, pause: share of time in harmful pairs, of gain's without rates"] < 1.0
    assert found["undo, gain, no rates: share of time in harmful pairs"] > 10.0
    assert found["undo, ban: bans in a run"] > 0.0


def test_policies_are_compared_at_every_setting(bench, monkeypatch):
    import measured_policies

    every = measured_policies.assumptions()
    monkeypatch.setattr(measured_policies, "assumptions", lambda: (every[0], every[-1]))
    found, details = measured_policies.compared([measured_policies.one_seed(1801, ("thesis60",))])
    assert {row.what.partition(" (")[0] for row in found} >= {
        "gain, thesis60: JCT, of LUG's", "gain, thesis60: make-span, of booked's",
    }  # fmt: skip
    assert all(one["best"] <= one["median"] <= one["worst"] for one in details)
    assert len({(one["alpha"], one["settle_s"]) for one in details}) == 2


def test_a_wrong_number_of_seeds_is_refused(bench, capsys):
    for wrong in ("many", "x=3", "undo=-1"):
        with pytest.raises(SystemExit) as raised:
            bench.main(["--seeds", wrong])
        assert raised.value.code == 2
        assert "PART=N" in capsys.readouterr().err
