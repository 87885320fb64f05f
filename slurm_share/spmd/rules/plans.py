"""Plans of one rank's copies and sends: to another map, to one whole array, to or from a slice.

A plan belongs to one rank and does not depend on the transport. `Part` lists elements of an array that go to or come
from one rank. A block in transit has the shape of the part, with its elements in C order, ascending by global index in
every dimension. So one rank can put what another one takes. Empty parts are left out. `Dmat` has checked that the shape
matches the map.
"""

from __future__ import annotations

import itertools
import math
import operator
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import IndexOutOfRange, UsageError
from .maps import Axis, Indices, Map
from .positions import Positions, by_owner, count, even_runs, from_vector, put, take, vector_of

Array = NDArray[Any]
Found = TypeVar("Found")


class Part(NamedTuple):
    """Elements of an array to exchange with one rank."""

    rank: int
    shape: tuple[int, ...]
    axes: tuple[Positions, ...]
    """Positions of the elements in each dimension of the array."""

    @property
    def size(self) -> int:
        """Number of elements of the part."""
        return math.prod(self.shape)

    def view(self, array: Array) -> Array | None:
        """Return the elements as a view of the array; None: no view is possible."""
        if all(type(positions) is slice for positions in self.axes):
            return array[self.axes]
        return None

    def take(self, array: Array, out: Array | None = None) -> Array:
        """Return the elements as a contiguous block, copied into `out` if it is given."""
        block = np.empty(self.shape, array.dtype) if out is None else out
        take(array, self.axes, block)
        return block

    def put(self, array: Array, block: Array) -> None:
        """Copy a block to the positions of the part in the array."""
        put(array, self.axes, block)


class Redistribution(NamedTuple):
    """Plan of one rank to move an array from one map to another."""

    sends: tuple[Part, ...]
    """Parts of the first map's local array for other ranks, in the order of `in_turn`."""
    receives: tuple[Part, ...]
    """Parts of the second map's local array from other ranks, in the order of sending."""
    kept: tuple[Part, Part] | None
    """Elements that stay on this rank: in the first local array, in the second."""


class Selection(NamedTuple):
    """A slice of the whole array, and the part of one rank in it.

    Parts refer to an array of `shape` in which all steps are positive. The user's selection is the view
    `that_array[final]`: to read, fill the array and return the view; to write, assign to the view and put the part that
    is stored here.
    """

    shape: tuple[int, ...]
    """Number of selected elements in each dimension."""
    final: tuple[int | slice, ...]
    """Index that drops the dimensions that a number selects and reverses those with a negative step."""
    parts: tuple[Part, ...]
    """Parts of the ranks that own selected elements, in an array of `shape`."""
    owned: Part | None
    """Owned elements of this rank, in its local array. The block matches the part of this rank in `parts`."""
    stored: tuple[Part, Part] | None
    """Stored elements of this rank, overlap included: in an array of `shape`, in its local array."""


class AxisKey(NamedTuple):
    """Selection of a key in one dimension."""

    start: int
    step: int
    """Positive; `final` has the direction."""
    number: int
    """Number of indices."""
    final: str
    """"number": the dimension is dropped; "forward"; "backward": it is reversed."""

    def indices(self) -> range:
        """Return the selected indices, ascending."""
        return range(self.start, self.start + self.step * self.number, self.step)


_FINAL: dict[str, int | slice] = {"number": 0, "forward": slice(None), "backward": slice(None, None, -1)}
"""Indices that turn the ascending elements into the user's selection."""


def redistribution(shape: Sequence[int], source: Map, target: Map, rank: int) -> Redistribution:
    """Return the plan of one rank to move an array from `source` to `target`. Owners send; overlaps are filled too."""
    return _plans.get(("redistribution", tuple(shape), source, target, rank), _plan_redistribution)


def blocks(shape: Sequence[int], map: Map) -> tuple[Part, ...]:
    """Return for each rank that owns something its part of the whole array."""
    return _plans.get(("blocks", tuple(shape), map), _plan_blocks)


def selection(shape: Sequence[int], map: Map, key: Any, rank: int) -> Selection:
    """Return the plan of one rank to read or write `X[key]`. Keys are numbers, slices and one ellipsis.

    Raises UsageError for other keys, IndexOutOfRange for a number outside the array.
    """
    return _selections.get(("selection", tuple(shape), map, read_key(shape, key), rank), _plan_selection)


