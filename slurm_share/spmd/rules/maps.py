"""Distribution of an array over ranks: the indices that each rank owns and stores in each dimension.

The ranks form a grid over the array. Each dimension is distributed independently over the places 0, 1, ... of the grid
along it. So every layout is a closed formula of one dimension (`Axis`), and `Map` combines them.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError

Indices = NDArray[np.int64]
_Value = TypeVar("_Value")

KINDS = {"b": "block", "c": "cyclic", "bc": "block-cyclic"}


@dataclass(frozen=True, slots=True)
class Axis:
    """Distribution of one dimension over the places of the grid along it."""

    places: int
    kind: str
    """A key of KINDS."""
    block: int = 0
    """Length of the blocks of "bc"; 1 for "c", 0 for "b"."""
    overlap: int = 0
    """Number of elements of the right neighbour that each place also stores; "b" only."""

    def span(self, length: int, place: int) -> tuple[int, int]:
        """Return start and stop of the indices that a place owns in a block distribution.

        Without overlap the parts are those of `numpy.array_split`. With overlap each has ceil(length / places) elements
        until none are left, as in pPython.
        """
        if self.overlap:
            size = -(-length // self.places)
            return min(length, place * size), min(length, (place + 1) * size)
        size, larger = divmod(length, self.places)
        first = place * size + min(place, larger)
        return first, first + size + (place < larger)

    def stored_span(self, length: int, place: int) -> tuple[int, int]:
        """Return start and stop of the indices that a place stores in a block distribution."""
        first, end = self.span(length, place)
        return (first, min(length, end + self.overlap)) if end > first else (first, end)

    def count_owned(self, length: int, place: int) -> int:
        """Return how many indices a place owns."""
        if self.kind == "b":
            first, end = self.span(length, place)
            return end - first
        cycles, rest = divmod(length, self.block * self.places)
        return cycles * self.block + min(max(rest - place * self.block, 0), self.block)

    def count_stored(self, length: int, place: int) -> int:
        """Return how many indices a place stores."""
        if self.kind == "b":
            first, end = self.stored_span(length, place)
            return end - first
        return self.count_owned(length, place)

    def owned_ends(self, length: int, place: int) -> tuple[int, int]:
        """Return the first and the last index that a place owns; it must own one."""
        if self.kind == "b":
            first, end = self.span(length, place)
            return first, end - 1
        whole, rest = divmod(self.count_owned(length, place) - 1, self.block)
        return place * self.block, (whole * self.places + place) * self.block + rest

    def owned(self, length: int, place: int) -> Indices:
        """Return the indices that a place owns, ascending."""
        even = self.owned_range(length, place)
        if even is not None:
            return np.arange(even.start, even.stop, even.step, dtype=np.int64)
        starts = np.arange(place * self.block, length, self.places * self.block, dtype=np.int64)
        indices = (starts[:, None] + np.arange(self.block, dtype=np.int64)).reshape(-1)
        return indices[: self.count_owned(length, place)]

    def stored(self, length: int, place: int) -> Indices:
        """Return the indices that a place stores, ascending; those that it owns come first."""
        if self.kind == "b":
            return np.arange(*self.stored_span(length, place), dtype=np.int64)
        return self.owned(length, place)

    def owned_range(self, length: int, place: int) -> slice | None:
        """Return the indices that a place owns as a slice with a positive step; None: they are not evenly spaced."""
        if self.kind == "b":
            return slice(*self.span(length, place), 1)
        first = min(place * self.block, length)
        count = self.count_owned(length, place)
        if self.block == 1:
            return slice(first, length, self.places)
        return slice(first, first + count, 1) if self.places == 1 or count <= self.block else None

    def stored_range(self, length: int, place: int) -> slice | None:
        """Return the indices that a place stores as a slice with a positive step; None: they are not evenly spaced."""
        return slice(*self.stored_span(length, place), 1) if self.kind == "b" else self.owned_range(length, place)

    def owners(self, length: int, indices: Indices) -> Indices:
        """Return the place that owns each index; all indices must be valid."""
        if self.block:
            return indices // self.block % self.places
        if self.overlap:
            return indices // -(-length // self.places) if length else indices
        size, larger = divmod(length, self.places)
        in_larger = larger * (size + 1)
        if size == 0 or larger == 0:
            return indices // max(size, 1)
        return np.where(indices < in_larger, indices // (size + 1), larger + (indices - in_larger) // size)

    def positions(self, length: int, place: int, indices: Indices) -> Indices:
        """Return the positions of indices in the part that a place stores; it must store all of them."""
        if self.kind == "b":
            return indices - self.span(length, place)[0]
        return indices // (self.block * self.places) * self.block + indices % self.block

    def same_layout(self) -> tuple[str, int, int]:
        """Return kind, block and overlap in a form that is equal for equal layouts of all lengths."""
        if self.places == 1:
            return ("b", 0, 0)
        return ("c" if self.block == 1 else self.kind, self.block, self.overlap)


class Map:
    """Distribution of an array of any number of dimensions over a grid of ranks.

    A map is immutable. Two maps are equal if they lay out every array in the same way.
    """

    grid: tuple[int, ...]
    """Number of processes along each dimension."""
    dist: tuple[tuple[str, int], ...]
    """For each dimension ("b", 0), ("c", 0) or ("bc", k)."""
    ranks: tuple[int, ...]
    """Ranks of the grid, in `order`."""
    overlap: tuple[int, ...]
    """For each dimension, the number of elements of the right neighbour that each rank stores."""
    order: str
    """"C": the ranks fill the grid rows first; "F": columns first."""
    axes: tuple[Axis, ...]
    """Distribution of each dimension."""

    def __init__(
        self,
        grid: Sequence[int],
        dist: Any = "b",
        ranks: Sequence[int] | None = None,
        overlap: Sequence[int] | None = None,
        order: str = "C",
    ) -> None:
        """Make a map.

        Args:
            grid: Processes along each dimension.
            dist: "b" block, "c" cyclic or ("bc", k) block-cyclic, one for all dimensions or a sequence, or pPython's
                dictionaries.
            ranks: The ranks of the grid, in `order`; None: 0, 1, ...
            overlap: For each block dimension, the number of elements of the right neighbour to store.
            order: "C", rows first, or "F", columns first.

        Raises UsageError if the arguments do not match.
        """
        self.grid = _read_grid(grid)
        self.dist = _read_dist(dist, len(self.grid))
        self.ranks = _read_ranks(ranks, self.grid)
        self.overlap = _read_overlap(overlap, self.dist)
        if order not in ("C", "F"):
            raise UsageError(f"the order of a map is 'C' (rows first) or 'F' (columns first), not {order!r}")
        self.order = order
        self.axes = tuple(
            Axis(places, kind, 1 if kind == "c" else block, overlap)
            for places, (kind, block), overlap in zip(self.grid, self.dist, self.overlap, strict=True)
        )
        placed = np.array(self.ranks, dtype=np.int64).reshape(self.grid, order="C" if order == "C" else "F")
        self._placed: tuple[int, ...] = tuple(placed.reshape(-1).tolist())
        """The ranks in C order of the grid."""
        self._number = {rank: number for number, rank in enumerate(self._placed)}
        self._key = (self.grid, tuple(axis.same_layout() for axis in self.axes), self._placed)
        self._hash = hash(self._key)

    def coordinates(self, rank: int) -> tuple[int, ...] | None:
        """Return the coordinates of a rank in the grid; None: it has no part of the array."""
        number = self._number.get(rank)
        if number is None:
            return None
        coordinates = []
        for places in reversed(self.grid):
            number, place = divmod(number, places)
            coordinates.append(place)
        return tuple(reversed(coordinates))

    def rank_at(self, coordinates: Sequence[int]) -> int:
        """Return the rank at these coordinates of the grid."""
        number = 0
        for places, place in zip(self.grid, coordinates, strict=True):
            number = number * places + place
        return self._placed[number]

    def owned(self, shape: Sequence[int], rank: int) -> tuple[Indices, ...]:
        """Return the global indices that the rank owns in each dimension, ascending; none if it has no part."""
        return self._of_axes(shape, rank, Axis.owned, np.empty(0, dtype=np.int64))

    def stored(self, shape: Sequence[int], rank: int) -> tuple[Indices, ...]:
        """Return the global indices that the rank stores in each dimension: those that it owns, and its overlap."""
        return self._of_axes(shape, rank, Axis.stored, np.empty(0, dtype=np.int64))

    def owned_shape(self, shape: Sequence[int], rank: int) -> tuple[int, ...]:
        """Return the shape of the owned part, which is at the start of the local array in each dimension."""
        return self._of_axes(shape, rank, Axis.count_owned, 0)

    def stored_shape(self, shape: Sequence[int], rank: int) -> tuple[int, ...]:
        """Return the shape of the rank's local array; zeros if it has no part."""
        return self._of_axes(shape, rank, Axis.count_stored, 0)

    def check_axis(self, axis: int) -> int:
        """Return the number of a dimension, counted from 0. Raises UsageError if it does not exist."""
        dimensions = len(self.grid)
        if not -dimensions <= axis < dimensions:
            raise UsageError(f"there is no dimension {axis}: the map has {dimensions}, counted from 0")
        return axis % dimensions

    def check_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape as plain integers. Raises UsageError if this map cannot distribute it."""
        lengths = _integers(shape, "the shape of an array")
        if len(lengths) != len(self.grid):
            raise UsageError(
                f"a map of {len(self.grid)} dimensions cannot distribute an array of {len(lengths)} "
                f"(grid {self.grid}, shape {lengths}); give the grid one number per dimension, 1 where it stays whole"
            )
        if min(lengths) < 0:
            raise UsageError(f"the shape of an array has no negative lengths: {lengths}")
        return lengths

    def digest(self) -> bytes:
        """Return a digest of 8 bytes, the same for equal maps."""
        return hashlib.blake2b(repr(self._key).encode(), digest_size=8).digest()

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, Map) else NotImplemented

    def __hash__(self) -> int:
        return self._hash

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled map. The hash is computed anew, because hashes of strings differ between processes."""
        vars(self).update(state)
        self._hash = hash(self._key)

    def __repr__(self) -> str:
        dist = [kind if kind != "bc" else (kind, block) for kind, block in self.dist]
        given = [repr(self.grid), repr(dist[0] if len(set(dist)) == 1 else tuple(dist))]
        if self.ranks != tuple(range(len(self.ranks))):
            given.append(f"ranks={self.ranks}")
        if any(self.overlap):
            given.append(f"overlap={self.overlap}")
        if self.order != "C":
            given.append(f"order={self.order!r}")
        return f"Map({', '.join(given)})"

    def _of_axes(
        self, shape: Sequence[int], rank: int, of_axis: Callable[..., _Value], nothing: _Value
    ) -> tuple[_Value, ...]:
        """Return a value for each dimension; `nothing` if the rank has no part."""
        lengths, places = self.check_shape(shape), self.coordinates(rank)
        if places is None:
            return (nothing,) * len(lengths)
        return tuple(of_axis(*each) for each in zip(self.axes, lengths, places, strict=True))


