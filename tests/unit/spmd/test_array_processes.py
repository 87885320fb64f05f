"""Distributed arrays over real processes: 300 random cases compared with NumPy, and the end of a rank in between."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_processes import run_command, run_ranks

CASES = Path(__file__).with_name("array_cases.py")
PATIENCE_S = 250.0


@pytest.mark.parametrize(("size", "count"), [(1, 30), (2, 110), (3, 90), (8, 27)])
def test_random_cases_equal_numpy(size: int, count: int) -> None:
    ended = run_command("-n", size, CASES, 1000 * size, count)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"{count} cases on {size} ranks: equal to NumPy\n"


def test_random_cases_between_nodes_equal_numpy() -> None:
    run_ranks(4, "array_cases", 4000, 54, per_node=2, patience_s=PATIENCE_S)


def test_the_end_of_a_rank_during_redistribution_is_an_error_on_the_others(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os\n"
        "from slurm_share.spmd import COMM_WORLD as comm, Map, ones\n"
        "array = ones(600, 500, map=Map((3, 1)))\n"
        "for turn in range(1_000_000):\n"
        "    array = array.redistribute(Map((1, 3), 'c')).redistribute(Map((3, 1)))\n"
        "    if turn == 20 and comm.rank == 1:\n"
        "        os._exit(3)\n"
    )
    ended = run_command("-n", 3, program)
    assert ended.returncode == 1
    assert "rank 1" in ended.stderr
    assert "ended with code 3" in ended.stderr
    assert "Traceback" not in ended.stderr
