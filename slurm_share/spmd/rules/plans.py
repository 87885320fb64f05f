"""What each rank copies and sends: to another map, to one whole array, to its neighbours' overlap, to or from a slice.

A plan is that of one rank and names no transport. `Part` says which elements of an array go to or come from one rank;
a block that travels has the shape of the part and its elements in C order, ascending by global index in every
dimension, so what one rank takes another can put. Empty parts are left out.
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
from .maps import Axis, Map
from .positions import Positions, count, put, take
from .shares import local_positions, owned_positions, share_owned, share_range, share_stored

Array = NDArray[Any]
Found = TypeVar("Found")


class Part(NamedTuple):
    """Elements of an array that are exchanged with one rank."""

    rank: int
    shape: tuple[int, ...]
    axes: tuple[Positions, ...]
    """Per dimension where they lie in the array."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def view(self, array: Array) -> Array | None:
        """Return the elements as a view of the array; None: they must be copied."""
        if all(type(positions) is slice for positions in self.axes):
            return array[self.axes]
        return None

    def take(self, array: Array, out: Array | None = None) -> Array:
        """Return the elements as a contiguous block, copied into `out` where it is given."""
        block = np.empty(self.shape, array.dtype) if out is None else out
        take(array, self.axes, block)
        return block

    def put(self, array: Array, block: Array) -> None:
        """Copy a block to its places in the array."""
        put(array, self.axes, block)


class Redistribution(NamedTuple):
    """What one rank does to bring an array from one map to another."""

    sends: tuple[Part, ...]
    """Parts of the first map's local array for other ranks: the next ranks first, so that all do not send to one."""
    receives: tuple[Part, ...]
    """For the local array of the second map, from other ranks: in the order in which they are sent."""
    kept: tuple[Part, Part] | None
    """What stays here: where in the first local array, where in the second."""
    local_shape: tuple[int, ...]
    """Shape of the second local array."""


class Exchange(NamedTuple):
    """What one rank sends of its local array to other ranks, and receives for it from them."""

    sends: tuple[Part, ...]
    receives: tuple[Part, ...]


class Selection(NamedTuple):
    """A slice of the whole array, and what one rank has of it.

    Parts refer to an array of `shape`, whose steps all go up. What the user asked for is `that_array[final]`, a view:
    to read, fill the array and return the view; to write, assign to the view and put what is stored here.
    """

    shape: tuple[int, ...]
    """Number of selected elements along every dimension."""
    final: tuple[int | slice, ...]
    """Takes away the dimensions that a number selects and turns those with a negative step."""
    parts: tuple[Part, ...]
    """For each rank that owns some: where they lie in an array of `shape`."""
    owned: Part | None
    """What this rank owns of it: where in its local array. Its block fits the part of this rank in `parts`."""
    stored: tuple[Part, Part] | None
    """What this rank stores of it, with overlap: where in an array of `shape`, where in its local array."""


class Window(NamedTuple):
    """What is selected of one dimension."""

    start: int
    step: int
    """At least 1."""
    number: int
    """How many indices."""
    final: str
    """"number": the dimension goes; "forward"; "backward": it is turned."""

    def indices(self) -> range:
        """Return the selected indices, ascending."""
        return range(self.start, self.start + self.step * self.number, self.step)

    def as_index(self) -> int | slice:
        """Return what to index the selected elements with."""
        if self.final == "number":
            return 0
        return slice(None, None, -1) if self.final == "backward" else slice(None)


def redistribution(shape: Sequence[int], source: Map, target: Map, rank: int) -> Redistribution:
    """Return the plan of one rank from `source` to `target`. Owners send; all that is stored is filled.

    Raises UsageError where a map does not fit the shape.
    """
    lengths = source.check_shape(shape)
    target.check_shape(shape)
    return _plans.get(("redistribution", lengths, source, target, rank), _plan_redistribution)


def halo(shape: Sequence[int], map: Map, rank: int) -> tuple[Exchange, ...]:
    """Return what one rank exchanges to fill its overlap from the owners, one exchange per dimension, in turn.

    The exchange of a dimension carries what those before it brought: corners come right at the last.
    """
    return _plans.get(("halo", map.check_shape(shape), map, rank), _plan_halo)