def _integers(values: Iterable[Any], what: str) -> tuple[int, ...]:
    """Return the values as plain integers. Raises UsageError if they are no sequence of whole numbers."""
    try:
        return tuple(operator.index(value) for value in values)
    except TypeError:
        raise UsageError(f"{what} must be a sequence of whole numbers, not {values!r}") from None


def _read_grid(grid: Sequence[int]) -> tuple[int, ...]:
    numbers = _integers(grid, "the grid of a map")
    if not numbers:
        raise UsageError("the grid of a map needs one number of processes per dimension; it is empty")
    if min(numbers) < 1:
        raise UsageError(f"the grid of a map needs at least one process along each dimension: {numbers}")
    return numbers


def _read_ranks(ranks: Sequence[int] | None, grid: tuple[int, ...]) -> tuple[int, ...]:
    count = math.prod(grid)
    numbers = tuple(range(count)) if ranks is None else _integers(ranks, "the ranks of a map")
    if len(numbers) != count:
        raise UsageError(f"a grid of {' x '.join(map(str, grid))} processes needs {count} ranks, not {len(numbers)}")
    if min(numbers) < 0:
        raise UsageError(f"ranks are counted from 0: {min(numbers)} is no rank")
    if len(set(numbers)) != count:
        twice = next(rank for rank in numbers if numbers.count(rank) > 1)
        raise UsageError(f"rank {twice} is in the map more than once; each rank can have one place in the grid")
    return numbers