def read_key(shape: Sequence[int], key: Any) -> tuple[AxisKey, ...]:
    """Return the selection of a key in each dimension. Raises as `selection`."""
    given = key if isinstance(key, tuple) else (key,)
    ellipses = [number for number, one in enumerate(given) if one is Ellipsis]
    if len(ellipses) > 1:
        raise UsageError("an index can have one ellipsis (...) only")
    missing = len(shape) - len(given) + len(ellipses)
    if missing < 0:
        raise IndexOutOfRange(f"an array of {len(shape)} dimensions has no element at {len(shape) - missing} indices")
    before = ellipses[0] if ellipses else len(given)
    every = (*given[:before], *(slice(None),) * missing, *given[before + 1 :])
    return tuple(_read_index(axis, length, one) for axis, (length, one) in enumerate(zip(shape, every, strict=True)))


def _read_index(axis: int, length: int, given: Any) -> AxisKey:
    if isinstance(given, slice):
        try:
            chosen = range(*given.indices(length))
        except (TypeError, ValueError) as error:
            raise UsageError(f"{given} cannot select from dimension {axis}: {error}") from None
        if not chosen:
            return AxisKey(0, 1, 0, "forward")
        if chosen.step < 0:
            return AxisKey(chosen[-1], -chosen.step, len(chosen), "backward")
        return AxisKey(chosen.start, chosen.step, len(chosen), "forward")
    if isinstance(given, bool | np.bool_) or not hasattr(given, "__index__") or np.ndim(given):
        raise UsageError(
            f"a distributed array is indexed by numbers, slices and one ellipsis (...), not by {given!r}; "
            "gather it first for other kinds"
        )
    number = operator.index(given)
    if not -length <= number < length:
        raise IndexOutOfRange(f"index {number} is not within dimension {axis} of length {length}")
    return AxisKey(number % length, 1, 1, "number")


# ---- Cache of plans ----


