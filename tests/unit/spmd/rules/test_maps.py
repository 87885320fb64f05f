"""Maps: layouts against NumPy's own and against those that pPython 0.10.4 was seen to make; sentences of wrong use."""

from __future__ import annotations

import copy
import itertools
import os
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from arrays import maps
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.spmd.errors import UsageError
from slurm_share.spmd.rules.maps import Map


def stored(length: int, places: int, dist: Any, overlap: int = 0) -> list[list[int]]:
    """Return the indices that each of these ranks stores in one dimension."""
    made = Map([places], dist, overlap=[overlap])
    return [made.stored([length], rank)[0].tolist() for rank in range(places)]


@pytest.mark.parametrize(
    ("length", "places", "dist", "overlap", "expected"),
    [  # as pPython 0.10.4 printed them; where it raises, that place has nothing
        (8, 4, "b", 1, [[0, 1, 2], [2, 3, 4], [4, 5, 6], [6, 7]]),
        (10, 4, "b", 0, [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]),
        (10, 4, "b", 1, [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9], [9]]),
        (10, 4, "b", 2, [[0, 1, 2, 3, 4], [3, 4, 5, 6, 7], [6, 7, 8, 9], [9]]),
        (9, 4, "b", 1, [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8], []]),
        (9, 4, "b", 3, [[0, 1, 2, 3, 4, 5], [3, 4, 5, 6, 7, 8], [6, 7, 8], []]),
        (8, 4, "b", 4, [[0, 1, 2, 3, 4, 5], [2, 3, 4, 5, 6, 7], [4, 5, 6, 7], [6, 7]]),
        (3, 4, "b", 0, [[0], [1], [2], []]),
        (3, 4, "b", 1, [[0, 1], [1, 2], [2], []]),
        (3, 4, "c", 0, [[0], [1], [2], []]),
        (7, 3, "c", 0, [[0, 3, 6], [1, 4], [2, 5]]),
        (10, 3, ("bc", 2), 0, [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5]]),
        (3, 4, ("bc", 2), 0, [[0, 1], [2], [], []]),
        (7, 2, ("bc", 3), 0, [[0, 1, 2, 6], [3, 4, 5]]),
        (0, 2, "b", 1, [[], []]),
        (0, 2, ("bc", 2), 0, [[], []]),
    ],
)
def test_layout_is_that_of_ppython(
    length: int, places: int, dist: Any, overlap: int, expected: list[list[int]]
) -> None:
    assert stored(length, places, dist, overlap) == expected


@given(st.integers(0, 200), st.integers(1, 50))
def test_block_without_overlap_is_array_split(length: int, places: int) -> None:
    expected = [part.tolist() for part in np.array_split(np.arange(length), places)]
    assert stored(length, places, "b") == expected