def _read_overlap(overlap: Sequence[int] | None, dist: tuple[tuple[str, int], ...]) -> tuple[int, ...]:
    numbers = (0,) * len(dist) if overlap is None else _integers(overlap, "the overlap of a map")
    if len(numbers) != len(dist):
        raise UsageError(
            f"the overlap of a map needs one number per dimension: {len(dist)} dimensions, overlap {numbers}"
        )
    if min(numbers) < 0:
        raise UsageError(f"the overlap of a map cannot be negative: {numbers}")
    for axis, (number, (kind, _)) in enumerate(zip(numbers, dist, strict=True)):
        if number and kind != "b":
            raise UsageError(
                f"only a block distribution can overlap; dimension {axis} is {KINDS[kind]} with overlap {number}"
            )
    return numbers


def _read_dist(dist: Any, dimensions: int) -> tuple[tuple[str, int], ...]:
    """Return the distribution of each dimension from any accepted form."""
    if dist is None or (isinstance(dist, Mapping | Sequence) and not len(dist)):
        return (("b", 0),) * dimensions  # pPython's {}
    if isinstance(dist, str) or (isinstance(dist, Mapping) and "dist" in dist) or _is_block_cyclic(dist):
        return (_read_one_dist(dist),) * dimensions
    if isinstance(dist, Mapping):
        by_axis = {int(key) if str(key).isdecimal() else key: value for key, value in dist.items()}
        if set(by_axis) != set(range(dimensions)):
            raise UsageError(
                f"the distributions of {dimensions} dimensions are numbered from 0 to {dimensions - 1}: {dist}"
            )
        return tuple(_read_one_dist(by_axis[axis]) for axis in range(dimensions))
    if not isinstance(dist, Iterable):
        raise UsageError(_NO_DIST.format(dist))
    each = tuple(dist)
    if len(each) != dimensions:
        raise UsageError(f"{len(each)} distributions are given for {dimensions} dimensions: {dist!r}")
    return tuple(_read_one_dist(one) for one in each)