class Plans:
    """Cache of the latest plans, limited in number and bytes."""

    def __init__(self, max_plans: int, max_bytes: int) -> None:
        self.max_plans, self.max_bytes = max_plans, max_bytes
        self._kept: OrderedDict[tuple[Any, ...], tuple[Any, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()  # ranks can be threads of one process

    def get(self, question: tuple[Any, ...], make: Callable[..., Found]) -> Found:
        """Return the plan for a question, which is a name and the arguments of `make`."""
        with self._lock:
            if question in self._kept:
                self._kept.move_to_end(question)
                plan: Found = self._kept[question][0]
                return plan
        plan = make(*question[1:])
        size = memory(plan)
        with self._lock:
            if size <= self.max_bytes and question not in self._kept:
                self._kept[question] = (plan, size)
                self._bytes += size
                while len(self._kept) > self.max_plans or self._bytes > self.max_bytes:
                    self._bytes -= self._kept.popitem(last=False)[1][1]
        return plan

    def __len__(self) -> int:
        return len(self._kept)


def memory(plan: object) -> int:
    """Return the approximate size of a plan in bytes: 200 for each part, and its vectors."""
    vectors: dict[int, int] = {}  # parts share them

    def add(value: object) -> int:
        if isinstance(value, np.ndarray):
            vectors[id(value)] = value.nbytes
            return 0
        if isinstance(value, Part):
            for positions in value.axes:
                add(positions)
            return 200
        return sum(map(add, value)) if isinstance(value, tuple) else 0

    return add(plan) + sum(vectors.values())


_plans = Plans(max_plans=128, max_bytes=64 << 20)
_selections = Plans(max_plans=128, max_bytes=16 << 20)
"""Separate, because a program may read very many single elements."""


# ---- Making of plans ----


def _plan_redistribution(shape: tuple[int, ...], source: Map, target: Map, rank: int) -> Redistribution:
    sends: list[Part] = []
    receives: list[Part] = []
    place = source.coordinates(rank)
    if place is not None:
        each = zip(shape, source.axes, place, target.axes, strict=True)
        sends = parts_of(target, [split_owned(*one, with_overlap=True) for one in each])
    place = target.coordinates(rank)
    if place is not None:
        each = zip(shape, target.axes, place, source.axes, strict=True)
        receives = parts_of(source, [split_stored(*one) for one in each])
    return Redistribution(*in_turn(sends, receives, rank))


def _plan_blocks(shape: tuple[int, ...], map: Map) -> tuple[Part, ...]:
    every = zip(shape, map.axes, strict=True)
    return tuple(parts_of(map, [split_range(length, range(length), axis) for length, axis in every]))


def _plan_selection(shape: tuple[int, ...], map: Map, keys: tuple[AxisKey, ...], rank: int) -> Selection:
    by_place = [
        split_range(length, one.indices(), axis) for length, one, axis in zip(shape, keys, map.axes, strict=True)
    ]
    place = map.coordinates(rank)
    owned = stored = None
    if place is not None:
        mine = [dict(along).get(at, _NOTHING) for along, at in zip(by_place, place, strict=True)]
        owned = _local_part(shape, map, keys, rank, mine)
        for axis, (one, length, at) in enumerate(zip(map.axes, shape, place, strict=True)):
            if one.overlap:
                limits = one.stored_span(length, at)
                begin, end = (bisect_left(keys[axis].indices(), limit) for limit in limits)
                mine[axis] = slice(begin, end, 1)
        local = _local_part(shape, map, keys, rank, mine)
        stored = None if local is None else (Part(rank, local.shape, tuple(mine)), local)
    return Selection(
        tuple(one.number for one in keys),
        tuple(_FINAL[one.final] for one in keys),
        tuple(parts_of(map, by_place)),
        owned,
        stored,
    )


_NOTHING: Positions = slice(0, 0, 1)


def _local_part(
    shape: tuple[int, ...], map: Map, keys: tuple[AxisKey, ...], rank: int, chosen: Sequence[Positions]
) -> Part | None:
    """Return the local positions of the chosen ones of the selected elements, all of which are stored here."""
    counts = tuple(count(one) for one in chosen)
    if not all(counts):
        return None
    each = zip(shape, map.axes, map.coordinates(rank) or (), (one.indices() for one in keys), chosen, strict=True)
    return Part(rank, counts, tuple(local_positions(*one) for one in each))


def parts_of(map: Map, along: Iterable[ByPlace]) -> list[Part]:
    """Return a part for each combination of one entry (place in the grid, positions) per dimension."""
    measured = [[(place, count(positions), positions) for place, positions in axis] for axis in along]
    parts = []
    for entries in itertools.product(*measured):
        places, shape, axes = zip(*entries, strict=True)
        parts.append(Part(map.rank_at(places), shape, axes))
    return parts


def in_turn(
    sends: Iterable[Part], receives: Iterable[Part], rank: int
) -> tuple[tuple[Part, ...], tuple[Part, ...], tuple[Part, Part] | None]:
    """Return the sends of a rank, the next ranks first; its receives, in the order of sending; and the part it keeps.

    This order prevents that all ranks send to the same rank at once.
    """
    later = sorted((part for part in sends if part.rank != rank), key=lambda part: (part.rank < rank, part.rank))
    earlier = sorted((part for part in receives if part.rank != rank), key=lambda part: (part.rank > rank, -part.rank))
    kept = [part for part in (*sends, *receives) if part.rank == rank]
    return tuple(later), tuple(earlier), (kept[0], kept[1]) if kept else None


# ---- Assignment to a slice ----


def assignment(
    shape: Sequence[int], map: Map, chosen: Sequence[range], source: Map, rank: int
) -> tuple[list[Part], list[Part]]:
    """Return the sends of one rank from the assigned array, and its receives for elements that it owns in the other.

    `shape`, `map`: those of the array that is assigned to; `chosen`: its assigned indices per dimension; `source`: map
    of the assigned array, whose shape is that of `chosen`. Overlaps are not filled. Blocks list the elements by
    ascending index in the assigned array. Both results include parts of this rank for itself.
    """
    sends: list[ByPlace] = []
    receives: list[ByPlace] = []
    there, here = source.coordinates(rank), map.coordinates(rank)
    for number, (one, length) in enumerate(zip(chosen, shape, strict=True)):
        mine, other = map.axes[number], source.axes[number]
        if there is not None:
            owned = other.owned(len(one), there[number])
            sends.append(by_owner(mine.owners(length, one.start + one.step * owned)))
        if here is not None:
            turns, positions = _meet(one, mine.owned(length, here[number]))
            found = by_owner(other.owners(len(one), turns))
            receives.append([(place, _chosen(positions, at, length)) for place, at in found])
    return [] if there is None else parts_of(map, sends), [] if here is None else parts_of(source, receives)


def _meet(chosen: range, indices: Indices) -> tuple[Indices, Indices]:
    """Return the elements of `chosen` that are among these indices, ascending, and their positions there."""
    turns, rest = np.divmod(indices - chosen.start, chosen.step)
    positions = np.flatnonzero((rest == 0) & (turns >= 0) & (turns < len(chosen)))
    turns = turns[positions]
    return (turns, positions) if chosen.step > 0 else (turns[::-1], positions[::-1])


def _chosen(positions: Indices, at: Positions, length: int) -> Positions:
    """Return the positions selected by `at` in the form that is fastest to copy; descending ones stay a vector."""
    vector = positions[vector_of(at)]
    return from_vector(vector, length) if len(vector) < 2 or vector[0] < vector[1] else vector


ByPlace = list[tuple[int, Positions]]
"""Places of the grid along the dimension, ascending, each with its positions. Places without one are left out."""


def split_range(length: int, indices: range, axis: Axis, with_overlap: bool = False) -> ByPlace:
    """Return the positions among ascending indices that each place owns, or stores including its overlap."""
    if not indices:
        return []
    if axis.places == 1:
        return [(0, slice(0, len(indices), 1))]
    if axis.kind == "b":

        def below(limit: int) -> int:
            return min(max(-(-(limit - indices.start) // indices.step), 0), len(indices))

        return _split_among_blocks(length, indices[0], indices[-1], below, axis, with_overlap)
    if axis.block == 1:
        turn = axis.places // math.gcd(indices.step, axis.places)
        firsts = ((index % axis.places, position) for position, index in enumerate(indices[:turn]))
        return [(place, slice(position, len(indices), turn)) for place, position in sorted(firsts)]
    if indices.step == 1:
        each = ((place, _runs_within(indices, axis, place)) for place in range(axis.places))
        return [(place, positions) for place, positions in each if positions is not None]
    return by_owner(axis.owners(length, np.array(indices, dtype=np.int64)))


def split_owned(length: int, mine: Axis, place: int, axis: Axis, with_overlap: bool = False) -> ByPlace:
    """Divide the indices that a place of `mine` owns among the places of `axis` that own, or store, them."""
    even = mine.owned_range(length, place)
    if even is not None:
        return split_range(length, range(even.start, even.stop, even.step), axis, with_overlap)
    if axis.places == 1:
        return [(0, slice(0, mine.count_owned(length, place), 1))]
    if axis.kind == "b":
        first, last = mine.owned_ends(length, place)
        return _split_among_blocks(
            length, first, last, lambda limit: mine.count_owned(limit, place), axis, with_overlap
        )
    return by_owner(axis.owners(length, mine.owned(length, place)))


def split_stored(length: int, mine: Axis, place: int, axis: Axis) -> ByPlace:
    """Divide the indices that a place of `mine` stores among the places of `axis` that own them."""
    even = mine.stored_range(length, place)
    if even is None:
        return split_owned(length, mine, place, axis)
    return split_range(length, range(even.start, even.stop, even.step), axis)


def _split_among_blocks(
    length: int, first: int, last: int, below: Callable[[int], int], axis: Axis, with_overlap: bool
) -> ByPlace:
    """Divide ascending indices from `first` to `last` among blocks; `below(i)` counts those below i."""
    first_place, last_place = axis.owners(length, np.array([first, last])).tolist()
    span = axis.stored_span if with_overlap else axis.span
    while first_place and span(length, first_place - 1)[1] > first:  # earlier places store some too
        first_place -= 1
    found: ByPlace = []
    for place in range(first_place, last_place + 1):
        begin, end = map(below, span(length, place))
        if begin < end:
            found.append((place, slice(begin, end, 1)))
    return found


def _runs_within(indices: range, axis: Axis, place: int) -> Positions | None:
    """Return the positions among consecutive indices that are in the blocks of a block-cyclic place."""
    block, stride, origin = axis.block, axis.block * axis.places, axis.block * place - indices.start
    number = (-block - origin) // stride + 1  # of the first block that ends after the first index
    runs = -(-(len(indices) - origin) // stride) - number
    if runs < 1:
        return None
    first = origin + number * stride
    last = first + (runs - 1) * stride
    begin = max(first, 0)
    first_width = min(first + block, len(indices)) - begin
    last_width = min(block, len(indices) - last)
    return even_runs(begin, first_width, first + stride, stride, block, runs, last_width, len(indices))


def local_positions(length: int, axis: Axis, place: int, indices: range, chosen: Positions) -> Positions:
    """Return the local positions of chosen ones of ascending indices; the place must store all, at least one."""
    if isinstance(chosen, slice):
        # Evenly spaced indices of one place are evenly spaced in its part. That holds for block-cyclic places too: the
        # offset in the cycle grows evenly, and stays within one block, which is at most half of the cycle.
        found = indices[chosen]
        first, last = axis.positions(length, place, np.array([found[0], found[-1]])).tolist()
        return slice(first, last + 1, (last - first) // (len(found) - 1) if len(found) > 1 else 1)
    vector = indices.start + indices.step * vector_of(chosen)
    return from_vector(axis.positions(length, place, vector), axis.count_stored(length, place))
