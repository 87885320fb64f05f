"""Communicators of some ranks between processes: random ones, ends of their members, and their memory."""

from __future__ import annotations

import pytest
from in_processes import Run, run_ranks


@pytest.mark.parametrize(
    ("size", "per_node"), [*(pytest.param(*one, marks=pytest.mark.weekly) for one in ((2, 2), (5, 5))), (6, 3)]
)
def test_random_nested_communicators_compute_what_a_model_does(size: int, per_node: int) -> None:
    found = run_ranks(size, "nested_communicators", 7 * size, 120, per_node=per_node)
    assert min(found) > 20


def test_a_receive_from_any_rank_of_a_part_ends_with_its_other_members() -> None:
    with Run(5, "alone_in_a_part", "any") as run:
        found = run.results()
    assert found[0] == found[2] == "done"
    assert "of the run (rank 2 of this communicator) on n1 has ended" in found[3]
    assert found[3].startswith("rank 1 of the run")


def test_the_end_of_a_rank_is_told_with_its_rank_in_the_part() -> None:
    with Run(5, "alone_in_a_part", "exit") as run:
        found = run.results()
    assert found[3] == "rank 1 of the run (rank 2 of this communicator) on n1 ended with code 3"


def test_dropped_communicators_keep_no_memory() -> None:
    few, many = (run_ranks(2, "many_communicators", count) for count in (5, 40))
    assert all(
        later[0] <= early[0] + 2 and later[1] <= early[1] + (16 << 20) for early, later in zip(few, many, strict=True)
    )
