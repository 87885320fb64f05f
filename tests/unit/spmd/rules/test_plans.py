"""Form, order and size of plans, and invalid keys. `test_redistribute` executes plans and compares with NumPy."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from slurm_share.spmd.errors import IndexOutOfRange, UsageError
from slurm_share.spmd.rules import plans, positions
from slurm_share.spmd.rules.maps import Map
from slurm_share.spmd.rules.plans import Part

MADE = Map([2, 2])


@pytest.mark.parametrize(
    ("key", "error", "sentence"),
    [
        ((8, 0), IndexOutOfRange, "index 8 is not within dimension 0 of length 8"),
        ((0, -7), IndexOutOfRange, "index -7 is not within dimension 1 of length 6"),
        ((0, 0, 0), IndexOutOfRange, "an array of 2 dimensions has no element at 3 indices"),
        ((0, ..., 0, 0), IndexOutOfRange, "an array of 2 dimensions has no element at 3 indices"),
        ((..., ...), UsageError, "one ellipsis"),
        ((slice(0, 4, 0), 0), UsageError, "cannot select from dimension 0: slice step cannot be zero"),
        ((slice("a"), 0), UsageError, "cannot select from dimension 0: slice indices must be integers"),
        ((None, 0), UsageError, "is indexed by numbers, slices and one ellipsis"),
        (([0, 1], 0), UsageError, "not by .0, 1.; gather it first"),
        ((1.0, 0), UsageError, "not by 1.0"),
        ((True, 0), UsageError, "not by True"),
        ((np.bool_(True), 0), UsageError, "is indexed by numbers"),
        (np.array([1]), UsageError, "is indexed by numbers"),
        (np.ones((8, 6), bool), UsageError, "is indexed by numbers"),
    ],
)
def test_index_that_cannot_be_is_answered_with_a_sentence(key: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence) as raised:
        plans.selection([8, 6], MADE, key, 0)
    assert isinstance(raised.value, UsageError)


@pytest.mark.parametrize("number", [np.int8(-1), np.array(5), 5])
def test_whole_number_of_any_type_is_an_index(number: Any) -> None:
    assert plans.selection([8, 6], MADE, (0, number), 0).parts[0].rank == 1


# ---- Form and order ----


@pytest.mark.parametrize("rank", range(5))
def test_ranks_send_to_the_next_ones_first_and_expect_blocks_in_that_order(rank: int) -> None:
    plan = plans.redistribution([10, 10], Map([5, 1]), Map([1, 5]), rank)
    assert [part.rank for part in plan.sends] == [(rank + step) % 5 for step in range(1, 5)]
    assert [part.rank for part in plan.receives] == [(rank - step) % 5 for step in range(1, 5)]


def test_overlap_wider_than_a_block_comes_from_all_its_owners() -> None:
    made = Map([4], overlap=[5])
    plan = plans.redistribution([8], made, made, 0)
    assert [(part.rank, part.axes) for part in sorted(plan.receives)] == [
        (1, (slice(2, 4, 1),)),
        (2, (slice(4, 6, 1),)),
        (3, (slice(6, 7, 1),)),
    ]


def kinds(source: Any, target: Any) -> set[type]:
    """Return the forms of positions in which rank 1 sends columns."""
    plan = plans.redistribution([64, 96], Map([1, 4], source), Map([1, 4], target), 1)
    return {type(part.axes[1]) for part in (*plan.sends, *plan.receives)}


def test_positions_have_the_form_that_is_copied_fastest() -> None:
    assert kinds("b", "c") == {slice}
    assert kinds("c", "c") == set()
    assert kinds("c", ("bc", 4)) == {slice}
    assert kinds("b", ("bc", 3)) <= {slice, positions.Runs}
    assert kinds("b", ("bc", 2)) == {slice, positions.Runs}
    plan = plans.redistribution([64, 96], Map([4, 1]), Map([1, 4], ("bc", 3)), 0)
    assert {type(part.axes[1]) for part in plan.sends} == {positions.Runs}
    (to_one,) = plans.redistribution([96], Map([2], "b", [0, 1]), Map([1], ("bc", 3), [2]), 1).sends
    assert to_one.axes == (slice(0, 48, 1),)
    for whole in plans.blocks([64, 96], Map([1, 4], ("bc", 3))):
        assert isinstance(whole.axes[1], positions.Runs)


LONG = 10**12
"""Elements of an array that has one dimension: a vector of indices does not fit into memory."""


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (Map([4]), Map([5], "c")),
        (Map([4], "c"), Map([3])),
        (Map([4], "c"), Map([6], "c")),
        (Map([4], "c"), Map([5], ("bc", 1))),
        (Map([4]), Map([5], ("bc", 3))),
        (Map([4], ("bc", 3)), Map([5])),
        (Map([4], overlap=[7]), Map([5], overlap=[3])),
        (Map([1], ("bc", 3)), Map([5], ("bc", 3))),
    ],
    ids=str,
)
def test_plan_of_a_long_dimension_is_small(source: Map, target: Map) -> None:
    sends = [plans.redistribution([LONG], source, target, rank) for rank in source.ranks]
    parts = [part for plan in sends for part in (*plan.sends, *(plan.kept or ())[:1])]
    assert sum(part.size for part in parts) == LONG + sum(target.overlap) * (target.grid[0] - 1)
    receives = [plans.redistribution([LONG], source, target, rank) for rank in target.ranks]
    assert sum(part.size for plan in receives for part in (*plan.receives, *(plan.kept or ())[1:])) == sum(
        target.stored_shape([LONG], rank)[0] for rank in target.ranks
    )
    assert all(plans.memory(plan) <= 5000 for plan in (*sends, *receives))


@pytest.mark.parametrize("made", [Map([4]), Map([4], overlap=[3]), Map([4], "c"), Map([4], ("bc", 3))], ids=str)
def test_gather_and_slices_of_a_long_dimension_are_small(made: Map) -> None:
    assert sum(part.size for part in plans.blocks([LONG], made)) == LONG
    for key in (slice(5, None), slice(None, None, -7), LONG - 1):
        if made.dist[0][0] != "bc":
            assert plans.memory(plans.selection([LONG], made, key, 3)) <= 5000


def test_part_is_a_view_only_where_all_its_positions_are_slices() -> None:
    array = np.arange(48.0).reshape(4, 12)
    (part, *_) = plans.redistribution([4, 12], Map([1, 1]), Map([1, 2], "c", [1, 2]), 0).sends
    view = part.view(array)
    assert view is not None
    assert np.shares_memory(view, array)
    assert view.tolist() == part.take(array).tolist() == array[:, ::2].tolist()
    (part, *_) = plans.redistribution([4, 12], Map([1, 1]), Map([1, 2], ("bc", 2), [1, 2]), 0).sends
    assert part.view(array) is None


@pytest.mark.parametrize("order", ["C", "F"])
def test_block_can_be_taken_into_any_array_of_its_shape(order: Any) -> None:
    """Also into another dtype, not contiguous, from Fortran order and transposed arrays, for each form of positions."""
    whole = np.arange(40.0 * 30).reshape(40, 30)
    for dist in ("b", "c", ("bc", 3)):
        for other in ("c", ("bc", 2), ("bc", 7)):
            source, target = Map([2, 3], dist), Map([3, 2], other)
            local = np.array(whole[np.ix_(*source.stored(whole.shape, 4))], order=order)
            for part in plans.redistribution(whole.shape, source, target, 4).sends:
                expected = local[np.ix_(*map(positions.vector_of, part.axes))].tolist()
                rows, columns = part.shape
                for out in (
                    np.zeros((rows, columns)),
                    np.zeros((rows, columns), "f4"),
                    np.zeros((rows, 2 * columns))[:, ::2],
                    np.zeros((columns, rows)).T,
                ):
                    assert part.take(local, out) is out
                    assert out.tolist() == expected


# ---- Kept plans ----


def test_plan_is_made_once_for_equal_questions() -> None:
    first = plans.redistribution([24, 24], Map([4, 1]), Map([1, 4], "c"), 2)
    assert plans.redistribution((24, 24), Map([4, 1], {}), Map([1, 4], ("bc", 1)), 2) is first
    assert plans.redistribution((24, 24), Map([4, 1]), Map([1, 4], "c"), 3) is not first
    assert plans.redistribution((24, 25), Map([4, 1]), Map([1, 4], "c"), 2) is not first


def test_kept_plans_are_bounded_in_number_and_the_least_used_goes() -> None:
    kept, made = plans.Plans(max_plans=2, max_bytes=10**6), []

    def make(number: int) -> tuple[int, ...]:
        made.append(number)
        return (number,)

    for number in (1, 2, 1, 3, 1, 2):
        assert kept.get(("plan", number), make) == (number,)
        assert len(kept) <= 2
    assert made == [1, 2, 3, 2]


def test_kept_plans_are_bounded_in_bytes() -> None:
    kept = plans.Plans(max_plans=100, max_bytes=2500)

    def make(length: int) -> tuple[Part, ...]:
        vector = np.arange(length)
        return (Part(0, (length,), (vector,)), Part(1, (length,), (vector,)))

    assert plans.memory(make(100)) == 2 * 200 + 800
    for number in range(5):
        kept.get(("plan", 100 + number), make)
    assert len(kept) == 2
    kept.get(("plan", 1000), make)
    assert len(kept) == 2
    assert kept.get(("plan", 104), lambda length: pytest.fail("made again"))


def test_threads_can_ask_for_plans_at_once() -> None:
    kept, wrong = plans.Plans(max_plans=3, max_bytes=10**6), []

    def work() -> None:
        for number in range(3000):
            if kept.get(("plan", number % 7), lambda asked: (asked,)) != (number % 7,):
                wrong.append(number)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(kept) == 3