_NO_DIST = "a distribution is 'b' (block), 'c' (cyclic) or ('bc', k) (blocks of k in turn), not {!r}"


def _is_block_cyclic(dist: Any) -> bool:
    return isinstance(dist, tuple | list) and len(dist) == 2 and dist[0] == "bc" and not isinstance(dist[1], str)


def _read_one_dist(dist: Any) -> tuple[str, int]:
    """Return the kind and the block length of one dimension."""
    block: Any = None
    if isinstance(dist, Mapping):
        if not dist:
            return ("b", 0)
        kind, block = dist.get("dist"), dist.get("b_size")
    elif isinstance(dist, tuple | list) and len(dist) == 2:
        kind, block = dist
    else:
        kind = dist
    if not isinstance(kind, str) or kind not in KINDS:
        raise UsageError(_NO_DIST.format(dist))
    if kind != "bc":
        if block and not isinstance(dist, Mapping):  # pPython ignores a b_size that has no meaning
            raise UsageError(_NO_DIST.format(dist))
        return (kind, 0)
    if block is None:
        raise UsageError("a block-cyclic distribution needs the length of its blocks: ('bc', k)")
    (length,) = _integers([block], "the length of blocks of a block-cyclic distribution")
    if length < 1:
        raise UsageError(f"the blocks of a block-cyclic distribution have at least one element, not {length}")
    return (kind, length)
