"""Gathering of a distributed array on one rank or on all ranks.

On one node every rank sends its part, with its dtype, in one message; the root knows the positions of the parts from
the map. The name of the call contains shape and map, so the first frame reveals a different map. If parts are large and
scattered over the array, or on several nodes, all ranks agree first. Then every rank of the root's node writes its
block to its final place in a window, part by part, and the root copies the parts out: nothing is packed. The blocks of
each other node come in one message.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from . import codec, collectives, host
from .agreement import Distributed, agree, common_dtype
from .bodies import Received
from .bulk import Item, broadcast, gather_parts
from .calls import Bytes, CollectiveCall, Group, as_bytes, dtype_name, room, tag_of_name
from .envelope import RAW
from .errors import CollectiveMismatch, UsageError
from .rules import plans
from .rules.maps import Map
from .rules.positions import Positions, count, from_vector, put, vector_of

SHARED_BYTES = 64 << 10
"""Size below which arrays are gathered by messages."""
_SLAB = 8 << 20
"""Limit of a part in bytes."""
_LEAST_SLAB = 1 << 20
_FEW = SHARED_BYTES // 8
"""Number of elements below which arrays of any map go as messages; ranks may differ in dtype, not in elements."""


def gather_array(array: Distributed, root: int | None) -> NDArray[Any] | None:
    """Return the whole array on `root` (None: on every rank), None elsewhere. Collective.

    Its dtype holds those of all parts. The root raises CollectiveMismatch if shapes or maps of ranks differ, UsageError
    if there is no common dtype. Ranks that have finished the call by then raise CollectiveMismatch in their next one.
    """
    group = array.comm.group
    part = host.to_host(array.owned)
    has_node = len(group.nodes) == 1
    if has_node and (_is_small_or_contiguous(array.shape, array.map) or not group.transport.has_windows):
        return _in_one_round(group, array.shape, array.map, part, root)
    dtype, _ = agree(array.comm, _call(root), [array])
    where = next((one.axes for one in plans.blocks(array.shape, array.map) if one.rank == group.rank), None)
    return gather_blocks(group, array.shape, dtype, part.astype(dtype, copy=False), where, root)


def _call(root: int | None) -> str:
    return "gather_all()" if root is None else f"gather(root={root})"


@functools.lru_cache(maxsize=256)
def _name(root: int | None, shape: tuple[int, ...], map: Map) -> str:
    return tag_of_name(f"{_call(root)} of {shape} by {map!r}")


@functools.lru_cache(maxsize=256)
def _is_small_or_contiguous(shape: tuple[int, ...], map: Map) -> bool:
    """Return whether the array is small, or each rank's part is contiguous in it."""
    return math.prod(shape) < _FEW or all(is_contiguous_block(shape, one.axes) for one in plans.blocks(shape, map))


def is_contiguous_block(shape: Sequence[int], where: Sequence[Positions]) -> bool:
    """Return whether a block is contiguous in an array in C order. `where`: its positions per dimension."""
    is_part = False
    for length, places in zip(reversed(shape), reversed(where), strict=True):
        if not isinstance(places, slice) or (places.step != 1 and count(places) > 1):
            return False
        if is_part and count(places) != 1:
            return False
        is_part = is_part or count(places) != length
    return True


def _in_one_round(
    group: Group, shape: tuple[int, ...], map: Map, part: NDArray[Any], root: int | None
) -> NDArray[Any] | None:
    to = 0 if root is None else root
    with group.call(_name(root, shape, map)) as call:
        whole: NDArray[Any] | None = None
        if group.rank != to:
            form, meta, buffers = codec.encode(part)
            call.send(to, meta, buffers, form)
        else:
            try:
                whole = _Assembly(group, shape, map, part).receive_all(call)
            except UsageError as error:
                if not (isinstance(error, CollectiveMismatch) and error.is_failure):  # that rank tells all itself
                    call.fail(str(error))
                raise
        if root is None:
            item = broadcast(group, call, to, None if whole is None else Item(*codec.encode(whole)))
            whole = collectives.decode_item(item) if whole is None else whole
    return whole