def test_right_member_of_a_shared_element_owns_it() -> None:
    made = Map([4], overlap=[1])
    assert [made.owned([8], rank)[0].tolist() for rank in range(4)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert made.axes[0].owners(8, np.arange(8)).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


@st.composite
def arrays(draw: st.DrawFn) -> tuple[tuple[int, ...], Map]:
    shape = tuple(draw(st.lists(st.integers(0, 40), min_size=1, max_size=4)))
    return shape, draw(maps(len(shape)))


@given(arrays())
def test_owned_parts_cover_each_element_once_and_all_answers_agree(array: tuple[tuple[int, ...], Map]) -> None:
    shape, made = array
    for axis, length in enumerate(shape):
        at_place: dict[int, list[int]] = {}
        for rank in made.ranks:
            coordinates = made.coordinates(rank)
            assert coordinates is not None
            assert made.rank_at(coordinates) == rank
            owned, kept = made.owned(shape, rank)[axis], made.stored(shape, rank)[axis]
            assert owned.dtype == kept.dtype == np.int64
            assert at_place.setdefault(coordinates[axis], owned.tolist()) == owned.tolist()
            assert made.owned_shape(shape, rank)[axis] == len(owned)
            assert made.stored_shape(shape, rank)[axis] == len(kept)
            assert kept[: len(owned)].tolist() == owned.tolist()
            assert (made.axes[axis].owners(length, owned) == coordinates[axis]).all()
            beyond = made.overlap[axis] if len(owned) else 0
            expected = range(owned[-1] + 1, min(length, owned[-1] + 1 + beyond)) if len(owned) else range(0)
            assert kept[len(owned) :].tolist() == list(expected)
            even = made.axes[axis].owned_range(length, coordinates[axis])
            assert (even is not None) == (len(set(np.diff(owned).tolist())) <= 1)
            assert even is None or np.arange(length)[even].tolist() == owned.tolist()
        assert sorted(itertools.chain.from_iterable(at_place.values())) == list(range(length))


@pytest.mark.parametrize("order", ["C", "F"])
def test_ranks_fill_the_grid_in_its_order(order: Any) -> None:
    ranks = [7, 3, 0, 4, 9, 1]
    made = Map([2, 3], "b", ranks, order=order)
    grid = np.array(ranks).reshape(2, 3, order=order)
    for place in np.ndindex(2, 3):
        assert made.rank_at(place) == grid[place]
        assert made.coordinates(int(grid[place])) == place
    assert made.ranks == tuple(ranks)


def test_rank_outside_the_map_has_nothing() -> None:
    made = Map([2, 2], "b", [4, 3, 2, 1], overlap=[1, 1])
    for rank in (0, 5, -1):
        assert made.coordinates(rank) is None
        assert [part.tolist() for part in made.owned([8, 8], rank)] == [[], []]
        assert [part.tolist() for part in made.stored([8, 8], rank)] == [[], []]
        assert made.owned_shape([8, 8], rank) == made.stored_shape([8, 8], rank) == (0, 0)


EQUAL = [
    (Map([2, 3]), Map((2, 3), {}, range(6))),
    (Map([4], "b"), Map([4], "b", overlap=[0])),
    (Map([4], "c"), Map([4], ("bc", 1))),
    (Map([4, 1], ("b", "c")), Map([4, 1], ("b", ("bc", 3)))),
    (Map([4, 1], overlap=[1, 2]), Map([4, 1], overlap=[1, 0])),
    (Map([2, 2], "b", [0, 2, 1, 3], order="F"), Map([2, 2])),
    (Map([4], order="F"), Map([4])),
]
UNEQUAL = [
    (Map([2, 3]), Map([3, 2])),
    (Map([4]), Map([4, 1])),
    (Map([4], "b"), Map([4], "c")),
    (Map([4], ("bc", 2)), Map([4], ("bc", 3))),
    (Map([4]), Map([4], overlap=[1])),
    (Map([4], overlap=[2]), Map([4], overlap=[1])),
    (Map([2]), Map([2], "b", [1, 0])),
    (Map([2]), Map([2], "b", [2, 3])),
    (Map([2, 2]), Map([2, 2], order="F")),
]


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_maps_that_lay_out_alike_are_equal(one: Map, other: Map) -> None:
    assert one == other
    assert hash(one) == hash(other)
    assert one.digest() == other.digest()
    assert len(one.digest()) == 8


@pytest.mark.parametrize(("one", "other"), UNEQUAL)
def test_maps_that_lay_out_differently_are_not_equal(one: Map, other: Map) -> None:
    assert one != other
    assert one.digest() != other.digest()


def test_map_equals_nothing_else() -> None:
    assert Map([2]) != "Map((2,), 'b')"


@given(arrays())
def test_repr_copy_and_pickle_make_the_same_map(array: tuple[tuple[int, ...], Map]) -> None:
    made = array[1]
    for again in (eval(repr(made)), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert again == made
        assert (again.grid, again.dist, again.ranks) == (made.grid, made.dist, made.ranks)
        assert (again.overlap, again.order) == (made.overlap, made.order)
        assert hash(again) == hash(made)
        assert again.digest() == made.digest()


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_map_of_another_process_is_found_in_a_dictionary(hash_seed: str) -> None:
    """Hashes of strings differ between processes."""
    program = (
        "import pickle, sys; from slurm_share.spmd.rules.maps import Map; "
        "sys.stdout.buffer.write(pickle.dumps(Map((2, 2), 'c')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": hash_seed}, stdout=-1, check=True
    )
    assert {Map((2, 2), "c"): "found"}[pickle.loads(done.stdout)] == "found"


def test_repr_shows_what_differs_from_the_usual() -> None:
    assert repr(Map([2, 2])) == "Map((2, 2), 'b')"
    assert repr(Map([2], ("bc", 3), [5, 4])) == "Map((2,), ('bc', 3), ranks=(5, 4))"
    assert repr(Map([2, 1], ("b", "c"), overlap=[1, 0], order="F")) == (
        "Map((2, 1), ('b', 'c'), overlap=(1, 0), order='F')"
    )


@pytest.mark.parametrize(
    ("dist", "expected"),
    [
        ({}, (("b", 0), ("b", 0))),
        ([], (("b", 0), ("b", 0))),
        (None, (("b", 0), ("b", 0))),
        ("c", (("c", 0), ("c", 0))),
        ("b", (("b", 0), ("b", 0))),
        (("bc", 3), (("bc", 3), ("bc", 3))),
        (["bc", np.int64(3)], (("bc", 3), ("bc", 3))),
        (("b", "c"), (("b", 0), ("c", 0))),
        ([("bc", 2), {"dist": "c"}], (("bc", 2), ("c", 0))),
        ([{}, "c"], (("b", 0), ("c", 0))),
        ((("b", 0), ("bc", 2)), (("b", 0), ("bc", 2))),
        ({"dist": "b"}, (("b", 0), ("b", 0))),
        ({"dist": "bc", "b_size": 4}, (("bc", 4), ("bc", 4))),
        ({"dist": "b", "b_size": 4}, (("b", 0), ("b", 0))),
        ({0: {"dist": "bc", "b_size": 4}, 1: {"dist": "c"}}, (("bc", 4), ("c", 0))),
        ({1: {"dist": "b"}, 0: {"dist": "c"}}, (("c", 0), ("b", 0))),
        ({"0": {"dist": "bc", "b_size": 3}, "1": {"dist": "b"}}, (("bc", 3), ("b", 0))),
    ],
)
def test_each_way_to_write_a_distribution(dist: Any, expected: Any) -> None:
    assert Map([2, 2], dist).dist == expected


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (([],), "needs one number of processes per dimension; it is empty"),
        ((4,), "the grid of a map must be a sequence of whole numbers, not 4"),
        (([2.0, 2],), "the grid of a map must be a sequence of whole numbers"),
        (([0, 2],), r"at least one process along each dimension: \(0, 2\)"),
        (([-2, -2],), r"at least one process along each dimension: \(-2, -2\)"),
        (([2, 2], "b", range(3)), "a grid of 2 x 2 processes needs 4 ranks, not 3"),
        (([2, 2], "b", range(5)), "a grid of 2 x 2 processes needs 4 ranks, not 5"),
        (([2, 2], "b", [0, 1, 1, 2]), "rank 1 is in the map more than once"),
        (([2], "b", [0, -1]), "ranks are counted from 0: -1 is no rank"),
        (([2], "b", ["a", "b"]), "the ranks of a map must be a sequence of whole numbers"),
        (([2], "x"), "a distribution is 'b' .* not 'x'"),
        (([2], 3), "a distribution is 'b' .* not 3"),
        (([2, 2], ["b", 3]), "a distribution is 'b' .* not 3"),
        (([2], [("b", 3)]), "a distribution is 'b' .* not .'b', 3"),
        (([2], {"dist": "d"}), "a distribution is 'b' .* not {'dist': 'd'}"),
        (([2], {"dist": ["b"]}), "a distribution is 'b' .* not {'dist': .'b'.}"),
        (([2], "bc"), "needs the length of its blocks"),
        (([2], {"dist": "bc"}), "needs the length of its blocks"),
        (([2, 2], ("bc", "b")), "needs the length of its blocks"),
        (([2], ("bc", 0)), "at least one element, not 0"),
        (([2], {"dist": "bc", "b_size": -1}), "at least one element, not -1"),
        (([2], ("bc", 1.5)), "length of blocks .* whole numbers"),
        (([2, 2], ["b"]), "1 distributions are given for 2 dimensions"),
        (([2], {0: {}, 1: {}}), "the distributions of 1 dimensions are numbered from 0 to 0"),
        (([2, 2], {0: {}, 2: {}}), "the distributions of 2 dimensions are numbered from 0 to 1"),
        (([2, 2], {0: {}, "x": {}}), "the distributions of 2 dimensions are numbered from 0 to 1"),
        (([2, 2], "b", None, [1]), r"one number per dimension: 2 dimensions, overlap \(1,\)"),
        (([2], "b", None, 1), "the overlap of a map must be a sequence"),
        (([2], "b", None, [-1]), "overlap of a map cannot be negative"),
        (([2], "c", None, [1]), "only a block distribution can overlap; dimension 0 is cyclic with overlap 1"),
        (([2, 2], ["b", ("bc", 2)], None, [1, 1]), "dimension 1 is block-cyclic with overlap 1"),
        (([2], "b", None, None, "A"), "order of a map is 'C' .* not 'A'"),
    ],
)
def test_wrong_argument_is_answered_with_a_sentence(arguments: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        Map(*arguments)


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        ([8], r"a map of 2 dimensions cannot distribute an array of 1 \(grid \(2, 2\), shape \(8,\)\)"),
        ([8, 8, 8], "a map of 2 dimensions cannot distribute an array of 3"),
        ([8, -1], "no negative lengths"),
        ([8, 2.5], "the shape of an array must be a sequence of whole numbers"),
    ],
)
def test_shape_that_does_not_fit_the_map_is_refused(shape: Any, sentence: str) -> None:
    made = Map([2, 2])
    for ask in (made.owned, made.stored, made.owned_shape, made.stored_shape):
        with pytest.raises(UsageError, match=sentence):
            ask(shape, 0)


def test_dimension_that_is_not_there_is_refused() -> None:
    made = Map([2, 2], "c")
    for axis in (-3, 2):
        with pytest.raises(UsageError, match=f"there is no dimension {axis}: the map has 2"):
            made.check_axis(axis)
    assert made.check_axis(-1) == 1