def block(shape: Sequence[int], map: Map, rank: int) -> Part | None:
    """Return where in the whole array lies what one rank owns; None: nothing. Locally these are the first elements."""
    return _plans.get(("block", map.check_shape(shape), map, rank), _plan_block)


def blocks(shape: Sequence[int], map: Map) -> tuple[Part, ...]:
    """Return `block` of each rank that owns something: what a root needs to put the whole array together."""
    return _plans.get(("blocks", map.check_shape(shape), map), _plan_blocks)


def selection(shape: Sequence[int], map: Map, key: Any, rank: int) -> Selection:
    """Return the plan of one rank to read or write `X[key]`: numbers, slices and an ellipsis.

    Raises UsageError for other keys and IndexOutOfRange for a number that is not within the array.
    """
    lengths = map.check_shape(shape)
    return _selections.get(("selection", lengths, map, read_key(lengths, key), rank), _plan_selection)


def read_key(shape: Sequence[int], key: Any) -> tuple[Window, ...]:
    """Return what a key selects of each dimension; see `selection` for the errors."""
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


def _read_index(axis: int, length: int, given: Any) -> Window:
    if isinstance(given, slice):
        try:
            chosen = range(*given.indices(length))
        except (TypeError, ValueError) as error:
            raise UsageError(f"{given} cannot select from dimension {axis}: {error}") from None
        if not chosen:
            return Window(0, 1, 0, "forward")
        if chosen.step < 0:
            return Window(chosen[-1], -chosen.step, len(chosen), "backward")
        return Window(chosen.start, chosen.step, len(chosen), "forward")
    if isinstance(given, bool | np.bool_) or not hasattr(given, "__index__") or np.ndim(given):
        raise UsageError(
            f"a distributed array is indexed by numbers, slices and one ellipsis (...), not by {given!r}; "
            "gather it first for other kinds"
        )
    number = operator.index(given)
    if not -length <= number < length:
        raise IndexOutOfRange(f"index {number} is not within dimension {axis} of length {length}")
    return Window(number % length, 1, 1, "number")


# ---- Plans are kept ----


