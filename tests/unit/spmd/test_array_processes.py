"""Distributed arrays over real processes: 300 random cases compared with NumPy."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_processes import run_command, run_ranks

CASES = Path(__file__).with_name("array_cases.py")
PATIENCE_S = 250.0


@pytest.mark.parametrize(("size", "count"), [(1, 9), (2, 45), (3, 45), pytest.param(8, 9, marks=pytest.mark.weekly)])
def test_random_cases_equal_numpy(size: int, count: int) -> None:
    ended = run_command("-n", size, CASES, 1000 * size, count)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"{count} cases on {size} ranks: equal to NumPy\n"


def test_random_cases_between_nodes_equal_numpy() -> None:
    run_ranks(4, "array_cases", 4000, 27, per_node=2, patience_s=PATIENCE_S)
