"""Positions along one dimension: each form has the same positions as the vector, and copies the same elements."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.spmd.rules import positions


@given(st.sets(st.integers(0, 60)), st.integers(0, 40))
def test_positions_from_any_vector_say_the_same(chosen: set[int], room: int) -> None:
    vector = np.array(sorted(chosen), dtype=np.int64)
    length = max(chosen, default=-1) + 1 + room
    found = positions.from_vector(vector, length)
    assert positions.vector_of(found).tolist() == vector.tolist()
    assert positions.count(found) == len(vector)
    array = np.arange(3 * length).reshape(3, length)
    out = np.zeros((3, len(vector)), array.dtype)
    positions.take(array, (slice(0, 3, 1), found), out)
    assert out.tolist() == array[:, vector].tolist()
    changed, expected = array.copy(), array.copy()
    positions.put(changed, (slice(0, 3, 1), found), -out)
    expected[:, vector] = -array[:, vector]
    assert changed.tolist() == expected.tolist()


@given(st.lists(st.integers(0, 5) | st.integers(70_000, 70_002), max_size=60))
def test_grouping_by_owner_finds_each_position_once(owners: list[int]) -> None:
    found = positions.by_owner(np.array(owners, dtype=np.int64))
    assert [owner for owner, _ in found] == sorted(set(owners))
    for owner, where in found:
        assert positions.vector_of(where).tolist() == [place for place, one in enumerate(owners) if one == owner]


def test_many_runs_are_found_as_few_are() -> None:
    """More than 32 runs per owner are processed as vectors."""
    owners = np.arange(3000) // 3 % 4
    for owner, where in positions.by_owner(owners):
        assert isinstance(where, positions.Runs)
        assert positions.vector_of(where).tolist() == np.flatnonzero(owners == owner).tolist()
    uneven = np.array([0, 1, 0, 1, 1, 0, 0, 0, 1] * 500)
    assert {type(where) for _, where in positions.by_owner(uneven)} == {np.ndarray}