class Plans:
    """The plans that were made last, up to a number of them and of bytes."""

    def __init__(self, max_plans: int, max_bytes: int) -> None:
        self.max_plans, self.max_bytes = max_plans, max_bytes
        self._kept: OrderedDict[tuple[Any, ...], tuple[Any, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()  # ranks can be threads of one process

    def get(self, question: tuple[Any, ...], make: Callable[..., Found]) -> Found:
        """Return the plan for a question: a name, and the arguments of `make`."""
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
    """Return about how many bytes a plan takes: 200 for each part, and its vectors."""
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
"""Apart, because a program can read very many elements one by one."""


# ---- How they are made ----


def _plan_redistribution(shape: tuple[int, ...], source: Map, target: Map, rank: int) -> Redistribution:
    sends: list[Part] = []
    receives: list[Part] = []
    place = source.coordinates(rank)
    if place is not None:
        each = zip(shape, source.axes, place, target.axes, strict=True)
        sends = parts_of(target, [share_owned(*one, with_overlap=True) for one in each])
    place = target.coordinates(rank)
    if place is not None:
        each = zip(shape, target.axes, place, source.axes, strict=True)
        receives = parts_of(source, [share_stored(*one) for one in each])
    return Redistribution(*in_turn(sends, receives, rank), target.stored_shape(shape, rank))


def _plan_halo(shape: tuple[int, ...], map: Map, rank: int) -> tuple[Exchange, ...]:
    place = map.coordinates(rank)
    exchanges = []
    for number, axis in enumerate(map.axes):
        if not axis.overlap:
            continue
        if place is None or not all(map.owned_shape(shape, rank)):
            exchanges.append(Exchange((), ()))
            continue
        rest: list[list[tuple[int, Positions]]] = []
        for other, (one, length, at) in enumerate(zip(map.axes, shape, place, strict=True)):
            # Dimensions before this one have their overlap already; those after bring theirs later.
            counted = one.count_stored if other < number else one.count_owned
            rest.append([(at, slice(0, counted(length, at), 1))])
        out, into = _halo_of(axis, shape[number], place[number])
        sends, receives = (parts_of(map, [*rest[:number], along, *rest[number + 1 :]]) for along in (out, into))
        exchanges.append(Exchange(*in_turn(sends, receives, rank)[:2]))
    return tuple(exchanges)


def _halo_of(axis: Axis, length: int, place: int) -> tuple[list[tuple[int, Positions]], list[tuple[int, Positions]]]:
    """Return which positions a place sends along one dimension to which places, and receives from which."""
    first, end = axis.span(length, place)
    out: list[tuple[int, Positions]] = []
    for other in reversed(range(place)):
        needed = min(axis.stored_span(length, other)[1], end) - first
        if needed <= 0:
            break
        out.append((other, slice(0, needed, 1)))
    into: list[tuple[int, Positions]] = []
    stored_end = axis.stored_span(length, place)[1]
    for other in range(place + 1, axis.places):
        its_first, its_end = axis.span(length, other)
        if its_first >= stored_end:
            break
        into.append((other, slice(its_first - first, min(stored_end, its_end) - first, 1)))
    return out, into


def _plan_block(shape: tuple[int, ...], map: Map, rank: int) -> Part | None:
    counts, place = map.owned_shape(shape, rank), map.coordinates(rank)
    if place is None or not all(counts):
        return None
    return Part(rank, counts, tuple(owned_positions(*one) for one in zip(shape, map.axes, place, strict=True)))


def _plan_blocks(shape: tuple[int, ...], map: Map) -> tuple[Part, ...]:
    every = zip(shape, map.axes, strict=True)
    return tuple(parts_of(map, [share_range(length, range(length), axis) for length, axis in every]))


def _plan_selection(shape: tuple[int, ...], map: Map, windows: tuple[Window, ...], rank: int) -> Selection:
    shares = [
        share_range(length, one.indices(), axis) for length, one, axis in zip(shape, windows, map.axes, strict=True)
    ]
    place = map.coordinates(rank)
    owned = stored = None
    if place is not None:
        mine = [dict(along).get(at, _NOTHING) for along, at in zip(shares, place, strict=True)]
        owned = _local_part(shape, map, windows, rank, mine)
        for axis, (one, length, at) in enumerate(zip(map.axes, shape, place, strict=True)):
            if one.overlap:
                limits = one.stored_span(length, at)
                begin, end = (bisect_left(windows[axis].indices(), limit) for limit in limits)
                mine[axis] = slice(begin, end, 1)
        local = _local_part(shape, map, windows, rank, mine)
        stored = None if local is None else (Part(rank, local.shape, tuple(mine)), local)
    return Selection(
        tuple(one.number for one in windows),
        tuple(one.as_index() for one in windows),
        tuple(parts_of(map, shares)),
        owned,
        stored,
    )


_NOTHING: Positions = slice(0, 0, 1)


def _local_part(
    shape: tuple[int, ...], map: Map, windows: tuple[Window, ...], rank: int, chosen: Sequence[Positions]
) -> Part | None:
    """Return where in the local array lie the chosen ones of the selected elements, which are stored here."""
    counts = tuple(count(one) for one in chosen)
    if not all(counts):
        return None
    each = zip(shape, map.axes, map.coordinates(rank) or (), (one.indices() for one in windows), chosen, strict=True)
    return Part(rank, counts, tuple(local_positions(*one) for one in each))


def parts_of(map: Map, along: Iterable[list[tuple[int, Positions]]]) -> list[Part]:
    """Return a part for each combination of one entry per dimension: place in the grid along it, positions."""
    measured = [[(place, count(positions), positions) for place, positions in axis] for axis in along]
    parts = []
    for entries in itertools.product(*measured):
        places, shape, axes = zip(*entries, strict=True)
        parts.append(Part(map.rank_at(places), shape, axes))
    return parts


def in_turn(
    sends: Iterable[Part], receives: Iterable[Part], rank: int
) -> tuple[tuple[Part, ...], tuple[Part, ...], tuple[Part, Part] | None]:
    """Return what a rank sends, the next ranks first; what it receives, in the order of sending; what stays there.

    So all ranks do not send to one at once.
    """
    later = sorted((part for part in sends if part.rank != rank), key=lambda part: (part.rank < rank, part.rank))
    earlier = sorted((part for part in receives if part.rank != rank), key=lambda part: (part.rank > rank, -part.rank))
    kept = [part for part in (*sends, *receives) if part.rank == rank]
    return tuple(later), tuple(earlier), (kept[0], kept[1]) if kept else None
