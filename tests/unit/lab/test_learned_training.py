"""Compare the shipped weights with the table, and the table with the networks, of tests/bench/learned."""

from __future__ import annotations

import csv
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_share.lab import learned

LEARNED = Path(__file__).parents[2] / "bench" / "learned"
TABLE = LEARNED.parents[1] / "data/learned/fake_memory.csv"


def needs(module):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"NOT TESTED: this interpreter has no {module}")


def test_the_shipped_weights_are_those_that_the_table_gives(monkeypatch):
    needs("numpy")
    monkeypatch.syspath_prepend(LEARNED)
    import train

    shipped = learned.read_weights()
    hidden = len(shipped.layers[0][0])
    made = train.fit(train.read(), hidden, 1.0)
    ranges = [(*one.low, *one.high, one.lowest, one.highest) for one in (made, shipped)]
    assert ranges[0] == pytest.approx(ranges[1], abs=1e-4)
    cases = train.read()[::20]
    said = [train.learned.memory_mib(case.model, made) for case in cases]
    assert said == pytest.approx(
        [train.learned.memory_mib(case.model, shipped) for case in cases], rel=0.05
    )  # other libraries round otherwise


AGAIN = """
import sys
sys.path.insert(0, sys.argv[1])
import generate
for family in ("mlp", "vgg", "resnet", "mobilenet", "encoder"):
    print(*generate.row((family, int(sys.argv[2]))).values(), sep=",")
"""


def test_the_table_is_what_the_networks_give():
    """Some of them made again: in a process of its own, since the probe changes PyTorch for good."""
    needs("torch")
    done = subprocess.run([sys.executable, "-c", AGAIN, LEARNED, "2"], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    with open(TABLE, encoding="utf-8", newline="") as file:
        known = {(row[0], row[1]): row for row in csv.reader(file)}
    for line in done.stdout.splitlines():
        made = line.split(",")
        row = known[made[0], made[1]]
        assert made[:-1] == row[:-1]
        assert float(made[-1]) == pytest.approx(float(row[-1]), rel=0.02)
