"""Grids of ranks: coordinates, neighbours, and the division of ranks into dimensions."""

from __future__ import annotations

import itertools
import math

import pytest

from slurm_share.spmd.rules import grids


@pytest.mark.parametrize("dims", [(), (1,), (4,), (2, 3), (3, 1, 2), (2, 2, 2, 2)])
def test_each_rank_has_coordinates_in_the_order_of_product(dims: tuple[int, ...]) -> None:
    places = [grids.coordinates(dims, rank) for rank in range(math.prod(dims))]
    assert places == list(itertools.product(*map(range, dims)))
    assert [grids.rank_at(dims, (False,) * len(dims), one) for one in places] == list(range(len(places)))


@pytest.mark.parametrize(
    ("periods", "coords", "rank"),
    [
        ((False, False), (2, 0), None),
        ((False, False), (0, -1), None),
        ((True, False), (2, 1), 1),
        ((True, False), (-1, 2), 5),
        ((False, True), (1, 7), 4),
        ((True, False), (0, 3), None),
    ],
)
def test_only_rings_go_beyond_the_edge(periods: tuple[bool, bool], coords: tuple[int, int], rank: int | None) -> None:
    assert grids.rank_at((2, 3), periods, coords) == rank


def test_neighbours() -> None:
    assert [grids.neighbour((2, 3), (False, True), 0, 0, step) for step in (-1, 1, 2)] == [None, 3, None]
    assert [grids.neighbour((2, 3), (False, True), 0, 1, step) for step in (-1, 1, 3)] == [2, 1, 0]


def test_parts_of_a_grid_have_the_remaining_dimensions() -> None:
    found = [grids.sub_grid((2, 3), (True, False), rank) for rank in range(6)]
    assert found == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]
    assert grids.sub_grid((2, 3), (False, False), 4) == (4, 0)


@pytest.mark.parametrize(
    ("count", "dims", "expected"),
    [
        (12, [0, 0], [4, 3]),
        (12, [0, 0, 0], [3, 2, 2]),
        (16, [0, 0, 0], [4, 2, 2]),
        (24, [0, 0, 0], [4, 3, 2]),
        (36, [0, 0, 0], [4, 3, 3]),
        (7, [0, 0], [7, 1]),
        (1, [0, 0, 0], [1, 1, 1]),
        (12, [0, 3, 0], [2, 3, 2]),
        (6, [2, 3], [2, 3]),
        (6, [0], [6]),
        (1, [], []),
        (6, [4, 0], None),
        (6, [2, 2], None),
        (2, [], None),
        (1 << 12, [0, 0, 0, 0], [8, 8, 8, 8]),
    ],
)
def test_dimensions_are_as_close_to_each_other_as_possible(
    count: int, dims: list[int], expected: list[int] | None
) -> None:
    assert grids.fill(count, dims) == expected


def test_dimensions_of_all_small_numbers_are_the_best_ones() -> None:
    for count in range(1, 200):
        found = grids.fill(count, [0, 0])
        assert found is not None
        assert found[0] * found[1] == count
        assert found[0] == min(one for one in range(1, count + 1) if count % one == 0 and one * one >= count)