class _Assembly:
    """The array that the root assembles."""

    def __init__(self, group: Group, shape: tuple[int, ...], map: Map, part: NDArray[Any]) -> None:
        self._group, self._shape = group, shape
        self._places = {one.rank: one.axes for one in plans.blocks(shape, map)}
        self._part = part
        self._dtypes: list[tuple[np.dtype[Any], bool]] = []
        self._whole: NDArray[Any] | None = None

    def receive_all(self, call: CollectiveCall) -> NDArray[Any]:
        """Return the array after all parts have arrived."""
        mine = self._places.get(self._group.rank)
        if self._note_dtype(self._part.dtype, mine):
            assert mine is not None
            put(self._fitting(), mine, self._part)  # while the other ranks send theirs
        for rank in range(self._group.size):
            if rank != self._group.rank:
                self._take(call.receive(rank))
        return self._fitting()

    def _note_dtype(self, dtype: np.dtype[Any], where: Sequence[Positions] | None) -> bool:
        """Note the dtype of a part; return whether the part has elements."""
        is_filled = where is not None and all(map(count, where))
        if (dtype, is_filled) not in self._dtypes:
            self._dtypes.append((dtype, is_filled))
        return is_filled

    def _fitting(self) -> NDArray[Any]:
        """Return the array, in the dtype that holds all parts so far."""
        dtype = common_dtype(self._dtypes)
        if self._whole is None:
            self._whole = room(self._shape, dtype)
        elif self._whole.dtype != dtype:
            self._whole = self._whole.astype(dtype)
        return self._whole

    def _take(self, message: Received) -> None:
        envelope = message.envelope
        dtype, _, order = codec.array_of(envelope.meta)
        where = self._places.get(envelope.source)
        if not self._note_dtype(dtype, where):
            message.take()
            return
        assert where is not None
        whole = self._fitting()
        if dtype == whole.dtype and order == "C" and is_contiguous_block(self._shape, where):
            place = whole[tuple(one for one in where if isinstance(one, slice))]
            message.take_into(as_bytes(place.reshape(-1)).data)
        else:
            put(whole, where, codec.decode(envelope.form, envelope.meta, message.take()))


# ---- Blocks in place ----


def gather_blocks(
    group: Group,
    shape: Sequence[int],
    dtype: DTypeLike,
    block: NDArray[Any],
    where: Sequence[Positions] | None,
    root: int | None = 0,
) -> NDArray[Any] | None:
    """Return the array of all ranks' blocks on `root` (None: on every rank), None elsewhere. Collective.

    `where`: the ascending positions of this rank's `block` in each dimension, as in `plans.blocks`; None: the rank has
    no part. The blocks cover the array and do not overlap. `shape`, `dtype` and `root` must be the same on all ranks,
    else CollectiveMismatch; maps are not compared here.
    """
    whole_shape, kind = tuple(shape), np.dtype(dtype)
    if where is None:
        where = [slice(0, 0, 1)] * len(whole_shape)
        block = np.empty((0,) * len(whole_shape), kind)
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
    group: Group,
    call: CollectiveCall,
    mine: _Block,
    whole: NDArray[Any] | None,
    shape: tuple[int, ...],
    kind: Any,
    root: int,
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
    group: Group,
    call: CollectiveCall,
    mine: _Block,
    whole: NDArray[Any] | None,
    shape: tuple[int, ...],
    kind: Any,
    root: int,
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

    def write(number: int, memory: Bytes) -> bool:
        before, start, stop = cut.place(number)
        values = mine.values
        for index, places in zip(before, mine.where, strict=False):
            chosen = _between(places, index, index + 1)[0]
            if chosen.start == chosen.stop:
                return False
            values = values[chosen.start]
        chosen, along = _between(mine.where[cut.axis], start, stop)
        own = _Block(values[chosen], (along, *mine.where[cut.axis + 1 :]))
        own.put(part_of(memory, start, stop))
        return own.values.size > 0

    def read(number: int, memory: Bytes) -> None:
        assert whole is not None
        before, start, stop = cut.place(number)
        whole[before][start:stop] = part_of(memory, start, stop)

    return gather_parts(group, call, root, cut.elements * kind.itemsize, cut.number, write, read)
