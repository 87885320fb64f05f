"""Gathering of the blocks of a distributed array into one array.

On the root's node every rank writes its block to its final place in a window, part by part, and the root copies the
parts out: nothing is packed. The blocks of each other node come in one message.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from . import collectives
from .bulk import Item, broadcast, gather_parts
from .calls import Call, Group, dtype_name
from .errors import UsageError
from .rules.positions import Positions, count, from_vector, put, vector_of
from .transport import RAW
from .windows import Bytes, as_bytes, room

SHARED_BYTES = 64 << 10
"""Size below which arrays are gathered by messages."""
_SLAB = 8 << 20
"""Limit of a part in bytes."""
_LEAST_SLAB = 1 << 20


def gather_blocks(
    group: Group,
    shape: Sequence[int],
    dtype: DTypeLike,
    block: NDArray[Any],
    where: Sequence[Positions] | None,
    root: int | None = 0,
) -> NDArray[Any] | None:
    """Return the array of all ranks' blocks on `root` (None: on every rank), None elsewhere. Collective.

    `where`: the ascending positions of this rank's `block` in each dimension, as in `plans.block`; None: the rank has
    no part. The blocks cover the array and do not overlap. `shape`, `dtype` and `root` must be the same on all ranks,
    else CollectiveMismatch; maps are not compared here.
    """
    whole_shape, kind = tuple(map(int, shape)), np.dtype(dtype)
    if kind.hasobject:
        raise UsageError(f"gather: an array of Python objects ({kind}) cannot be gathered")
    if where is None:
        where = [slice(0, 0, 1)] * len(whole_shape)
        block = np.empty((0,) * len(whole_shape), kind)
    lengths = tuple(map(count, where))
    if lengths != block.shape or len(lengths) != len(whole_shape):
        raise UsageError(f"gather: a block of shape {block.shape} does not lie at {lengths} places of {whole_shape}")
    mine = _Block(block.astype(kind, copy=False), tuple(where))
    to = 0 if root is None else root
    whole = room(whole_shape, kind) if group.rank == to or root is None else None
    with group.call(f"gather({list(whole_shape)} {dtype_name(kind)}, root={root})") as call:
        _collect(group, call, mine, whole, whole_shape, kind, to)
        if root is None:
            assert whole is not None
            data = as_bytes(whole.reshape(-1))
            broadcast(group, call, to, Item(RAW, b"", (data.data,)) if group.rank == to else None, data)
    return whole


@dataclass(frozen=True)
class _Block:
    """A part of an array, and its positions there in each dimension."""

    values: NDArray[Any]
    where: tuple[Positions, ...]

    def put(self, whole: NDArray[Any]) -> None:
        """Write the block into the whole array."""
        if self.values.size:
            put(whole, self.where, self.values)


@dataclass(frozen=True)
class _Slabs:
    """Division of an array in C order into parts that are contiguous in memory.

    A part has one index in each dimension before `axis`, at most `length` along it, and all in the dimensions after it.
    """

    shape: tuple[int, ...]
    axis: int
    length: int

    @property
    def per_prefix(self) -> int:
        return -(-self.shape[self.axis] // self.length)

    @property
    def number(self) -> int:
        """Number of parts."""
        return math.prod(self.shape[: self.axis]) * self.per_prefix

    @property
    def elements(self) -> int:
        """Number of elements of the longest part."""
        return self.length * math.prod(self.shape[self.axis + 1 :])

    def place(self, number: int) -> tuple[tuple[int, ...], int, int]:
        """Return a part's indices before the axis, and its start and stop along it."""
        prefix, step = divmod(number, self.per_prefix)
        before = tuple(int(index) for index in np.unravel_index(prefix, self.shape[: self.axis])) if self.axis else ()
        start = step * self.length
        return before, start, min(start + self.length, self.shape[self.axis])

    def of(self, block: _Block) -> list[int]:
        """Return the numbers of the parts that contain elements of a block."""
        if not block.values.size:
            return []
        prefixes = np.zeros(1, np.int64)
        for length, places in zip(self.shape[: self.axis], block.where, strict=False):
            prefixes = (prefixes[:, None] * length + vector_of(places)).reshape(-1)
        along = block.where[self.axis]
        if isinstance(along, slice) and along.step <= self.length:
            last = along.start + (count(along) - 1) * along.step
            steps = np.arange(along.start // self.length, last // self.length + 1)
        else:
            steps = np.unique(vector_of(along) // self.length)
        found: list[int] = (prefixes[:, None] * self.per_prefix + steps).reshape(-1).tolist()
        return found


def slabs(shape: tuple[int, ...], itemsize: int) -> _Slabs:
    """Return the division of an array that is not empty."""
    size = math.prod(shape) * itemsize
    most = max(1, min(max(size // 4, _LEAST_SLAB), _SLAB) // itemsize)
    axis = 0
    while axis < len(shape) - 1 and math.prod(shape[axis + 1 :]) > most:
        axis += 1
    return _Slabs(shape, axis, max(1, min(shape[axis], most // math.prod(shape[axis + 1 :]))))


def _between(where: Positions, start: int, stop: int) -> tuple[slice, Positions]:
    """Return which of ascending positions are between `start` and `stop`, and these positions relative to `start`."""
    if isinstance(where, slice):
        low = max(0, -((where.start - start) // where.step))
        high = max(low, min(count(where), -((where.start - stop) // where.step)))
        first = where.start + low * where.step - start
        return slice(low, high), slice(first, first + (high - low) * where.step, where.step)
    vector = vector_of(where)
    low, high = (int(place) for place in np.searchsorted(vector, (start, stop)))
    return slice(low, high), from_vector(vector[low:high] - start, stop - start)


def _collect(
    group: Group, call: Call, mine: _Block, whole: NDArray[Any] | None, shape: tuple[int, ...], kind: Any, root: int
) -> None:
    """Put the blocks of all ranks into the root's `whole`."""
    in_window = root in group.node_ranks and _by_window(group, call, mine, whole, shape, kind, root)
    item = Item(RAW, b"", ())
    if not in_window and group.rank != root:
        item = collectives.encode_item((mine.where, np.ascontiguousarray(mine.values)))
    items = collectives.collect(group, call, item, root, inside=not in_window)
    if items is not None:
        assert whole is not None
        # Last, because parts from the window have overwritten these positions.
        for rank, other in items.items():
            if rank == root:
                mine.put(whole)
            elif other.meta or other.buffers:
                where, values = collectives.decode_item(other)
                _Block(values, where).put(whole)


def _by_window(
    group: Group, call: Call, mine: _Block, whole: NDArray[Any] | None, shape: tuple[int, ...], kind: Any, root: int
) -> bool:
    """Put the blocks of the other ranks of the root's node into `whole` through a window.

    Returns False on all ranks of the node if a window saves nothing or there is no memory for one.
    """
    size = math.prod(shape) * kind.itemsize
    if not group.transport.has_windows or len(group.node_ranks) == 1 or size < SHARED_BYTES:
        return False
    cut = slabs(shape, kind.itemsize)

    def part_of(memory: Bytes, start: int, stop: int) -> NDArray[Any]:
        part_shape = (stop - start, *shape[cut.axis + 1 :])
        elements: NDArray[Any] = memory[: math.prod(part_shape) * kind.itemsize].view(kind)
        return elements.reshape(part_shape)

    def write(number: int, memory: Bytes) -> None:
        before, start, stop = cut.place(number)
        values = mine.values
        for index, places in zip(before, mine.where, strict=False):
            values = values[_between(places, index, index + 1)[0]][0]
        chosen, along = _between(mine.where[cut.axis], start, stop)
        _Block(values[chosen], (along, *mine.where[cut.axis + 1 :])).put(part_of(memory, start, stop))

    def read(number: int, memory: Bytes) -> None:
        assert whole is not None
        before, start, stop = cut.place(number)
        whole[before][start:stop] = part_of(memory, start, stop)

    return gather_parts(group, call, root, cut.elements * kind.itemsize, cut.number, cut.of(mine), write, read)
