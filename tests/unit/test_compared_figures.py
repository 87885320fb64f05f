"""The figures of packaging/docs/compare.md are those of the bench that it names."""

from __future__ import annotations

import json
import re
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def test_the_figures_of_the_comparison_are_the_benchs():
    """Rate, CPU time and RPCs of every way; written anew after a new run of the bench."""
    rows = json.loads((CHECKOUT / "tests/bench/results/launch.json").read_text())["rows"]
    text = (CHECKOUT / "packaging/docs/compare.md").read_text()
    shown = re.findall(r"^\| .*\(`([^`]+)`\) \| (\S+) \| (\S+) s \| (\S+) \|$", text, re.MULTILINE)
    assert len(shown) == 4
    for what, *figures in shown:
        place = next(number for number, row in enumerate(rows) if row["what"] == what)
        follow = {row["what"].strip(): row["value"] for row in rows[place + 1 : place + 4]}
        rate, rpcs, cpu = rows[place]["value"], follow["RPCs to slurmctld"], follow["CPU time of slurmctld"]
        assert figures == [f"{rate:.0f}", f"{cpu:.2f}", f"{rpcs:.0f}"], what
